"""How a token is chosen from logits."""

import math
from dataclasses import dataclass, fields
from typing import Any

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.spec import NARROW, float32, int32, told

_HOTTEST = 3e38  # as a temperature: all are equally likely, and float32 still holds it


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, in transformers' words and order: penalty, temperature, top_k, top_p, min_p.

    temperature         the logits are divided by it; 0 takes the likeliest token
    top_k               only the k likeliest
    top_p               only the fewest likeliest that together have at least this probability
    min_p               only those that have at least this share of the likeliest one's probability
    repetition_penalty  positive logits of tokens that the text has are divided by it, negative ones multiplied

    Errors:  ValueError for one out of range, or of another type
    Source:  Fan et al. 2018, arXiv:1805.04833 (top_k); Holtzman et al. 2020, arXiv:1904.09751 (top_p); Nguyen et al.
             2024, arXiv:2407.01082 (min_p); Keskar et al. 2019, arXiv:1909.05858 (repetition_penalty)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        top_k = self.top_k
        for name, is_right, due in (
            ("temperature", _within(self.temperature, lambda t: 0 <= t < math.inf), "0 or more"),
            ("top_k", top_k is None or (type(top_k) is int and top_k >= 1), "an int of at least 1"),
            ("top_p", self.top_p is None or _within(self.top_p, lambda p: 0 < p <= 1), "above 0 and at most 1"),
            ("min_p", self.min_p is None or _within(self.min_p, lambda p: 0 <= p <= 1), "from 0 to 1"),
            ("repetition_penalty", _within(self.repetition_penalty, lambda r: 0 < r < math.inf), "above 0"),
        ):
            if not is_right:
                raise ValueError(f"Sampling: {name} is {told(getattr(self, name))}; it must be {due}")

    @property
    def numbers(self) -> dict[str, float]:
        """What of it takes part in arithmetic; of a greedy choice no more than the penalty."""
        left_out = {"top_k": self.top_k, "repetition_penalty": 1.0, "top_p": 1.0, "min_p": 0.0}
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        found = {name: v for name, v in found.items() if v is not None and v != left_out.get(name)}
        if self.temperature == 0:
            return {name: float(v) for name, v in found.items() if name == "repetition_penalty"}
        return {name: float(min(v, _HOTTEST)) for name, v in found.items()}


def _within(value: Any, condition: Any) -> bool:
    return type(value) in (int, float) and condition(value)


def choose(logits: Array, unit: Array | None, numbers: dict[str, Any], top_k: int | None = None) -> Array:
    """One token for each row of logits (B, V) -> (B,). Of equally likely ones, top_k and top_p keep the first.

    unit     (B, 1) from 0 up to 1: where in the row's probabilities the token is, in their order
    numbers  Sampling.numbers, which may be others at each run of a compiled function; without a temperature the
             likeliest token is taken
    """
    if "temperature" not in numbers:
        return ops.argmax(logits, axis=-1)
    count, min_p = logits.shape[-1], numbers.get("min_p")
    if (top_k is None or top_k >= count) and "top_p" not in numbers:
        return _drawn(_tempered(logits, numbers["temperature"]), unit, min_p)
    ranked, tokens = ops.topk(logits, k=min(top_k or count, count))  # (B, K) the likeliest first
    ranked = _tempered(ranked, numbers["temperature"])
    drawn = _drawn(_nucleus(ranked, numbers["top_p"]) if "top_p" in numbers else ranked, unit, min_p)  # (B,)
    return ops.take_along_axis(tokens, drawn[:, None], axis=-1)[:, 0]


def penalised(logits: Array, seen: Array, penalty: Any) -> Array:
    """The logits (B, V), those of seen tokens (B, V) further down."""
    return ops.where(seen, ops.where(logits < 0, logits * penalty, logits / penalty), logits)


def seen_in(tokens: Array, padding: Array | None, vocab_size: int) -> Array:
    """Which tokens are in each row of tokens (B, T): bool (B, V)."""
    each = ops.ones_like(tokens, dtype=int32)  # (B, T)
    if padding is not None:
        each = ops.astype(ops.arange(0, 1, tokens, size=tokens.shape[1], dtype=int32) >= padding[:, None], dtype=int32)
    none = ops.full(0, tokens, shape=(tokens.shape[0], vocab_size), dtype=int32)
    return ops.scatter_add_along_axis(none, tokens, each, axis=1) > 0


def with_token(seen: Array, token: Array) -> Array:
    """Which tokens (B, V) are in each row, once it has one more (B,)."""
    return seen | (ops.arange(0, 1, seen, size=seen.shape[1], dtype=token.dtype) == token[:, None])


def _tempered(logits: Array, temperature: Any) -> Array:
    """The logits less their largest, divided by the temperature: the largest is 0, the others may be -inf."""
    behind = logits.astype(float32) if logits.dtype in NARROW else logits
    behind = behind - ops.max(behind, axis=-1, keepdims=True)
    # 0 / temperature is nan where the temperature is too small for the dtype, or for a device without denormals.
    return ops.where(behind == 0, behind, behind / temperature)


def _nucleus(ranked: Array, top_p: Any) -> Array:
    """The logits, which fall, -inf behind the fewest that together have probability top_p; the first always stays."""
    together = ops.cumulative_sum(ops.softmax(ranked, axis=-1), axis=-1)
    before = ops.concat([ops.zeros_like(together[..., :1]), together[..., :-1]], axis=-1)
    kept = (before == 0) | (before < top_p)
    return ops.where(kept, ranked, -math.inf)


def _drawn(logits: Array, unit: Array, min_p: Any) -> Array:
    """The index (B,) at which the running sum of probabilities passes unit; of one with probability, whatever rounds.

    logits  (B, V), of which the largest is 0
    """
    weights = ops.exp(logits)  # (B, V), of which the largest is 1
    if min_p is not None:
        weights = ops.where(weights < min_p, 0, weights)
    together = ops.cumulative_sum(weights, axis=-1)
    due = ops.astype(unit, dtype=together.dtype) * together[:, -1:]  # (B, 1)
    possible, is_past = (ops.astype(mask, dtype=int32) for mask in (weights > 0, together > due))
    return ops.argmax(possible * (1 + is_past), axis=-1)
