"""Rotary position embeddings: rotate pairs of numbers by the position, so that attention sees distances."""

import math
from typing import Any, NamedTuple

from polyarr import creation, ops
from polyarr.core.array import Array
from polyarr.core.spec import float32, float64, int32
from polyarr.ops.validation import check_array, number, whole


class RotaryScaling(NamedTuple):
    """Scaling of rotary embeddings for texts longer than the original length.

    "linear" divides the rate of every pair by factor. "llama3" (Llama 3.1 and later) and "yarn" keep pairs that rotate
    at least high_freq_factor times within original_length, and divide the rate of pairs that rotate at most
    low_freq_factor times. Those between are interpolated: "llama3" by their number of rotations, "yarn" by their index.
    "longrope" divides the rate of each pair by a factor of its own: by short_factors if the context is at most
    original_length, otherwise by long_factors.

    Attributes:
        factor: Factor by which slow rotations become slower; "longrope" ignores it.
        low_freq_factor: Number of rotations up to which a pair is slow; for "llama3" and "yarn".
        high_freq_factor: Number of rotations from which a pair stays as it is; for "llama3" and "yarn".
        original_length: Number of positions that the model was trained with at first; "linear" ignores it.
        kind: "llama3", "yarn", "linear" or "longrope".
        attention_factor: Factor of the rotated queries and keys.
        short_factors: For "longrope", a factor for each pair.
        long_factors: For "longrope", likewise.
        truncate: For "yarn", whether the first and last interpolated pairs are rounded outwards to whole numbers.

    Source: Chen et al. 2023, arXiv:2306.15595 (linear); Peng et al. 2023, arXiv:2309.00071 (yarn);
        Ding et al. 2024, arXiv:2402.13753 (longrope)
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192
    kind: str = "llama3"
    attention_factor: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    truncate: bool = True


class RotaryTables(NamedTuple):
    """Rotary tables: the cosines and sines of the angles of each position, (T, D / 2) or (B, T, D / 2)."""

    cos: Array
    sin: Array


def positions_of(like: Array, count: int, position: int | Array, padding: Array | None = None) -> Array:
    """Return the numbers (T, 1) of `count` positions from a position on.

    With positions (B,), or padding (B,) of each row or (B, T) of each token, they are (B, T, 1). Positions within the
    padding are 0.
    """
    at = ops.iota(0, 1, like, size=count, dtype=int32)[:, None] + by_row(position, 3)  # (T, 1) or (B, T, 1)
    if padding is None:
        return at
    batch, *tokens = padding.shape
    before = ops.reshape(ops.astype(padding, dtype=int32), shape=(batch, *(tokens or [1]), 1))  # (B, 1 or T, 1)
    return ops.maximum(at - before, 0)


def by_row(position: int | Array, ndim: int) -> Any:
    """Return positions (B,) with `ndim` axes, (B, 1, ...), and one position as it is."""
    if not isinstance(position, Array) or not position.ndim:
        return position
    return ops.reshape(position, shape=(-1,) + (1,) * (ndim - 1))


def turns(
    like: Array,
    head_size: int,
    count: int,
    position: int | Array = 0,
    theta: float = 1e4,
    scaling: RotaryScaling | None = None,
    padding: Array | None = None,
    context_length: int = 0,
) -> RotaryTables:
    """Return the rotary tables of `count` positions from a position on.

    Pair i of a position rotates by position * theta^(-2 i / head_size). The tables are float32 beside narrower floats:
    bfloat16 would lose distances of far positions.

    Args:
        like: Array whose backend the tables are on; float64 gives float64 tables.
        head_size: Length D of the vectors of a head.
        count: Number T of positions.
        position: First position, or those of each row, int32 (B,); in a compiled function it may change at each run.
        theta: Base of the rates, above 0.
        scaling: RotaryScaling, or None.
        padding: Integer array (B,): the number of padding positions at the beginning of each row; or (B, T): those
            before the text that each token belongs to; None for none.
        context_length: Largest number of positions of the model, which chooses the factors of "longrope".

    Returns:
        RotaryTables (cos, sin).

    Raises:
        ValueError: head_size or theta is not above 0.
        TypeError: A number has a wrong type.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.turns(pa.zeros(1), head_size=2, count=2).sin
        Array([[0.      ],
               [0.841471]], float32, 'numpy')

    Source: Su et al. 2021, arXiv:2104.09864
    """
    check_array("turns", "like", like)
    head_size, count = whole("turns", "head_size", head_size), whole("turns", "count", count)
    if head_size < 1 or not number("turns", "theta", theta) > 0:
        raise ValueError(f"turns: head_size is {head_size}, theta is {theta}; they must be above 0")
    dtype = float64 if like.dtype == float64 else float32
    pairs = head_size // 2
    rate = ops.exp(ops.iota(0, -2 * math.log(theta) / head_size, like, size=pairs, dtype=dtype))  # (D / 2,)
    if scaling is not None:
        rate = _scaled(rate, scaling, theta, context_length)
    angle = ops.astype(positions_of(like, count, position, padding), dtype=dtype) * rate  # (T, D / 2)
    tables = RotaryTables(ops.cos(angle), ops.sin(angle))
    if scaling is None or scaling.attention_factor == 1:
        return tables
    return RotaryTables(*(table * scaling.attention_factor for table in tables))


def _scaled(rate: Array, scaling: RotaryScaling, theta: float, context_length: int) -> Array:
    """Return the scaled rates (D / 2,)."""
    if scaling.kind == "linear":
        return rate / scaling.factor
    if scaling.kind == "longrope":
        is_long = context_length > scaling.original_length
        factors = scaling.long_factors if is_long else scaling.short_factors
        return rate / creation.asarray(factors, dtype=rate.dtype, device=rate.device)
    if scaling.kind == "yarn":
        first, last = _slowing_pairs(rate.shape[0], scaling, theta)
        kept = ops.clip((last - ops.iota(0, 1, rate, size=rate.shape[0], dtype=rate.dtype)) / (last - first), 0, 1)
    else:
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        whole_turns = rate * (scaling.original_length / (2 * math.pi))
        kept = ops.clip((whole_turns - low) / (high - low), 0, 1)
    return rate * (kept + (1 - kept) / scaling.factor)


def _slowing_pairs(pairs: int, scaling: RotaryScaling, theta: float) -> tuple[float, float]:
    """Return the last pair that yarn keeps and the first one that is slower by the whole factor."""

    def pair_with(rotations: float) -> float:
        return pairs * math.log(scaling.original_length / (rotations * 2 * math.pi)) / math.log(theta)

    first, last = pair_with(scaling.high_freq_factor), pair_with(scaling.low_freq_factor)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    return first, last if last != first else first + 0.001  # as in the paper's program


def rotary(x: Array, turned: RotaryTables) -> Array:
    """Return x with each pair of elements (i, i + R / 2) of each head rotated by angle i of its position.

    Args:
        x: Floating-point array (..., T, H, D): queries or keys.
        turned: Rotary tables, as turns returns them, for R elements: D, or fewer if the last ones stay as they are.

    Returns:
        Array of the shape and dtype of x.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> tables = nn.turns(pa.zeros(1), head_size=2, count=2)
        >>> nn.rotary(pa.asarray([[[1.0, 0.0]], [[1.0, 0.0]]]), tables)[1]
        Array([[0.5403023, 0.841471 ]], float32, 'numpy')
    """
    cos, sin = (table[..., None, :] for table in turned)  # (T, 1, D / 2)
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]  # twice (..., T, H, R / 2)
    parts = [first * cos - second * sin, second * cos + first * sin]
    found = ops.concat([*parts, rest] if rest.shape[-1] else parts, axis=-1)
    return found if found.dtype == x.dtype else ops.astype(found, dtype=x.dtype)
