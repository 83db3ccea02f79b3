"""Special functions: error functions and the normal distribution, gamma functions, Bessel functions, entropies.

Each is composed of other ops, accurate to a few ulps in float32 and float64. The polynomials are in coefficients.py.
"""

import math

from polyarr.core.array import spec_of, untracked
from polyarr.core.spec import check_kind, float64
from polyarr.ops import coefficients
from polyarr.ops.declare import elementwise
from polyarr.ops.elementwise import (
    abs,
    add,
    array_like,
    clip,
    copysign,
    divide,
    floor,
    isinf,
    maximum,
    minimum,
    multiply,
    negative,
    round,
    square,
    subtract,
    where,
)  # fmt: skip
from polyarr.ops.functions import exp, log, log1p, pow, sin, sqrt
from polyarr.ops.logic import bitwise_and, bitwise_or, equal, greater, greater_equal, less, less_equal
from polyarr.ops.validation import whole

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
erfcx.vjp(x=lambda g, x, out: multiply(g, subtract(multiply(multiply(x, 2), out), 2 / math.sqrt(math.pi))))
erfinv.vjp(x=lambda g, out: multiply(g, multiply(_gauss(out, -1.0), math.sqrt(math.pi) / 2)))
erfcinv.vjp(x=lambda g, out: multiply(g, multiply(_gauss(out, -1.0), -math.sqrt(math.pi) / 2)))
ndtr.vjp(x=lambda g, x: multiply(g, _normal_density(x)))
ndtri.vjp(x=lambda g, out: multiply(g, multiply(_gauss(out, -0.5), math.sqrt(2 * math.pi))))
log_ndtr.vjp(x=lambda g, x: multiply(g, _over_ndtr(x)))


def _polynomial(v, fit: coefficients.Fit):
    """Return the value of a polynomial at v."""
    t = divide(subtract(v, fit.center), fit.radius) if fit.center else v
    return _horner(t, fit.double if t.dtype == float64 else fit.single)


def _horner(t, terms):
    """Return the sum of terms[k] t^k."""
    total = terms[-1]
    for term in reversed(terms[:-1]):
        total = add(multiply(t, total), term)
    return total


def _erfcx(x):
    """Return erfcx(x) for x >= 0."""
    return divide(_polynomial(subtract(1, divide(6, add(x, 3))), coefficients.ERFCX), add(1, add(x, x)))


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
    below, above = minimum(x, 0), maximum(x, 0)
    lower = divide(math.sqrt(2 / math.pi), erfcx(multiply(below, -math.sqrt(0.5))))
    return where(less(x, 0), lower, divide(_normal_density(above), ndtr(above)))


def _erfinv_over_x(rest):
    """Return erfinv(x) / x, where rest is 1 - x^2."""
    w = negative(log(rest))
    s = sqrt(maximum(w, 5))
    u = divide(1, s)
    tail = where(less(s, 5), _polynomial(u, coefficients.ERFINV_TAIL), _polynomial(u, coefficients.ERFINV_END))
    return where(less(w, 5), _polynomial(minimum(w, 5), coefficients.ERFINV_CENTER), multiply(s, tail))


# ---- gamma functions ---------------------------------------------------------------------------------------------

HALF_LOG_2_PI = math.log(2 * math.pi) / 2
DIGAMMA_ROOT = 1.4616321449683622  # the positive root of digamma, rounded to float64
DIGAMMA_ROOT_REST = 9.5499954299661256e-17
DIGAMMA_ROOT_SINGLE = 1.4616321325302124  # rounded to float32


@elementwise("floating", primitive=False)
def gammaln(x):
    """Return log |gamma(x)|; infinite at 0, at negative integers and at both infinities.

    >>> pa.special.gammaln(pa.asarray([0.5, 1.0, 100.0]))
    Array([  0.5723649,   0.       , 359.13422  ], float32, 'numpy')
    """
    is_negative = less(x, 0)
    y = where(is_negative, subtract(1, x), x)
    rest, divisor = _gamma_below_3(y)
    large = add(multiply(subtract(y, 0.5), subtract(log(y), 1)), add(_stirling(y), HALF_LOG_2_PI - 0.5))
    found = where(less(y, 3), subtract(rest, log(divisor)), large)
    sine, _ = _sine_of_turns(x)
    reflected = subtract(subtract(math.log(math.pi), log(abs(sine))), found)
    return where(isinf(found), math.inf, where(is_negative, reflected, found))


@elementwise("floating", primitive=False)
def gamma(x):
    """Return the gamma function of x, (x - 1)! for positive integers; nan at negative integers.

    >>> pa.special.gamma(pa.asarray([0.5, 4.0, -0.5]))
    Array([ 1.7724539,  6.       , -3.5449078], float32, 'numpy')
    """
    is_negative = less(x, 0)
    size = where(is_negative, negative(x), x)
    rest, divisor = _gamma_below_3(size)
    y = clip(size, 3, 200)  # from 172 on the result is infinite
    root = multiply(pow(y, subtract(multiply(y, 0.5), 0.25)), exp(multiply(y, -0.5)))  # its square may overflow
    is_small = less(size, 3)
    first = where(is_small, divide(exp(rest), divisor), root)
    second = where(is_small, 1, multiply(root, multiply(exp(_stirling(y)), math.sqrt(2 * math.pi))))
    sine, sign = _sine_of_turns(x)
    reflected = divide(divide(multiply(divide(math.pi, sine), sign), multiply(size, first)), second)
    return where(is_negative, where(equal(sine, 0), math.nan, reflected), multiply(first, second))


@elementwise("floating", primitive=False)
def digamma(x):
    """Return the derivative of gammaln at x; nan at negative integers.

    >>> pa.special.digamma(pa.asarray([0.5, 1.0, 100.0]))
    Array([-1.9635100, -0.5772157,  4.6001616], float32, 'numpy')
    """
    is_negative = less(x, 0)
    y = where(is_negative, subtract(1, x), x)
    z = where(less(y, 1), add(y, 1), y)
    high = DIGAMMA_ROOT if x.dtype == float64 else DIGAMMA_ROOT_SINGLE
    from_root = subtract(subtract(z, high), DIGAMMA_ROOT - high + DIGAMMA_ROOT_REST)
    center = multiply(from_root, _polynomial(minimum(z, 2), coefficients.DIGAMMA_ROOT))
    u = divide(1, maximum(z, 2))
    v = square(u)
    tail = subtract(subtract(log(z), multiply(u, 0.5)), multiply(v, _polynomial(v, coefficients.DIGAMMA_TAIL)))
    found = where(less(z, 2), center, tail)
    found = where(less(y, 1), subtract(found, divide(1, y)), found)
    sine, _ = _sine_of_turns(x)
    reflected = subtract(found, divide(multiply(_cosine_of_turns(x), math.pi), sine))
    return where(is_negative, where(equal(sine, 0), math.nan, reflected), found)


@elementwise("floating", primitive=False)
def zeta(x, q):
    """Return the Hurwitz zeta function, the sum of (k + q)^-x for k = 0, 1, ...; zeta(x, 1) is Riemann's.

    nan for x < 1 and for a negative q that is not an integer; infinite at x = 1 and at q = 0, -1, ...

    >>> pa.special.zeta(pa.asarray([2.0, 4.0]), 1)
    Array([1.6449342, 1.0823232], float32, 'numpy')
    """
    x, q = array_like(x, q), array_like(q, x)
    # The first terms, and the Euler-Maclaurin formula for the others
    terms, corrections = (10, 10) if x.dtype == float64 else (8, 5)
    power = negative(x)
    is_valid = greater(x, 1)
    total = pow(q, power)
    for k in range(1, terms):
        total = add(total, pow(add(q, k), power))
    w = add(q, terms)
    last = pow(w, power)
    gap = where(is_valid, subtract(x, 1), 1)
    total = add(total, add(divide(pow(w, subtract(1, x)), gap), multiply(last, 0.5)))
    term = divide(multiply(last, x), w)
    for j in range(corrections):
        total = add(total, multiply(term, BERNOULLI[j]))
        term = multiply(multiply(term, divide(add(x, 2 * j + 1), w)), divide(add(x, 2 * j + 2), w))
    pole = where(equal(q, floor(q)), array_like(math.inf, q), math.nan)
    total = where(equal(q, math.inf), 0, total)
    total = where(greater(q, 0), total, where(less_equal(q, 0), pole, q))
    return where(is_valid, total, where(equal(x, 1), add(math.inf, multiply(q, 0)), math.nan))


def polygamma(n, x):
    """Return the derivative of order n of digamma.

    Args:
        n: Int from 0 on; 0 for digamma itself. Above 170 (float64) or 34 (other dtypes) n! overflows, and the result.
        x: Floating-point array of any shape.

    Returns:
        Array of the shape and dtype of x; infinite at 0 and at negative integers if n is at least 1.

    Raises:
        DtypeError: x is not floating-point.
        ValueError: n is negative.

    Examples:
        >>> import polyarr as pa
        >>> pa.special.polygamma(1, pa.asarray([0.5, 1.0]))
        Array([4.9348025, 1.6449342], float32, 'numpy')

    Gradients: x
    """
    n = whole("polygamma", "n", n)
    if n < 0:
        raise ValueError(f"polygamma: n is {n}; it must be at least 0")
    check_kind("polygamma", "x", spec_of(x), "floating")
    if n == 0:
        return digamma(x)
    is_negative = less(x, 0)
    y = where(is_negative, subtract(1, x), x)
    found = multiply(zeta(float(n + 1), y), (-1.0) ** (n + 1) * math.factorial(n))
    sine = where(is_negative, _sine_of_turns(x)[0], 1)  # not 0, for which the unused branch's gradient is nan
    cotangent = divide(_cosine_of_turns(x), sine)
    slope = multiply(_horner(cotangent, _cotangent_derivative(n)), math.pi ** (n + 1))
    return where(is_negative, subtract(multiply(found, (-1.0) ** n), slope), found)


@elementwise("floating", primitive=False)
def betaln(x, y):
    """Return log |beta(x, y)|, without cancellation if one of the two is much larger.

    >>> pa.special.betaln(pa.asarray([0.5, 1e6]), 0.5)
    Array([ 1.1447299, -6.335390 ], float32, 'numpy')
    """
    x, y = array_like(x, y), array_like(y, x)
    small, large = minimum(x, y), maximum(x, y)
    both = add(small, large)
    simple = subtract(add(gammaln(small), gammaln(large)), gammaln(both))
    is_large = bitwise_and(greater_equal(large, 3), greater_equal(both, 3))
    a, b = where(is_large, small, 1), maximum(large, 3)
    total = add(a, b)
    # log(gamma(b)) - log(gamma(a + b)) - a
    fall = subtract(subtract(_stirling(b), _stirling(total)), multiply(subtract(b, 0.5), log1p(divide(a, b))))
    one_large = add(gammaln(a), add(subtract(a, multiply(a, log(total))), fall))
    both_large = add(_stirling(a), HALF_LOG_2_PI)
    both_large = subtract(subtract(both_large, multiply(log(a), 0.5)), multiply(a, log1p(divide(b, a))))
    found = where(less(a, 3), one_large, add(both_large, fall))
    found = where(equal(large, math.inf), multiply(small, -math.inf), found)
    return where(is_large, found, simple)


@elementwise("floating", primitive=False)
def beta(x, y):
    """Return the beta function gamma(x) gamma(y) / gamma(x + y).

    >>> pa.special.beta(pa.asarray([0.5, 2.0]), 3)
    Array([1.0666667 , 0.08333333], float32, 'numpy')
    """
    x, y = array_like(x, y), array_like(y, x)
    first, second, both = gamma(x), gamma(y), add(x, y)
    ratio = multiply(first, divide(second, gamma(both)))
    of_small = where(less(x, y), first, second)  # its sign is the result's if x + y > 0; nan at negative integers
    is_large = bitwise_and(greater(both, 0), greater_equal(maximum(x, y), 3))
    return where(bitwise_and(is_large, equal(of_small, of_small)), copysign(exp(betaln(x, y)), of_small), ratio)


gammaln.vjp(x=lambda g, x: multiply(g, digamma(x)))
gamma.vjp(x=lambda g, x, out: multiply(g, multiply(out, digamma(x))))
digamma.vjp(x=lambda g, x: multiply(g, polygamma(1, x)))
betaln.vjp(x=lambda g, x, y: multiply(g, _beta_slope(x, y)), y=lambda g, x, y: multiply(g, _beta_slope(y, x)))
beta.vjp(
    x=lambda g, x, y, out: multiply(g, multiply(out, _beta_slope(x, y))),
    y=lambda g, x, y, out: multiply(g, multiply(out, _beta_slope(y, x))),
)

# Of the Euler-Maclaurin formula: Bernoulli's number of order 2 k divided by (2 k)!, for k = 1, 2, ...
BERNOULLI = tuple(
    numerator / denominator / math.factorial(2 * k)
    for k, (numerator, denominator) in enumerate((
        (1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510), (43867, 798), (-174611, 330),
    ), start=1)
)


def _gamma_below_3(x):
    """Return rest and divisor, where gamma(x) = exp(rest) / divisor, for x from 0 to 3."""
    is_small, is_low = less(x, 0.5), less(x, 1.5)
    d = where(is_small, x, subtract(x, where(is_low, array_like(1.0, x), 2)))  # exact
    d = clip(d, -0.5, 1)
    divisor = where(is_small, multiply(x, add(1, x)), where(is_low, x, 1))
    return multiply(d, _polynomial(d, coefficients.GAMMALN)), divisor


def _stirling(x):
    """Return log(gamma(x)) - (x - 1/2) log(x) + x - log(2 pi) / 2 for x >= 3."""
    u = divide(1, maximum(x, 3))
    return multiply(u, _polynomial(square(u), coefficients.STIRLING))


def _sine_of_turns(x):
    """Return s and a sign, with sin(pi x) = s * sign; s is 0 at integers."""
    nearest = round(x)
    half = multiply(nearest, 0.5)
    sign = subtract(1, multiply(subtract(half, floor(half)), 4))
    return sin(multiply(subtract(x, nearest), math.pi)), sign


def _cosine_of_turns(x):
    """Return |cos(pi x)|, with all digits near its zeros; sin(pi x) times the sign of _sine_of_turns belongs to it."""
    return sin(multiply(subtract(0.5, abs(subtract(x, round(x)))), math.pi))


def _cotangent_derivative(n: int) -> list[float]:
    """Return the coefficients of the derivative of order n of cot, a polynomial in cot."""
    terms = [0.0, 1.0]
    for _ in range(n):
        slope = [k * term for k, term in enumerate(terms)][1:]
        terms = [-a - b for a, b in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope], strict=True)]
    return terms


def _beta_slope(x, y):
    """Return the derivative of betaln by x."""
    x, y = array_like(x, y), array_like(y, x)
    return subtract(digamma(x), digamma(add(x, y)))


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
    return where(less(size, 8), multiply(multiply(multiply(x, 0.5), series), exp(negative(size))), tail)


def _bessel_series(x, order: int):
    """Return |x|, and the sum of (x / 2)^(2 k) / (k! (k + order)!), for |x| up to 8."""
    size = abs(x)
    count = 28 if x.dtype == float64 else 18
    terms = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(count)]
    return size, _horner(square(multiply(minimum(size, 8), 0.5)), terms)


def _bessel_tail(size, fit: coefficients.Fit):
    """Return the Bessel function of `fit` times exp(-size), for size from 8 on."""
    y = maximum(size, 8)
    return divide(_polynomial(divide(1, y), fit), sqrt(y))


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
    return _of_positive(x, y, subtract(multiply(x, _log_of_ratio(x, y)), subtract(x, y)), y)


@elementwise("floating", primitive=False)
def sinc(x):
    """Return sin(pi x) / (pi x), and 1 at 0.

    >>> pa.special.sinc(pa.asarray([0.0, 0.5, 1.0]))
    Array([1.       , 0.6366198, 0.       ], float32, 'numpy')
    """
    is_small = less(abs(x), 0.5)
    count = 12 if x.dtype == float64 else 7
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(count)]
    series = _horner(square(multiply(where(is_small, x, 0), math.pi)), terms)
    sine, sign = _sine_of_turns(x)
    return where(is_small, series, divide(multiply(sine, sign), multiply(where(is_small, 1, x), math.pi)))


logit.vjp(x=lambda g, x: divide(g, multiply(x, subtract(1, x))))
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
    """Return x / y, and 0 where x is 0."""
    x, y = array_like(x, y), array_like(y, x)
    return where(equal(x, 0), 0, divide(x, y))


def _log_of_ratio(x, y):
    """Return log(x / y): with all digits where the two are nearly equal, and where the ratio overflows."""
    x, y = array_like(x, y), array_like(y, x)
    ratio, gap = divide(x, y), divide(subtract(x, y), y)
    is_extreme = bitwise_or(equal(ratio, 0), isinf(ratio))
    far = where(is_extreme, subtract(log(x), log(y)), log(ratio))
    return where(less(abs(gap), 0.5), log1p(gap), far)


def _of_positive(x, y, found, at_zero):
    """Return found where both are positive, at_zero where x is 0 and y >= 0, inf for other numbers, nan beside nan."""
    edge = where(bitwise_and(equal(x, 0), greater_equal(y, 0)), array_like(at_zero, x), math.inf)
    is_inside = bitwise_and(greater(x, 0), greater(y, 0))
    is_number = bitwise_and(equal(x, x), equal(y, y))
    return where(is_inside, found, where(is_number, edge, math.nan))
