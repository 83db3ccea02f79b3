"""Elementwise arithmetic, rounding, signs, bounds, and choosing and converting. Functions such as exp: functions.py.

Every op here broadcasts its inputs and promotes them to one dtype; a Python number takes the dtype of the arrays,
unless its kind is higher. Comparisons, logic and bits are in logic.py. VJPs stand under the ops.
"""

import math

from polyarr.core.array import spec_of
from polyarr.core.errors import DtypeError
from polyarr.core.op import composed, primitive
from polyarr.core.spec import (
    COMPLEX,
    FLOATS,
    Spec,
    as_dtype,
    broadcast,
    check_kind,
    complex_of,
    dtype_name,
    real_of,
)
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import array_like, fill
from polyarr.ops.declare import elementwise
from polyarr.ops.logic import equal, less, less_equal, logical_and, logical_or, not_equal

# ---- arithmetic ----------------------------------------------------------------------------------------------


@elementwise("any", widen=False)
def add(x, y):
    """Return x + y; of bools, whether either is true.

    >>> pa.add(pa.asarray([1.0, 2.0]), 3)
    Array([4., 5.], float32, 'numpy')
    """


@elementwise("numeric", widen=False)
def subtract(x, y):
    """Return x - y.

    >>> pa.subtract(pa.asarray([1.0, 2.0]), 3)
    Array([-2., -1.], float32, 'numpy')
    """


@elementwise("any", widen=False)
def multiply(x, y):
    """Return x * y; of bools, whether both are true.

    >>> pa.multiply(pa.asarray([1.0, 2.0]), 3)
    Array([3., 6.], float32, 'numpy')
    """


@elementwise("inexact")
def divide(x, y):
    """Return x / y.

    >>> pa.divide(pa.asarray([1.0, 2.0]), 4)
    Array([0.25, 0.5 ], float32, 'numpy')
    """


@elementwise("real", widen=False)
def floor_divide(x, y):
    """Return x / y, rounded toward minus infinity. An integer divided by zero is 0.

    An infinite x stays infinite, as the array API standard has it; in NumPy, PyTorch and JAX it becomes nan.

    >>> pa.floor_divide(pa.asarray([7, -7]), 2)
    Array([ 3, -4], int64, 'numpy')

    Gradients: none; the derivative is zero almost everywhere
    """


@elementwise("real")
def remainder(x, y):
    """Return x - floor(x / y) * y: the remainder with the sign of y. An integer modulo zero is 0.

    >>> pa.remainder(pa.asarray([7, -7]), 3)
    Array([1, 2], int64, 'numpy')
    """


@elementwise("real or bool", widen=False)
def maximum(x, y):
    """Return the larger of x and y, element by element; nan if either is nan.

    0.0 and -0.0 are equal: which of the two is returned differs between backends and devices.

    >>> pa.maximum(pa.asarray([1.0, 5.0]), 3)
    Array([3., 5.], float32, 'numpy')

    Gradients: x, y; equal elements share the gradient equally
    """


@elementwise("real or bool", widen=False)
def minimum(x, y):
    """Return the smaller of x and y, element by element; nan if either is nan.

    0.0 and -0.0 are equal: which of the two is returned differs between backends and devices.

    >>> pa.minimum(pa.asarray([1.0, 5.0]), 3)
    Array([1., 3.], float32, 'numpy')

    Gradients: x, y; equal elements share the gradient equally
    """


@elementwise("numeric", widen=False)
def negative(x):
    """Return -x.

    >>> pa.negative(pa.asarray([1.0, -2.0]))
    Array([-1.,  2.], float32, 'numpy')
    """


@elementwise("numeric", primitive=False, widen=False)
def positive(x):
    """Return +x, the same values.

    >>> pa.positive(pa.asarray([1.0, -2.0]))
    Array([ 1., -2.], float32, 'numpy')
    """
    return multiply(x, 1) if x.dtype not in COMPLEX else complex(real_part(x), imaginary_part(x))


@elementwise("numeric", real_of, widen=False)
def abs(x):
    """Return the absolute value of x.

    >>> pa.abs(pa.asarray([1.0, -2.0]))
    Array([1., 2.], float32, 'numpy')

    Gradients: x; 0 at 0
    """


@elementwise("numeric", widen=False)
def sign(x):
    """Return -1, 0 or 1 by the sign of x; nan stays nan. A complex x is divided by its absolute value.

    >>> pa.sign(pa.asarray([-2.0, 0.0, 3.0]))
    Array([-1.,  0.,  1.], float32, 'numpy')

    Gradients: none; the derivative is zero almost everywhere (of a complex x write x / abs(x))
    """


@elementwise("numeric", primitive=False)
def square(x):
    """Return x * x.

    >>> pa.square(pa.asarray([1.0, -3.0]))
    Array([1., 9.], float32, 'numpy')
    """
    return multiply(x, x)


@elementwise("inexact", primitive=False)
def reciprocal(x):
    """Return 1 / x.

    >>> pa.reciprocal(pa.asarray([1.0, 4.0]))
    Array([1.  , 0.25], float32, 'numpy')
    """
    return divide(1, x)


@elementwise("real", widen=False)
def floor(x):
    """Return the largest integer that is not greater than x, in the dtype of x.

    >>> pa.floor(pa.asarray([1.5, -1.5]))
    Array([ 1., -2.], float32, 'numpy')

    Gradients: none; the derivative is zero almost everywhere
    """


@elementwise("real", primitive=False, widen=False)
def ceil(x):
    """Return the smallest integer that is not less than x, in the dtype of x.

    >>> pa.ceil(pa.asarray([1.5, -1.5]))
    Array([ 2., -1.], float32, 'numpy')

    Gradients: none; the derivative is zero almost everywhere
    """
    return negative(floor(negative(x)))


@elementwise("real", primitive=False, widen=False)
def trunc(x):
    """Return x without its fractional part, in the dtype of x.

    >>> pa.trunc(pa.asarray([1.5, -1.5]))
    Array([ 1., -1.], float32, 'numpy')

    Gradients: none; the derivative is zero almost everywhere
    """
    return where(less(x, 0), ceil(x), floor(x))


@elementwise("numeric", widen=False)
def round(x):
    """Return the nearest integer, in the dtype of x; halves round to even.

    >>> pa.round(pa.asarray([0.5, 1.5, 2.4]))
    Array([0., 2., 2.], float32, 'numpy')

    Gradients: none; the derivative is zero almost everywhere
    """


# ---- complex numbers --------------------------------------------------------------------------------------------


@elementwise("complex", real_of, group="complex")
def real_part(x):
    """Return the real part of a complex array; `real` takes any dtype.

    Gradients: x
    """


@elementwise("complex", real_of, group="complex")
def imaginary_part(x):
    """Return the imaginary part of a complex array; `imag` takes any dtype.

    Gradients: x
    """


@elementwise("floating", complex_of, group="complex")
def complex(x, y):
    """Return the complex array x + iy; a product by i would lose signs of zeros, and infinities.

    >>> pa.ops.complex(pa.asarray([1.0, 2.0]), pa.asarray([0.0, -1.0]))
    Array([1.+0.j, 2.-1.j], complex64, 'numpy')

    Gradients: x, y
    """


@elementwise("numeric", real_of, primitive=False, widen=False)
def real(x):
    """Return the real part of x; x itself if it is not complex.

    >>> pa.real(pa.asarray([1 + 2j, -2.0]))
    Array([ 1., -2.], float32, 'numpy')

    Gradients: x
    """
    return real_part(x) if x.dtype in COMPLEX else x


@elementwise("numeric", real_of, primitive=False, widen=False)
def imag(x):
    """Return the imaginary part of x; 0 if it is not complex.

    >>> pa.imag(pa.asarray([1 + 2j, -2.0]))
    Array([2., 0.], float32, 'numpy')

    Gradients: x, if it is complex
    """
    return imaginary_part(x) if x.dtype in COMPLEX else fill(0, x, shape=x.shape, dtype=x.dtype)


@elementwise("numeric", primitive=False, widen=False)
def conj(x):
    """Return the complex conjugate of x; x itself if it is not complex.

    >>> pa.conj(pa.asarray([1 + 2j]))
    Array([1.-2.j], complex64, 'numpy')
    """
    return complex(real_part(x), negative(imaginary_part(x))) if x.dtype in COMPLEX else x


# fmt: off  the table is read by its columns
add.vjp(x=lambda g: g, y=lambda g: g)
subtract.vjp(x=lambda g: g, y=lambda g: negative(g))
multiply.vjp(x=lambda g, y: multiply(g, y), y=lambda g, x: multiply(g, x))
divide.vjp(x=lambda g, y: divide(g, y), y=lambda g, y, out: divide(multiply(negative(g), out), y))
floor_divide.vjp(x=None, y=None)
remainder.vjp(x=lambda g: g, y=lambda g, x, y: multiply(negative(g), floor_divide(x, y)))
maximum.vjp(x=lambda g, x, y: _share(g, y, x), y=lambda g, x, y: _share(g, x, y))
minimum.vjp(x=lambda g, x, y: _share(g, x, y), y=lambda g, x, y: _share(g, y, x))
negative.vjp(x=lambda g: negative(g))
positive.vjp(x=lambda g: g)
abs.vjp(x=lambda g, x: multiply(g, _abs_slope(x)))
sign.vjp(x=None)
square.vjp(x=lambda g, x: multiply(g, multiply(x, 2)))
reciprocal.vjp(x=lambda g, out: negative(multiply(g, square(out))))
floor.vjp(x=None)
ceil.vjp(x=None)
trunc.vjp(x=None)
round.vjp(x=None)
real_part.vjp(x=lambda g: complex(g, 0.0))
imaginary_part.vjp(x=lambda g: complex(array_like(0.0, g), negative(g)))
complex.vjp(x=lambda g: real_part(g), y=lambda g: negative(imaginary_part(g)))
conj.vjp(x=lambda g: conj(g))
# fmt: on


def _abs_slope(x):
    """Return the derivative of |x|, and 0 at 0; of a complex x by its parts, as the gradients of polyarr have it."""
    if x.dtype not in COMPLEX:
        return sign(x)
    size = abs(x)
    return divide(conj(x), where(equal(size, 0), 1, size))


def _share(g, small, large):
    """Return g where small < large, and half of g where they are equal."""
    return where(less(small, large), g, where(equal(small, large), multiply(g, 0.5), 0))


# ---- classes and signs -----------------------------------------------------------------------------------------


@elementwise("numeric", bool_, primitive=False, widen=False)
def isinf(x):
    """Return whether x is plus or minus infinity, element by element.

    >>> pa.isinf(pa.asarray([1.0, -pa.inf]))
    Array([False,  True], bool, 'numpy')
    """
    if x.dtype in COMPLEX:  # by parts: abs of a finite number may overflow
        return logical_or(isinf(real_part(x)), isinf(imaginary_part(x)))
    return equal(abs(x), math.inf) if _is_floating(x) else not_equal(x, x)


@elementwise("numeric", bool_, primitive=False, widen=False)
def isfinite(x):
    """Return whether x is neither infinite nor nan, element by element.

    >>> pa.isfinite(pa.asarray([1.0, pa.inf, pa.nan]))
    Array([ True, False, False], bool, 'numpy')
    """
    if x.dtype in COMPLEX:
        return logical_and(isfinite(real_part(x)), isfinite(imaginary_part(x)))
    return less(abs(x), math.inf) if _is_floating(x) else equal(x, x)


@elementwise("floating", bool_, widen=False)
def signbit(x):
    """Return whether the sign bit of x is set, element by element; that of -0.0 is, and nan has one.

    >>> pa.signbit(pa.asarray([1.0, -0.0]))
    Array([False,  True], bool, 'numpy')
    """


@elementwise("floating", primitive=False, widen=False)
def copysign(x, y):
    """Return the magnitude of x with the sign of y.

    >>> pa.copysign(pa.asarray([1.0, 2.0]), pa.asarray([-1.0, 1.0]))
    Array([-1.,  2.], float32, 'numpy')

    Gradients: x
    """
    x, y = array_like(x, y), array_like(y, x)
    return where(signbit(y), negative(abs(x)), abs(x))


@elementwise("floating", widen=False)
def nextafter(x, y):
    """Return the representable number next to x in the direction of y.

    >>> pa.nextafter(pa.asarray([1.0]), 2) - 1
    Array([1.1920929e-07], float32, 'numpy')

    Gradients: none
    """


def _is_floating(x) -> bool:
    return x.dtype.kind not in "biu"


isinf.vjp(x=None)
isfinite.vjp(x=None)
signbit.vjp(x=None)
copysign.vjp(x=lambda g, x, y: where(equal(signbit(x), signbit(array_like(y, x))), g, negative(g)), y=None)
nextafter.vjp(x=None, y=None)


# ---- bounds ----------------------------------------------------------------------------------------------------


@composed(promote="x min max", widen=False)
def clip(x, min=None, max=None):
    """Return x with elements below min raised to min and elements above max lowered to max.

    Args:
        x: Integer or floating-point array.
        min: Lower bound, an array or a Python number that broadcasts against x; None for no bound.
        max: Upper bound, as min. It wins where min is greater than max.

    Returns:
        Array of the broadcast shape and the promoted dtype.

    Raises:
        DtypeError: x is neither integer nor floating-point.
        ShapeError: The inputs do not broadcast.

    Examples:
        >>> import polyarr as pa
        >>> pa.clip(pa.asarray([-2.0, 0.5, 7.0]), 0, 1)
        Array([0. , 0.5, 1. ], float32, 'numpy')

    Gradients: x (1 within the closed interval and at nan, 0 outside), min and max (where they replace x)

    Source: array API standard 2025.12
    """
    check_kind("clip", "x", spec_of(x), "real")
    x = x if min is None else maximum(x, min)
    return x if max is None else minimum(x, max)


clip.vjp(
    x=lambda g, x, min, max: _within(g, x, min, max),
    min=lambda g, x, min, max: where(less(x, min), g if max is None else where(less_equal(min, max), g, 0), 0),
    max=lambda g, x, min, max: where(less(max, x if min is None else maximum(x, min)), g, 0),
)


def _within(g, x, min, max):
    g = g if min is None else where(less(x, min), 0, g)
    return g if max is None else where(less(max, x), 0, g)


# ---- choosing and converting -----------------------------------------------------------------------------------


@primitive(promote="x y")
def where(condition, x, y):
    """Return x where condition is true, y elsewhere.

    Args:
        condition: bool array.
        x: Array of any dtype, or a Python number.
        y: Array of any dtype, or a Python number; x and y are not both numbers.

    Returns:
        Array of the broadcast shape and the promoted dtype of x and y.

    Raises:
        DtypeError: condition is not bool.
        TypeError: condition is a Python number.
        ShapeError: The inputs do not broadcast.

    Gradients: x, y
    """
    if condition.is_number:
        raise TypeError(f"where: condition is {condition}; it must be a bool array")
    check_kind("where", "condition", condition, "bool")
    return Spec(broadcast("where", condition, x, y), next(s.dtype for s in (x, y) if not s.is_number))


@primitive(fits="x")
def astype(x, *, dtype):
    """Convert x to a dtype. Floats lose their fraction in integer dtypes; bool tells whether an element is not 0.

    What nan, an infinity or a float out of range becomes in an integer dtype differs between backends and devices.

    Args:
        x: Array of any dtype and shape.
        dtype: Dtype of the result, or its name.

    Returns:
        Array of the shape of x and the given dtype.

    Raises:
        DtypeError: There is no such dtype, or x is complex and the dtype is neither complex nor bool.
        TypeError: x is a Python number.

    Gradients: x, if both dtypes are floating-point or complex
    """
    found = as_dtype(dtype)
    if x.is_number:
        raise TypeError(f"astype: x is {x}; it must be an array")
    if x.dtype in COMPLEX and found not in (*COMPLEX, bool_):
        lost = f"astype: x is {x}, and dtype {found.name} has no imaginary part"
        raise DtypeError(f"{lost}; take real, imag or abs first")
    return Spec(x.shape, found), {"dtype": found}


def like(x, other):
    """Return x in the dtype of `other`."""
    return x if x.dtype == other.dtype else astype(x, dtype=other.dtype)


where.vjp(condition=None, x=lambda g, condition: where(condition, g, 0), y=lambda g, condition: where(condition, 0, g))
astype.vjp(x=lambda g, x_spec: astype(g if x_spec.dtype in COMPLEX else real(g), dtype=x_spec.dtype))


@composed(widen=False, canonical=lambda arrays, dtype: {"dtype": as_dtype(dtype)})
def astype_all(arrays, *, dtype):
    """Convert arrays of one floating-point dtype to another one, as astype does each of them.

    Args:
        arrays: List of floating-point arrays of one dtype.
        dtype: Floating-point dtype of the results.

    Returns:
        Tuple of arrays of the same shapes.

    Raises:
        TypeError: arrays is not a list of arrays.
        DtypeError: A dtype is not floating-point, or the arrays have several.

    Gradients: arrays
    """
    if not isinstance(arrays, tuple) or not all(hasattr(a, "shape") for a in arrays):
        raise TypeError("astype_all: got no list of arrays; it needs one")
    for given in dict.fromkeys([*(a.dtype for a in arrays), dtype]):
        if given not in FLOATS:
            raise DtypeError(f"astype_all: a dtype is {dtype_name(given)}; it must be floating-point")
    if len({a.dtype for a in arrays}) > 1:
        raise DtypeError("astype_all: the arrays have several dtypes; it must be one")
    return tuple(astype(a, dtype=dtype) for a in arrays)


astype_all.vjp(arrays=lambda g, arrays_spec: astype_all(g, dtype=arrays_spec[0].dtype))
