"""Rotary embeddings: positions as turns of pairs of numbers, so that attention sees how far two of them are apart."""

import math
from typing import NamedTuple

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.spec import float32, float64, int32
from polyarr.ops.validation import check_array, number, whole


class RotaryScaling(NamedTuple):
    """How Llama 3.1 and later stretch rotary embeddings to longer texts than `original_length`, which they began with.

    What turns at least high_freq_factor times within that length stays; what turns at most low_freq_factor times is
    slowed down by factor; between the two it goes over from one to the other.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int


class Turns(NamedTuple):
    """The cosines and sines of each position's angles, (T, D / 2) or (B, T, D / 2)."""

    cos: Array
    sin: Array


def positions_of(like: Array, count: int, position: int, padding: Array | None = None) -> Array:
    """The numbers of `count` positions from a position on: (T, 1); or of each row behind its padding (B,): (B, T, 1).

    The padding itself is at 0.
    """
    at = ops.arange(0, 1, like, size=count, dtype=int32)[:, None] + position  # (T, 1)
    return at if padding is None else ops.maximum(at - ops.astype(padding, dtype=int32)[:, None, None], 0)


def turns(
    like: Array,
    head_size: int,
    count: int,
    position: int = 0,
    theta: float = 1e4,
    scaling: RotaryScaling | None = None,
    padding: Array | None = None,
) -> Turns:
    """The turns of `count` positions from a position on, which may be another number at each run.

    They are float32 beside narrower floats: in bfloat16, distances of far positions would be lost.

    Pair i of a position turns by position * theta^(-2 i / head_size).

    Errors:  ValueError for a head_size or theta that is not above 0; TypeError for what is no number
    Source:  Su et al. 2021, arXiv:2104.09864
    """
    check_array("turns", "like", like)
    head_size, count = whole("turns", "head_size", head_size), whole("turns", "count", count)
    if head_size < 1 or not number("turns", "theta", theta) > 0:
        raise ValueError(f"turns: head_size is {head_size}, theta is {theta}; they must be above 0")
    dtype = float64 if like.dtype == float64 else float32
    pairs = head_size // 2
    rate = ops.exp(ops.arange(0, -2 * math.log(theta) / head_size, like, size=pairs, dtype=dtype))  # (D / 2,)
    if scaling is not None:
        rate = _scaled(rate, scaling)
    angle = ops.astype(positions_of(like, count, position, padding), dtype=dtype) * rate  # (T, D / 2)
    return Turns(ops.cos(angle), ops.sin(angle))


def _scaled(rate: Array, scaling: RotaryScaling) -> Array:
    factor, low, high, length = scaling
    whole_turns = rate * (length / (2 * math.pi))
    kept = ops.clip((whole_turns - low) / (high - low), 0, 1)
    return rate * (kept + (1 - kept) / factor)


def rotary(x: Array, turned: Turns) -> Array:
    """x (..., T, H, D) with each pair of numbers (i, i + D / 2) of each head turned by its position's angle i."""
    cos, sin = (table[..., None, :] for table in turned)  # (T, 1, D / 2)
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]  # (..., T, H, D / 2)
    found = ops.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return found if found.dtype == x.dtype else ops.astype(found, dtype=x.dtype)
