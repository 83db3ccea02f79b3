"""Ops that make arrays out of parameters, on the backend of `like` or the current one."""

import math
from typing import Any

from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.errors import ShapeError
from polyarr.core.op import primitive
from polyarr.core.spec import Spec, as_dtype, check_kind, described, float32, int64
from polyarr.core.spec import bool as bool_
from polyarr.ops.validation import check_array, whole, wholes

NATURAL = {bool: bool_, int: int64, float: float32}  # the dtypes of Python's numbers, the narrowest kind first


def shape_of(op: str, shape, name: str = "shape") -> tuple[int, ...]:
    """shape as a tuple of lengths; an int stands for one axis.

    Errors:  ShapeError for a negative length, TypeError for one that is no integer
    """
    found = wholes(op, name, shape)
    if any(n < 0 for n in found):
        raise ShapeError(f"{op}: {name} is {list(found)}; lengths must not be negative")
    return found


@primitive(fits="value")
def full(value, like=None, *, shape, dtype):
    """An array that holds value everywhere.

    Shapes:  -> shape
    Dtypes:  -> dtype
    Errors:  ShapeError for a negative length, or a value that has axes
    Grads:   none
    """
    check_kind("full", "value", value, "any")
    if value.shape:
        raise ShapeError(f"full: value is {value}; it must be a number, or an array without axes")
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
    for name, given in (("start", start), ("step", step)):
        if type(given) is not Spec or not given.is_number:
            raise TypeError(f"arange: {name} is {described(given)}; it must be a Python number")
    return Spec(shape_of("arange", whole("arange", "size", size)), as_dtype(dtype)), {"dtype": as_dtype(dtype)}


full.vjp(value=None, like=None)
arange.vjp(start=None, step=None, like=None)


def full_like(x: Array, fill_value: float, *, dtype: Any = None, device: str | Backend | None = None) -> Array:
    """An array of fill_value with x's shape, and its dtype and device unless others are given."""
    check_array("full_like", "x", x)
    made = full(fill_value, x, shape=x.shape, dtype=x.dtype if dtype is None else dtype)
    return made if device is None else made.to(device)


def ones_like(x: Array, *, dtype: Any = None, device: str | Backend | None = None) -> Array:
    """An array of ones with x's shape, and its dtype and device unless others are given."""
    return full_like(x, 1, dtype=dtype, device=device)


def zeros_like(x: Array, *, dtype: Any = None, device: str | Backend | None = None) -> Array:
    """An array of zeros with x's shape, and its dtype and device unless others are given."""
    return full_like(x, 0, dtype=dtype, device=device)


def empty_like(x: Array, *, dtype: Any = None, device: str | Backend | None = None) -> Array:
    """An array like x for which no values are promised. It holds zeros."""
    return zeros_like(x, dtype=dtype, device=device)


def steps_between(start: float, stop: float, step: float) -> int:
    """How many numbers start, start + step, ... lie before stop."""
    count = (stop - start) / step
    if not math.isfinite(count):
        kind = ValueError if math.isnan(count) else OverflowError
        raise kind(f"arange: from {start} to {stop} by {step}; these numbers must be finite")
    return max(0, math.ceil(count))
