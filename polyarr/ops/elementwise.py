"""Elementwise ops: arithmetic, functions of a real number, classes and signs, choosing and converting.

Every op here broadcasts its inputs and promotes them to one dtype; a Python number takes the arrays' dtype. Those that
decide, such as equal and bitwise_and, are in logic.py. VJPs stand under the ops.
"""

import math

from polyarr.core.array import spec_of
from polyarr.core.errors import DtypeError
from polyarr.core.number import NUMBERS, evaluate
from polyarr.core.op import composed, primitive
from polyarr.core.spec import FLOATS, Spec, as_dtype, broadcast, check_kind, dtype_name
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import full
from polyarr.ops.declare import elementwise
from polyarr.ops.logic import bitwise_and, bitwise_or, equal, greater, less, less_equal, not_equal

# ---- arithmetic ----------------------------------------------------------------------------------------------


@elementwise("real", widen=False)
def add(x, y):
    """x + y."""


@elementwise("real", widen=False)
def subtract(x, y):
    """x - y."""


@elementwise("real", widen=False)
def multiply(x, y):
    """x * y."""


@elementwise("floating")
def divide(x, y):
    """x / y."""


@elementwise("real", widen=False)
def floor_divide(x, y):
    """x / y, rounded towards minus infinity. An integer divided by zero is 0. Its gradient is zero."""


@elementwise("real")
def remainder(x, y):
    """x - floor(x / y) * y: the remainder that has the sign of y. An integer modulo zero is 0."""


@elementwise("real")
def pow(x, y):
    """x to the power y.

    Grads:   x, y; where x is 0 or less, the one of y is 0, and where y is 0, the one of x is 0
    """


@elementwise("real", widen=False)
def maximum(x, y):
    """The larger of x and y; nan if either is.

    Grads:   x, y; a tie splits the gradient equally
    """


@elementwise("real", widen=False)
def minimum(x, y):
    """The smaller of x and y; nan if either is.

    Grads:   x, y; a tie splits the gradient equally
    """


@elementwise("real", widen=False)
def negative(x):
    """-x."""


@elementwise("real", primitive=False, widen=False)
def positive(x):
    """+x: the same values."""
    return multiply(x, 1)


@elementwise("real", widen=False)
def abs(x):
    """The absolute value.

    Grads:   x; 0 at 0
    """


@elementwise("real", widen=False)
def sign(x):
    """-1, 0 or 1 by the sign of x; nan stays nan. Its gradient is zero."""


@elementwise("real", primitive=False)
def square(x):
    """x * x."""
    return multiply(x, x)


@elementwise("floating", primitive=False)
def reciprocal(x):
    """1 / x."""
    return divide(1, x)


@elementwise("real", widen=False)
def floor(x):
    """The largest integer not above x. Its gradient is zero."""


@elementwise("real", primitive=False, widen=False)
def ceil(x):
    """The smallest integer not below x. Its gradient is zero."""
    return negative(floor(negative(x)))


@elementwise("real", primitive=False, widen=False)
def trunc(x):
    """x without its fraction. Its gradient is zero."""
    return where(less(x, 0), ceil(x), floor(x))


@elementwise("real", widen=False)
def round(x):
    """The nearest integer; halves go to the even one. Its gradient is zero."""


@elementwise("real", primitive=False, widen=False)
def real(x):
    """The real part, which is x: polyarr has no complex numbers yet."""
    return x


@elementwise("real", primitive=False, widen=False)
def conj(x):
    """The complex conjugate, which is x: polyarr has no complex numbers yet."""
    return x


@elementwise("real", primitive=False, widen=False)
def imag(x):
    """The imaginary part, which is 0: polyarr has no complex numbers yet. Its gradient is zero."""
    return full(0, x, shape=x.shape, dtype=x.dtype)


# fmt: off  the table is read by its columns
add.vjp(x=lambda g: g, y=lambda g: g)
subtract.vjp(x=lambda g: g, y=lambda g: negative(g))
multiply.vjp(x=lambda g, y: multiply(g, y), y=lambda g, x: multiply(g, x))
divide.vjp(x=lambda g, y: divide(g, y), y=lambda g, y, out: divide(multiply(negative(g), out), y))
floor_divide.vjp(x=None, y=None)
remainder.vjp(x=lambda g: g, y=lambda g, x, y: multiply(negative(g), floor_divide(x, y)))
pow.vjp(x=lambda g, x, y: multiply(g, _slope(x, y)), y=lambda g, x, out: multiply(g, _growth(x, out)))
maximum.vjp(x=lambda g, x, y: _share(g, y, x), y=lambda g, x, y: _share(g, x, y))
minimum.vjp(x=lambda g, x, y: _share(g, x, y), y=lambda g, x, y: _share(g, y, x))
negative.vjp(x=lambda g: negative(g))
positive.vjp(x=lambda g: g)
abs.vjp(x=lambda g, x: multiply(g, sign(x)))
sign.vjp(x=None)
square.vjp(x=lambda g, x: multiply(g, multiply(x, 2)))
reciprocal.vjp(x=lambda g, out: negative(multiply(g, square(out))))
floor.vjp(x=None)
ceil.vjp(x=None)
trunc.vjp(x=None)
round.vjp(x=None)
# fmt: on


def _slope(x, y):
    """d/dx of x**y: y x**(y-1), and 0 where y is 0."""
    if isinstance(y, NUMBERS):
        return multiply(pow(x, evaluate(_less_one, y)), y)
    return where(equal(y, 0), 0, multiply(y, pow(x, where(equal(y, 0), 1, subtract(y, 1)))))


def _less_one(y):
    return y - 1 if y else y + 1


def _log_or_0(x):
    return math.log(x) if x > 0 else 0.0


def _growth(x, out):
    """d/dy of x**y: x**y log x, and 0 where x is not positive."""
    if isinstance(x, NUMBERS):
        return multiply(out, evaluate(_log_or_0, x))
    return where(less(0, x), multiply(out, log(where(less(0, x), x, 1))), 0)


def _share(g, small, large):
    """g where small < large, half of it at a tie."""
    return where(less(small, large), g, where(equal(small, large), multiply(g, 0.5), 0))


# ---- functions of a real number --------------------------------------------------------------------------------


@elementwise("floating", widen=False)
def exp(x):
    """e to the power x."""


@elementwise("floating")
def expm1(x):
    """exp(x) - 1, accurate near 0."""


@elementwise("floating")
def log(x):
    """The natural logarithm."""


@elementwise("floating")
def log1p(x):
    """log(1 + x), accurate near 0."""


@elementwise("floating", primitive=False)
def log2(x):
    """The logarithm to base 2."""
    return multiply(log(x), 1 / math.log(2))


@elementwise("floating", primitive=False)
def log10(x):
    """The logarithm to base 10."""
    return multiply(log(x), 1 / math.log(10))


@elementwise("floating")
def sqrt(x):
    """The square root; nan below 0."""


@elementwise("floating", primitive=False)
def rsqrt(x):
    """1 / sqrt(x)."""
    return divide(1, sqrt(x))


@elementwise("floating")
def sin(x):
    """The sine; x in radians."""


@elementwise("floating")
def cos(x):
    """The cosine; x in radians."""


@elementwise("floating", primitive=False)
def tan(x):
    """The tangent; x in radians."""
    return divide(sin(x), cos(x))


@elementwise("floating", primitive=False)
def asin(x):
    """The angle in [-pi/2, pi/2] with the sine x."""
    return atan2(x, sqrt(multiply(subtract(1, x), add(1, x))))


@elementwise("floating", primitive=False)
def acos(x):
    """The angle in [0, pi] with the cosine x."""
    return atan2(sqrt(multiply(subtract(1, x), add(1, x))), x)


@elementwise("floating", primitive=False)
def atan(x):
    """The angle in [-pi/2, pi/2] with the tangent x."""
    return atan2(x, 1)


@elementwise("floating")
def atan2(x, y):
    """The angle of the point (y, x): atan(x / y) with the quadrant of the signs.

    Grads:   x, y; 0 at the origin
    """


@elementwise("floating", primitive=False)
def sinh(x):
    """The hyperbolic sine."""
    u = expm1(abs(x))
    # u + u/(u+1) keeps its digits near 0; where exp overflows, u/(u+1) would be inf/inf.
    return copysign(multiply(add(u, where(isinf(u), 1, divide(u, add(u, 1)))), 0.5), x)


@elementwise("floating", primitive=False)
def cosh(x):
    """The hyperbolic cosine."""
    half = multiply(exp(multiply(abs(x), 0.5)), 0.5)
    # exp(|x|/2) squared: exp(|x|) itself overflows before cosh does.
    return add(multiply(multiply(half, half), 2), multiply(exp(negative(abs(x))), 0.5))


@elementwise("floating")
def tanh(x):
    """The hyperbolic tangent."""


@elementwise("floating", primitive=False)
def asinh(x):
    """The inverse of sinh."""
    a = abs(x)
    small = log1p(add(a, divide(square(a), add(1, sqrt(add(square(a), 1))))))
    large = add(log(a), log1p(sqrt(add(square(reciprocal(a)), 1))))  # a * a may be infinite
    return copysign(where(greater(a, 1), large, small), x)


@elementwise("floating", primitive=False)
def acosh(x):
    """The inverse of cosh on [1, inf); nan below 1."""
    t, r = subtract(x, 1), reciprocal(x)
    small = log1p(add(t, multiply(sqrt(t), sqrt(add(t, 2)))))
    large = add(log(x), log1p(sqrt(multiply(subtract(1, r), add(1, r)))))  # 2 * t may be infinite
    return where(greater(x, 2), large, small)


@elementwise("floating", primitive=False)
def atanh(x):
    """The inverse of tanh on (-1, 1)."""
    return multiply(subtract(log1p(x), log1p(negative(x))), 0.5)


@elementwise("floating")
def erf(x):
    """The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""


@elementwise("floating", primitive=False)
def hypot(x, y):
    """sqrt(x^2 + y^2), without overflow.

    Grads:   x, y; 0 at the origin
    """
    x, y = abs(_array(x, y)), abs(_array(y, x))
    large, small = maximum(x, y), minimum(x, y)
    ratio = where(isinf(large), 0, divide(small, where(equal(large, 0), 1, large)))
    return where(isinf(large), math.inf, multiply(large, sqrt(add(1, square(ratio)))))


@elementwise("floating", primitive=False)
def logaddexp(x, y):
    """log(exp(x) + exp(y)), without overflow."""
    large, small = maximum(x, y), minimum(x, y)
    return add(large, log1p(exp(_gap(small, large))))


@elementwise("floating", primitive=False)
def sigmoid(x):
    """1 / (1 + exp(-x)), without overflow."""
    e = exp(negative(abs(x)))
    return divide(where(less(x, 0), e, 1), add(1, e))


@elementwise("floating", primitive=False, widen=False)
def relu(x):
    """max(x, 0).

    Grads:   x; 0 at 0
    """
    return maximum(x, 0)


@elementwise("floating", primitive=False)
def silu(x):
    """x * sigmoid(x).

    Source:  Hendrycks, Gimpel 2016, arXiv:1606.08415
    """
    return multiply(x, sigmoid(x))


exp.vjp(x=lambda g, out: multiply(g, out))
expm1.vjp(x=lambda g, out: multiply(g, add(out, 1)))
log.vjp(x=lambda g, x: divide(g, x))
log1p.vjp(x=lambda g, x: divide(g, add(x, 1)))
log2.vjp(x=lambda g, x: divide(g, multiply(x, math.log(2))))
log10.vjp(x=lambda g, x: divide(g, multiply(x, math.log(10))))
sqrt.vjp(x=lambda g, out: divide(multiply(g, 0.5), out))
# g first: of a small x, out**3 alone may be infinite.
rsqrt.vjp(x=lambda g, out: multiply(multiply(multiply(multiply(g, -0.5), out), out), out))
sin.vjp(x=lambda g, x: multiply(g, cos(x)))
cos.vjp(x=lambda g, x: negative(multiply(g, sin(x))))
tan.vjp(x=lambda g, out: multiply(g, add(square(out), 1)))
asin.vjp(x=lambda g, x: divide(g, sqrt(subtract(1, square(x)))))
acos.vjp(x=lambda g, x: negative(divide(g, sqrt(subtract(1, square(x))))))
atan.vjp(x=lambda g, x: divide(g, add(square(x), 1)))
atan2.vjp(
    x=lambda g, x, y: multiply(g, _over_square(y, x, y)), y=lambda g, x, y: negative(multiply(g, _over_square(x, x, y)))
)
sinh.vjp(x=lambda g, x: multiply(g, cosh(x)))
cosh.vjp(x=lambda g, x: multiply(g, sinh(x)))
tanh.vjp(x=lambda g, out: multiply(g, subtract(1, square(out))))
asinh.vjp(x=lambda g, x: divide(g, sqrt(add(square(x), 1))))
acosh.vjp(x=lambda g, x: divide(g, multiply(sqrt(subtract(x, 1)), sqrt(add(x, 1)))))
atanh.vjp(x=lambda g, x: divide(g, subtract(1, square(x))))
erf.vjp(x=lambda g, x: multiply(g, multiply(exp(negative(square(x))), 2 / math.sqrt(math.pi))))
hypot.vjp(x=lambda g, x, out: multiply(g, _ratio(x, out)), y=lambda g, y, out: multiply(g, _ratio(y, out)))
logaddexp.vjp(x=lambda g, x, y: multiply(g, sigmoid(_gap(x, y))), y=lambda g, x, y: multiply(g, sigmoid(_gap(y, x))))
sigmoid.vjp(x=lambda g, out: multiply(g, multiply(out, subtract(1, out))))
relu.vjp(x=lambda g, out: where(greater(out, 0), g, 0))
silu.vjp(x=lambda g, x: multiply(g, _silu_slope(x, sigmoid(x))))


def _gap(x, y):
    """x - y, and 0 where they are equal: inf - inf would be nan."""
    return where(equal(x, y), 0, subtract(x, y))


def _over_square(numerator, x, y):
    """numerator / (x^2 + y^2), and 0 at the origin."""
    return _ratio(numerator, add(square(_array(x, y)), square(_array(y, x))))


def _ratio(x, y):
    """x / y, and 0 where y is 0."""
    return where(equal(y, 0), 0, divide(x, where(equal(y, 0), 1, y)))


def _silu_slope(x, s):
    return multiply(s, add(1, multiply(x, subtract(1, s))))


# ---- classes and signs -----------------------------------------------------------------------------------------


@elementwise("real", bool_, primitive=False, widen=False)
def isinf(x):
    """True where x is plus or minus infinity."""
    return equal(abs(x), math.inf) if _is_floating(x) else not_equal(x, x)


@elementwise("real", bool_, primitive=False, widen=False)
def isfinite(x):
    """True where x is neither infinite nor nan."""
    return less(abs(x), math.inf) if _is_floating(x) else equal(x, x)


@elementwise("floating", bool_, primitive=False, widen=False)
def signbit(x):
    """True where the sign of x is minus, that of -0.0 included."""
    return bitwise_or(less(x, 0), bitwise_and(equal(x, 0), less(divide(1, x), 0)))


@elementwise("floating", primitive=False, widen=False)
def copysign(x, y):
    """The magnitude of x with the sign of y.

    Grads:   x
    """
    x, y = _array(x, y), _array(y, x)
    return where(signbit(y), negative(abs(x)), abs(x))


@elementwise("floating", widen=False)
def nextafter(x, y):
    """The representable number next to x in the direction of y.

    Grads:   none
    """


def _array(x, other):
    """A Python number as an array like `other`, for ops of one input; anything else as it is."""
    is_number = x.is_number if type(x) is Spec else isinstance(x, NUMBERS)
    return full(x, other, shape=(), dtype=other.dtype) if is_number else x


def _is_floating(x) -> bool:
    return x.dtype.kind not in "biu"


isinf.vjp(x=None)
isfinite.vjp(x=None)
signbit.vjp(x=None)
copysign.vjp(x=lambda g, x, y: where(equal(signbit(x), signbit(_array(y, x))), g, negative(g)), y=None)
nextafter.vjp(x=None, y=None)


# ---- bounds ----------------------------------------------------------------------------------------------------


@composed(promote="x min max", widen=False)
def clip(x, min=None, max=None):
    """x, raised to min and lowered to max; either may be None.

    Shapes:  the inputs broadcast
    Dtypes:  real -> the same
    Errors:  ShapeError if they do not broadcast
    Grads:   x (1 within the closed interval, 0 outside), min and max (where they are taken)
    Source:  array API standard 2024.12
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
    """x where condition holds, y elsewhere.

    Shapes:  the three inputs broadcast
    Dtypes:  condition bool; x and y any, promoted
    Errors:  ShapeError if they do not broadcast, DtypeError if condition is not bool
    Grads:   x, y
    """
    check_kind("where", "condition", condition, "bool")
    return Spec(broadcast("where", condition, x, y), next(s.dtype for s in (x, y) if not s.is_number))


@primitive(fits="x")
def astype(x, *, dtype):
    """x converted to dtype. Floating-point to integer cuts the fraction off; to bool asks whether x is not 0.

    What nan, an infinity or any float beyond an integer dtype becomes differs between backends and devices, as between
    processors: some integer.

    Shapes:  any -> the same
    Dtypes:  any -> dtype
    Errors:  DtypeError for an unknown dtype
    Grads:   x, if both dtypes are floating-point
    """
    return Spec(x.shape, as_dtype(dtype)), {"dtype": as_dtype(dtype)}


def like(x, other):
    """x in other's dtype, which it may have already."""
    return x if x.dtype == other.dtype else astype(x, dtype=other.dtype)


where.vjp(condition=None, x=lambda g, condition: where(condition, g, 0), y=lambda g, condition: where(condition, 0, g))
astype.vjp(x=lambda g, x_spec: astype(g, dtype=x_spec.dtype))


@composed(widen=False, canonical=lambda arrays, dtype: {"dtype": as_dtype(dtype)})
def astype_all(arrays, *, dtype):
    """Arrays of one floating-point dtype in another one, as astype gives each of them.

    Shapes:  a list of arrays -> a tuple of the same
    Dtypes:  floating, all alike -> dtype
    Errors:  TypeError for what is no list; DtypeError unless both dtypes are floating-point, and for several
    Grads:   arrays
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
