"""NCCL: all-reduce of CUDA memory over several processes, one device each, without the host.

The library is that of the wheel nvidia-nccl, or the system's. It is called through ctypes, as the CUDA driver is.
"""

import ctypes
import importlib.util
from collections.abc import Iterable
from ctypes import byref, c_char, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.backends.opencl.nvidia.cuda import Cuda
from polyarr.backends.opencl.ranks.buckets import Span
from polyarr.core.errors import BackendError
from polyarr.core.spec import bfloat16, float16, float32, float64

LIBRARY = "libnccl.so.2"
OLDEST = 21000  # 2.10, the first with bfloat16 and averages
KINDS = {float16: 6, float32: 7, float64: 8, bfloat16: 9}
REDUCTIONS = {"sum": 0, "mean": 4}  # NCCL's max and min differ from NumPy's where there is a nan


class NcclError(BackendError):
    """NCCL is missing, or reported an error."""


class UniqueId(ctypes.Structure):
    """ncclUniqueId of nccl.h: one rank creates it, and all ranks need it to form a communicator."""

    _fields_ = (("internal", c_char * 128),)


def load() -> Any:
    """Load the library.

    Raises:
        NcclError: There is none.
    """
    found, reason = [str(path) for path in _of_wheels() if path.exists()], OSError()
    for path in (*found, LIBRARY):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reason = error
    raise NcclError(f"NCCL does not load: {reason}; install it with: pip install 'polyarr[nccl]'")


def _of_wheels() -> Iterable[Path]:
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # no wheel of NVIDIA's is installed
        return ()
    return [Path(place) / "lib" / LIBRARY for place in (spec and spec.submodule_search_locations) or ()]


class Nccl:
    """The library's functions."""

    def __init__(self, library: Any) -> None:
        self._library, version = library, c_int()
        self("ncclGetVersion", byref(version))
        self.version = version.value
        if self.version < OLDEST:
            raise NcclError(f"NCCL is version code {self.version}; it must be {OLDEST} (2.10) or later")

    def __call__(self, name: str, *args: Any) -> None:
        """Call a function, and raise NcclError if it fails."""
        if status := getattr(self._library, name)(*args):
            self._library.ncclGetErrorString.restype = ctypes.c_char_p
            text = (self._library.ncclGetErrorString(status) or b"").decode()
            raise NcclError(f"NCCL: {name}: {text or status}")

    def unique_id(self) -> bytes:
        """Return a new unique id for the ranks of a communicator."""
        drawn = UniqueId()
        self("ncclGetUniqueId", byref(drawn))
        return bytes(drawn)


class Communicator:
    """This process's rank in an NCCL communicator."""

    def __init__(self, nccl: Nccl, cuda: Cuda, unique_id: bytes, rank: int, size: int) -> None:
        self._nccl, self._cuda, self._own = nccl, cuda, c_void_p()
        with cuda.current():
            nccl("ncclCommInitRank", byref(self._own), c_int(size), UniqueId.from_buffer_copy(unique_id), c_int(rank))
        self._stream = cuda.stream()

    def all_reduce(self, spans: Iterable[Span], dtype: np.dtype, reduction: str) -> None:
        """Enqueue an in-place all-reduce; wait() waits for it."""
        code, operation = c_int(KINDS[dtype]), c_int(REDUCTIONS[reduction])
        with self._cuda.current():
            self._nccl("ncclGroupStart")
            try:
                for memory, nbytes in spans:
                    place, count = c_void_p(memory.int_ptr), c_size_t(nbytes // dtype.itemsize)
                    self._nccl("ncclAllReduce", place, place, count, code, operation, self._own, c_void_p(self._stream))
            finally:
                self._nccl("ncclGroupEnd")

    def wait(self) -> None:
        """Wait for the enqueued reductions.

        Raises:
            NcclError: One of them failed.
        """
        self._cuda.wait_for(self._stream)
        status = c_int()
        self._nccl("ncclCommGetAsyncError", self._own, byref(status))
        if status.value:
            raise NcclError(f"NCCL: a reduction failed with error {status.value}; another process may have ended")

    def end(self) -> None:
        """Leave the communicator without waiting for the other ranks."""
        if self._own:
            self._nccl("ncclCommAbort", self._own)
            self._own = c_void_p()
