"""Products of a few rows of float32 on CPUs: exact, and each row to the same bits however many there are."""

import numpy as np
import pytest

import polyarr as pa
from tests.helpers.opencl_modules import opencl_modules

(gemv,) = opencl_modules("gemv")
pytestmark = pytest.mark.polyarr_backend("opencl")
SHAPES = [(1, 1), (3, 5), (4, 16), (7, 33), (65, 384), (130, 1000), (9, 5000)]  # (n, k)


@pytest.fixture(params=[16, 8, 4])
def _width(request, monkeypatch, backend):
    """Tiles for the registers of other processors as well."""
    device = backend.upload.__self__
    if device.geometry.kind != "cpu":
        pytest.skip("for CPUs")
    monkeypatch.setattr(gemv, "vector_width", lambda device: request.param)
    monkeypatch.setattr(device, "plans", type(device.plans)(device))


@pytest.mark.usefixtures("_width")
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_rows_do_not_depend_on_their_number(n, k):
    generator = np.random.default_rng(n)
    x, weight, bias = (generator.standard_normal(shape).astype(np.float32) for shape in ((16, k), (n, k), (n,)))
    wanted = x.astype(np.float64) @ weight.T + bias
    magnitude = np.abs(x) @ np.abs(weight).T + np.abs(bias)
    whole = pa.linear(*map(pa.asarray, (x, weight, bias))).numpy()
    assert np.abs((whole - wanted) / magnitude).max() < 4e-7
    for rows in (1, 2, 3, 4, 5, 8, 13):
        some = pa.linear(pa.asarray(x[3 : 3 + rows]), pa.asarray(weight), pa.asarray(bias)).numpy()
        np.testing.assert_array_equal(some, whole[3 : 3 + rows])


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


def test_what_is_not_finite_stays_in_its_element(backend):
    x, weight = np.ones((3, 40), np.float32), np.ones((5, 40), np.float32)
    x[1, 39], weight[2, 3] = np.inf, np.nan
    found = pa.linear(pa.asarray(x), pa.asarray(weight)).numpy()
    np.testing.assert_array_equal(found, x @ weight.T)
