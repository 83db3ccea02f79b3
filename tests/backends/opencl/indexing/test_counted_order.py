"""scatter_add on CPUs: positions ordered by counting their indices."""

import numpy as np
import pytest

import polyarr as pa
from tests.helpers.opencl_modules import opencl_modules

devices, segments, sort = opencl_modules("devices", "segments", "sort")
pytestmark = pytest.mark.polyarr_backend("opencl")


@pytest.fixture(params=["int", "long"])
def on_cpu(request, backend, monkeypatch):
    if not devices.select(backend.name).geometry.sums_few:
        pytest.skip("a device that sorts indices")
    if request.param == "long":
        monkeypatch.setattr(segments, "MAX_INT32_KEY_SLICES", 0)


@pytest.mark.parametrize(("n", "count", "inner"), [(5000, 5000, 1), (5000, 640, 1), (40, 4001, 200), (5000, 40001, 3)])
def test_counted_positions_sum_as_sorted_ones(on_cpu, monkeypatch, n, count, inner):
    draw = np.random.default_rng(n + count)
    x = pa.asarray(draw.standard_normal((n, inner)).astype(np.float32))
    indices, updates = draw.integers(-n, n, count), draw.standard_normal((count, inner)).astype(np.float32)
    args = x, pa.asarray(indices), pa.asarray(updates)
    with monkeypatch.context() as patched:
        patched.setattr(sort, "order", None)  # not called
        counted = pa.scatter_add(*args).numpy()
    monkeypatch.setattr(segments, "MAX_COUNTED_SLICES", 0)
    np.testing.assert_array_equal(counted, pa.scatter_add(*args).numpy(), strict=True)
    due = x.numpy().astype(float)
    np.add.at(due, indices, updates)
    np.testing.assert_allclose(counted, due, rtol=1e-5, atol=1e-5)


def test_indices_spread_far_are_sorted(on_cpu, monkeypatch):
    calls, order = [], sort.order
    monkeypatch.setattr(sort, "order", lambda *args: calls.append(args) or order(*args))
    found = pa.scatter_add(pa.zeros(8001), pa.asarray([8000, 3] * 500), pa.ones(1000))
    assert len(calls) == 1 and found[8000].item() == found[3].item() == 500 and pa.sum(found).item() == 1000


def test_an_index_out_of_range_is_reported(on_cpu):
    with pytest.raises(IndexError, match="index 5000 is out of range"):
        pa.scatter_add(pa.zeros(5000), pa.asarray([7] * 1000 + [5000]), pa.ones(1001)).numpy()
