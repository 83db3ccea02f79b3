"""Elementwise functions: powers, exponentials and logarithms, trigonometric and hyperbolic functions, activations.

They broadcast and promote as the ops of elementwise.py do. VJPs stand under the ops.
"""

import builtins
import cmath
import math

from polyarr.core.number import NUMBERS, evaluate
from polyarr.core.spec import COMPLEX, INTEGERS, float64
from polyarr.ops.create import array_like
from polyarr.ops.declare import elementwise
from polyarr.ops.elementwise import (
    abs,
    add,
    complex,
    copysign,
    divide,
    imaginary_part,
    isfinite,
    isinf,
    maximum,
    minimum,
    multiply,
    negative,
    real_part,
    reciprocal,
    square,
    subtract,
    where,
)
from polyarr.ops.logic import bitwise_and, bitwise_invert, bitwise_or, equal, greater, less, not_equal


@elementwise("numeric")
def pow(x, y):
    """Return x to the power y. Integers take no negative number y; in an array y it gives 0, unless x is 1 or -1.

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
    return _over_log(log(x), math.log(2), math.log2(math.e))


@elementwise("inexact", primitive=False)
def log10(x):
    """Return the logarithm of x to base 10.

    >>> pa.log10(pa.asarray([1.0, 10.0]))
    Array([0., 1.], float32, 'numpy')
    """
    return _over_log(log(x), math.log(10), math.log10(math.e))


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
    return _turned(tanh, x) if x.dtype in COMPLEX else divide(sin(x), cos(x))


@elementwise("inexact", primitive=False)
def asin(x):
    """Return the angle in [-pi/2, pi/2] whose sine is x; nan outside [-1, 1].

    >>> pa.asin(pa.asarray([0.0, 1.0]))
    Array([0.       , 1.5707964], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return _turned(asinh, x)
    a = abs(x)
    c = _cosine(a)
    # The rounding error of c, divided by c; beyond 0.7 it no longer matters.
    error = divide(subtract(square(x), multiply(subtract(1, c), add(1, c))), add(c, c))
    return add(atan2(x, c), where(less(a, 0.7), multiply(x, error), 0))


@elementwise("inexact", primitive=False)
def acos(x):
    """Return the angle in [0, pi] whose cosine is x; nan outside [-1, 1].

    >>> pa.acos(pa.asarray([0.0, 1.0]))
    Array([1.5707964, 0.       ], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return _complex_acos(x)
    return atan2(_cosine(abs(x)), x)


@elementwise("inexact", primitive=False)
def atan(x):
    """Return the angle in [-pi/2, pi/2] whose tangent is x.

    >>> pa.atan(pa.asarray([0.0, 1.0]))
    Array([0.       , 0.7853982], float32, 'numpy')
    """
    return _turned(atanh, x) if x.dtype in COMPLEX else atan2(x, 1)


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
        return _complex_sinh(x)
    a = abs(x)
    is_large = greater(a, 40)  # sinh(a) is exp(a) / 2
    u = expm1(where(is_large, subtract(a, HALVES), a))
    half = multiply(u, 0.5)
    rest = divide(half, add(u, 1))
    small = where(less(a, 1), subtract(u, multiply(u, rest)), add(half, rest))
    return copysign(where(is_large, add(u, multiply(u, HALVES_ERROR)), small), x)


@elementwise("inexact", primitive=False)
def cosh(x):
    """Return the hyperbolic cosine of x.

    >>> pa.cosh(pa.asarray([0.0, 1.0]))
    Array([1.       , 1.5430807], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return _complex_cosh(x)
    half = exp(subtract(abs(x), HALVES))
    error = multiply(half, HALVES_ERROR)
    return add(half, add(error, divide(0.25, add(half, error))))


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
        return _complex_asinh(x)
    a = abs(x)
    return copysign(_log1p_of_sum(a, divide(square(a), add(1, sqrt(add(square(a), 1))))), x)


@elementwise("inexact", primitive=False)
def acosh(x):
    """Return the inverse hyperbolic cosine of x; nan below 1.

    >>> pa.acosh(pa.asarray([1.0, 2.0]))
    Array([0.      , 1.316958], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return _complex_acosh(x)
    t = where(less(x, 1), math.nan, subtract(x, 1))
    return _log1p_of_sum(sqrt(add(add(t, t), square(t))), t, x)


@elementwise("inexact", primitive=False)
def atanh(x):
    """Return the inverse hyperbolic tangent of x; nan outside [-1, 1].

    >>> pa.atanh(pa.asarray([0.0, 0.5]))
    Array([0.        , 0.54930615], float32, 'numpy')
    """
    if x.dtype in COMPLEX:
        return _complex_atanh(x)
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
    many, few, scale = (2.0**500, 2.0**-400, 2.0**600) if x.dtype == float64 else (2.0**60, 2.0**-40, 2.0**100)
    size = maximum(x, y)
    by = where(greater(size, many), 1 / scale, where(less(size, few), array_like(scale, x), 1))
    length = divide(sqrt(add(square(multiply(x, by)), square(multiply(y, by)))), by)
    return where(bitwise_or(isinf(x), isinf(y)), math.inf, length)  # also beside nan


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


def _integer_powers(x, y):
    """Return the check of an exponent that is a Python number, if x has an integer dtype; else None."""
    if not y.is_number or x.is_number or x.dtype not in INTEGERS:
        return None

    def check(_, exponent):
        if exponent < 0:
            raise ValueError(f"pow: x is {x}, y is {exponent}; to a negative power x must be floating-point, by astype")

    return check


pow.checks = _integer_powers
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
asin.vjp(x=lambda g, x: divide(g, multiply(sqrt(subtract(1, x)), sqrt(add(1, x)))))
acos.vjp(x=lambda g, x: negative(divide(g, multiply(sqrt(subtract(1, x)), sqrt(add(1, x))))))
atan.vjp(x=lambda g, x: divide(g, add(square(x), 1)))
atan2.vjp(
    x=lambda g, x, y: multiply(g, _over_square(y, x, y)), y=lambda g, x, y: negative(multiply(g, _over_square(x, x, y)))
)
sinh.vjp(x=lambda g, x: multiply(g, cosh(x)))
cosh.vjp(x=lambda g, x: multiply(g, sinh(x)))
tanh.vjp(x=lambda g, out: multiply(g, subtract(1, square(out))))
asinh.vjp(x=lambda g, x: divide(g, _one_and_square(x)))
acosh.vjp(x=lambda g, x: divide(g, multiply(sqrt(subtract(x, 1)), sqrt(add(x, 1)))))
atanh.vjp(x=lambda g, x: divide(g, multiply(subtract(1, x), add(1, x))))
erf.vjp(x=lambda g, x: multiply(g, multiply(exp(negative(square(x))), 2 / math.sqrt(math.pi))))
hypot.vjp(x=lambda g, x, out: multiply(g, _ratio(x, out)), y=lambda g, y, out: multiply(g, _ratio(y, out)))
logaddexp.vjp(x=lambda g, x, y: multiply(g, sigmoid(_gap(x, y))), y=lambda g, x, y: multiply(g, sigmoid(_gap(y, x))))
sigmoid.vjp(x=lambda g, out: multiply(g, multiply(out, subtract(1, out))))
relu.vjp(x=lambda g, out: where(greater(out, 0), g, 0))
silu.vjp(x=lambda g, x: multiply(g, _silu_slope(x, sigmoid(x))))


# exp(a - HALVES) is exp(a) / 2 but for a positive relative error; a - HALVES is exact where exp(a) may overflow.
HALVES = math.ceil(math.log(2) * 2**17) / 2**17
HALVES_ERROR = math.expm1(HALVES - math.log(2) - 2.3190468138462996e-17)  # the last digits of log(2)


def _over_log(x, log_of_base, inverse):
    """Return x / log_of_base, by the constant whose rounding error is smaller in the dtype."""
    if x.dtype in COMPLEX:
        return complex(*(_over_log(part, log_of_base, inverse) for part in _parts(x)))
    return multiply(x, inverse) if x.dtype == float64 else divide(x, log_of_base)


def _cosine(x):
    """Return sqrt(1 - x^2) for 0 <= x <= 1: 1 - x is exact where the digits of the difference count."""
    d = subtract(1, x)
    return sqrt(subtract(add(d, d), square(d)))


def _log1p_of_sum(large, small, whole=None):
    """Return log(1 + large + small) with the rounding error of the sum; beyond 2^60, log(2 whole)."""
    whole = large if whole is None else whole
    is_far = greater(whole, 2.0**60)  # its square may be infinite
    both = add(large, small)
    rest = divide(subtract(small, subtract(both, large)), add(both, 1))
    return add(log1p(where(is_far, whole, both)), where(is_far, math.log(2), rest))


def _one_and_square(x):
    """Return sqrt(1 + x^2)."""
    if x.dtype not in COMPLEX:
        return hypot(x, 1)
    turned = multiply(x, 1j)
    return multiply(sqrt(add(1, turned)), sqrt(subtract(1, turned)))


# ---- decompositions for complex numbers: real functions of the parts, with the branch cuts of the standard ---------

# Source: Kahan, Branch cuts for complex elementary functions, 1987
FAR = 2.0**60  # beyond it, 1 adds nothing to a number; squares may be infinite


def _parts(z):
    return real_part(z), imaginary_part(z)


def _turned(fn, z):
    """Return fn(i z) / i."""
    x, y = _parts(z)
    real, imaginary = _parts(fn(complex(negative(y), x)))
    return complex(imaginary, negative(real))


def _grown(x):
    """Return t and a factor, sinh(x) and cosh(x) being those of t times it: with sin(y), they may not overflow."""
    a = abs(x)
    is_large = greater(a, 60)
    return where(is_large, copysign(subtract(a, 40), x), x), where(is_large, array_like(math.exp(40), x), 1)


def _complex_sinh(z):
    x, y = _parts(z)
    t, factor = _grown(x)
    real, imaginary = multiply(multiply(sinh(t), cos(y)), factor), multiply(multiply(cosh(t), sin(y)), factor)
    real = where(isfinite(y), real, where(equal(add(x, x), x), x, math.nan))
    return complex(real, where(equal(y, 0), y, imaginary))


def _complex_cosh(z):
    x, y = _parts(z)
    t, factor = _grown(x)
    real, imaginary = multiply(multiply(cosh(t), cos(y)), factor), multiply(multiply(sinh(t), sin(y)), factor)
    real = where(bitwise_and(isinf(x), bitwise_invert(isfinite(y))), math.inf, real)
    imaginary = where(equal(y, 0), multiply(y, copysign(1, x)), imaginary)
    return complex(real, where(bitwise_and(equal(x, 0), bitwise_invert(isfinite(y))), x, imaginary))


def _is_far(x, y):
    return bitwise_or(greater(abs(x), FAR), greater(abs(y), FAR))


def _log_of_double(x, y):
    """Return log(2 |x + iy|)."""
    return add(log(hypot(multiply(x, 0.5), multiply(y, 0.5))), 2 * math.log(2))


def _complex_asinh(z):
    x, y = _parts(z)
    (a, b), (c, d) = _parts(sqrt(complex(add(1, y), negative(x)))), _parts(sqrt(complex(subtract(1, y), x)))
    real, angle = asinh(subtract(multiply(a, d), multiply(c, b))), atan2(y, subtract(multiply(a, c), multiply(b, d)))
    is_far = _is_far(x, y)
    angle = where(equal(y, 0), y, where(is_far, atan2(y, abs(x)), angle))
    return complex(where(is_far, copysign(_log_of_double(x, y), x), real), angle)


def _complex_acosh(z):
    x, y = _parts(z)
    (a, b), (c, d) = _parts(sqrt(complex(subtract(x, 1), y))), _parts(sqrt(complex(add(x, 1), y)))
    real, angle = asinh(add(multiply(a, c), multiply(b, d))), multiply(atan2(b, c), 2)
    is_far = _is_far(x, y)
    angle = where(is_far, atan2(y, x), where(equal(x, 0), copysign(math.pi / 2, y), angle))
    return complex(where(is_far, _log_of_double(x, y), real), angle)


def _complex_acos(z):
    x, y = _parts(z)
    (a, b), (c, d) = _parts(sqrt(complex(subtract(1, x), negative(y)))), _parts(sqrt(complex(add(1, x), y)))
    angle, imaginary = multiply(atan2(a, c), 2), asinh(subtract(multiply(c, b), multiply(d, a)))
    is_far = _is_far(x, y)
    angle = where(is_far, atan2(abs(y), x), where(equal(x, 0), math.pi / 2, angle))
    return complex(angle, where(is_far, negative(copysign(_log_of_double(x, y), y)), imaginary))


def _complex_atanh(z):
    x, y = _parts(z)
    a, b = abs(x), abs(y)
    gap = subtract(1, a)
    real = multiply(log1p(divide(multiply(a, 4), add(square(gap), square(b)))), 0.25)
    angle = multiply(atan2(multiply(y, 2), subtract(multiply(gap, add(1, a)), square(b))), 0.5)
    is_pole = bitwise_and(equal(a, 1), less(b, 1 / FAR))
    real = where(is_pole, multiply(subtract(math.log(2), log(b)), 0.5), where(equal(a, 0), 0, real))
    angle = where(bitwise_and(is_pole, not_equal(b, 0)), copysign(math.pi / 4, y), angle)
    size = hypot(multiply(x, 0.5), multiply(y, 0.5))
    far = where(isinf(size), 0, divide(divide(multiply(a, 0.25), size), size))
    is_far = _is_far(x, y)
    angle = where(is_far, where(equal(y, y), copysign(math.pi / 2, y), y), angle)
    return complex(copysign(where(is_far, far, real), x), angle)


def _slope(x, y):
    """Return the derivative of x**y by x: y x**(y-1), and 0 where y is 0."""
    if isinstance(y, NUMBERS):
        return multiply(pow(x, evaluate(_less_one, y)), y)
    is_flat = bitwise_and(equal(y, 0), bitwise_invert(isfinite(reciprocal(x))))  # only there: it has a derivative by y
    return where(is_flat, 0, multiply(y, pow(where(is_flat, 1, x), subtract(y, 1))))


def _less_one(y):
    return y - 1 if y else y  # of 0, the slope is 0 times 1


def _log_or_0(x):
    if isinstance(x, builtins.complex):
        return cmath.log(x) if x else 0.0
    return math.log(x) if x > 0 else 0.0


def _growth(x, out):
    """Return the derivative of x**y by y: x**y log x, and 0 where x is not positive."""
    if isinstance(x, NUMBERS):
        return multiply(out, evaluate(_log_or_0, x))
    is_there = not_equal(x, 0) if x.dtype in COMPLEX else less(0, x)
    return where(is_there, multiply(out, log(where(is_there, x, 1))), 0)


def _gap(x, y):
    """Return x - y, and 0 where they are the same infinity. Equal numbers are subtracted, for the second derivative."""
    return where(bitwise_and(equal(x, y), isinf(x)), 0, subtract(x, y))


def _over_square(numerator, x, y):
    """Return numerator / (x^2 + y^2), and 0 at the origin. The squares themselves may overflow or vanish."""
    length = hypot(x, y)
    return _ratio(_ratio(numerator, length), length)


def _ratio(x, y):
    """Return x / y, and 0 where y is 0."""
    return where(equal(y, 0), 0, divide(x, where(equal(y, 0), 1, y)))


def _silu_slope(x, s):
    return multiply(s, add(1, multiply(x, subtract(1, s))))
