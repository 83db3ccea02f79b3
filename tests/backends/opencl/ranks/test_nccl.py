"""NCCL reductions in CUDA memory, with fakes of both on the host."""

import ctypes
import gc
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError
from tests.helpers.opencl_modules import opencl_modules

pytestmark = pytest.mark.polyarr_backend("opencl")
RANKS = 3  # all ranks hold equal data


class Library:
    """A fake libnccl whose ranks hold equal data. `refused`: failing function and status; `ending`: a late error."""

    def __init__(self, version: int = 22703, refused: tuple[str, int] = ("", 0), ending: int = 0) -> None:
        self.version, self.refused, self.ending, self.calls = version, refused, ending, []
        self.dtypes: list[np.dtype] = []
        self.ncclGetErrorString = lambda status: b"invalid usage"

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.calls.append(name)
            if name == self.refused[0]:
                return self.refused[1]
            own = vars(Library).get(f"_{name}")
            return (own and own(self, *args)) or 0

        return call

    def _ncclGetVersion(self, version: Any) -> None:  # noqa: N802  the library's names
        version._obj.value = self.version

    def _ncclCommInitRank(self, comm: Any, size: Any, ticket: Any, rank: Any) -> None:  # noqa: N802
        assert bytes(ticket) == bytes(range(128)) and (size.value, rank.value) == (RANKS, 1)
        comm._obj.value = 1234

    def _ncclGetUniqueId(self, ticket: Any) -> None:  # noqa: N802
        ctypes.memmove(ctypes.addressof(ticket._obj), bytes(range(128)), 128)

    def _ncclAllReduce(self, source: Any, target: Any, count: Any, kind: Any, how: Any, *rest: Any) -> None:  # noqa: N802
        nccl = import_module("polyarr.backends.opencl.nvidia.nccl")
        dtype = next(d for d, number in nccl.KINDS.items() if number == kind.value)
        self.dtypes.append(dtype)
        memory = (ctypes.c_ubyte * (count.value * dtype.itemsize)).from_address(target.value)
        values = np.frombuffer(memory, np.uint8).view(dtype)
        with np.errstate(all="ignore"):  # of what lies between the arrays
            values[:] = values * dtype.type({0: RANKS, 4: 1}[how.value])

    def _ncclCommGetAsyncError(self, comm: Any, status: Any) -> None:  # noqa: N802
        assert comm.value == 1234
        status._obj.value = self.ending


@pytest.fixture
def backend(fake: Any) -> Backend:
    """The backend on a fake CUDA driver."""
    return fake.backend


@pytest.fixture
def meet(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that joins fake ranks: library -> the reduction, and objects to inspect."""
    meeting = import_module("polyarr.backends.opencl.nvidia.deferred_reduce")
    chunks, allocate = list[int](), fake.device.driver.allocate

    def noting(nbytes: int) -> Any:
        chunks.append(nbytes)
        return allocate(nbytes)

    monkeypatch.setattr(fake.device.driver, "allocate", noting)

    def join(library: Library) -> SimpleNamespace:
        monkeypatch.setattr(meeting, "load", lambda: library)
        found = meeting._prepared(fake.device)
        return SimpleNamespace(reduce=found.join(found.unique_id(), 1, RANKS), found=found, cuda=fake, chunks=chunks)

    return join


def values(backend: Backend, bufs: list) -> list[np.ndarray]:
    return [backend.download(buf) for buf in bufs]


def test_arrays_are_reduced_in_one_bucket(meet: Any, backend: Backend) -> None:
    library = Library()
    all_ranks = meet(library)
    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = [pa.asarray(host), pa.asarray(host).T, pa.asarray(host)[1:, ::2], pa.asarray(2.5), pa.ones((0, 3))]
    expected = [host, host.T, host[1:, ::2], np.float32(2.5), np.ones((0, 3))]
    for name, wire in (("sum", pa.float32), ("mean", pa.float32), ("sum", pa.bfloat16)):
        found = values(backend, all_ranks.reduce([a.buf for a in arrays], wire, name))
        for value, own in zip(found, expected, strict=True):
            assert value.dtype == np.float32 and np.array_equal(value, own * (RANKS if name == "sum" else 1))
    assert library.calls.count("ncclAllReduce") == 3 and np.array_equal(arrays[0].numpy(), host)
    assert all_ranks.reduce([], pa.float32, "sum") == []


def test_float16_is_added_in_float32(meet: Any, backend: Backend) -> None:
    """Half of the sum is representable where the sum is not, and so are the last bits of the smallest numbers."""
    library, host = Library(), np.array([6e4, 3 * 2.0**-24, -0.1], np.float16)
    (found,) = values(backend, meet(library).reduce([pa.asarray(host).buf], pa.float16, "mean"))
    assert found.dtype == np.float16 and np.array_equal(found, host) and library.dtypes == [pa.float32]


def test_what_is_larger_than_a_piece_is_cut(meet: Any, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("polyarr.backends.opencl.ranks.buckets"), "MAX_CHUNK_BYTES", 4096)
    library = Library()
    all_ranks = meet(library)
    host = [np.arange(n, dtype=np.float32) for n in (5, 3000, 700, 1024, 300)]
    for wire in (pa.float32, pa.bfloat16):
        library.calls.clear()
        whole = [(h % 100).astype(np.float32) for h in host]
        found = values(backend, all_ranks.reduce([pa.asarray(h).buf for h in whole], wire, "sum"))
        assert all(np.allclose(f, RANKS * h, rtol=1e-2) for f, h in zip(found, whole, strict=True))
        assert library.calls.count("ncclAllReduce") == len(all_ranks.chunks) > 3
        assert max(all_ranks.chunks) <= 4096
        all_ranks.chunks.clear()


def test_an_unreferenced_bucket_is_reused(meet: Any, backend: Backend) -> None:
    all_ranks = meet(Library())
    arrays, chunks = [pa.ones(100), pa.ones((3, 5))], all_ranks.chunks
    first = all_ranks.reduce([a.buf for a in arrays], pa.float32, "sum")
    kept = first[1]
    del first
    for _ in range(3):
        all_ranks.reduce([(2 * a).buf for a in arrays], pa.float32, "sum")
    assert len(chunks) == 2 and (backend.download(kept) == RANKS).all()
    del kept
    again = [all_ranks.reduce([a.buf for a in arrays], pa.float32, "sum") for _ in range(2)]
    assert len(chunks) == 2 and all((v == RANKS).all() for found in again for v in values(backend, found))


def test_reductions_wait_for_what_is_computed_and_report_its_faults(meet: Any, backend: Backend) -> None:
    library = Library()
    all_ranks = meet(library)
    x = pa.ones((300, 300))
    for _ in range(10):
        x = x @ x / 300.0
    assert (backend.download(all_ranks.reduce([x.buf], pa.float32, "sum")[0]) == RANKS).all()
    all_ranks.reduce([pa.take(x, pa.asarray([300])).buf], pa.float32, "sum")
    with pytest.raises(IndexError, match="index 300 is out of range"):
        backend.collectives.settle()
    assert library.calls.count("ncclAllReduce") == 2  # no rank was left waiting


@pytest.mark.parametrize("wire", [pa.float32, pa.bfloat16])
def test_a_reduction_is_waited_for_when_something_else_is_enqueued(
    meet: Any, backend: Backend, monkeypatch: pytest.MonkeyPatch, wire: np.dtype
) -> None:
    """The host prepares a captured function meanwhile; a recording has only the function's launches."""
    all_ranks, waits = meet(Library()), []
    nccl = import_module("polyarr.backends.opencl.nvidia.nccl")
    monkeypatch.setattr(nccl.Communicator, "wait", lambda self: waits.append(1))
    further = pa.compile(lambda a: a + 1)
    for n in range(1, 5):
        (found,) = all_ranks.reduce([pa.full((7,), float(n)).buf], wire, "sum")
        assert len(waits) == n - 1
        found = further(pa.Array(backend, found, pa.Spec((7,), pa.float32)))
        assert len(waits) == n
        assert (found.numpy() == RANKS * n + 1).all()
    all_ranks.reduce([pa.ones(7).buf], wire, "sum")
    pa.synchronize()
    assert len(waits) == 5


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (Library(version=2900), r"NCCL is version code 2900; it must be 21000 \(2\.10\) or later"),
        (Library(refused=("ncclGetUniqueId", 3)), "NCCL: ncclGetUniqueId: invalid usage"),
        (Library(refused=("ncclCommInitRank", 5)), "NCCL: ncclCommInitRank: invalid usage"),
    ],
)
def test_errors_while_ranks_join_are_one_line(meet: Any, library: Library, message: str) -> None:
    with pytest.raises(BackendError, match=f"^{message}$"):
        meet(library)


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (Library(refused=("ncclAllReduce", 5)), "NCCL: ncclAllReduce: invalid usage"),
        (Library(ending=6), "NCCL: a reduction failed with error 6; another process may have ended"),
    ],
)
def test_what_goes_wrong_in_a_reduction_is_one_line(fake: Any, library: Library, message: str) -> None:
    nccl, buckets = opencl_modules("nccl", "buckets")
    communicator = nccl.Communicator(nccl.Nccl(library), fake, bytes(range(128)), 1, RANKS)
    with pytest.raises(BackendError, match=f"^{message}$"):
        communicator.all_reduce([buckets.Span(fake.device.driver.allocate(4096), 4096)], np.dtype("float32"), "sum")
        communicator.wait()


def test_the_communicator_ends_with_its_reduction(meet: Any) -> None:
    library = Library()
    all_ranks = meet(library)
    assert "ncclCommAbort" not in library.calls
    del all_ranks
    gc.collect()
    assert library.calls.count("ncclCommAbort") == 1


def test_a_library_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = import_module("polyarr.backends.opencl.nvidia.nccl")
    monkeypatch.setattr(nccl, "LIBRARY", "libnccl-missing.so.2")
    with pytest.raises(BackendError, match=r"^NCCL does not load: .*; install it with: pip install 'polyarr\[nccl\]'$"):
        nccl.load()


def test_the_wheels_library_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    nccl = import_module("polyarr.backends.opencl.nvidia.nccl")
    library = tmp_path / "nvidia" / "nccl" / "lib" / nccl.LIBRARY
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(tmp_path)
    loaded = []
    monkeypatch.setattr(nccl.ctypes, "CDLL", lambda path: loaded.append(path) or path)
    assert nccl.load() == str(library) == loaded[0]
