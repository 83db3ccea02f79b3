"""Memory that CUDA owns, and its exchange with other libraries: the real driver on NVIDIA, and a fake one."""

import ctypes
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend, transfers
from polyarr.core.dlpack import CUDA, Shared, capsule_of, memory_of
from polyarr.core.errors import DeviceMemoryError

pytestmark = pytest.mark.polyarr_backend("opencl")


@pytest.fixture
def torch(backend: Backend) -> Any:
    """PyTorch, if CUDA's driver is the one of the backend."""
    torch = pytest.importorskip("torch")
    if not (torch.cuda.is_available() and backend.dlpack):
        pytest.skip("needs CUDA")
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


def test_arrays_go_out_without_a_copy(fake: Any) -> None:
    x = pa.reshape(pa.arange(12, dtype=pa.bfloat16), (3, 4))
    for y in (x, x.T, x[1:, ::2], x[:, 1], x[2, 3]):
        out = memory_of(y, stream=1)
        assert y.__dlpack_device__() == (CUDA, 0) and not out.flags.writeable
        assert np.array_equal(out, y.numpy()) and out.dtype == pa.bfloat16
        low = x.buf.memory.int_ptr
        assert low <= out.__array_interface__["data"][0] < low + 24
    for y in (memory_of(x, stream=-1, copy=True), memory_of(x[::-1], stream=2)):
        assert not low <= y.__array_interface__["data"][0] < low + 24
    with pytest.raises(BufferError, match="can be copied to the host"):
        x.__dlpack__(dl_device=(CUDA, 1))
    assert np.array_equal(memory_of(x, dl_device=(1, 0)), x.numpy())


def test_what_is_not_computed_yet_is_waited_for(fake: Any) -> None:
    x = pa.ones((300, 300))
    for _ in range(20):
        x = x @ x / 300.0
    assert (memory_of(x, stream=1) == 1).all()
    bad = pa.take(x, pa.asarray([300]))
    with pytest.raises(IndexError, match="index 300 is out of range"):
        memory_of(bad, stream=1)


def device_array(fake: Any, host: np.ndarray) -> np.ndarray:
    """Return a copy of an array in memory that the fake driver allocated, as another library's."""
    address = fake.allocate(host.nbytes + 512)
    memory = np.frombuffer((ctypes.c_ubyte * host.nbytes).from_address(address + 32), host.dtype).reshape(host.shape)
    memory[...] = host
    return memory


def test_arrays_of_other_libraries_come_in_without_a_copy(fake: Any) -> None:
    host = device_array(fake, np.arange(24.0, dtype=np.float32).reshape(2, 3, 4))
    before = transfers()
    for given in (host, host.T, host[:, 1:, ::2], host[1, 2, 3:], host[:, :0]):
        library = Library(given)
        y = pa.from_dlpack(library, copy=False)
        assert library.stream == 1 and transfers() == before
        assert np.array_equal(y.numpy(), given) and np.array_equal((y + 1).numpy(), given + 1)
        before = transfers()
    with pytest.raises(BufferError, match="it does not lie on device"):
        fake.backend.dlpack.adopt(Shared(lambda stream, copy: np.ones(3), (CUDA, 1)))


def test_adopted_memory_is_never_overwritten(fake: Any) -> None:
    given = device_array(fake, np.ones((4, 4), np.float32))
    step = pa.compile(lambda x: pa.exp(-x), donate="x")
    for _ in range(4):
        step(pa.from_dlpack(Library(given)))
    fake.device.synchronize()
    assert (given == 1).all()


def test_the_device_is_waited_for_before_adopted_memory_goes_back(fake: Any) -> None:
    given = device_array(fake, np.ones((4, 4), np.float32))
    y = pa.from_dlpack(Library(given))
    z = y + 1
    fake.log.clear()
    del y
    assert fake.log == ["wait"] and (z.numpy() == 2).all()


def test_elements_that_are_not_aligned_are_refused(fake: Any) -> None:
    memory = device_array(fake, np.zeros(17, np.uint8))
    with pytest.raises(BufferError, match="is not a multiple of 4 bytes"):
        pa.from_dlpack(Library(memory[1:].view(np.float32)), copy=False)


def test_what_went_out_comes_back_without_a_copy(fake: Any) -> None:
    x = pa.reshape(pa.arange(600, dtype=pa.float32), (2, 300))
    out = memory_of(x, stream=1)
    fake.log.clear()
    for part in (out, out.T, out[1:], out[:, 7::2]):
        y = pa.from_dlpack(Library(part), copy=False)
        assert np.array_equal(y.numpy(), part) and np.array_equal((y * 2).numpy(), part * 2)
    assert "wait for 1" in fake.log and y.buf.memory.int_ptr <= out.__array_interface__["data"][0]


def test_lent_memory_waits_for_cuda_before_it_is_used_again(fake: Any) -> None:
    x = pa.ones(1000)
    address = x.buf.memory.int_ptr
    out = memory_of(x, stream=1)
    del x
    other = pa.zeros(1000)
    assert (out == 1).all() and other.buf.memory.int_ptr != address
    del out
    assert "wait" not in fake.log
    kept = [pa.zeros(1000) for _ in range(3)]
    assert "wait" in fake.log and address in {k.buf.memory.int_ptr for k in kept}


def test_adopted_memory_does_not_go_to_the_pool(fake: Any) -> None:
    x = pa.ones(1000)
    owner = memory_of(x, stream=1)
    del x
    y = pa.from_dlpack(Library(owner), copy=False)
    del owner
    assert all(pa.zeros(1000).buf.memory.int_ptr != y.buf.memory.int_ptr for _ in range(3))
    assert (y.numpy() == 1).all()
    active = fake.device.pool.active_bytes
    del y
    assert fake.device.pool.active_bytes < active


def test_the_pool_counts_reuses_and_gives_back(fake: Any) -> None:
    pool = import_module("polyarr.backends.opencl.nvidia.driver").Pool(fake)
    sizes, managed = [1, 500, 5000, 1 << 20, 65 << 20], 0
    for _ in range(3):
        kept = [pool.allocate(size) for size in sizes]
        places = sorted((memory.int_ptr, memory.size) for memory in kept)
        assert all(memory.size >= size for memory, size in zip(kept, sizes, strict=True))
        assert all(a + size <= b for (a, size), (b, _) in pairwise(places))
        assert sum(sizes) <= pool.active_bytes <= 1.13 * sum(sizes) + 3 * 512
        assert managed in (0, pool.managed_bytes), "the second time nothing is allocated"
        managed = pool.managed_bytes
        del kept
    assert pool.active_bytes == 0 and pool.managed_bytes == managed
    x = pool.allocate(100)
    pool.free_held()
    assert pool.managed_bytes == pool.active_bytes == x.size
    del x
    pool.free_held()
    assert pool.managed_bytes == 0


def test_where_memory_does_not_suffice_an_error_says_so(fake: Any) -> None:
    fake.room = 1 << 20
    kept = [pa.zeros(1 << 16) for _ in range(2)]
    del kept
    assert pa.zeros(200_000).shape == (200_000,), "unused memory of the pool was given back"
    with pytest.raises(DeviceMemoryError, match="no room for 4,194,304 bytes"):
        pa.zeros(1 << 20)


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
