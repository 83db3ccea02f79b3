"""Special functions: error functions and the normal distribution, Bessel functions, logarithms and entropies.

Each is composed of other ops, accurate to a few ulps in float32 and float64. The polynomials are in coefficients.py,
the gamma functions in gamma_functions.py.
"""

import math

from polyarr.core.array import untracked
from polyarr.core.spec import float64
from polyarr.ops import coefficients
from polyarr.ops.coefficients import horner, polynomial
from polyarr.ops.create import array_like
from polyarr.ops.declare import elementwise
from polyarr.ops.elementwise import (
    abs,
    add,
    clip,
    copysign,
    divide,
    isinf,
    maximum,
    minimum,
    multiply,
    negative,
    square,
    subtract,
    where,
)  # fmt: skip
from polyarr.ops.functions import exp, log, log1p, sqrt
from polyarr.ops.gamma_functions import sine_of_turns
from polyarr.ops.logic import bitwise_and, bitwise_or, equal, greater, greater_equal, less

# ---- error functions and the normal distribution ----------------------------------------------------------------


@elementwise("floating", primitive=False)
def erfc(x):
    """Return 1 - erf(x), with all digits where erf(x) is nearly 1.

    >>> pa.special.erfc(pa.asarray([0.0, 5.0]))
    Array([1.0000000e+00, 1.5374598e-12], float32, 'numpy')
    """
    tail = multiply(_erfcx(abs(x)), _gauss(x, 1.0))
    return where(less(x, 0), subtract(2, tail), tail)


@elementwise("floating", primitive=False)
def erfcx(x):
    """Return exp(x^2) erfc(x), which is about 1 / (sqrt(pi) x) for a large x.

    >>> pa.special.erfcx(pa.asarray([0.0, 100.0]))
    Array([1.        , 0.00564161], float32, 'numpy')
    """
    tail = _erfcx(abs(x))
    return where(less(x, 0), subtract(multiply(_gauss(x, -1.0), 2), tail), tail)


@elementwise("floating", primitive=False)
def erfinv(x):
    """Return the number whose error function is x; nan outside [-1, 1].

    >>> pa.special.erfinv(pa.asarray([0.0, 0.5, 1.0]))
    Array([0.        , 0.47693628,        inf], float32, 'numpy')
    """
    return multiply(x, _erfinv_over_x(multiply(subtract(1, x), add(1, x))))


@elementwise("floating", primitive=False)
def erfcinv(x):
    """Return the number whose erfc is x; nan outside [0, 2].

    >>> pa.special.erfcinv(pa.asarray([1.0, 1e-10]))
    Array([0.       , 4.5728245], float32, 'numpy')
    """
    return multiply(subtract(1, x), _erfinv_over_x(multiply(x, subtract(2, x))))


@elementwise("floating", primitive=False)
def ndtr(x):
    """Return the distribution function of the standard normal distribution, with all digits in the lower tail.

    >>> pa.special.ndtr(pa.asarray([-10.0, 0.0, 1.0]))
    Array([7.619854e-24, 5.000000e-01, 8.413447e-01], float32, 'numpy')
    """
    tail = _normal_tail(x)
    return where(less(x, 0), tail, subtract(1, tail))


@elementwise("floating", primitive=False)
def ndtri(x):
    """Return the quantile x of the standard normal distribution, the inverse of ndtr; nan outside [0, 1].

    >>> pa.special.ndtri(pa.asarray([0.0, 0.5, 0.975]))
    Array([    -inf, 0.       , 1.9599639], float32, 'numpy')
    """
    half = multiply(subtract(multiply(x, 2), 1), math.sqrt(2))
    return multiply(half, _erfinv_over_x(multiply(multiply(x, 4), subtract(1, x))))


@elementwise("floating", primitive=False)
def log_ndtr(x):
    """Return the logarithm of ndtr, also where ndtr underflows.

    >>> pa.special.log_ndtr(pa.asarray([-100.0, 0.0]))
    Array([-5.0055244e+03, -6.9314718e-01], float32, 'numpy')
    """
    below = minimum(x, 0)
    scaled = log(multiply(_erfcx(multiply(below, -math.sqrt(0.5))), 0.5))
    lower = subtract(scaled, multiply(multiply(below, 0.5), below))
    return where(less(x, 0), lower, log1p(negative(_normal_tail(x))))


erfc.vjp(x=lambda g, x: multiply(g, multiply(_gauss(x, 1.0), -2 / math.sqrt(math.pi))))
erfcx.vjp(x=lambda g, x: multiply(g, _erfcx_slope(x)))
erfinv.vjp(x=lambda g, out: multiply(g, multiply(_gauss(out, -1.0), math.sqrt(math.pi) / 2)))
erfcinv.vjp(x=lambda g, out: multiply(g, multiply(_gauss(out, -1.0), -math.sqrt(math.pi) / 2)))
ndtr.vjp(x=lambda g, x: multiply(g, _normal_density(x)))
ndtri.vjp(x=lambda g, out: multiply(g, multiply(_gauss(out, -0.5), math.sqrt(2 * math.pi))))
log_ndtr.vjp(x=lambda g, x: multiply(g, _over_ndtr(x)))


def _erfcx(x):
    """Return erfcx(x) for x >= 0."""
    return divide(polynomial(_mapped(x), coefficients.ERFCX), add(1, add(x, x)))


def _mapped(x):
    """Return (x - 3) / (x + 3), the argument of the polynomials for x >= 0."""
    return subtract(1, divide(6, add(x, 3)))


def _erfcx_slope(x):
    """Return the derivative of erfcx. It is 2 x erfcx(x) - 2 / sqrt(pi), but these two cancel for a large x."""
    size = where(less(x, 0), negative(x), x)  # abs has the slope 0 at 0
    divisor = add(1, add(size, size))
    above = divide(divide(polynomial(_mapped(size), coefficients.ERFCX_SLOPE), divisor), divisor)
    below = subtract(multiply(multiply(x, 2), erfcx(x)), 2 / math.sqrt(math.pi))
    return where(less(x, 0), below, above)


def _gauss(x, rate):
    """Return exp(-rate x^2), where rate is a power of 2, without the rounding error of x^2."""
    x = clip(x, -64, 64)  # the result is 0 or infinite there
    halves = multiply(x, 2.0**27 + 1 if x.dtype == float64 else 2.0**12 + 1)
    high = untracked(subtract(halves, subtract(halves, x)))  # the leading half of the digits of x: its square is exact
    rest = multiply(multiply(subtract(x, high), add(x, high)), -rate)
    return multiply(exp(multiply(square(high), -rate)), exp(rest))


def _normal_tail(x):
    """Return ndtr(-|x|)."""
    return multiply(multiply(_erfcx(multiply(abs(x), math.sqrt(0.5))), 0.5), _gauss(x, 0.5))


def _normal_density(x):
    return multiply(_gauss(x, 0.5), 1 / math.sqrt(2 * math.pi))


def _over_ndtr(x):
    """Return the density divided by ndtr."""
    below, above = where(less(x, 0), x, 0), where(less(x, 0), 0, x)
    lower = divide(math.sqrt(2 / math.pi), erfcx(multiply(below, -math.sqrt(0.5))))
    return where(less(x, 0), lower, divide(_normal_density(above), ndtr(above)))


def _erfinv_over_x(rest):
    """Return erfinv(x) / x, where rest is 1 - x^2."""
    w = negative(log(rest))
    s = sqrt(maximum(w, 5))
    u = divide(1, s)
    tail = where(less(s, 5), polynomial(u, coefficients.ERFINV_TAIL), polynomial(u, coefficients.ERFINV_END))
    return where(less(w, 5), polynomial(minimum(w, 5), coefficients.ERFINV_CENTER), multiply(s, tail))


# ---- modified Bessel functions -----------------------------------------------------------------------------------


@elementwise("floating", primitive=False)
def i0(x):
    """Return the modified Bessel function of the first kind of order 0.

    >>> pa.special.i0(pa.asarray([0.0, 1.0]))
    Array([1.       , 1.2660658], float32, 'numpy')
    """
    size, series = _bessel_series(x, 0)
    return where(less(size, 8), series, _grown(_bessel_tail(size, coefficients.I0_TAIL), size))


@elementwise("floating", primitive=False)
def i0e(x):
    """Return exp(-|x|) i0(x).

    >>> pa.special.i0e(pa.asarray([0.0, 100.0]))
    Array([1.        , 0.03994438], float32, 'numpy')
    """
    size, series = _bessel_series(x, 0)
    return where(less(size, 8), multiply(series, exp(negative(size))), _bessel_tail(size, coefficients.I0_TAIL))


@elementwise("floating", primitive=False)
def i1(x):
    """Return the modified Bessel function of the first kind of order 1.

    >>> pa.special.i1(pa.asarray([0.0, 1.0]))
    Array([0.       , 0.5651591], float32, 'numpy')
    """
    size, series = _bessel_series(x, 1)
    tail = copysign(_grown(_bessel_tail(size, coefficients.I1_TAIL), size), x)
    return where(less(size, 8), multiply(multiply(x, 0.5), series), tail)


@elementwise("floating", primitive=False)
def i1e(x):
    """Return exp(-|x|) i1(x).

    >>> pa.special.i1e(pa.asarray([0.0, 100.0]))
    Array([0.        , 0.03974415], float32, 'numpy')
    """
    size, series = _bessel_series(x, 1)
    tail = copysign(_bessel_tail(size, coefficients.I1_TAIL), x)
    small = multiply(multiply(clip(x, -8, 8), 0.5), series)  # finite, or the gradient of the unused branch were nan
    return where(less(size, 8), multiply(small, exp(negative(size))), tail)


i0.vjp(x=lambda g, x: multiply(g, i1(x)))
i1.vjp(x=lambda g, x: multiply(g, _i1_slope(x)))


def _i1_slope(x):
    """Return the derivative of i1, i0(x) - i1(x) / x."""
    size, series = _bessel_series(x, 0)
    center = subtract(series, multiply(_bessel_series(x, 1)[1], 0.5))
    ratio = divide(_bessel_tail(size, coefficients.I1_TAIL), _at_least_8(size))
    tail = subtract(_bessel_tail(size, coefficients.I0_TAIL), ratio)
    return where(less(size, 8), center, _grown(tail, size))


def _bessel_series(x, order: int):
    """Return |x|, and the sum of (x / 2)^(2 k) / (k! (k + order)!), for |x| up to 8."""
    size = abs(x)
    count = 28 if x.dtype == float64 else 18
    terms = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(count)]
    return size, horner(square(multiply(clip(x, -8, 8), 0.5)), terms)


def _bessel_tail(size, fit: coefficients.Fit):
    """Return the Bessel function of `fit` times exp(-size), for size from 8 on."""
    y = _at_least_8(size)
    return divide(polynomial(divide(1, y), fit), sqrt(y))


def _at_least_8(size):
    """Return maximum(size, 8), with the whole gradient of a size of 8."""
    return where(less(size, 8), 8, size)


def _grown(y, size):
    """Return y exp(size), without overflow of the exponential alone."""
    half = exp(multiply(size, 0.5))
    return multiply(multiply(where(isinf(size), math.inf, y), half), half)


# ---- logarithms and entropies ------------------------------------------------------------------------------------


@elementwise("floating", primitive=False)
def logit(x):
    """Return log(x / (1 - x)), the inverse of sigmoid; nan outside [0, 1].

    >>> pa.special.logit(pa.asarray([0.0, 0.5, 0.75]))
    Array([    -inf, 0.       , 1.0986123], float32, 'numpy')
    """
    rest = subtract(1, x)
    is_center = bitwise_and(greater(x, 0.25), less(x, 0.75))
    center = log1p(divide(subtract(add(x, x), 1), where(is_center, rest, 1)))
    return where(is_center, center, log(divide(x, rest)))


@elementwise("floating", primitive=False)
def xlogy(x, y):
    """Return x log(y), and 0 where x is 0.

    >>> pa.special.xlogy(pa.asarray([0.0, 2.0]), pa.asarray([0.0, 3.0]))
    Array([0.       , 2.1972246], float32, 'numpy')
    """
    x, y = array_like(x, y), array_like(y, x)
    return where(bitwise_and(equal(x, 0), equal(y, y)), 0, multiply(x, log(y)))


@elementwise("floating", primitive=False)
def xlog1py(x, y):
    """Return x log(1 + y), and 0 where x is 0.

    >>> pa.special.xlog1py(pa.asarray([0.0, 2.0]), pa.asarray([-1.0, 1e-8]))
    Array([0.e+00, 2.e-08], float32, 'numpy')
    """
    x, y = array_like(x, y), array_like(y, x)
    return where(bitwise_and(equal(x, 0), equal(y, y)), 0, multiply(x, log1p(y)))


@elementwise("floating", primitive=False)
def entr(x):
    """Return -x log(x), the term of an entropy: 0 at 0, -inf for a negative x.

    >>> pa.special.entr(pa.asarray([0.0, 0.5]))
    Array([0.        , 0.34657359], float32, 'numpy')
    """
    return where(less(x, 0), -math.inf, xlogy(negative(x), x))


@elementwise("floating", primitive=False)
def rel_entr(x, y):
    """Return x log(x / y), the term of a relative entropy: 0 where x is 0 and y >= 0, infinite for negative numbers.

    >>> pa.special.rel_entr(pa.asarray([0.0, 2.0]), 1)
    Array([0.       , 1.3862944], float32, 'numpy')
    """
    x, y = array_like(x, y), array_like(y, x)
    return _of_positive(x, y, multiply(x, _log_of_ratio(x, y)), 0)


@elementwise("floating", primitive=False)
def kl_div(x, y):
    """Return x log(x / y) - x + y, which is never negative: y where x is 0 and y >= 0, infinite for negative numbers.

    >>> pa.special.kl_div(pa.asarray([0.0, 2.0]), 1)
    Array([1.       , 0.38629436], float32, 'numpy')
    """
    x, y = array_like(x, y), array_like(y, x)
    return _of_positive(x, y, _divergence(x, y), y)


@elementwise("floating", primitive=False)
def sinc(x):
    """Return sin(pi x) / (pi x), and 1 at 0.

    >>> pa.special.sinc(pa.asarray([0.0, 0.5, 1.0]))
    Array([1.       , 0.6366198, 0.       ], float32, 'numpy')
    """
    is_small = less(abs(x), 0.5)
    count = 12 if x.dtype == float64 else 7
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(count)]
    series = horner(square(multiply(where(is_small, x, 0), math.pi)), terms)
    sine, sign = sine_of_turns(x)
    return where(is_small, series, divide(multiply(sine, sign), multiply(where(is_small, 1, x), math.pi)))


logit.vjp(x=lambda g, x: add(divide(g, x), divide(g, subtract(1, x))))  # of their product, derivatives overflow
xlogy.vjp(x=lambda g, y: multiply(g, log(array_like(y, g))), y=lambda g, x, y: multiply(g, _quotient(x, y)))
xlog1py.vjp(
    x=lambda g, y: multiply(g, log1p(array_like(y, g))),
    y=lambda g, x, y: multiply(g, _quotient(x, add(array_like(y, g), 1))),
)
entr.vjp(x=lambda g, x: multiply(g, subtract(-1, log(x))))
rel_entr.vjp(
    x=lambda g, x, y: multiply(g, add(_log_of_ratio(x, y), 1)), y=lambda g, x, y: negative(multiply(g, _quotient(x, y)))
)
kl_div.vjp(
    x=lambda g, x, y: multiply(g, _log_of_ratio(x, y)), y=lambda g, x, y: multiply(g, subtract(1, _quotient(x, y)))
)


def _quotient(x, y):
    """Return x / y, and 0 where both are 0."""
    x, y = array_like(x, y), array_like(y, x)
    is_open = bitwise_and(equal(x, 0), equal(y, 0))
    return where(is_open, 0, divide(x, where(is_open, 1, y)))


def _log_of_ratio(x, y):
    """Return log(x / y): with all digits where the two are nearly equal, and where the ratio is no normal number."""
    x, y = array_like(x, y), array_like(y, x)
    ratio = untracked(divide(x, y))
    smallest_normal = 2.0**-1022 if x.dtype == float64 else 2.0**-126
    is_extreme = bitwise_or(less(ratio, smallest_normal), isinf(ratio))
    a, b = where(is_extreme, 2, x), where(is_extreme, 1, y)  # the gradient of an unused overflow would be nan
    gap, is_near = _near(a, b)
    far = where(is_extreme, subtract(log(x), log(y)), log(divide(a, b)))
    return where(is_near, log1p(where(is_near, gap, 0)), far)


def _near(x, y):
    """Return (x - y) / y, and whether it is less than 1/2 in magnitude."""
    gap = divide(subtract(x, y), y)
    return gap, less(abs(gap), 0.5)


def _divergence(x, y):
    """Return x log(x / y) - x + y of positive numbers, without cancellation where they are nearly equal."""
    gap, is_near = _near(x, y)
    gap = where(is_near, gap, 0)
    s = divide(gap, add(gap, 2))  # (x - y) / (x + y): log(x / y) is 2 atanh(s)
    terms = [2 / (2 * k + 3) for k in range(17 if x.dtype == float64 else 7)]
    rest = multiply(multiply(square(s), s), horner(square(s), terms))
    near = add(multiply(where(is_near, subtract(x, y), 0), s), multiply(where(is_near, x, 1), rest))
    return where(is_near, near, add(multiply(x, subtract(_log_of_ratio(x, y), 1)), y))


def _of_positive(x, y, found, at_zero):
    """Return found where both are positive, at_zero where x is 0 and y >= 0, inf for other numbers, nan beside nan."""
    edge = where(bitwise_and(equal(x, 0), greater_equal(y, 0)), array_like(at_zero, x), math.inf)
    is_inside = bitwise_and(greater(x, 0), greater(y, 0))
    is_number = bitwise_and(equal(x, x), equal(y, y))
    return where(is_inside, found, where(is_number, edge, math.nan))
