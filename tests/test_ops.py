"""What of the ops is not for the conformance kit: long sums, and the variance of equal numbers."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.op import Op

EPS = float(np.finfo("float32").eps)


@pytest.mark.parametrize("value", [0.1, 0.64])
@pytest.mark.parametrize(
    ("shape", "axis"), [((1_000_000,), None), ((100_000, 7), 0), ((3, 300_000), 1), ((5, 20_000, 2), 1)]
)
def test_long_sums_lose_no_digits(backend: Backend, shape: tuple, axis: int | None, value: float) -> None:
    """Equal numbers are the worst case: every addition rounds the same way."""
    x = pa.full(shape, value)
    exact = x.numpy().astype("float64").sum(axis)
    # NumPy itself adds row by row along all axes but the last.
    rtol = 1e-3 if backend.name == "numpy" and axis not in (None, len(shape) - 1) else 128 * EPS
    np.testing.assert_allclose(ops.sum(x, axis=axis).numpy(), exact, rtol=rtol)
    np.testing.assert_allclose(ops.mean(x, axis=axis).numpy(), np.float32(value), rtol=rtol)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (4, 5), (1, 64), (64, 1)])
def test_long_products_lose_no_digits(backend: Backend, rows: int, columns: int) -> None:
    x, y = pa.full((rows, 10_000), 0.64), pa.full((10_000, columns), 0.3)
    exact = float(np.float32(0.64)) * float(np.float32(0.3)) * 10_000
    np.testing.assert_allclose((x @ y).numpy(), exact, rtol=128 * EPS)


@pytest.mark.parametrize("shape", [(33,), (1000, 7), (1,)])
def test_equal_numbers_have_no_deviation(backend: Backend, shape: tuple) -> None:
    """Although their mean is off by a rounding."""
    x = pa.full(shape, 100.3)
    assert not ops.std(x, axis=0).numpy().any() and not ops.var(x).numpy().any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("op", "exact"), [(ops.asinh, np.arcsinh), (ops.acosh, np.arccosh)])
def test_inverse_hyperbolic_functions_as_other_ops(on_numpy: Backend, op: Op, exact: np.ufunc, dtype: str) -> None:
    """On a backend without kernels for them: numbers whose square is infinite, and where there is no result."""
    bare = on_numpy._replace(kernels={o: k for o, k in on_numpy.kernels.items() if o is not op})
    large = float(pa.finfo(dtype).max)
    with pa.use_backend(bare), np.errstate(all="ignore"):
        x = pa.asarray([0.0, 0.3, 1.0, 1.5, 2.5, 100.0, large, np.inf, -0.5, -200.0, -large, -np.inf], dtype=dtype)
        expected = exact(x.numpy().astype("float64"))
        np.testing.assert_allclose(op(x).numpy().astype("float64"), expected, rtol=4 * float(pa.finfo(dtype).eps))
