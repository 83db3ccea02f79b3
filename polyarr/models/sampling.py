"""Sampling of tokens from logits: temperature, top-k, top-p, min-p, logit bias and penalties of repetition."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.spec import NARROW, float32, int32, shown

MAX_BIAS = 100.0  # largest magnitude of a logit bias, as in the OpenAI API: it excludes a token, or forces it
MAX_PENALTY = 2.0  # largest magnitude of a frequency or presence penalty, as in the OpenAI API
ROW_MULTIPLE = 64  # elements; more than any device reads at once
_OF_COUNTS = ("frequency_penalty", "presence_penalty")  # penalties that depend on how often a token was sampled
_MAX_TEMPERATURE = 3e38  # larger temperatures are clamped to it: it fits float32, and all tokens are equally likely


@dataclass(frozen=True)
class Sampling:
    """Parameters of sampling, in transformers' order: logit_bias, penalties, temperature, top_k, top_p, min_p.

    Args:
        temperature: The logits are divided by it; 0 always takes the most likely token.
        top_k: Sample only from the k most likely tokens; None: from all.
        top_p: Sample only from the fewest most likely tokens whose probabilities add up to at least top_p; None: from
            all.
        min_p: Sample only tokens with at least min_p times the probability of the most likely one; None: all.
        repetition_penalty: Positive logits of tokens that are in the text are divided by it, negative ones multiplied.
        frequency_penalty: It is subtracted from the logit of a token for each time that the token was sampled; from -2
            to 2.
        presence_penalty: It is subtracted from the logits of tokens that were sampled; from -2 to 2.
        logit_bias: Numbers from -100 to 100 that are added to the logits of tokens, by token; None: nothing is added.

    Raises:
        ValueError: A parameter is out of range or of another type.

    Examples:
        >>> from polyarr.models import Sampling
        >>> Sampling(temperature=0.8, top_k=20).numbers
        {'temperature': 0.8}

    Source: Fan et al. 2018, arXiv:1805.04833 (top_k); Holtzman et al. 2020, arXiv:1904.09751 (top_p); Nguyen et al.
        2024, arXiv:2407.01082 (min_p); Keskar et al. 2019, arXiv:1909.05858 (repetition_penalty); the OpenAI API
        (frequency_penalty, presence_penalty, logit_bias)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        top_k = self.top_k
        for name, is_right, due in (
            ("temperature", _within(self.temperature, lambda t: 0 <= t < math.inf), "0 or more, and finite"),
            ("top_k", top_k is None or (type(top_k) is int and top_k >= 1), "an int of at least 1"),
            ("top_p", self.top_p is None or _within(self.top_p, lambda p: 0 < p <= 1), "above 0 and at most 1"),
            ("min_p", self.min_p is None or _within(self.min_p, lambda p: 0 <= p <= 1), "from 0 to 1"),
            ("repetition_penalty", _within(self.repetition_penalty, lambda r: 0 < r < math.inf), "above 0"),
            ("frequency_penalty", _within(self.frequency_penalty, _is_penalty), "from -2 to 2"),
            ("presence_penalty", _within(self.presence_penalty, _is_penalty), "from -2 to 2"),
        ):
            if not is_right:
                raise ValueError(f"Sampling: {name} is {shown(getattr(self, name))}; it must be {due}")
        _check_bias(self.logit_bias)

    @property
    def numbers(self) -> dict[str, float]:
        """Scalar inputs of a compiled step: the parameters in use but top_k; at temperature 0, only the penalties."""
        neutral = {"top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, **dict.fromkeys(_OF_COUNTS, 0.0)}
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("top_k", "logit_bias")}
        found = {name: v for name, v in found.items() if v is not None and v != neutral.get(name)}
        if self.temperature == 0:
            found = {name: v for name, v in found.items() if name.endswith("_penalty")}
        return {name: float(min(v, _MAX_TEMPERATURE)) for name, v in found.items()}

    def inputs(self, size: int) -> dict[str, float]:
        """Return the scalar inputs of a compiled step that serves many texts, by name in alphabetical order.

        They are `numbers` and top_k, and what changes nothing but lets one step serve more texts.

        Args:
            size: Number of tokens to sample from.
        """
        found = self.numbers
        if "temperature" in found:
            found = {"min_p": 0.0, **found}
            if self.top_k is not None and self.top_k < size:
                found["top_k"] = float(self.top_k)
        if not found.keys().isdisjoint(_OF_COUNTS):
            found = {**dict.fromkeys(_OF_COUNTS, 0.0), **found}
        return dict(sorted(found.items()))


def _within(value: Any, condition: Any) -> bool:
    return type(value) in (int, float) and condition(value)


def _is_penalty(value: float) -> bool:
    return -MAX_PENALTY <= value <= MAX_PENALTY


def _check_bias(logit_bias: Any) -> None:
    due = "it must be a mapping from tokens to numbers from -100 to 100"
    if not isinstance(logit_bias, Mapping | None):
        raise ValueError(f"Sampling: logit_bias is {shown(logit_bias)}; {due}")
    for token, bias in (logit_bias or {}).items():
        if type(token) is not int or token < 0 or not _within(bias, lambda b: -MAX_BIAS <= b <= MAX_BIAS):
            raise ValueError(f"Sampling: logit_bias has {shown(bias)} for token {shown(token)}; {due}")


def choose(logits: Array, unit: Array | None, numbers: dict[str, Any], top_k: int | None = None) -> Array:
    """Return one token for each row of logits; of equally likely tokens, top_k and top_p keep the first.

    Args:
        logits: Floating-point array of shape (B, V).
        unit: Uniform numbers from 0 up to 1, (B, 1), from which the token is drawn by inverse transform sampling.
        numbers: Sampling.numbers or Sampling.inputs, which may be scalar inputs of a compiled function; without a
            temperature the most likely token is taken.
        top_k: As in Sampling; where `numbers` has a top_k, the largest that this may be.

    Returns:
        Integers of shape (B,).
    """
    if "temperature" not in numbers:
        return ops.argmax(logits, axis=-1)
    if unit is None:
        raise ValueError("choose: unit is None; a temperature needs uniform numbers, (B, 1)")
    count, min_p = logits.shape[-1], numbers.get("min_p")
    if (top_k is None or top_k >= count) and numbers.keys().isdisjoint(("top_k", "top_p")):
        return _drawn(_tempered(in_whole_vectors(logits), numbers["temperature"]), unit, min_p)
    ranked, tokens = ops.topk(logits, k=min(top_k or count, count))  # (B, K) the likeliest first
    if "top_k" in numbers:
        ranks = ops.iota(0, 1, ranked, size=ranked.shape[-1], dtype=float32)  # (K,)
        ranked = ops.where(ranks < numbers["top_k"], ranked, -math.inf)
    ranked = _tempered(in_whole_vectors(ranked), numbers["temperature"])
    drawn = _drawn(_nucleus(ranked, numbers["top_p"]) if "top_p" in numbers else ranked, unit, min_p)  # (B,)
    return ops.take_along_axis(tokens, drawn[:, None], axis=-1)[:, 0]


def in_whole_vectors(logits: Array) -> Array:
    """Return logits (..., V) with -inf after them up to a multiple of ROW_MULTIPLE.

    Devices may add up a row in an order that depends on where it begins. All rows begin alike then, so a row has the
    same bits wherever it is.
    """
    missing = -logits.shape[-1] % ROW_MULTIPLE
    if not missing:
        return logits
    none = ops.fill(-math.inf, logits, shape=(*logits.shape[:-1], missing), dtype=logits.dtype)
    return ops.concat([logits, none], axis=-1)


def sums_of(logits: Array) -> tuple[Array, ...]:
    """Return the sums, (B, V) each, by whose rounding tokens and log-probabilities depend on a row of logits (B, V)."""
    each = _tempered(in_whole_vectors(logits), 1.0)
    drawn, ranked = (ops.cumulative_sum(one, axis=-1) for one in (ops.exp(each), ops.softmax(each, axis=-1)))
    return drawn, ranked, ops.log_softmax(each, axis=-1)


def history_of(tokens: Array, padding: Array | None, vocab_size: int, numbers: dict[str, Any]) -> dict[str, Array]:
    """Return what the penalties need to know of the text so far.

    Args:
        tokens: Prompts, integers of shape (B, T).
        padding: Number of padding tokens at the start of each row, (B,); None: no padding.
        vocab_size: Number of tokens to choose from, V.
        numbers: Sampling.numbers.

    Returns:
        Dict with "occurred", a mask (B, V) of the tokens in each row, for a repetition penalty; and "counts", int32 of
        shape (B, V), how often each token was sampled, for the other penalties.
    """
    found = {}
    if "repetition_penalty" in numbers:
        found["occurred"] = _occurrence_mask(tokens, padding, vocab_size)
    if not numbers.keys().isdisjoint(_OF_COUNTS):
        found["counts"] = ops.fill(0, tokens, shape=(tokens.shape[0], vocab_size), dtype=int32)
    return found


def penalize(logits: Array, history: dict[str, Array], numbers: dict[str, Any]) -> Array:
    """Return the logits (B, V) after the penalties for tokens that are in a history of `history_of`."""
    if "occurred" in history:
        logits = _penalize_occurred(logits, history["occurred"], numbers["repetition_penalty"])
    if "counts" in history:
        counts = ops.astype(history["counts"], dtype=logits.dtype)  # (B, V)
        if "frequency_penalty" in numbers:
            logits = logits - counts * numbers["frequency_penalty"]
        if "presence_penalty" in numbers:
            logits = logits - ops.minimum(counts, 1) * numbers["presence_penalty"]
    return logits


def with_token(history: dict[str, Array], token: Array) -> dict[str, Array]:
    """Return a history after one more token of each row, integers of shape (B,)."""
    found = {}
    for name, seen in history.items():
        is_it = ops.iota(0, 1, seen, size=seen.shape[1], dtype=token.dtype) == token[:, None]  # (B, V)
        found[name] = seen | is_it if name == "occurred" else seen + ops.astype(is_it, dtype=int32)
    return found


def _penalize_occurred(logits: Array, occurred: Array, penalty: Any) -> Array:
    """Return the logits (B, V), with those of the marked tokens (B, V) lowered by the penalty."""
    return ops.where(occurred, ops.where(logits < 0, logits * penalty, logits / penalty), logits)


def _occurrence_mask(tokens: Array, padding: Array | None, vocab_size: int) -> Array:
    """Return the mask (B, V) of the tokens that occur in each row of tokens (B, T)."""
    each = ops.ones_like(tokens, dtype=int32)  # (B, T)
    if padding is not None:
        each = ops.astype(ops.iota(0, 1, tokens, size=tokens.shape[1], dtype=int32) >= padding[:, None], dtype=int32)
    none = ops.fill(0, tokens, shape=(tokens.shape[0], vocab_size), dtype=int32)
    return ops.scatter_add_along_axis(none, tokens, each, axis=1) > 0


def _tempered(logits: Array, temperature: Any) -> Array:
    """Return the logits divided by the temperature and shifted so that the largest is 0; others may become -inf."""
    behind = logits.astype(float32) if logits.dtype in NARROW else logits
    behind = behind - ops.max(behind, axis=-1, keepdims=True)
    # 0 / temperature is nan if the temperature underflows in this dtype, or on a device that flushes denormals.
    return ops.where(behind == 0, behind, behind / temperature)


def _nucleus(ranked: Array, top_p: Any) -> Array:
    """Return the descending logits, with -inf after the fewest whose probabilities add up to top_p; the first stays."""
    together = ops.cumulative_sum(ops.softmax(ranked, axis=-1), axis=-1)
    before = ops.concat([ops.zeros_like(together[..., :1]), together[..., :-1]], axis=-1)
    kept = (before == 0) | (before < top_p)
    return ops.where(kept, ranked, -math.inf)


def _drawn(logits: Array, unit: Array, min_p: Any) -> Array:
    """Return the index (B,) at which the cumulative sum of probabilities passes `unit`, for logits whose largest is 0.

    The index always has a probability above 0, however the sums are rounded.
    """
    weights = ops.exp(logits)  # (B, V), of which the largest is 1
    if min_p is not None:
        weights = ops.where(weights < min_p, 0, weights)
    together = ops.cumulative_sum(weights, axis=-1)
    due = ops.astype(unit, dtype=together.dtype) * together[:, -1:]  # (B, 1)
    possible, is_past = (ops.astype(mask, dtype=int32) for mask in (weights > 0, together > due))
    return ops.argmax(possible * (1 + is_past), axis=-1)
