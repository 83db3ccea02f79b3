"""Rotary position embeddings: rotate pairs of numbers by the position, so that attention sees distances."""

import math
from typing import NamedTuple

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.spec import float32, float64, int32
from polyarr.ops.validation import check_array, number, whole


class RotaryScaling(NamedTuple):
    """Scaling of rotary embeddings of Llama 3.1 and later for texts longer than the original length.

    Pairs that rotate at least high_freq_factor times within original_length stay as they are; pairs that rotate at most
    low_freq_factor times become slower by factor; those between are interpolated.

    Attributes:
        factor: Factor by which slow rotations become slower.
        low_freq_factor: Number of rotations up to which a pair is slow.
        high_freq_factor: Number of rotations from which a pair stays as it is.
        original_length: Number of positions that the model was trained with at first.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int


class RotaryTables(NamedTuple):
    """Rotary tables: the cosines and sines of the angles of each position, (T, D / 2) or (B, T, D / 2)."""

    cos: Array
    sin: Array


def positions_of(like: Array, count: int, position: int, padding: Array | None = None) -> Array:
    """Return the numbers (T, 1) of `count` positions from a position on; with padding (B,) per row, (B, T, 1).

    Positions within the padding are 0.
    """
    at = ops.iota(0, 1, like, size=count, dtype=int32)[:, None] + position  # (T, 1)
    return at if padding is None else ops.maximum(at - ops.astype(padding, dtype=int32)[:, None, None], 0)


def turns(
    like: Array,
    head_size: int,
    count: int,
    position: int = 0,
    theta: float = 1e4,
    scaling: RotaryScaling | None = None,
    padding: Array | None = None,
) -> RotaryTables:
    """Return the rotary tables of `count` positions from a position on.

    Pair i of a position rotates by position * theta^(-2 i / head_size). The tables are float32 beside narrower floats:
    bfloat16 would lose distances of far positions.

    Args:
        like: Array whose backend the tables are on; float64 gives float64 tables.
        head_size: Length D of the vectors of a head.
        count: Number T of positions.
        position: First position; in a compiled function it may change at each run.
        theta: Base of the rates, above 0.
        scaling: RotaryScaling, or None.
        padding: Integer array (B,): the number of padding positions at the beginning of each row; None for none.

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
        rate = _scaled(rate, scaling)
    angle = ops.astype(positions_of(like, count, position, padding), dtype=dtype) * rate  # (T, D / 2)
    return RotaryTables(ops.cos(angle), ops.sin(angle))


def _scaled(rate: Array, scaling: RotaryScaling) -> Array:
    factor, low, high, length = scaling
    whole_turns = rate * (length / (2 * math.pi))
    kept = ops.clip((whole_turns - low) / (high - low), 0, 1)
    return rate * (kept + (1 - kept) / factor)


def rotary(x: Array, turned: RotaryTables) -> Array:
    """Return x with each pair of elements (i, i + D / 2) of each head rotated by angle i of its position.

    Args:
        x: Floating-point array (..., T, H, D): queries or keys.
        turned: Rotary tables, as turns returns them.

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
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]  # (..., T, H, D / 2)
    found = ops.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return found if found.dtype == x.dtype else ops.astype(found, dtype=x.dtype)
