"""Ops that make arrays out of parameters, on the backend of `like` or the current one."""

import math

from polyarr.core.errors import ShapeError
from polyarr.core.op import primitive
from polyarr.core.spec import Spec, as_dtype


def shape_of(op: str, shape) -> tuple[int, ...]:
    """shape as a tuple of lengths; an int stands for one axis.

    Errors:  ShapeError for a negative length
    """
    found = tuple(int(n) for n in shape) if isinstance(shape, (tuple, list)) else (int(shape),)
    if any(n < 0 for n in found):
        raise ShapeError(f"{op}: shape is {list(found)}; lengths must not be negative")
    return found


@primitive
def full(value, like=None, *, shape, dtype):
    """An array that holds value everywhere.

    Shapes:  -> shape
    Dtypes:  -> dtype
    Errors:  ShapeError for a negative length
    Grads:   none
    """
    shape, dtype = shape_of("full", shape), as_dtype(dtype)
    return Spec(shape, dtype), {"shape": shape, "dtype": dtype}


@primitive
def arange(start, step, like=None, *, size, dtype):
    """start, start + step, start + 2 step, ...: size of them.

    Shapes:  -> (size,)
    Dtypes:  -> dtype
    Errors:  ShapeError for a negative size
    Grads:   none
    """
    return Spec(shape_of("arange", size), as_dtype(dtype)), {"dtype": as_dtype(dtype)}


full.vjp(value=None, like=None)
arange.vjp(start=None, step=None, like=None)


def ones_like(x, *, dtype=None):
    """An array of ones with x's shape, and its dtype unless one is given."""
    return full(1, x, shape=x.shape, dtype=x.dtype if dtype is None else dtype)


def zeros_like(x, *, dtype=None):
    """An array of zeros with x's shape, and its dtype unless one is given."""
    return full(0, x, shape=x.shape, dtype=x.dtype if dtype is None else dtype)


def full_like(x, fill_value, *, dtype=None):
    """An array of fill_value with x's shape, and its dtype unless one is given."""
    return full(fill_value, x, shape=x.shape, dtype=x.dtype if dtype is None else dtype)


def steps_between(start: float, stop: float, step: float) -> int:
    """How many numbers start, start + step, ... lie before stop."""
    return max(0, math.ceil((stop - start) / step))
