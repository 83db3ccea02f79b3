"""Reductions through shared memory; the other ranks are simulated: they hold our values times their rank."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.core.backend import Backend
from polyarr.testing.compare import bits
from polyarr.testing.tolerance import allowed

pytestmark = pytest.mark.polyarr_backend("opencl")
RANK = 1


@pytest.fixture(autouse=True)
def marked(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set marks in captured functions, as a reduction does, until the end of a test, with many marks."""
    monkeypatch.setattr(backend.home.commands, "is_marked", backend.home.commands.is_marked)
    monkeypatch.setattr(import_module("polyarr.backends.opencl.replay.recorded_run"), "MARK_BYTES", 1 << 8)
    monkeypatch.setattr(import_module("polyarr.backends.opencl.replay.early_casts"), "MAX_CAST_BYTES", 1 << 8)


def reduce_of(backend: Backend, ranks: int, nbytes: int, dtype: np.dtype, beside: bool = False) -> Any:
    """Return the reduce function, and a list that counts its barriers.

    `nbytes` is the size of each rank's memory; `beside` tells whether copies have queues of their own, as on GPUs.
    """
    windows, met = [np.zeros(nbytes, np.uint8) for _ in range(ranks)], []

    def meet() -> None:
        met.append(1)
        for rank, window in enumerate(windows):
            if rank != RANK:
                with np.errstate(all="ignore"):  # the gaps between arrays are uninitialized
                    window.view(dtype)[:] = windows[RANK].view(dtype) * dtype.type(rank + 1)

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(backend.home.geometry, "copies_beside", beside)
        return backend.collectives.shared_memory(windows, RANK, meet), met


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("wire", [pa.float32, pa.bfloat16])
@pytest.mark.parametrize("beside", [False, True])
def test_sums_and_means(backend: Backend, ranks: int, wire: np.dtype, beside: bool) -> None:
    host = [np.arange(n, dtype=np.float32).reshape(shape) % 50 for n, shape in ((6000, (60, 100)), (3, (3,)), (1, ()))]
    arrays = [pa.asarray(h) for h in host]
    reduce, met = reduce_of(backend, ranks, 4 * 4096, wire, beside)
    factor = 1 + sum(rank + 1 for rank in range(ranks) if rank != RANK)
    for name, count in (("sum", np.float32(1)), ("mean", np.float32(ranks))):
        for _ in range(2):
            met.clear()
            found = [backend.download(b) for b in reduce([a.buf for a in arrays], wire, name)]
            for value, own in zip(found, host, strict=True):
                exact = own * np.float64(factor) / count
                assert value.dtype == np.float32
                assert (abs(value - exact) <= allowed("arithmetic", wire, exact)).all()  # inexact division
    assert len(met) == {pa.float32: 7, pa.bfloat16: 4}[wire] + 1  # slots of 4,096 bytes, and a final barrier
    assert np.array_equal(arrays[0].numpy(), host[0])


def test_results_are_kept_while_the_bucket_is_used_again(backend: Backend) -> None:
    reduce, _ = reduce_of(backend, 2, 1 << 16, pa.float32)
    (first,) = reduce([pa.ones(100).buf], pa.float32, "sum")
    (second,) = reduce([pa.zeros(100).buf], pa.float32, "sum")
    assert (backend.download(first) == 2).all() and not backend.download(second).any()


def test_an_all_reduce_is_deferred_until_something_else_is_enqueued(backend: Backend) -> None:
    """The host prepares a captured function meanwhile; `settle` completes the reduction, too."""
    reduce, met = reduce_of(backend, 2, 1 << 16, pa.float32)
    kept, further = [], pa.compile(lambda a: a + 1)
    for n in range(1, 4):
        met.clear()
        (found,) = reduce([pa.full((7,), float(n)).buf], pa.float32, "sum")
        assert not met
        if n == 2:
            backend.collectives.settle()
            assert met
        kept.append(further(pa.Array(backend, found, pa.Spec((7,), pa.float32))))
        assert met
    assert [float(pa.max(a)) for a in kept] == [3, 5, 7] == [float(pa.min(a)) for a in kept]


def test_faults_are_reported(backend: Backend) -> None:
    reduce, met = reduce_of(backend, 2, 1 << 16, pa.float32)
    reduce([pa.take(pa.ones(5), pa.asarray([5])).buf], pa.float32, "sum")
    with pytest.raises(IndexError, match="index 5 is out of range"):
        backend.collectives.settle()
    often = len(met)
    assert (backend.download(reduce([pa.ones(1).buf], pa.float32, "sum")[0]) == 2).all()
    assert len(met) == 2 * often  # no rank was left waiting


def test_shared_memory_that_a_driver_pins(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.home.geometry, "copies_beside", True)
    reduce, _ = reduce_of(backend, 2, 1 << 16, pa.float32)
    assert (backend.download(reduce([pa.ones(5).buf], pa.float32, "mean")[0]) == 1).all()


# ---- gradients that are summed while others are made ---------------------------------------------------------------


def graded(model: nn.Sequential, x: pa.Array) -> tuple:
    narrow = x.astype("bfloat16")
    return pa.value_and_grad(lambda m: pa.mean(m.astype("bfloat16")(narrow).astype("float32") ** 2))(model)


def layers() -> tuple[nn.Sequential, pa.Array]:
    pa.random.seed(3)
    return nn.Sequential(*[nn.Linear(96, 96, activation="relu") for _ in range(5)]), pa.random.normal((128, 96))


def test_results_of_a_captured_function_are_marked_as_they_are_computed(backend: Backend) -> None:
    (model, x), plain, marked = layers(), pa.compile(graded), pa.compile(lambda *args: graded(*args))
    expected = [plain(model, x) for _ in range(3)]
    reduce_of(backend, 2, 1 << 14, pa.float32, beside=True)
    for each in expected:
        found = marked(model, x)
        assert bits(found) == bits(each)
    weights = [found[1][i].weight.buf.memory.ready.number for i in range(5)]
    assert len(set(weights)) == 5 and weights == sorted(weights, reverse=True)
    found = pa.compile(lambda t: pa.tree.map(lambda a: 2 * a, t))(found[1])
    assert not hasattr(found[0].weight.buf.memory, "ready")  # the first run sets no marks


def test_a_mark_is_not_that_of_the_memorys_previous_owner(backend: Backend) -> None:
    """A function bound before there were marks overwrites the results of another one."""
    twice = pa.compile(lambda a: 2 * a, donate=("a",))
    for _ in range(3):
        twice(pa.ones((64, 64)))
    reduce_of(backend, 2, 1 << 14, pa.float32, beside=True)
    made = pa.compile(lambda a: (a + 1, a @ a))
    for _ in range(3):
        a, _ = made(pa.ones((64, 64)))
    handle = a.buf.memory.int_ptr
    assert a.buf.memory.ready is not None
    a = twice(a)
    assert a.buf.memory.int_ptr == handle and a.buf.memory.ready is None and (a.numpy() == 4).all()


@pytest.mark.parametrize("wire", [pa.float32, pa.bfloat16])
def test_sums_beside_what_the_device_computes(backend: Backend, wire: np.dtype) -> None:
    """Without waits: results are complete, and a bucket is refilled only after its last use."""
    reduce, _ = reduce_of(backend, 2, 1 << 14, wire, beside=True)
    many = pa.compile(lambda x, k: [x[i:] * 0 + k + i for i in range(8)][::-1])
    x, kept = pa.random.normal((300, 300)), []
    for _ in range(4):
        made = [many(x, float(k)) for k in range(3)]
        for each in made:
            found = reduce([a.buf for a in each], wire, "sum")
            late = x
            for _ in range(6):
                late = late @ x
            kept.append([late[-1, -1] * 0 + pa.Array(backend, buf, pa.Spec(buf.shape, buf.dtype)) for buf in found])
            del found
    for n, sums in enumerate(kept):
        expected = [2.0 * (n % 3 + i) for i in reversed(range(8))]
        assert [float(pa.max(a)) for a in sums] == expected == [float(pa.min(a)) for a in sums]
