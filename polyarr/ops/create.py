"""Ops that make arrays from parameters, on the backend of `like` or the current one."""

import math
from typing import Any

from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.errors import ShapeError
from polyarr.core.keywords import explained
from polyarr.core.number import NUMBERS, FloatNumber, IntNumber
from polyarr.core.op import primitive
from polyarr.core.spec import Spec, as_dtype, check_kind, complex64, described, float32, int64
from polyarr.core.spec import bool as bool_
from polyarr.ops.validation import check_array, whole, wholes

# dtypes of Python numbers and of tracers of them, the narrowest kind first
NATURAL = {bool: bool_, int: int64, IntNumber: int64, float: float32, FloatNumber: float32, complex: complex64}


def shape_of(op: str, shape, name: str = "shape") -> tuple[int, ...]:
    """Return shape, an int or a tuple of ints, as a tuple of lengths.

    Raises:
        ShapeError: A length is negative.
        TypeError: A length is not an integer.
    """
    found = wholes(op, name, shape)
    if any(n < 0 for n in found):
        raise ShapeError(f"{op}: {name} is {list(found)}; lengths must not be negative")
    return found


@primitive(fits="value")
def fill(value, like=None, *, shape, dtype):
    """Return an array that holds one value everywhere.

    Args:
        value: Python number, or an array without axes.
        like: Array whose backend the result is on; None for the current backend.
        shape: Int or tuple of ints.
        dtype: Dtype of the result.

    Returns:
        Array of that shape and dtype.

    Raises:
        ShapeError: A length is negative, or value has axes.

    Gradients: none
    """
    check_kind("fill", "value", value, "any")
    if value.shape:
        raise ShapeError(f"fill: value is {value}; it must be a number, or an array without axes")
    shape, dtype = shape_of("fill", shape), as_dtype(dtype)
    return Spec(shape, dtype), {"shape": shape, "dtype": dtype}


def array_like(x, other):
    """Return a Python number as an array on the backend of `other`, for ops of one input; anything else unchanged."""
    is_number = x.is_number if type(x) is Spec else isinstance(x, NUMBERS)
    return fill(x, other, shape=(), dtype=other.dtype) if is_number else x


@primitive
def iota(start, step, like=None, *, size, dtype):
    """Return start, start + step, start + 2 step and so on.

    Args:
        start: Python number.
        step: Python number.
        like: Array whose backend the result is on; None for the current backend.
        size: Number of elements.
        dtype: Dtype of the result.

    Returns:
        Array (size,) of that dtype.

    Raises:
        ShapeError: size is negative.

    Gradients: none
    """
    for name, given in (("start", start), ("step", step)):
        if type(given) is not Spec or not given.is_number:
            raise TypeError(f"iota: {name} is {described(given)}; it must be a Python number")
    return Spec(shape_of("iota", whole("iota", "size", size)), as_dtype(dtype)), {"dtype": as_dtype(dtype)}


fill.vjp(value=None, like=None)
iota.vjp(start=None, step=None, like=None)


@explained
def full_like(x: Array, fill_value: float, dtype: Any = None, *, device: str | Backend | None = None) -> Array:
    """Return an array of one value with the shape of x.

    Args:
        x: Array of any dtype and shape.
        fill_value: Python number.
        dtype: Dtype of the result; None for that of x.
        device: Backend of the result, or its name; None for that of x.

    Returns:
        Array of the shape of x.

    Examples:
        >>> import polyarr as pa
        >>> pa.full_like(pa.asarray([1.0, 2.0]), 7)
        Array([7., 7.], float32, 'numpy')
    """
    check_array("full_like", "x", x)
    made = fill(fill_value, x, shape=x.shape, dtype=x.dtype if dtype is None else dtype)
    return made if device is None else made.to(device)


@explained
def ones_like(x: Array, dtype: Any = None, *, device: str | Backend | None = None) -> Array:
    """Return an array of ones with the shape of x.

    Args:
        x: Array of any dtype and shape.
        dtype: Dtype of the result; None for that of x.
        device: Backend of the result, or its name; None for that of x.

    Returns:
        Array of the shape of x.

    Examples:
        >>> import polyarr as pa
        >>> pa.ones_like(pa.asarray([3.0, 2.0]))
        Array([1., 1.], float32, 'numpy')
    """
    return full_like(x, 1, dtype=dtype, device=device)


@explained
def zeros_like(x: Array, dtype: Any = None, *, device: str | Backend | None = None) -> Array:
    """Return an array of zeros with the shape of x.

    Args:
        x: Array of any dtype and shape.
        dtype: Dtype of the result; None for that of x.
        device: Backend of the result, or its name; None for that of x.

    Returns:
        Array of the shape of x.

    Examples:
        >>> import polyarr as pa
        >>> pa.zeros_like(pa.asarray([3.0, 2.0]))
        Array([0., 0.], float32, 'numpy')
    """
    return full_like(x, 0, dtype=dtype, device=device)


def empty_like(x: Array, dtype: Any = None, *, device: str | Backend | None = None) -> Array:
    """Return an array with the shape of x whose values are not specified; it holds zeros.

    Args:
        x: Array of any dtype and shape.
        dtype: Dtype of the result; None for that of x.
        device: Backend of the result, or its name; None for that of x.

    Returns:
        Array of the shape of x.

    Examples:
        >>> import polyarr as pa
        >>> pa.empty_like(pa.asarray([3.0, 2.0])).shape
        (2,)
    """
    return zeros_like(x, dtype=dtype, device=device)


def steps_between(start: float, stop: float, step: float) -> int:
    """Return how many of the numbers start, start + step, ... lie before stop."""
    count = (stop - start) / step
    if not math.isfinite(count):
        kind = ValueError if math.isnan(count) else OverflowError
        raise kind(f"arange: from {start} to {stop} by {step}; these numbers must be finite")
    return max(0, math.ceil(count))
