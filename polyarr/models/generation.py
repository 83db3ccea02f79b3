"""Text generation: sample tokens from a language model one after the other."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation, ops, random
from polyarr.capture.compile import Compiled, compile
from polyarr.core.array import Array, spec_of
from polyarr.core.current import use_backend
from polyarr.core.errors import ShapeError
from polyarr.core.spec import INTEGERS, described, float32, shown
from polyarr.models.decoder import LanguageModel, check_tokens
from polyarr.models.logprobs import Logprobs, logprobs_of, prompt_logprobs
from polyarr.models.sampling import Sampling, choose, history_of, penalize, with_token
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
        **sampling: Parameters of Sampling, such as temperature and top_p.

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
    drawn = stream(
        model, tokens, max_new_tokens, padding=padding, seed=seed, vocab_size=vocab_size,
        stop_at_context=stop_at_context, **sampling,
    )  # fmt: skip
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
    step: Compiled[..., Any] | None = None,
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
    drawn = sample(
        model, tokens, max_new_tokens, padding=padding, seed=seed, vocab_size=vocab_size,
        stop_at_context=stop_at_context, step=step, **sampling,
    )  # fmt: skip
    return map(attrgetter("token"), drawn)


class Sample(NamedTuple):
    """One more token of each row.

    Attributes:
        token: Integers of shape (B, 1); None for the prompts.
        logprobs: Log-probabilities of the tokens, which have T = 1, or of the prompts' tokens after the first ones;
            None if they were not asked for.
        is_next_whole: Whether the next token takes a pass over a whole context, because the text is as long.
    """

    token: Array | None
    logprobs: Logprobs | None
    is_next_whole: bool = False


def sample(
    model: LanguageModel,
    tokens: Array,
    max_new_tokens: int,
    *,
    padding: Array | None = None,
    seed: int | Sequence[int] | None = None,
    vocab_size: int | None = None,
    stop_at_context: bool = False,
    step: Compiled[..., Any] | None = None,
    logprobs: int | None = None,
    echo: bool = False,
    **sampling: Any,
) -> Iterator[Sample]:
    """Yield the new tokens of `stream` with their log-probabilities.

    Args:
        model: As in `stream`.
        tokens: As in `stream`.
        max_new_tokens: As in `stream`.
        padding: As in `stream`.
        seed: As in `stream`.
        vocab_size: As in `stream`.
        stop_at_context: As in `stream`.
        step: As in `stream`.
        logprobs: Number of the most likely tokens whose log-probabilities are computed beside those of the sampled
            tokens, at least 1; None: none are computed.
        echo: Whether to yield first a Sample of the prompts, which needs `logprobs`. Their log-probabilities come from
            the same pass over the prompts as the first new token.
        **sampling: As in `stream`.

    Raises:
        ShapeError: As in `stream`; or the prompts are to be scored and do not fit into the context of the model.
        TypeError, ValueError: As in `stream`.
    """
    how = Sampling(**sampling)
    _check(tokens, max_new_tokens, padding, seed, vocab_size)
    if not isinstance(model, LanguageModel):
        raise TypeError(f"generate: model is {described(model)}; it must be a LanguageModel, such as a GPTModel")
    if echo and logprobs is None:
        raise ValueError("generate: echo is given without logprobs; it needs their number")
    size = min(vocab_size or model.config.vocab_size, model.config.vocab_size)
    if stop_at_context:
        max_new_tokens = limit_to_context(model, tokens.shape[1], max_new_tokens)
    if echo:
        check_tokens("generate", tokens, model.config.context_length)
    draws = _draws(tokens, seed) if how.temperature else None
    bias, limits = bias_of(how.logit_bias, size), (how.top_k, size, logprobs)
    return _drawn(step or next_token(), model, tokens, max_new_tokens, padding, draws, how.numbers, bias, limits, echo)


def limit_to_context(model: LanguageModel, length: int, count: int) -> int:
    """Return `count`, limited to the number of tokens that fit into a model's context after `length` tokens."""
    return min(count, max(0, model.config.context_length - length))


def next_token() -> Compiled[..., Any]:
    """Return a compiled function that samples one token, captured once per number of rows and kind of sampling."""
    return compile(_next_token, constants="limits", donate=("caches", "history"))


def _next_token(
    model: LanguageModel,
    tokens: Array,
    caches: list[KeyValueCache] | None,
    position: int | None,
    padding: Array | None,
    history: dict[str, Array],
    draw: tuple[Array, int] | None,
    numbers: dict[str, float],
    bias: Array | None,
    limits: tuple[int | None, int, int | None],
) -> tuple[Array, dict[str, Array], Logprobs | None]:
    """Return the token (B, 1) after tokens (B, T), the history after it, and its log-probabilities.

    `draw` is an array of uniform numbers from 0 up to 1, (B, any), and the column to use; `bias` is added to the
    logits, (V,); `limits` are top_k, the number of tokens to choose from, and the number of log-probabilities.
    """
    logits = model.next_token_logits(tokens, caches, position, padding)  # (B, V)
    return sampled(logits, tokens, history, draw, numbers, bias, limits)


def sampled(
    logits: Array,
    tokens: Array,
    history: dict[str, Array],
    draw: tuple[Array, int] | None,
    numbers: dict[str, Any],
    bias: Array | None,
    limits: tuple[int | None, int, int | None],
) -> tuple[Array, dict[str, Array], Logprobs | None]:
    """Return what `_next_token` does, for logits (B, V)."""
    top_k, size, top = limits
    adjusted = logits[:, :size]
    if bias is not None:
        adjusted = adjusted + ops.astype(bias, dtype=logits.dtype)
    adjusted = penalize(adjusted, history, numbers)
    unit = draw and ops.slice(draw[0], (0, draw[1]), steps=(1, 1), shape=(tokens.shape[0], 1))  # (B, 1)
    token = ops.astype(choose(adjusted, unit, numbers, top_k), dtype=tokens.dtype)  # (B,)
    found = None if top is None else logprobs_of(logits[:, None], token[:, None], top, size)
    return token[:, None], with_token(history, token), found


def _drawn(
    step: Compiled,
    model: LanguageModel,
    tokens: Array,
    count: int,
    padding: Array | None,
    draws: Iterator[tuple[Array, int]] | None,
    numbers: dict[str, float],
    bias: Array | None,
    limits: tuple[int | None, int, int | None],
    echo: bool,
) -> Iterator[Sample]:
    model = model.copy().eval()  # the caller's model stays in its mode
    length, (_, size, top) = model.config.context_length, limits
    history = history_of(tokens, padding, model.config.vocab_size, numbers)
    history = {name: seen[:, :size] for name, seen in history.items()}
    padding, new, end = _last_tokens(tokens, padding, length)
    caches = model.caches(new.shape[0], cache_capacity(model, end, count)) if count else None
    features = model.features(new, caches, None, padding) if count or echo else None  # eagerly: lengths differ
    if echo and features is not None and top is not None:
        yield Sample(None, prompt_logprobs(model, features, new, top, size))
    logits = model.head(features[:, -1:])[:, 0] if count and features is not None else None  # (B, V)
    position, text, is_beyond, features = None, [new], False, None  # frees the features
    for number in range(count):
        draw = next(draws) if draws else None
        chosen = draw, numbers, bias, limits
        if number == 0 and logits is not None:
            new, history, found = sampled(logits, new, history, *chosen)  # (B, 1)
        else:
            new, history, found = step(model, new, caches, position, padding, history, *chosen)
        yield Sample(new, found, end + 1 > length)
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


def cache_capacity(model: LanguageModel, length: int, count: int) -> int:
    """Return the capacity of the caches, in positions, for `count` tokens after `length` others."""
    return min(model.config.context_length, -(-(length + count) // _CACHE_MULTIPLE) * _CACHE_MULTIPLE)


def bias_of(logit_bias: Mapping[int, float] | None, size: int) -> Array | None:
    """Return what is added to the logits of `size` tokens, float32 of shape (V,)."""
    if not logit_bias:
        return None
    if max(logit_bias) >= size:
        raise ValueError(f"Sampling: logit_bias has token {max(logit_bias)}; tokens are from 0 to {size - 1}")
    bias = np.zeros(size, np.float32)
    bias[list(logit_bias)] = list(logit_bias.values())
    return creation.asarray(bias)


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
        units = _units(tokens, rows, seeds, block)
        yield from ((units, number) for number in range(_DRAWS_AT_ONCE))


def uniform_numbers(seed: int | None) -> Iterator[float]:
    """Yield the uniform numbers from which the tokens of one row are drawn."""
    like, block = _number_on_host(), 0
    while True:
        block += 1
        key = random.draw() if seed is None else (seed % 2**64, block)
        bits = ops.random_bits(*key, like, shape=(_DRAWS_AT_ONCE,)).numpy()
        yield from ((bits >> 8).astype(np.float32) * np.float32(2.0**-24)).tolist()


@cache
def _number_on_host() -> Array:
    with use_backend("numpy"):
        return creation.zeros(())


def _units(like: Array, rows: int, seeds: Sequence[int] | None, block: int) -> Array:
    """Return a block of uniform numbers from 0 up to 1 for each row."""
    if seeds is None:
        bits = ops.random_bits(*random.draw(), like, shape=(rows, _DRAWS_AT_ONCE))
    else:
        bits = ops.stack([ops.random_bits(one % 2**64, block, like, shape=(_DRAWS_AT_ONCE,)) for one in seeds])
    return ops.astype(bits >> 8, dtype=float32) * 2.0**-24


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
