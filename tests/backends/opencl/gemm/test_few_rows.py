"""Products of a few rows on CPUs: exact, and each row to the same bits however many there are."""

import numpy as np
import pytest

import polyarr as pa
from tests.helpers.opencl_modules import opencl_modules

(gemv,) = opencl_modules("gemv")
pytestmark = pytest.mark.polyarr_backend("opencl")
SHAPES = [(1, 1), (3, 5), (4, 16), (7, 33), (65, 384), (130, 1000), (9, 5000)]  # (n, k)
ROUNDING = {"float32": 0, "float16": 2**-11, "bfloat16": 2**-8}  # of a result whose sums are float32


@pytest.fixture(params=[16, 8, 4])
def _width(request, monkeypatch, backend):
    """Tiles for the registers of other processors as well."""
    device = backend.upload.__self__
    if device.geometry.kind != "cpu":
        pytest.skip("for CPUs")
    monkeypatch.setattr(gemv, "vector_width", lambda device: request.param)
    monkeypatch.setattr(device, "plans", type(device.plans)(device))


@pytest.mark.usefixtures("_width")
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_rows_do_not_depend_on_their_number(n, k, dtype):
    generator = np.random.default_rng(n)
    given = [pa.asarray(generator.standard_normal(shape)).astype(dtype) for shape in ((64, k), (n, k), (n,))]
    x, weight, bias = (array.astype("float64").numpy() for array in given)
    wanted = x @ weight.T + bias
    magnitude = np.abs(x) @ np.abs(weight).T + np.abs(bias)
    whole = pa.linear(*given).astype("float32").numpy()
    assert np.abs((whole - wanted) / magnitude).max() < 4e-7 + ROUNDING[dtype]
    for rows in (1, 2, 3, 4, 5, 8, 13, 29, 33, 60):
        some = pa.linear(given[0][3 : 3 + rows], *given[1:]).astype("float32").numpy()
        np.testing.assert_array_equal(some, whole[3 : 3 + rows])


@pytest.mark.usefixtures("_width")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_finite_number_of_16_bits(dtype):
    bits = np.arange(2**16, dtype=np.uint16)
    numbers = bits.view(np.float16).astype(np.float32) if dtype == "float16" else (bits.astype("u4") << 16).view("f4")
    weight = np.where(np.isfinite(numbers), numbers, 0).reshape(-1, 64)
    for columns in (slice(0, 32), slice(32, 64)):
        chosen = pa.linear(pa.asarray(np.eye(64)[columns]).astype(dtype), pa.asarray(weight).astype(dtype))
        np.testing.assert_array_equal(chosen.astype("float32").numpy(), weight.T[columns])


@pytest.mark.usefixtures("_width")
def test_views_transposed_results_activations_and_gradients():
    generator = np.random.default_rng(0)
    x, weight = (generator.standard_normal(shape).astype(np.float32) for shape in ((6, 80), (37, 80)))
    a, w = pa.asarray(x)[1:6, 7:], pa.asarray(weight)[2:, 7:]
    np.testing.assert_allclose((a @ w.T).numpy(), x[1:, 7:] @ weight[2:, 7:].T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose((w @ a.T).numpy(), weight[2:, 7:] @ x[1:, 7:].T, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal((w @ a.T).numpy().T, (a @ w.T).numpy())
    with pa.use_backend("numpy"):
        wanted = pa.value_and_grad(lambda x, w: pa.sum(pa.linear(x, w, activation="gelu")), (0, 1))(
            pa.asarray(x), pa.asarray(weight)
        )
    found = pa.value_and_grad(lambda x, w: pa.sum(pa.linear(x, w, activation="gelu")), (0, 1))(
        pa.asarray(x), pa.asarray(weight)
    )
    for one, other in zip(pa.tree.leaves(found), pa.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_what_is_not_finite_stays_in_its_element(dtype):
    x, weight = np.ones((3, 40), np.float32), np.ones((5, 40), np.float32)
    x[1, 39], weight[2, 3], weight[3, 5], weight[4, 6] = np.inf, np.nan, -np.inf, 6e-8
    found = pa.linear(*(pa.asarray(array).astype(dtype) for array in (x, weight))).astype("float32").numpy()
    with np.errstate(invalid="ignore"):
        wanted = x @ weight.T
    np.testing.assert_array_equal(found, wanted)
