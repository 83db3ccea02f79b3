"""Gamma functions: gamma and beta functions, their logarithms, digamma and its derivatives, Hurwitz's zeta function.

Each is composed of other ops, accurate to a few ulps in float32 and float64. The polynomials are in coefficients.py.
"""

import math

import numpy as np

from polyarr.core.array import Array, cast, spec_of, widened
from polyarr.core.spec import INEXACT, check_kind, float32, float64
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
from polyarr.ops.functions import cos, exp, log, log1p, pow, sin
from polyarr.ops.logic import bitwise_and, equal, greater, greater_equal, less, less_equal
from polyarr.ops.validation import check_array, whole

MAX_ORDER = 170  # of polygamma: the largest n whose n! float64 holds
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
    sine, _ = sine_of_turns(x)
    reflected = subtract(subtract(math.log(math.pi), log(abs(sine))), found)
    return where(isinf(found), math.inf, where(is_negative, reflected, found))


@elementwise("floating", primitive=False)
def gamma(x):
    """Return the gamma function of x, (x - 1)! for positive integers; nan at negative integers.

    >>> pa.special.gamma(pa.asarray([0.5, 4.0, -0.5]))
    Array([ 1.7724539,  6.       , -3.5449078], float32, 'numpy')
    """
    is_negative = less(x, 0)
    size = where(is_negative, maximum(negative(x), 2.0**-100), x)  # times gamma(size) it is 1, and neither overflows
    rest, divisor = _gamma_below_3(size)
    y = clip(size, 3, 200)  # from 172 on the result is infinite
    root = multiply(pow(y, subtract(multiply(y, 0.5), 0.25)), exp(multiply(y, -0.5)))  # its square may overflow
    is_small = less(size, 3)
    first = where(is_small, divide(exp(rest), divisor), root)
    second = where(is_small, 1, multiply(root, multiply(exp(_stirling(y)), math.sqrt(2 * math.pi))))
    sine, sign = sine_of_turns(x)
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
    center = multiply(from_root, polynomial(minimum(z, 2), coefficients.DIGAMMA_ROOT))
    u = divide(1, maximum(z, 2))
    v = square(u)
    tail = subtract(subtract(log(z), multiply(u, 0.5)), multiply(v, polynomial(v, coefficients.DIGAMMA_TAIL)))
    found = where(less(z, 2), center, tail)
    found = where(less(y, 1), subtract(found, divide(1, y)), found)
    sine, _ = sine_of_turns(x)
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
    is_finite = bitwise_and(less(x, math.inf), less(q, math.inf))
    is_inside = bitwise_and(is_finite, bitwise_and(greater(x, 1), greater(q, 0)))
    total = _hurwitz(where(is_inside, x, 2), where(is_inside, q, 1))
    limit = where(greater(q, 1), array_like(0.0, q), where(equal(q, 1), array_like(1.0, q), math.inf))
    pole = where(equal(q, floor(q)), array_like(math.inf, q), math.nan)
    outside = where(greater(q, 0), limit, where(less_equal(q, 0), pole, q))
    is_number = bitwise_and(equal(x, 1), equal(q, q))
    edge = where(is_number, array_like(math.inf, q), math.nan)
    return where(is_inside, total, where(greater(x, 1), outside, edge))


def polygamma(n: int, x: Array) -> Array:
    """Return the derivative of order n of digamma.

    Args:
        n: Int from 0 to 170; 0 for digamma itself.
        x: Floating-point array of any shape; integers and bools are cast to float32.

    Returns:
        Array of the shape and dtype of x; infinite at 0 and at negative integers if n is at least 1.

    Raises:
        DtypeError: x is complex.
        ValueError: n is not from 0 to 170.

    Examples:
        >>> import polyarr as pa
        >>> pa.special.polygamma(1, pa.asarray([0.5, 1.0]))
        Array([4.9348025, 1.6449342], float32, 'numpy')

    Gradients: x
    """
    n = whole("polygamma", "n", n)
    if not 0 <= n <= MAX_ORDER:
        raise ValueError(f"polygamma: n is {n}; it must be from 0 to {MAX_ORDER}")
    check_array("polygamma", "x", x)
    x = x if x.dtype in INEXACT else cast(x, float32)
    check_kind("polygamma", "x", spec_of(x), "floating")
    if n == 0:
        return digamma(x)
    dtype, x, factorial = spec_of(x).dtype, widened(x), math.factorial(n)
    is_negative = less(x, 0)
    y = where(is_negative, subtract(1, x), abs(x))  # not the sign of -0
    # n! / (k + y)^(n + 1) is (n! / scale^(n + 1)) / ((k + y) / scale)^(n + 1), whose factors overflow only if it does.
    scale = 1 << int(math.log2(factorial) / (n + 1) + (0 if x.dtype == float64 else 0.5))
    found = multiply(_hurwitz(array_like(n + 1.0, y), y, scale), (-1) ** (n + 1) * factorial / scale ** (n + 1))
    x = where(is_negative, x, -0.5)  # no pole, at which the gradient of the unused branch is nan
    cotangent = divide(_cosine_of_turns(x), sine_of_turns(x)[0])
    top = float(np.finfo(x.dtype).max)  # float32 does not hold all factors; the result is infinite then
    terms = [max(-top, min(math.pi ** (n + 1) * (term / factorial), top)) for term in _cotangent_derivative(n)]
    slope = multiply(horner(cotangent, terms), min(float(factorial), top))
    reflected = subtract(where(isinf(slope), 0, multiply(found, (-1.0) ** n)), slope)
    return cast(where(is_negative, reflected, found), dtype)


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
    is_pole = bitwise_and(less(both, 0), equal(both, floor(both)))  # of gamma(both): the result is 0
    ratio = multiply(first, where(is_pole, 0, divide(second, gamma(both))))
    of_small = where(less(x, y), first, second)  # its sign is the result's if x + y > 0; nan at negative integers
    is_large = bitwise_and(greater(both, 0), greater_equal(maximum(x, y), 3))
    return where(bitwise_and(is_large, equal(of_small, of_small)), copysign(exp(betaln(x, y)), of_small), ratio)


gammaln.vjp(x=lambda g, x: multiply(g, digamma(x)))
gamma.vjp(x=lambda g, x, out: multiply(g, multiply(out, digamma(x))))
digamma.vjp(x=lambda g, x: multiply(g, polygamma(1, x)))
betaln.vjp(x=lambda g, x, y: multiply(g, _beta_slope(x, y)), y=lambda g, x, y: multiply(g, _beta_slope(y, x)))
beta.vjp(
    x=lambda g, x, y, out: multiply(g, _slope_of_beta(x, y, out)),
    y=lambda g, x, y, out: multiply(g, _slope_of_beta(y, x, out)),
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
    return multiply(d, polynomial(d, coefficients.GAMMALN)), divisor


def _stirling(x):
    """Return log(gamma(x)) - (x - 1/2) log(x) + x - log(2 pi) / 2 for x >= 3."""
    u = divide(1, maximum(x, 3))
    return multiply(u, polynomial(square(u), coefficients.STIRLING))


def _hurwitz(x, q, scale: int = 1):
    """Return the sum of ((k + q) / scale)^-x for k = 0, 1, ..., for x > 1, q >= 0 and a power of 2 as scale."""
    # The first terms, and the Euler-Maclaurin formula for the others
    terms, corrections = (10, 10) if x.dtype == float64 else (8, 5)
    power = negative(x)
    total = pow(multiply(q, 1 / scale), power)
    q = where(isinf(total), scale, q)  # the others are smaller, and differences of infinite ones are nan
    for k in range(1, terms):
        total = add(total, pow(multiply(add(q, k), 1 / scale), power))
    w = add(q, terms)
    scaled = multiply(w, 1 / scale)
    last = pow(scaled, power)
    gap = subtract(x, 1)
    total = add(total, add(divide(pow(scaled, negative(gap)), divide(gap, scale)), multiply(last, 0.5)))
    term = divide(multiply(last, x), w)
    for j in range(corrections):
        total = add(total, multiply(term, BERNOULLI[j]))
        term = multiply(multiply(term, divide(add(x, 2 * j + 1), w)), divide(add(x, 2 * j + 2), w))
    return total


def sine_of_turns(x):
    """Return s and a sign, with sin(pi x) = s * sign; s is 0 at integers."""
    nearest = round(x)
    half = multiply(nearest, 0.5)
    sign = subtract(1, multiply(subtract(half, floor(half)), 4))
    return sin(multiply(subtract(x, nearest), math.pi)), sign


def _cosine_of_turns(x):
    """Return |cos(pi x)|, with all digits near its zeros; sin(pi x) times the sign of sine_of_turns belongs to it."""
    return sin(multiply(subtract(0.5, abs(subtract(x, round(x)))), math.pi))


def _cotangent_derivative(n: int) -> list[int]:
    """Return the coefficients of the derivative of order n of cot, a polynomial in cot."""
    terms = [0, 1]
    for _ in range(n):
        slope = [k * term for k, term in enumerate(terms)][1:]
        terms = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return terms


def _slope_of_beta(x, y, out):
    """Return the derivative of beta by x; near its zeros x + y = 0, -1, ... by that of 1 / gamma(x + y)."""
    x, y = array_like(x, y), array_like(y, x)
    both = add(x, y)
    is_near = bitwise_and(less(both, 0.25), less(abs(subtract(both, round(both))), 0.25))
    far = multiply(out, subtract(digamma(x), digamma(where(is_near, 1, both))))
    a, b, z = (where(is_near, v, 0.5) for v in (x, y, both))
    mirrored = subtract(1, z)  # 1 / gamma(z) is sin(pi z) gamma(1 - z) / pi
    sine, sign = sine_of_turns(z)
    cosine = cos(multiply(subtract(z, round(z)), math.pi))
    slope = add(cosine, multiply(multiply(sine, 1 / math.pi), subtract(digamma(a), digamma(mirrored))))
    near = multiply(multiply(gamma(a), sign), multiply(multiply(gamma(b), gamma(mirrored)), slope))
    return where(is_near, near, far)


def _beta_slope(x, y):
    """Return the derivative of betaln by x."""
    x, y = array_like(x, y), array_like(y, x)
    return subtract(digamma(x), digamma(add(x, y)))
