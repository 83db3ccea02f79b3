"""Text generation: sample tokens from a language model one after the other."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from polyarr import ops, random
from polyarr.capture.compile import Compiled, compile
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.spec import INTEGERS, described, float32, shown
from polyarr.models.decoder import LanguageModel
from polyarr.models.sampling import Sampling, choose, mark_occurred, occurrence_mask, penalize_occurred
from polyarr.nn import KeyValueCache
from polyarr.ops.validation import check_array, whole

_DRAWS_AT_ONCE = 1024  # random numbers of a row that are generated at once
_CACHE_MULTIPLE = 256  # cache capacities are multiples of it, so that one compiled step serves texts of many lengths


def generate(
    model: LanguageModel,
    tokens: Array,
    max_new_tokens: int,
    *,
    padding: Array | None = None,
    seed: int | Sequence[int] | None = None,
    vocab_size: int | None = None,
    stop_at_context: bool = False,
    **sampling: Any,
) -> Array:
    """Return tokens followed by new ones that are sampled from a language model.

    A model attends to at most the last context_length tokens. Beyond that length every position moves with every token,
    so each new token takes a pass over a whole context instead of one cached step; a RuntimeWarning says when that
    begins.

    Args:
        model: A GPTModel, a LlamaModel or another LanguageModel. Dropout is off.
        tokens: Prompts: integers of shape (B, T), with T at least 1.
        max_new_tokens: Number of tokens to sample.
        padding: Integers of shape (B,): how many tokens at the start of each row are padding, for prompts of several
            lengths; None: no padding.
        seed: Seed of the sampling. Row b has the seed `seed + b`, or the b-th one of a sequence, and is sampled as if
            it were alone. None: numbers are drawn from polyarr.random.
        vocab_size: Sample only tokens below it, for a model with more tokens than its tokenizer; None: all.
        stop_at_context: Stop when the context is full.
        **sampling: temperature, top_k, top_p, min_p and repetition_penalty; see Sampling.

    Returns:
        Integers of shape (B, T + max_new_tokens), or fewer if `stop_at_context` ended the text.

    Raises:
        ShapeError: `tokens` is not of shape (B, T), or `padding` not of shape (B,).
        TypeError: `model` is not a LanguageModel.
        ValueError: A parameter is out of range.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.models import GPTModel, generate
        >>> sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> model = GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False})
        >>> generate(model, pa.asarray([[1, 2, 3]]), 4, temperature=0).shape
        (1, 7)
    """
    options = {"padding": padding, "seed": seed, "vocab_size": vocab_size, "stop_at_context": stop_at_context}
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
    stop_at_context: bool = False,
    step: Compiled | None = None,
    **sampling: Any,
) -> Iterator[Array]:
    """Yield the new tokens of `generate` one by one, each an array of shape (B, 1), without reading the device.

    Args:
        model: As in `generate`.
        tokens: As in `generate`.
        max_new_tokens: As in `generate`.
        padding: As in `generate`.
        seed: As in `generate`.
        vocab_size: As in `generate`.
        stop_at_context: As in `generate`.
        step: Compiled function from `next_token`, to share it among many texts of one model; None: a new one.
        **sampling: As in `generate`.

    Yields:
        Integers of shape (B, 1).

    Raises:
        ShapeError: `tokens` is not of shape (B, T), or `padding` not of shape (B,).
        TypeError: `model` is not a LanguageModel.
        ValueError: A parameter is out of range.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.models import GPTModel, stream
        >>> sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> model = GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False})
        >>> [token.shape for token in stream(model, pa.asarray([[1, 2, 3]]), 2)]
        [(1, 1), (1, 1)]
    """
    how = Sampling(**sampling)
    _check(tokens, max_new_tokens, padding, seed, vocab_size)
    if not isinstance(model, LanguageModel):
        raise TypeError(f"generate: model is {described(model)}; it must be a LanguageModel, such as a GPTModel")
    size = min(vocab_size or model.config.vocab_size, model.config.vocab_size)
    if stop_at_context:
        max_new_tokens = limit_to_context(model, tokens.shape[1], max_new_tokens)
    draws = _draws(tokens, seed) if how.temperature else None
    return _drawn(step or next_token(), model, tokens, max_new_tokens, padding, draws, how, size)


def limit_to_context(model: LanguageModel, length: int, count: int) -> int:
    """Return `count`, limited to the number of tokens that fit into a model's context after `length` tokens."""
    return max(0, min(count, model.config.context_length - length))


def next_token() -> Compiled:
    """Return a compiled function that samples one token, captured once per number of rows and kind of sampling."""
    return compile(_next_token, constants="limits", donate=("caches", "occurred"))


def _next_token(
    model: LanguageModel,
    tokens: Array,
    caches: list[KeyValueCache] | None,
    position: int | None,
    padding: Array | None,
    occurred: Array | None,
    draw: tuple[Array, int] | None,
    numbers: dict[str, float],
    limits: tuple[int | None, int],
) -> tuple[Array, Array | None]:
    """Return the token (B, 1) after tokens (B, T), and the updated mask of tokens that occurred (B, V).

    `draw` is an array of uniform numbers from 0 up to 1, (B, any), and the column to use; `limits` are top_k and the
    number of tokens to choose from.
    """
    top_k, size = limits
    logits = model.next_token_logits(tokens, caches, position, padding)[:, :size]  # (B, V)
    if occurred is not None:
        logits = penalize_occurred(logits, occurred, numbers["repetition_penalty"])
    unit = draw and ops.slice(draw[0], (0, draw[1]), steps=(1, 1), shape=(tokens.shape[0], 1))  # (B, 1)
    token = ops.astype(choose(logits, unit, numbers, top_k), dtype=tokens.dtype)  # (B,)
    return token[:, None], None if occurred is None else mark_occurred(occurred, token)


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
    occurred = None
    if "repetition_penalty" in numbers:
        occurred = occurrence_mask(tokens, padding, model.config.vocab_size)[:, :size]
    padding, new, end = _last_tokens(tokens, padding, length)
    caches, position, text = model.caches(new.shape[0], min(length, _rounded(end + count))), None, [new]
    is_beyond = False
    for number in range(count):
        call = step.fn if number == 0 else step  # the prompt runs eagerly: each of its lengths would be a capture
        draw = next(draws) if draws else None
        new, occurred = call(model, new, caches, position, padding, occurred, draw, numbers, limits)  # (B, 1), (B, V)
        yield new
        text, position, end = [*text, new], end, end + 1
        if end > length:  # every position moves, which makes the caches useless
            if not is_beyond and number + 1 < count:
                _say_it_is_beyond(length)
            is_beyond = True
            padding, new, end = _last_tokens(ops.concat(text, axis=1), padding, length)
            text, caches, position = [new], None, None


def _say_it_is_beyond(length: int) -> None:
    text = f"generate: the text is longer than the model's context of {length:,} tokens: from here on each token takes"
    text += " a pass over a whole context; stop_at_context=True (--stop-at-context) ends texts before that"
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def _rounded(size: int) -> int:
    return -(-size // _CACHE_MULTIPLE) * _CACHE_MULTIPLE


def _last_tokens(tokens: Array, padding: Array | None, length: int) -> tuple[Array | None, Array, int]:
    """Return the padding of the last `length` tokens, these tokens, and their number."""
    gone = max(0, tokens.shape[1] - length)
    if gone and padding is not None:
        padding = ops.maximum(padding - gone, 0)
    return padding, tokens[:, gone:], tokens.shape[1] - gone


def _draws(tokens: Array, seed: int | Sequence[int] | None) -> Iterator[tuple[Array, int]]:
    """Yield for each token an array of uniform numbers from 0 up to 1, (B, any), and the column to use.

    The numbers of a row depend on its seed only.
    """
    rows, block = tokens.shape[0], 0
    seeds = [seed + row for row in range(rows)] if isinstance(seed, int) else seed
    while True:
        block += 1
        if seeds is None:
            bits = ops.random_bits(*random.draw(), tokens, shape=(rows, _DRAWS_AT_ONCE))
        else:
            bits = ops.stack([ops.random_bits(one % 2**64, block, tokens, shape=(_DRAWS_AT_ONCE,)) for one in seeds])
        units = ops.astype(bits >> 8, dtype=float32) * 2.0**-24
        yield from ((units, number) for number in range(_DRAWS_AT_ONCE))


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
        (not all(type(one) is int for one in seeds), f"seed is {shown(seed)}; it must be an int, or one for each row"),
        (
            isinstance(seed, Sequence) and len(seeds) != rows,
            f"there are {len(seeds)} seeds; it must be one for each of {rows} rows",
        ),
    ):
        if wrong:
            raise ValueError(f"generate: {text}")
