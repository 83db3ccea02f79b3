"""Threads that share a device: errors reach the thread that caused them, and none is lost. Threads alternate on cue."""

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend

BAD, GOOD = [0, 7], [0, 2]
MESSAGE = "index 7 is out of range for an axis of length 3"


class Worker(ThreadPoolExecutor):
    """A thread that runs functions on demand with the caller's backend, and raises their errors in the caller."""

    def __init__(self) -> None:
        super().__init__(1)

    def __call__(self, fn: Callable, *args: Any) -> Any:
        return self.submit(copy_context().run, fn, *args).result()


def elsewhere(fn: Callable, *args: Any) -> Any:
    """Return fn(*args) computed in a new thread that has ended."""
    with Worker() as worker:
        return worker(fn, *args)


@pytest.fixture
def x(backend: Backend) -> pa.Array:
    """Three numbers on the OpenCL backend, which reports errors late."""
    if "opencl" not in backend.name:
        pytest.skip("the other backends raise at once")
    return pa.asarray([1.0, 2.0, 3.0])


def take(x: pa.Array, at: list[int]) -> pa.Array:
    return ops.take(x, pa.asarray(at), axis=0)


CALLS = {
    "take": lambda x, at: ops.take(x, at, axis=0),
    "take_along_axis": lambda x, at: ops.take_along_axis(x, at, axis=0),
    "scatter": lambda x, at: ops.scatter(x, at, pa.ones(2), axis=0),
    "scatter_add": lambda x, at: ops.scatter_add(x, at, pa.ones(2), axis=0),
    "embedding": lambda x, at: ops.embedding(pa.reshape(x, (3, 1)), at),
    "cross_entropy": lambda x, at: ops.cross_entropy(pa.stack([x, x]), at),
}


@pytest.mark.polyarr_backend("opencl")
@pytest.mark.parametrize("name", CALLS)
def test_the_error_reaches_the_thread_that_caused_it(x, name):
    """One thread has a bad index and no read yet; another makes the same call without an error and reads."""
    bad = CALLS[name](x, pa.asarray(BAD))
    assert np.all(np.isfinite(elsewhere(lambda: CALLS[name](pa.asarray([1.0, 2.0, 3.0]), pa.asarray(GOOD)).numpy())))
    with pytest.raises(IndexError, match=MESSAGE):
        pa.zeros(1).numpy()  # the next read, whatever it reads
    pa.zeros(1).numpy()
    del bad


@pytest.mark.polyarr_backend("opencl")
def test_two_threads_alternate(x):
    """Each gets the error of its own bad index once, whichever reads first."""
    with Worker() as other:
        for ours, theirs in ((BAD, GOOD), (GOOD, BAD), ([0, 8], [0, 9]), (GOOD, GOOD)):
            mine, its = take(x, ours), other(take, x, theirs)
            for run, array, at in ((other, its, theirs), (lambda read: read(), mine, ours)):
                if at == GOOD:
                    assert run(array.numpy).tolist() == [1, 3]
                else:
                    with pytest.raises(IndexError, match=f"index {at[1]} is"):
                        run(array.numpy)
                assert run(x.numpy).tolist() == [1, 2, 3]


@pytest.mark.polyarr_backend("opencl")
@pytest.mark.parametrize(
    "made",
    [
        lambda x: take(x, BAD),
        lambda x: take(x, BAD) + 1,
        lambda x: pa.flip(take(x, BAD)),
        lambda x: pa.sum(pa.stack([take(x, BAD), take(x, BAD)])),
    ],
)
def test_readers_of_a_bad_result_get_the_error(x, made):
    """The maker ended without a read; the reader gets the error each time, also for arrays computed from the result."""
    array = elsewhere(made, x)
    uses = (lambda: array, lambda: array, lambda: array * 2, lambda: pa.concat([pa.reshape(array, (-1,)), x]))
    for use in uses:
        with pytest.raises(IndexError, match=MESSAGE):
            use().numpy()
        assert x.tolist() == [1, 2, 3]


@pytest.mark.polyarr_backend("opencl")
def test_the_maker_gets_the_error_and_later_readers_too(x):
    """The array stays bad for other threads; later arrays of the maker are fine."""
    with Worker() as maker:
        before, bad = maker(lambda: x * 2), maker(take, x, BAD)
        assert before.tolist() == [2, 4, 6]  # of the same thread, but made before
        with pytest.raises(IndexError, match=MESSAGE):
            maker(bad.numpy)
        with pytest.raises(IndexError, match=MESSAGE):
            bad.numpy()
        assert maker(lambda: x * 3).tolist() == [3, 6, 9]


@pytest.mark.polyarr_backend("opencl")
def test_errors_travel_through_a_third_thread(x):
    """A thread computes from another one's bad array, and a third one reads it; arrays made before are fine."""
    with Worker() as maker, Worker() as middle:
        bad, early = maker(take, x, BAD), middle(lambda: x + 1)
        derived = middle(lambda: bad + 1)
        assert early.tolist() == [2, 3, 4]
        with pytest.raises(IndexError, match=MESSAGE):
            derived.numpy()
        with pytest.raises(IndexError, match=MESSAGE):
            middle(early.numpy)  # its next read
        assert middle(early.numpy).tolist() == [2, 3, 4]


@pytest.mark.polyarr_backend("opencl")
def test_synchronize_raises_too(x):
    bad = take(x, BAD)
    elsewhere(x.backend.synchronize)
    with pytest.raises(IndexError, match=MESSAGE):
        x.backend.synchronize()
    del bad


@pytest.mark.polyarr_backend("opencl")
def test_a_thread_that_ends_without_a_read_is_reported(x, monkeypatch):
    """As an exception of that thread when the next one calls; no other thread gets it."""
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(str(args.exc_value)))
    elsewhere(lambda: take(x, BAD) is None)
    assert elsewhere((x + 1).numpy).tolist() == [2, 3, 4]
    line = take.__code__.co_firstlineno + 1
    assert reported == [f"take: {MESSAGE}; called at {__file__}:{line}; nothing was read after the call"]


@pytest.mark.polyarr_backend("opencl")
def test_uploads_are_noted_by_one_thread_at_a_time(x, monkeypatch):
    """Another thread may sum the uploads in progress."""
    device, held = x.backend.home, []

    class Uploads(deque):
        def append(self, item: Any) -> None:
            held.append(device.lock._is_owned())
            super().append(item)

    monkeypatch.setattr(device, "_uploads", Uploads())
    assert pa.asarray([1.0, 2.0]).numpy().tolist() == [1, 2] and held == [True] * device.driver.keeps_host


def test_a_process_that_ends_without_a_read_says_so():
    pytest.importorskip("pyopencl")
    program = (
        "import polyarr as pa; pa.set_backend('opencl')\n"
        "x = pa.ops.take(pa.asarray([1.0, 2.0, 3.0]), pa.asarray([0, 7]), axis=0)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    told = f"IndexError: take: {MESSAGE}; called at <string>:2; nothing was read"
    assert found.returncode == 0 and told in found.stderr


def test_a_new_thread_has_the_default_backend_unless_it_runs_in_the_context(on_numpy: Backend) -> None:
    with ThreadPoolExecutor(1) as pool:
        outside = pool.submit(pa.get_backend).result()
    other = Backend("other", on_numpy.kernels, on_numpy.upload, on_numpy.download, on_numpy.synchronize)
    with pa.use_backend(other), ThreadPoolExecutor(1) as pool:
        assert pool.submit(pa.get_backend).result() is outside is not other
        assert elsewhere(pa.get_backend) is other
