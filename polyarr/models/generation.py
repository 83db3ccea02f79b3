"""Text from a language model: tokens drawn one after the other."""

from collections.abc import Iterator, Sequence
from typing import Any

from polyarr import ops, random
from polyarr.capture.compile import Compiled, compile
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.spec import INTEGERS, described, float32, told
from polyarr.models.decoder import LanguageModel
from polyarr.models.sampling import Sampling, choose, penalised, seen_in, with_token
from polyarr.nn import KeyValueCache
from polyarr.ops.validation import check_array, whole

_BLOCK = 1024  # draws of a row that are made at once
_ROOM = 256  # caches have room for a multiple of so many tokens, so that one capture serves texts of many lengths


def generate(
    model: LanguageModel,
    tokens: Array,
    max_new_tokens: int,
    *,
    padding: Array | None = None,
    seed: int | Sequence[int] | None = None,
    vocab_size: int | None = None,
    **sampling: Any,
) -> Array:
    """tokens (B, T) followed by max_new_tokens more, each drawn from the model: (B, T + max_new_tokens).

    padding     (B,) how many of each row's first tokens are none, so that shorter prompts end where the longest does
    seed        the same one draws the same tokens: row b by seed + b, or by the b-th of several, as if it were alone
    vocab_size  only tokens below it are drawn, of a model that has room for more than its tokenizer
    sampling    temperature, top_k, top_p, min_p, repetition_penalty, as Sampling has them

    The model sees at most its context's last tokens. Beyond that every position moves with every token, so that all
    are computed anew: a text is what it would be without a cache, and takes longer.

    Errors:  ValueError for a parameter out of range; ShapeError unless tokens is [B, at least 1] and padding [B]
    """
    options = {"padding": padding, "seed": seed, "vocab_size": vocab_size}
    drawn = stream(model, tokens, max_new_tokens, **options, **sampling)
    return ops.concat([tokens, *drawn], axis=1)


def stream(
    model: LanguageModel,
    tokens: Array,
    max_new_tokens: int,
    *,
    padding: Array | None = None,
    seed: int | Sequence[int] | None = None,
    vocab_size: int | None = None,
    step: Compiled | None = None,
    **sampling: Any,
) -> Iterator[Array]:
    """The new tokens of `generate` one by one, each (B, 1). Nothing is read from the device.

    step  what next_token gave, for many texts of one model: it is captured once for all of them
    """
    how = Sampling(**sampling)
    _check(tokens, max_new_tokens, padding, seed, vocab_size)
    if not isinstance(model, LanguageModel):
        raise TypeError(f"generate: model is {described(model)}; it must be a LanguageModel, such as a GPTModel")
    size = min(vocab_size or model.config.vocab_size, model.config.vocab_size)
    draws = _draws(tokens, seed) if how.temperature else None
    return _drawn(step or next_token(), model, tokens, max_new_tokens, padding, draws, how, size)


def next_token() -> Compiled:
    """What draws a token, captured once for each number of rows and each kind of sampling."""
    return compile(_next_token, constants="limits", donate=("caches", "seen"))


def _next_token(
    model: LanguageModel,
    tokens: Array,
    caches: list[KeyValueCache] | None,
    position: int | None,
    padding: Array | None,
    seen: Array | None,
    draw: tuple[Array, int] | None,
    numbers: dict[str, float],
    limits: tuple[int | None, int],
) -> tuple[Array, Array | None]:
    """The token (B, 1) after tokens (B, T), and which ones there are now.

    draw    numbers from 0 up to 1 (B, any), and which of them are to be used
    limits  top_k, and how many tokens there are to choose from
    """
    top_k, size = limits
    logits = model.following(tokens, caches, position, padding)[:, :size]  # (B, V)
    if seen is not None:
        logits = penalised(logits, seen, numbers["repetition_penalty"])
    unit = draw and ops.slice(draw[0], (0, draw[1]), steps=(1, 1), shape=(tokens.shape[0], 1))  # (B, 1)
    token = ops.astype(choose(logits, unit, numbers, top_k), dtype=tokens.dtype)  # (B,)
    return token[:, None], None if seen is None else with_token(seen, token)


def _drawn(
    step: Compiled,
    model: LanguageModel,
    tokens: Array,
    count: int,
    padding: Array | None,
    draws: Iterator[tuple[Array, int]] | None,
    how: Sampling,
    size: int,
) -> Iterator[Array]:
    model = model.copy().eval()  # the caller's model stays in its mode
    length, numbers, limits = model.config.context_length, how.numbers, (how.top_k, size)
    seen = None
    if "repetition_penalty" in numbers:
        seen = seen_in(tokens, padding, model.config.vocab_size)[:, :size]
    padding, new, end = _within(tokens, padding, length)
    caches, position, text = model.caches(new.shape[0], min(length, _rounded(end + count))), None, [new]
    for number in range(count):
        call = step.fn if number == 0 else step  # prompts of all lengths need no capture
        draw = next(draws) if draws else None
        new, seen = call(model, new, caches, position, padding, seen, draw, numbers, limits)  # (B, 1), (B, V)
        yield new
        text, position, end = [*text, new], end, end + 1
        if end > length:  # every position moves, so what was cached is of no use
            padding, new, end = _within(ops.concat(text, axis=1), padding, length)
            text, caches, position = [new], None, None


def _rounded(size: int) -> int:
    return -(-size // _ROOM) * _ROOM


def _within(tokens: Array, padding: Array | None, length: int) -> tuple[Array | None, Array, int]:
    """The padding that is left of the last `length` tokens, these tokens, and how many they are."""
    gone = max(0, tokens.shape[1] - length)
    if gone and padding is not None:
        padding = ops.maximum(padding - gone, 0)
    return padding, tokens[:, gone:], tokens.shape[1] - gone


def _draws(tokens: Array, seed: int | Sequence[int] | None) -> Iterator[tuple[Array, int]]:
    """For every token numbers from 0 up to 1, (B, any), and which of them to take; a row's depend on its seed only."""
    rows, block = tokens.shape[0], 0
    seeds = [seed + row for row in range(rows)] if isinstance(seed, int) else seed
    while True:
        block += 1
        if seeds is None:
            bits = ops.random_bits(*random.draw(), tokens, shape=(rows, _BLOCK))
        else:
            bits = ops.stack([ops.random_bits(one % 2**64, block, tokens, shape=(_BLOCK,)) for one in seeds])
        units = ops.astype(bits >> 8, dtype=float32) * 2.0**-24
        yield from ((units, number) for number in range(_BLOCK))


def _check(
    tokens: Array, count: int, padding: Array | None, seed: int | Sequence[int] | None, vocab_size: int | None
) -> None:
    check_array("generate", "tokens", tokens)
    if len(tokens.shape) != 2 or tokens.shape[1] < 1:
        raise ShapeError(f"generate: tokens is {spec_of(tokens)}; it must be [batch, at least 1]")
    rows = tokens.shape[0]
    if padding is not None and (tuple(padding.shape) != (rows,) or padding.dtype not in INTEGERS):
        raise ShapeError(f"generate: padding is {spec_of(padding)}; it must be {rows} integers")
    seeds = list(seed) if isinstance(seed, Sequence) else [] if seed is None else [seed]
    for wrong, text in (
        (whole("generate", "max_new_tokens", count) < 0, f"max_new_tokens is {count}; it must not be negative"),
        (
            vocab_size is not None and whole("generate", "vocab_size", vocab_size) < 1,
            f"vocab_size is {vocab_size}; it must be at least 1",
        ),
        (not all(type(one) is int for one in seeds), f"seed is {told(seed)}; it must be an int, or one for each row"),
        (
            isinstance(seed, Sequence) and len(seeds) != rows,
            f"there are {len(seeds)} seeds; it must be one for each of {rows} rows",
        ),
    ):
        if wrong:
            raise ValueError(f"generate: {text}")
