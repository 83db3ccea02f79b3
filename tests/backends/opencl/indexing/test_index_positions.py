"""Positions beyond 32 bits in ops with indices, simulated with small arrays in many small tiles."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.current import use_backend
from tests.backends.opencl.rows.test_gpu_kernels import as_gpu  # noqa: F401  a fixture
from tests.helpers.opencl_modules import opencl_modules

index, segments = opencl_modules("index", "segments")
pytestmark = pytest.mark.polyarr_backend("opencl")


@pytest.mark.parametrize("most", [1, 5, 2**31 - 1])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 7, 1), (7, 1, 1), (1, 1, 7), (3, 0, 2), (0, 2, 2), (2, 11, 3)])
def test_tiles_are_all_of_an_array_in_order(shape, most):
    places = np.arange(np.prod(shape)).reshape(shape)
    found = []
    for begin, part in index.tiles(shape, most):
        tile = places[tuple(slice(b, b + n) for b, n in zip(begin, part, strict=True))]
        assert tile.shape == part and tile.size <= max(most, 1)
        found += tile.flatten().tolist()
    assert found == places.flatten().tolist()


@pytest.fixture(params=["as it is", "as a GPU"])
def tiled(request, backend, as_gpu, monkeypatch):  # noqa: F811
    """Return a backend that moves a few words per launch, with 64-bit positions of slices."""
    monkeypatch.setattr(index, "MAX_TILE", 5)
    monkeypatch.setattr(segments, "MAX_INT32_KEY_SLICES", 0)
    chosen = backend if request.param == "as it is" else as_gpu
    with use_backend(chosen):
        yield chosen


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_axis_of_far_positions(tiled, axis):
    x = np.arange(3 * 4 * 6, dtype=np.int8).reshape(3, 4, 6)
    at = np.array([[2, -1], [0, 2]])
    taken = ops.take(pa.asarray(x), pa.asarray(at), axis=axis)
    np.testing.assert_array_equal(taken.numpy(), np.take(x, at, axis=axis))
    updates = -np.take(x, at, axis=axis) - 1
    due = x.copy()
    due[(slice(None),) * axis + (at,)] = updates
    placed = ops.scatter(pa.asarray(x), pa.asarray(at), pa.asarray(updates), axis=axis)
    np.testing.assert_array_equal(np.take(placed.numpy(), [0, 1], axis=axis), np.take(due, [0, 1], axis=axis))
    last = updates[(slice(None),) * axis + (1, 1)]
    np.testing.assert_array_equal(np.take(placed.numpy(), 2, axis=axis), last)
    along = np.arange(3 * 4 * 6).reshape(3, 4, 6) % 3
    found = ops.take_along_axis(pa.asarray(x), pa.asarray(along), axis=axis)
    np.testing.assert_array_equal(found.numpy(), np.take_along_axis(x, along, axis=axis))
    with pytest.raises(IndexError, match="index 9 is out of range"):
        ops.take(pa.asarray(x), pa.asarray([0, 9]), axis=axis).numpy()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sums_of_far_slices(tiled, axis):
    x, at = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6), np.array([2, -1, 0, 2, 2, 1])
    updates = np.take(x, at, axis=axis) * 0.5 + 1
    due = np.moveaxis(x.copy(), axis, 0)
    np.add.at(due, at, np.moveaxis(updates, axis, 0))
    args = [pa.asarray(a) for a in (x, at, updates)]
    for fn in (ops.scatter_add, pa.compile(ops.scatter_add, constants="axis")):
        np.testing.assert_array_equal(fn(*args, axis=axis).numpy(), np.moveaxis(due, 0, axis))


def test_sums_in_any_order_by_fewer_items_than_updates(backend, monkeypatch):
    monkeypatch.setattr(segments, "adds_atomically", lambda device: True)
    monkeypatch.setattr(segments, "MAX_ITEMS", segments.GROUP)
    at, due = np.arange(300) % 7, np.zeros((7, 3), np.float32)
    np.add.at(due, at, 1)
    found = ops.scatter_add(pa.zeros((7, 3)), pa.asarray(at), pa.ones((300, 3)), axis=0)
    assert found.tolist() == due.tolist()


def test_more_updates_than_one_pass_marks(tiled):
    """The last of several updates of a slice wins, in whichever pass it is applied."""
    at = np.random.default_rng(3).integers(0, 4, 17)
    updates = np.arange(17, dtype=np.float32)
    due = np.zeros(4, np.float32)
    for place, value in zip(at, updates, strict=True):
        due[place] = value
    assert ops.scatter(pa.zeros((4,)), pa.asarray(at), pa.asarray(updates)).tolist() == due.tolist()


def test_more_indices_than_an_int_counts_are_refused(backend, monkeypatch):
    monkeypatch.setattr(segments, "MAX_INT", 2)
    with pytest.raises(pa.BackendError, match="scatter_add: 3 indices; opencl adds at most 2 at once"):
        ops.scatter_add(pa.zeros((4,)), pa.asarray([0, 1, 1]), pa.ones((3,)))


def test_a_gpus_work_items_are_counted_by_an_int(monkeypatch):
    (geometry,) = opencl_modules("geometry")
    gpu = geometry.GpuGeometry(2)
    for total in (0, 1, 129, 2**30, 2**31 + 8, 2**40):
        (items,), (group,), each = gpu.items(total)
        assert items % group == 0 and items < 2**31 and items * each >= total
        assert each == 1 or total > 2**30
