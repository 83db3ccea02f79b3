"""Text from a language model: tokens drawn one after the other."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from polyarr import ops, random
from polyarr.capture.compile import compile
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.spec import NARROW, float32
from polyarr.models.decoder import LanguageModel
from polyarr.nn import KeyValueCache

_HOTTEST = 3e38  # as a temperature: all are equally likely, and float32 still holds it


def generate(
    model: LanguageModel,
    tokens: Array,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    vocab_size: int | None = None,
) -> Array:
    """tokens (B, T) followed by max_new_tokens more, each drawn from the model: (B, T + max_new_tokens).

    The model sees at most its context's last tokens. Temperature 0 takes the likeliest token. top_k keeps the k
    likeliest; top_p the fewest that together have at least this probability. The same seed draws the same tokens.
    Of a model that has room for more tokens than its tokenizer, only the first vocab_size are drawn.

    Errors:  ValueError for a parameter out of range; ShapeError unless tokens is [B, at least 1]
    """
    drawn = stream(model, tokens, max_new_tokens, temperature, top_k, top_p, seed, vocab_size)
    return ops.concat([tokens, *drawn], axis=1)


def stream(
    model: LanguageModel,
    tokens: Array,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    vocab_size: int | None = None,
) -> Iterator[Array]:
    """The new tokens of `generate` one by one, each (B, 1). Nothing is read from the device."""
    _check_sampling(tokens, max_new_tokens, temperature, top_k, top_p, vocab_size)
    return _drawn(model, tokens, max_new_tokens, temperature, top_k, top_p, seed, vocab_size)


def _drawn(
    model: LanguageModel,
    tokens: Array,
    count: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: Any,
    vocab_size: int | None,
) -> Iterator[Array]:
    model = model.copy().eval()  # the caller's model stays in its mode
    length = model.config.context_length
    state = None if seed is None else (seed, 0)

    @compile(donate="caches")  # which are written over
    def following(
        model: LanguageModel, tokens: Array, caches: list[KeyValueCache] | None, position: int | None
    ) -> Array:
        logits = model(tokens, caches, position)[:, -1, :vocab_size]  # (B, V)
        return ops.astype(choose(logits, temperature, top_k, top_p)[:, None], dtype=tokens.dtype)  # (B, 1)

    new = tokens[:, -length:]  # (B, T)
    seen, position, end = [new], None, new.shape[1]
    caches = model.caches(tokens.shape[0], min(length, end + count))
    for _ in range(count):
        # Between two tokens the caller may draw: its random numbers are set aside for one draw only.
        with random.restored(state) if state else nullcontext():
            new = following(model, new, caches, position)  # (B, 1)
            state = random.get_state() if state else None
        yield new
        seen, position, end = [*seen, new], end, end + 1
        if end > length:  # every position moves, so what was cached is of no use
            new = ops.concat(seen, axis=1)[:, -length:]
            seen, caches, position, end = [new], None, None, length


def choose(
    logits: Array, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """One token for each row of logits (..., V) -> (...). Of equally likely ones, top_k and top_p keep the first."""
    if temperature == 0:
        return ops.argmax(logits, axis=-1)
    if top_k is None and top_p is None:
        return random.choice_from_logits(_tempered(logits, temperature))
    count = logits.shape[-1]
    ranked, tokens = ops.topk(logits, k=min(top_k or count, count))  # (..., K) the likeliest first
    ranked = _tempered(ranked, temperature)
    drawn = random.choice_from_logits(ranked if top_p is None else _nucleus(ranked, top_p))  # (...)
    return ops.take_along_axis(tokens, drawn[..., None], axis=-1)[..., 0]


def _tempered(logits: Array, temperature: float) -> Array:
    """The logits less their largest, divided by the temperature: the largest is 0, the others may be -inf."""
    behind = logits.astype(float32) if logits.dtype in NARROW else logits
    behind = behind - ops.max(behind, axis=-1, keepdims=True)
    # 0 / temperature is nan where the temperature is too small for the dtype, or for a device without denormals.
    return ops.where(behind == 0, behind, behind / min(temperature, _HOTTEST))


def _nucleus(ranked: Array, top_p: float) -> Array:
    """The logits, which fall, -inf behind the fewest that together have probability top_p; the first always stays."""
    together = ops.cumulative_sum(ops.softmax(ranked, axis=-1), axis=-1)
    before = ops.concat([ops.zeros_like(together[..., :1]), together[..., :-1]], axis=-1)
    kept = (before == 0) | (before < top_p)
    return ops.where(kept, ranked, -math.inf)


def _check_sampling(
    tokens: Array,
    count: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    vocab_size: int | None,
) -> None:
    if len(tokens.shape) != 2 or tokens.shape[1] < 1:
        raise ShapeError(f"generate: tokens is {spec_of(tokens)}; it must be [batch, at least 1]")
    for wrong, text in (
        (count < 0, f"max_new_tokens is {count}; it must not be negative"),
        (not 0 <= temperature < math.inf, f"temperature is {temperature}; it must be 0 or more"),
        (top_k is not None and top_k < 1, f"top_k is {top_k}; it must be at least 1"),
        (top_p is not None and not 0 < top_p <= 1, f"top_p is {top_p}; it must be above 0 and at most 1"),
        (vocab_size is not None and vocab_size < 1, f"vocab_size is {vocab_size}; it must be at least 1"),
    ):
        if wrong:
            raise ValueError(f"generate: {text}")
