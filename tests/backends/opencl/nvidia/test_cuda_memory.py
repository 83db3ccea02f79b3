"""Memory shared by OpenCL and CUDA: the real driver on NVIDIA, a fake one elsewhere."""

from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend, transfers
from polyarr.core.current import use_backend
from polyarr.core.dlpack import CUDA, capsule_of, memory_of
from tests.backends.opencl.nvidia.fake_cuda import FakeCuda

pytestmark = pytest.mark.polyarr_backend("opencl")


@pytest.fixture
def sharing(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The backend with a memory pool that a fake CUDA shares."""
    cl, cuda = import_module("pyopencl"), import_module("polyarr.backends.opencl.nvidia.cuda")
    device = backend.home
    if not device.features.is_cpu:
        pytest.skip("CUDA is played on a processor")
    played = FakeCuda(device.context)
    plain = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(device.queue))
    device.synchronize()
    monkeypatch.setattr(device, "pool", cuda.SharedPool(played, plain, 128))
    shares = import_module("polyarr.backends.opencl.nvidia.sharing").dlpack_of(device)
    with use_backend(backend._replace(dlpack=shares)):
        yield SimpleNamespace(pool=device.pool, log=played.log, device=device)
    device.synchronize()


@pytest.fixture
def torch(backend: Backend) -> Any:
    """PyTorch, if OpenCL's memory is shared with a real CUDA."""
    torch = pytest.importorskip("torch")
    if not (torch.cuda.is_available() and backend.dlpack):
        pytest.skip("needs CUDA, and POLYARR_CUDA_MEMORY=1")
    return torch


class Library:
    """An array of another library on CUDA."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, 0)

    def __dlpack__(self, *, stream: int, max_version: Any = None) -> Any:
        self.stream = stream
        return capsule_of(self.memory, (CUDA, 0), max_version)


def test_arrays_go_out_without_a_copy(sharing: Any) -> None:
    x = pa.reshape(pa.arange(12, dtype=pa.bfloat16), (3, 4))
    for y in (x, x.T, x[1:, ::2], x[:, 1], x[2, 3]):
        out = memory_of(y, stream=1)
        assert y.__dlpack_device__() == (CUDA, 0) and not out.flags.writeable
        assert np.array_equal(out, y.numpy()) and out.dtype == pa.bfloat16
        low = x.buf.memory.cuda.piece.address
        assert low <= out.__array_interface__["data"][0] < low + 24
    for y in (memory_of(x, stream=-1, copy=True), memory_of(x[::-1], stream=2)):
        assert not low <= y.__array_interface__["data"][0] < low + 24
    with pytest.raises(BufferError, match="can be copied to the host"):
        x.__dlpack__(dl_device=(CUDA, 1))
    assert np.array_equal(memory_of(x, dl_device=(1, 0)), x.numpy())


def test_what_is_not_computed_yet_is_waited_for(sharing: Any) -> None:
    x = pa.ones((300, 300))
    for _ in range(20):
        x = x @ x / 300.0
    assert (memory_of(x, stream=1) == 1).all()
    bad = pa.take(x, pa.asarray([300]))
    with pytest.raises(IndexError, match="index 300 is out of range"):
        memory_of(bad, stream=1)


def test_arrays_come_in_by_a_copy_on_the_device(sharing: Any) -> None:
    host = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    before = transfers()
    for given in (host, host.T, host[:, 1:, ::2], host[1, 2, 3:], host[:, :0]):
        library = Library(given)
        y = pa.from_dlpack(library)
        assert library.stream == 1 and transfers() == before
        assert np.array_equal(y.numpy(), given) and np.array_equal((y + 1).numpy(), given + 1)
        before = transfers()
    assert "copy 96" in sharing.log and sharing.log[-1] == "wait for 1"
    with pytest.raises(BufferError, match="cannot take it without a copy"):
        pa.from_dlpack(Library(host), copy=False)


def test_memory_is_not_written_to_while_a_kernel_reads_it(sharing: Any) -> None:
    x = pa.ones((800, 800))
    place, y = x.buf.memory.cuda.piece.address, x
    for _ in range(4):
        y = y @ x / 800.0
    del x
    z = pa.from_dlpack(Library(np.zeros((800, 800), np.float32)))
    assert z.buf.memory.cuda.piece.address == place and (y.numpy() == 1).all()


def test_what_went_out_comes_back_without_a_copy(sharing: Any) -> None:
    x = pa.reshape(pa.arange(600, dtype=pa.float32), (2, 300))
    out = memory_of(x, stream=1)
    sharing.log.clear()
    for part in (out, out.T, out[1:], out[:, 7::2]):
        y = pa.from_dlpack(Library(part), copy=False)
        assert np.array_equal(y.numpy(), part) and np.array_equal((y * 2).numpy(), part * 2)
    assert set(sharing.log) == {"wait for 1"}


def test_lent_memory_waits_for_cuda_before_it_is_used_again(sharing: Any) -> None:
    x = pa.ones(1000)
    address = x.buf.memory.cuda.piece.address
    out = memory_of(x, stream=1)
    del x
    other = pa.zeros(1000)
    assert (out == 1).all() and other.buf.memory.cuda.piece.address != address
    del out
    assert "wait" not in sharing.log
    kept = [pa.zeros(1000) for _ in range(3)]
    assert "wait" in sharing.log and address in {k.buf.memory.cuda.piece.address for k in kept}


def test_adopted_memory_does_not_go_to_the_pool(sharing: Any) -> None:
    x = pa.ones(1000)
    owner = memory_of(x, stream=1)
    del x
    y = pa.from_dlpack(Library(owner), copy=False)
    del owner
    assert all(pa.zeros(1000).buf.memory.cuda.piece.address != y.buf.memory.cuda.piece.address for _ in range(3))
    assert (y.numpy() == 1).all()
    active = sharing.pool.active_bytes
    del y
    assert sharing.pool.active_bytes < active


def test_the_pool_counts_reuses_and_gives_back(sharing: Any) -> None:
    pool = sharing.pool
    sizes = [1, 500, 5000, 1 << 20, 65 << 20]
    for _ in range(3):
        kept = [pool.allocate(size) for size in sizes]
        assert [memory.size >= size for memory, size in zip(kept, sizes, strict=True)] == [True] * 5
        places = sorted((m.cuda.piece.address, m.cuda.piece.size) for m in kept)
        assert all(a + size <= b for (a, size), (b, _) in pairwise(places))
        assert pool.active_bytes >= sum(sizes)
        del kept
    assert pool.active_bytes == 0 and pool.managed_bytes == (64 + 72) << 20
    x = pool.allocate(100)
    pool.free_held()
    assert pool.managed_bytes == 64 << 20 and sharing.log.count("closed") == 1
    del x
    pool.free_held()
    assert pool.managed_bytes == 0 and sharing.log.count("closed") == 2


def test_arrays_that_cuda_cannot_share_are_copied(sharing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = import_module("polyarr.backends.opencl.nvidia.cuda")

    def full(nbytes: int) -> Any:
        raise cuda.CudaError("CUDA: cuMemCreate: out of memory")

    monkeypatch.setattr(sharing.pool.cuda, "allocate", full)
    monkeypatch.setattr(cuda, "MAX_BUFFER_BYTES", 1 << 20)
    for x in (pa.ones(10), pa.ones(1 << 19)):
        assert x.__dlpack_device__() == (1, 0) and (memory_of(x) == 1).all()
        assert (x + 1).numpy()[-1] == 2
    assert sharing.pool.active_bytes > 0
    with pytest.raises(BufferError, match="it lies on device"):
        pa.from_dlpack(Library(np.ones(1 << 19, np.float32)))


# ---- a real CUDA ---------------------------------------------------------------------------------------------------


def test_pytorch_shares_arrays(torch: Any) -> None:
    x = pa.reshape(pa.arange(12, dtype=pa.float32), (3, 4))
    for y in (x, x.T, x[1:, ::2], x[0, 1], x[:0]):
        t = torch.from_dlpack(y)
        assert t.is_cuda and np.array_equal(t.cpu().numpy(), y.numpy())
        back = pa.from_dlpack(t, copy=False)
        assert np.array_equal(back.numpy(), y.numpy()) and np.array_equal((back + 1).numpy(), y.numpy() + 1)
    assert np.array_equal(torch.from_dlpack(x[::-1]).cpu().numpy(), x[::-1].numpy())
    copied = torch.from_dlpack(x, copy=True)
    copied += 1
    assert x[0, 0].item() == 0
    assert torch.from_dlpack(x, device="cpu").tolist() == x.tolist()


def test_pytorch_and_polyarr_alternate_without_explicit_waits(torch: Any, backend: Backend) -> None:
    """Two streams alternate. Integers keep every bit, so memory that is read or reused too early shows."""
    expected, used = np.arange(1 << 16, dtype=np.int32), []
    x, stream = pa.asarray(expected), torch.cuda.Stream()
    for i in range(1000):
        y = (x * 3 + i) * 5
        with torch.cuda.stream(stream if i % 2 else torch.cuda.default_stream()):
            t = torch.from_dlpack(y)
            for _ in range(5):
                t = t * 7 + 1
            x = pa.from_dlpack(t)
        del y, t
        expected = (expected * 3 + i) * 5
        for _ in range(5):
            expected = expected * 7 + 1
        used.append((backend.memory()["held"], torch.cuda.memory_reserved()))
    assert np.array_equal(x.numpy(), expected)
    assert used[-1] == used[100]


@pytest.mark.parametrize("library", ["cupy", "jax"])
def test_others_share_arrays(torch: Any, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    other = pytest.importorskip(library)
    take = other.from_dlpack if library == "cupy" else other.dlpack.from_dlpack
    x = pa.reshape(pa.arange(12, dtype=pa.float32), (3, 4))
    y = pa.from_dlpack(take(x) * 2)
    assert np.array_equal((y + 1).numpy(), x.numpy() * 2 + 1)
