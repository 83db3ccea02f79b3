"""Decompositions of elementwise functions, on a backend that has the primitives only."""

import warnings

import numpy as np
import pytest

import polyarr as pa
from polyarr.testing.sweeps import sweep
from tests.helpers.complex_numbers import exactly, numbers, ulps

NUMPY = {
    "asin": "arcsin", "acos": "arccos", "asinh": "arcsinh", "acosh": "arccosh", "atan": "arctan", "atanh": "arctanh",
}  # fmt: skip
FUNCTIONS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "log10", "log2", "sinh", "tan")
MAX_ULP = 2  # of a decomposition: primitives round, too


@pytest.fixture(autouse=True)
def primitives_only(on_numpy):
    bare = {op: kernel for op, kernel in on_numpy.kernels.items() if op.decomposition is None}
    with pa.use_backend(on_numpy._replace(name="bare", kernels=bare)):
        yield


def errors(found, due):
    """Return the errors in ulp; the infinities and nan must be equal."""
    info = np.finfo(found.dtype)
    with np.errstate(over="ignore"):
        rounded = due.astype(found.dtype)
    counts = np.isfinite(rounded) & (np.abs(rounded) > info.tiny)
    np.testing.assert_array_equal(found[~np.isfinite(rounded)], rounded[~np.isfinite(rounded)])
    with np.errstate(over="ignore"):
        return np.abs(found[counts] - due[counts]) / np.spacing(np.abs(rounded[counts]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_every_magnitude(name):
    between = np.random.default_rng(0).uniform(-3, 3, 20_000)
    x = np.concatenate([sweep(np.dtype("float64"), 0, 2**15), between, 250 * between])
    x = x[np.abs(x) < 1e9] if name == "tan" else x
    with np.errstate(all="ignore"):
        due = getattr(np, NUMPY.get(name, name))(x.astype(np.longdouble))
    assert np.max(errors(getattr(pa, name)(pa.asarray(x)).numpy(), due)) <= MAX_ULP


def test_hypotenuses_of_every_magnitude():
    for turn in (0, 1, 4):
        x, y = sweep(np.dtype("float64"), 0, 2**15), sweep(np.dtype("float64"), turn, 2**15)
        with np.errstate(all="ignore"):
            due = np.hypot(x.astype(np.longdouble), y.astype(np.longdouble))
        assert np.max(errors(pa.hypot(pa.asarray(x), pa.asarray(y)).numpy(), due)) <= MAX_ULP


@pytest.mark.parametrize(("dtype", "last"), [("float32", 89.4), ("float64", 710.4)])
def test_hyperbolic_functions_up_to_where_they_overflow(dtype, last):
    x = np.array([last - 0.5, last, -last], dtype)
    for name in ("sinh", "cosh"):
        due = getattr(np, name)(x.astype(np.longdouble))
        np.testing.assert_allclose(getattr(pa, name)(pa.asarray(x)).numpy(), due, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [pa.complex64, pa.complex128], ids=lambda d: d.name)
@pytest.mark.parametrize("name", [*FUNCTIONS, "reciprocal", "rsqrt"])
def test_complex_functions_of_every_magnitude(name, dtype):
    z = numbers(dtype)
    assert ulps(getattr(pa, name)(pa.asarray(z)).numpy(), exactly(name, z)) <= 2 * MAX_ULP


@pytest.mark.parametrize("name", FUNCTIONS)
def test_complex_zeros_infinities_nan_and_branch_cuts(name):
    if name == "acosh" and np.lib.NumpyVersion(np.__version__) < "2.3.0":
        pytest.skip("NumPy before 2.3 returns nan for both parts of acosh(0 + nan i)")
    parts = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, np.inf, -np.inf, np.nan)
    z = np.empty(len(parts) ** 2, np.complex128)
    z.real, z.imag = np.repeat(parts, len(parts)), np.tile(parts, len(parts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        due = getattr(np, NUMPY.get(name, name))(z)
    found = getattr(pa, name)(pa.asarray(z)).numpy()
    signed = ~np.isnan(due)  # beside nan, the standard leaves signs open
    for part in (np.real, np.imag):
        np.testing.assert_allclose(abs(part(found)), abs(part(due)), rtol=1e-14)
        np.testing.assert_array_equal(np.signbit(part(found)[signed]), np.signbit(part(due)[signed]))


def test_slopes_neither_overflow_nor_lose_digits():
    x, near_one = 1e30, float(np.float32(0.99999))
    root = np.sqrt(1 - near_one**2)
    slopes = (pa.asinh, x, 1 / x), (pa.acosh, x, 1 / x), (pa.asin, near_one, 1 / root), (pa.acos, near_one, -1 / root)
    for fn, at, due in (*slopes, (pa.atanh, near_one, 1 / root**2)):
        np.testing.assert_allclose(float(pa.grad(fn)(pa.asarray(at, dtype="float32"))), due, rtol=1e-6)


@pytest.mark.parametrize("name", ["isinf", "isfinite"])
def test_complex_numbers_are_infinite_by_their_parts(name):
    edges = np.array([0, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)  # the magnitude of two large ones overflows
    x = np.array([complex(re, im) for re in edges for im in edges], np.complex64)
    np.testing.assert_array_equal(getattr(pa, name)(pa.asarray(x)).numpy(), getattr(np, name)(x))
