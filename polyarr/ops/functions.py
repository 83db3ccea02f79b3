"""Elementwise functions: powers, exponentials and logarithms, trigonometric and hyperbolic functions, activations.

They broadcast and promote as the ops of elementwise.py do. VJPs stand under the ops.
"""

import cmath
import math

from polyarr.core.number import NUMBERS, evaluate
from polyarr.core.spec import COMPLEX
from polyarr.ops.declare import elementwise
from polyarr.ops.elementwise import (
    abs,
    add,
    array_like,
    copysign,
    divide,
    isinf,
    maximum,
    minimum,
    multiply,
    negative,
    reciprocal,
    square,
    subtract,
    where,
)
from polyarr.ops.logic import bitwise_or, equal, greater, less, not_equal


@elementwise("numeric")
def pow(x, y):
    """Return x to the power y.

    >>> pa.pow(pa.asarray([1.0, 2.0, 3.0]), 2)
    Array([1., 4., 9.], float32, 'numpy')

    Gradients: x, y; that of y is 0 where x is 0 or negative, and that of x is 0 where y is 0
    """


@elementwise("inexact", widen=False)
def exp(x):
    """Return e to the power x.

    >>> pa.exp(pa.asarray([0.0, 1.0]))
    Array([1.      , 2.718282], float32, 'numpy')
    """


@elementwise("inexact")
def expm1(x):
    """Return exp(x) - 1, accurate near 0.

    >>> pa.expm1(pa.asarray([0.0, 1.0]))
    Array([0.       , 1.7182819], float32, 'numpy')
    """


@elementwise("inexact")
def log(x):
    """Return the natural logarithm of x; -inf at 0, nan below 0.

    >>> pa.log(pa.asarray([1.0, 2.0]))
    Array([0.       , 0.6931472], float32, 'numpy')
    """


@elementwise("inexact")
def log1p(x):
    """Return log(1 + x), accurate near 0.

    >>> pa.log1p(pa.asarray([0.0, 1.0]))
    Array([0.       , 0.6931472], float32, 'numpy')
    """


@elementwise("inexact", primitive=False)
def log2(x):
    """Return the logarithm of x to base 2.

    >>> pa.log2(pa.asarray([1.0, 8.0]))
    Array([0., 3.], float32, 'numpy')
    """
    return multiply(log(x), 1 / math.log(2))


@elementwise("inexact", primitive=False)
def log10(x):
    """Return the logarithm of x to base 10.

    >>> pa.log10(pa.asarray([1.0, 10.0]))
    Array([0., 1.], float32, 'numpy')
    """
    return multiply(log(x), 1 / math.log(10))


@elementwise("inexact")
def sqrt(x):
    """Return the square root of x; nan below 0.

    >>> pa.sqrt(pa.asarray([4.0, 9.0]))
    Array([2., 3.], float32, 'numpy')
    """


@elementwise("inexact", primitive=False)
def rsqrt(x):
    """Return 1 / sqrt(x).

    >>> pa.rsqrt(pa.asarray([4.0, 16.0]))
    Array([0.5 , 0.25], float32, 'numpy')
    """
    return divide(1, sqrt(x))


@elementwise("inexact")
def sin(x):
    """Return the sine of x, an angle in radians.

    >>> pa.sin(pa.asarray([0.0, 1.0]))
    Array([0.      , 0.841471], float32, 'numpy')
    """


@elementwise("inexact")
def cos(x):
    """Return the cosine of x, an angle in radians.

    >>> pa.cos(pa.asarray([0.0, 1.0]))
    Array([1.       , 0.5403023], float32, 'numpy')
    """


@elementwise("inexact", primitive=False)
def tan(x):
    """Return the tangent of x, an angle in radians.

    >>> pa.tan(pa.asarray([0.0, 0.5]))
    Array([0.       , 0.5463025], float32, 'numpy')
    """
    return divide(sin(x), cos(x))


@elementwise("inexact", primitive=False)
def asin(x):
    """Return the angle in [-pi/2, pi/2] whose sine is x; nan outside [-1, 1].

    >>> pa.asin(pa.asarray([0.0, 1.0]))
    Array([0.       , 1.5707964], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return multiply(asinh(multiply(x, 1j)), -1j)
    return atan2(x, sqrt(multiply(subtract(1, x), add(1, x))))


@elementwise("inexact", primitive=False)
def acos(x):
    """Return the angle in [0, pi] whose cosine is x; nan outside [-1, 1].

    >>> pa.acos(pa.asarray([0.0, 1.0]))
    Array([1.5707964, 0.       ], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return subtract(math.pi / 2, asin(x))
    return atan2(sqrt(multiply(subtract(1, x), add(1, x))), x)


@elementwise("inexact", primitive=False)
def atan(x):
    """Return the angle in [-pi/2, pi/2] whose tangent is x.

    >>> pa.atan(pa.asarray([0.0, 1.0]))
    Array([0.       , 0.7853982], float32, 'numpy')
    """
    return multiply(atanh(multiply(x, 1j)), -1j) if x.dtype in COMPLEX else atan2(x, 1)


@elementwise("floating")
def atan2(x, y):
    """Return the angle of the point (y, x): atan(x / y) in the quadrant that the two signs give.

    >>> pa.atan2(pa.asarray([1.0, 0.0]), pa.asarray([0.0, -1.0]))
    Array([1.5707964, 3.1415927], float32, 'numpy')

    Gradients: x, y; 0 at the origin
    """


@elementwise("inexact", primitive=False)
def sinh(x):
    """Return the hyperbolic sine of x.

    >>> pa.sinh(pa.asarray([0.0, 1.0]))
    Array([0.       , 1.1752012], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return multiply(subtract(exp(x), exp(negative(x))), 0.5)
    u = expm1(abs(x))
    # u + u/(u+1) keeps its digits near 0; where exp overflows, u/(u+1) would be inf/inf.
    return copysign(multiply(add(u, where(isinf(u), 1, divide(u, add(u, 1)))), 0.5), x)


@elementwise("inexact", primitive=False)
def cosh(x):
    """Return the hyperbolic cosine of x.

    >>> pa.cosh(pa.asarray([0.0, 1.0]))
    Array([1.       , 1.5430807], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return multiply(add(exp(x), exp(negative(x))), 0.5)
    half = multiply(exp(multiply(abs(x), 0.5)), 0.5)
    # exp(|x|/2) squared: exp(|x|) itself overflows before cosh does.
    return add(multiply(multiply(half, half), 2), multiply(exp(negative(abs(x))), 0.5))


@elementwise("inexact")
def tanh(x):
    """Return the hyperbolic tangent of x.

    >>> pa.tanh(pa.asarray([0.0, 1.0]))
    Array([0.       , 0.7615942], float32, 'numpy')
    """


@elementwise("inexact", primitive=False)
def asinh(x):
    """Return the inverse hyperbolic sine of x.

    >>> pa.asinh(pa.asarray([0.0, 1.0]))
    Array([0.       , 0.8813736], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return log(add(x, sqrt(add(square(x), 1))))
    a = abs(x)
    small = log1p(add(a, divide(square(a), add(1, sqrt(add(square(a), 1))))))
    large = add(log(a), log1p(sqrt(add(square(reciprocal(a)), 1))))  # a * a may be infinite
    return copysign(where(greater(a, 1), large, small), x)


@elementwise("inexact", primitive=False)
def acosh(x):
    """Return the inverse hyperbolic cosine of x; nan below 1.

    >>> pa.acosh(pa.asarray([1.0, 2.0]))
    Array([0.      , 1.316958], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return log(add(x, multiply(sqrt(add(x, 1)), sqrt(subtract(x, 1)))))
    t, r = subtract(x, 1), reciprocal(x)
    small = log1p(add(t, multiply(sqrt(t), sqrt(add(t, 2)))))
    large = add(log(x), log1p(sqrt(multiply(subtract(1, r), add(1, r)))))  # 2 * t may be infinite
    return where(greater(x, 2), large, small)


@elementwise("inexact", primitive=False)
def atanh(x):
    """Return the inverse hyperbolic tangent of x; nan outside [-1, 1].

    >>> pa.atanh(pa.asarray([0.0, 0.5]))
    Array([0.        , 0.54930615], float32, 'numpy')
    """
    return multiply(subtract(log1p(x), log1p(negative(x))), 0.5)


@elementwise("floating")
def erf(x):
    """Return the error function of x, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    >>> pa.erf(pa.asarray([0.0, 1.0]))
    Array([0.       , 0.8427008], float32, 'numpy')
    """


@elementwise("floating", primitive=False)
def hypot(x, y):
    """Return sqrt(x^2 + y^2), without overflow of the squares.

    >>> pa.hypot(pa.asarray([3.0]), pa.asarray([4.0]))
    Array([5.], float32, 'numpy')

    Gradients: x, y; 0 at the origin
    """
    x, y = abs(array_like(x, y)), abs(array_like(y, x))
    large, small = maximum(x, y), minimum(x, y)
    infinite = bitwise_or(isinf(x), isinf(y))  # also beside nan
    ratio = where(infinite, 0, divide(small, where(equal(large, 0), 1, large)))
    return where(infinite, math.inf, multiply(large, sqrt(add(1, square(ratio)))))


@elementwise("floating", primitive=False)
def logaddexp(x, y):
    """Return log(exp(x) + exp(y)), without overflow of the exponentials.

    >>> pa.logaddexp(pa.asarray([1000.0]), pa.asarray([1000.0]))
    Array([1000.6932], float32, 'numpy')
    """
    large, small = maximum(x, y), minimum(x, y)
    return add(large, log1p(exp(_gap(small, large))))


@elementwise("floating", primitive=False)
def sigmoid(x):
    """Return the logistic function 1 / (1 + exp(-x)), without overflow.

    >>> pa.sigmoid(pa.asarray([0.0, 2.0]))
    Array([0.5     , 0.880797], float32, 'numpy')
    """
    e = exp(negative(abs(x)))
    return divide(where(less(x, 0), e, 1), add(1, e))


@elementwise("floating", primitive=False, widen=False)
def relu(x):
    """Return max(x, 0), the rectified linear unit.

    >>> pa.relu(pa.asarray([-1.0, 2.0]))
    Array([0., 2.], float32, 'numpy')

    Gradients: x; 0 at 0
    """
    return maximum(x, 0)


@elementwise("floating", primitive=False)
def silu(x):
    """Return x * sigmoid(x), the activation also called swish.

    >>> pa.silu(pa.asarray([0.0, 2.0]))
    Array([0.      , 1.761594], float32, 'numpy')

    Source: Hendrycks, Gimpel 2016, arXiv:1606.08415
    """
    return multiply(x, sigmoid(x))


pow.vjp(x=lambda g, x, y: multiply(g, _slope(x, y)), y=lambda g, x, out: multiply(g, _growth(x, out)))
exp.vjp(x=lambda g, out: multiply(g, out))
expm1.vjp(x=lambda g, out: multiply(g, add(out, 1)))
log.vjp(x=lambda g, x: divide(g, x))
log1p.vjp(x=lambda g, x: divide(g, add(x, 1)))
log2.vjp(x=lambda g, x: divide(g, multiply(x, math.log(2))))
log10.vjp(x=lambda g, x: divide(g, multiply(x, math.log(10))))
sqrt.vjp(x=lambda g, out: divide(multiply(g, 0.5), out))
# Multiply by g first: for a small x, out**3 alone may be infinite.
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


def _slope(x, y):
    """Return the derivative of x**y by x: y x**(y-1), and 0 where y is 0."""
    if isinstance(y, NUMBERS):
        return multiply(pow(x, evaluate(_less_one, y)), y)
    return where(equal(y, 0), 0, multiply(y, pow(x, where(equal(y, 0), 1, subtract(y, 1)))))


def _less_one(y):
    return y - 1 if y else y + 1


def _log_or_0(x):
    if isinstance(x, complex):
        return cmath.log(x) if x else 0.0
    return math.log(x) if x > 0 else 0.0


def _growth(x, out):
    """Return the derivative of x**y by y: x**y log x, and 0 where x is not positive."""
    if isinstance(x, NUMBERS):
        return multiply(out, evaluate(_log_or_0, x))
    is_there = not_equal(x, 0) if x.dtype in COMPLEX else less(0, x)
    return where(is_there, multiply(out, log(where(is_there, x, 1))), 0)


def _gap(x, y):
    """Return x - y, and 0 where they are equal, since inf - inf is nan."""
    return where(equal(x, y), 0, subtract(x, y))


def _over_square(numerator, x, y):
    """Return numerator / (x^2 + y^2), and 0 at the origin."""
    return _ratio(numerator, add(square(array_like(x, y)), square(array_like(y, x))))


def _ratio(x, y):
    """Return x / y, and 0 where y is 0."""
    return where(equal(y, 0), 0, divide(x, where(equal(y, 0), 1, y)))


def _silu_slope(x, s):
    return multiply(s, add(1, multiply(x, subtract(1, s))))
