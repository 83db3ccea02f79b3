"""polyarr.special: values beside high-precision ones, special values, inverses, and derivatives."""

import math

import numpy as np
import pytest

import polyarr as pa

# (function, x, value): computed with 50 digits by mpmath, and rounded
VALUES = [
    ("erfc", 0.5, 0.4795001221869535),
    ("erfc", 5.0, 1.537459794428035e-12),
    ("erfc", -1.5, 1.9661051464753108),
    ("erfcx", 50.0, 0.011281536265323773),
    ("ndtr", -12.0, 1.776482112077679e-33),
    ("ndtr", 1.5, 0.9331927987311419),
    ("log_ndtr", -30.0, -454.3212439563432),
    ("erfinv", 0.75, 0.8134198475976185),
    ("gammaln", 0.25, 1.2880225246980774),
    ("gammaln", 50.0, 144.5657439463449),
    ("gammaln", 1.125, -0.06002318412603958),
    ("gamma", -4.5, -0.060019601300504245),
    ("gamma", 30.5, 4.822696933490909e+31),
    ("digamma", 1.5, 0.03648997397857652),
    ("digamma", 100.0, 4.600161852738087),
    ("i0", 3.0, 4.8807925858650245),
    ("i0", 20.0, 43558282.559553534),
    ("i1", -2.5, -2.5167162452886984),
    ("i1e", 64.0, 0.04957414432031241),
    ("logit", 0.625, 0.5108256237659907),
    ("sinc", 2.25, 0.10003514623967845),
    ("entr", 0.125, 0.25993019270997947),
]


# The same of two arguments: numbers below 0, and one much larger or smaller than the other
VALUES_OF_TWO = [
    ("beta", -0.5, 300.0, -61.32281564493394),
    ("beta", -4.75, 1e6, -1.7832747526594496e27),
    ("betaln", -0.5, 1e6, 8.173267027466657),
    ("betaln", -2.25, 7.5, 4.528489871392684),
    ("polygamma", 1, -0.5, 8.934802200544679),
    ("polygamma", 3, -0.75, 1557.7451069721515),
    ("polygamma", 10, -0.5, -42108.85876897549),
    ("polygamma", 10, -1.5, -156.229596593233),
    ("polygamma", 20, -2.5, -9182070.204945628),
    ("polygamma", 34, -0.5, -2.027545199127162e32),
    ("polygamma", 40, 10.0, -8327848.721661187),
    ("polygamma", 100, 50.0, -2.7391048021902828e-14),
]
# Those that only float64 has
WIDE_VALUES = [
    ("beta", 1e-300, 17.5, 1e300),
    ("betaln", 1e-300, 100.0, 690.7755278982137),
    ("polygamma", 1, 1e300, 1e-300),
    ("polygamma", 3, 1e100, 2e-300),
    ("polygamma", 50, -0.5, -3.179952703565868e55),
    ("polygamma", 170, 1.0, -7.257415615307999e306),
    ("polygamma", 170, -2.5, -6.685692700782842e213),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_right_to_eight_ulps(backend, dtype):
    for name, x, value in VALUES:
        found = float(getattr(pa.special, name)(pa.asarray([x], dtype=dtype))[0])
        assert abs(found - value) <= 8 * np.spacing(np.dtype(dtype).type(abs(value))), (name, x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_of_two_arguments_over_wide_ranges(backend, dtype):
    for name, x, y, value in VALUES_OF_TWO + (WIDE_VALUES if dtype == "float64" else []):
        fn, y = getattr(pa.special, name), pa.asarray([y], dtype=dtype)
        found = float(fn(x if name == "polygamma" else pa.asarray([x], dtype=dtype), y)[0])
        ulps = 32 + (abs(math.log(abs(value))) if name == "beta" else 0)  # beta is the exponential of betaln
        assert abs(found - value) <= ulps * np.finfo(dtype).eps * abs(value), (name, x, y, found)


def test_poles_and_infinities(backend):
    special, inf, nan = pa.special, math.inf, math.nan
    for fn, x, expected in (
        (special.gammaln, [0.0, -1.0, inf, -inf, -3e38], [inf, inf, inf, inf, inf]),
        (special.gamma, [0.0, -0.0, -2.0, inf], [inf, -inf, nan, inf]),
        (special.digamma, [0.0, -1.0, inf], [-inf, nan, inf]),
        (special.erfc, [inf, -inf, nan], [0.0, 2.0, nan]),
        (special.erfinv, [1.0, -1.0, 2.0], [inf, -inf, nan]),
        (special.ndtri, [0.0, 1.0, -0.5], [-inf, inf, nan]),
        (special.logit, [0.0, 1.0, 2.0], [-inf, inf, nan]),
        (special.entr, [0.0, -1.0, nan], [0.0, -inf, nan]),
        (special.i0e, [inf, -inf], [0.0, 0.0]),
        (special.i0, [1e3, -3e38, inf], [inf, inf, inf]),
        (special.i1, [1e3, -3e38, -inf], [inf, -inf, -inf]),
        (lambda x: special.beta(x, 300), [0.0, -1.0], [inf, nan]),
        (lambda x: special.beta(x, 1.5), [-3.5, inf], [0.0, 0.0]),
        (lambda x: special.zeta(x, 1), [1.0, 0.5, inf], [inf, nan, 1.0]),
        (lambda x: special.zeta(inf, x), [0.5, 1.0, 1.5, inf, 0.0, nan], [inf, 1.0, 0.0, 0.0, inf, nan]),
        (lambda x: special.zeta(x, inf), [1.0, 2.0, inf, nan], [inf, 0.0, 0.0, nan]),
        (lambda x: special.polygamma(1, x), [0.0, -1.0, inf], [inf, inf, 0.0]),
        (lambda x: special.polygamma(101, x), [1e-3, 1e30, inf, -1.25, -1.75], [inf, 0.0, 0.0, inf, inf]),
        (lambda x: special.xlogy(0, x), [0.0, inf, nan], [0.0, 0.0, nan]),
    ):
        np.testing.assert_array_equal(fn(pa.asarray(x)).numpy(), np.float32(expected))


def test_derivatives_are_each_others(backend):
    x = pa.asarray([0.3, 1.5, 4.0])
    slope = pa.grad(lambda x: pa.sum(pa.special.gammaln(x)))
    np.testing.assert_allclose(slope(x).numpy(), pa.special.digamma(x).numpy(), rtol=1e-6)
    second = pa.grad(lambda x: pa.sum(slope(x)))
    np.testing.assert_allclose(second(x).numpy(), pa.special.polygamma(1, x).numpy(), rtol=1e-5)
    third = pa.grad(lambda x: pa.sum(second(x)))
    np.testing.assert_allclose(third(x).numpy(), pa.special.polygamma(2, x).numpy(), rtol=1e-4)


@pytest.mark.parametrize("n", [-1, 171])
def test_an_order_without_a_factorial_is_refused(n):
    with pytest.raises(ValueError, match=f"polygamma: n is {n}; it must be from 0 to 170"):
        pa.special.polygamma(n, pa.ones(1))


def test_bessel_functions_of_huge_numbers_are_infinite_in_float64(backend):
    x = pa.asarray([1e300, -1e300], dtype="float64")
    assert pa.special.i0(x).tolist() == [math.inf, math.inf] and pa.special.i1(x).tolist() == [math.inf, -math.inf]


# The derivative of erfcx, computed with 50 digits by mpmath
ERFCX_SLOPES = [
    (-3.25, -502549.5150035816),
    (-0.5, -3.0807396562780696),
    (0.5, -0.5126888229025867),
    (8.0, -0.008616507881417731),
    (1000.0, -5.641887372654967e-07),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_derivative_of_erfcx_keeps_its_digits(backend, dtype):
    x = pa.asarray([x for x, _ in ERFCX_SLOPES], dtype=dtype)
    slopes = pa.grad(lambda x: pa.sum(pa.special.erfcx(x)))(x).numpy()
    np.testing.assert_allclose(slopes, [slope for _, slope in ERFCX_SLOPES], rtol=16 * np.finfo(dtype).eps)


def test_the_derivative_of_erfcx_is_finite_where_its_float16_value_overflows(backend):
    x = pa.asarray([-3.25], dtype="float16")
    value, pull = pa.vjp(pa.special.erfcx, x)
    assert value.tolist() == [math.inf]
    assert pull(pa.asarray([-0.125], dtype="float16"))[0].tolist() == [62816.0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_derivatives_at_infinities_and_where_values_overflow(backend, dtype):
    special, inf, top = pa.special, math.inf, float(np.finfo(dtype).max)
    for fn, x, expected in (
        (special.i0, [1e3, -1e3, top, inf, -inf], [inf, -inf, inf, inf, -inf]),
        (special.i1, [1e3, -1e3, top, inf, -inf], [inf, inf, inf, inf, inf]),
        (special.i0e, [inf, -inf], [0.0, 0.0]),
        (special.i1e, [inf, -inf], [0.0, 0.0]),
        (special.erfcx, [inf, -inf], [0.0, -inf]),
        (special.digamma, [inf], [0.0]),
        (lambda x: special.polygamma(2, x), [inf], [0.0]),
        (lambda x: special.zeta(x, 2), [inf], [0.0]),
        (lambda x: special.zeta(2, x), [inf], [0.0]),
        (special.logit, [inf], [0.0]),
    ):
        slopes = pa.grad(lambda x: pa.sum(fn(x)))(pa.asarray(x, dtype=dtype))  # noqa: B023  called at once
        np.testing.assert_array_equal(slopes.numpy(), expected, err_msg=str(fn))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_derivatives_of_bessel_functions(backend, dtype):
    x = pa.asarray([0.0, 0.5, -3.0, 20.0], dtype=dtype)
    for fn, expected in (
        (pa.special.i0, [0.0, 0.2578943053908963, -3.9533702174026093, 42454973.38512777]),
        (pa.special.i1, [0.5, 0.5476947599595309, 3.5630025133974876, 41435533.890297145]),  # by mpmath
    ):
        slopes = pa.grad(lambda x: pa.sum(fn(x)))(x).numpy()  # noqa: B023  called at once
        np.testing.assert_allclose(slopes, expected, rtol=16 * np.finfo(dtype).eps)


def test_polygamma_of_float16_is_rounded_once(backend):
    assert pa.special.polygamma(3, pa.asarray([0.5], dtype="float16")).tolist() == [97.4375]  # of 97.409


# (x, y, x log(x / y), x log(x / y) - x + y), computed with 60 digits by mpmath; float32 holds every x and y
ENTROPIES = [
    (2.0**-95, 99 * 2.0**45, -2.5656464040858782e-27, 3483252836794368.0),  # x / y is denormal in float32
    (2.0**-80, 3 * 2.0**60, -8.117885810259592e-23, 3.4587645138205409e18),
    (1.25, 2.0**-120, 104.25100652313456, 103.00100652313456),
    (3.0, 3 * (1 + 2.0**-20), -2.8610215849775647e-6, 1.3642411852982748e-12),
    (0.75, 0.5625, 0.2157615543388357, 0.028261554338835696),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_entropies_keep_their_digits(backend, dtype):
    x, y, rel_entr, kl_div = (np.array(column) for column in zip(*ENTROPIES, strict=True))
    for fn, expected in ((pa.special.rel_entr, rel_entr), (pa.special.kl_div, kl_div)):
        found = fn(pa.asarray(x, dtype=dtype), pa.asarray(y, dtype=dtype)).numpy()
        np.testing.assert_allclose(found, expected, rtol=16 * np.finfo(dtype).eps)


# (x, y, the first three derivatives of beta by x), computed with 50 digits by mpmath; x + y is a zero or near one
SLOPES_OF_BETA = [
    (-0.75, 0.75, -5.9238439175444883, 27.449961676057236, -403.38212840180644),
    (-1.5, -0.5, -16.755160819145564, 7.3597946818038629, -328.36172225149788),
    (-3.25, 1.25, 0.97211797621242885, 6.8893836438382015, 84.969381114151957),
    (-1.75, -0.375, -31.524294155264661, 204.64859777468094, -2539.9044610545494),
]


def test_derivatives_of_beta_where_it_is_0(backend):
    x, y, *expected = (np.array(column) for column in zip(*SLOPES_OF_BETA, strict=True))
    x, y = pa.asarray(x, dtype="float64"), pa.asarray(y, dtype="float64")
    by_x, by_y = pa.special.beta, lambda y, x: pa.special.beta(x, y)
    for value in expected:
        by_x, by_y = (pa.grad(lambda a, b, fn=fn: pa.sum(fn(a, b))) for fn in (by_x, by_y))
        for found in (by_x(x, y), by_y(x, y)):
            np.testing.assert_allclose(found.numpy(), value, rtol=1e-13)


# (function, its first three derivatives at 8, where the formulas change), computed with 60 digits by mpmath
SLOPES_AT_8 = [
    ("i0", 399.8731367825601, 377.57997362398475, 358.92365784178952),
    ("i1", 377.57997362398475, 358.92365784178952, 342.95188612895376),
    ("i0e", -0.0092892885641521365, 0.0018107654667169928, -0.00059073908855618413),
    ("i1e", -0.0074785230974351439, 0.0012200263781608089, -0.0003194621699333683),
]


@pytest.mark.parametrize("name, slopes", [(name, slopes) for name, *slopes in SLOPES_AT_8])
def test_derivatives_of_bessel_functions_at_8(backend, name, slopes):
    fn, x = getattr(pa.special, name), pa.asarray([8.0], dtype="float64")
    for slope in slopes:
        fn = pa.grad(lambda x, fn=fn: pa.sum(fn(x)))
        np.testing.assert_allclose(fn(x).numpy(), slope, rtol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gamma_beside_0(backend, dtype):
    least = float(np.finfo(dtype).smallest_normal)
    found = pa.special.gamma(pa.asarray([-least / 16, least / 16, -least, -(2.0**-110)], dtype=dtype)).numpy()
    np.testing.assert_allclose(found, [-math.inf, math.inf, -1 / least, -(2.0**110)], rtol=8 * np.finfo(dtype).eps)


def test_second_derivatives_of_logit_overflow_to_infinities(backend):
    slope = pa.grad(lambda x: pa.sum(pa.special.logit(x)))
    second = pa.grad(lambda x: pa.sum(slope(x)))
    assert second(pa.asarray([1e-160, 0.25], dtype="float64")).tolist() == [-math.inf, -16 + 16 / 9]
