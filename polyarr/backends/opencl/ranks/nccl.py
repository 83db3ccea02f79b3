"""NCCL: what several processes hold in memory of CUDA's, one device each, is reduced there, and not on the host.

The library is that of the wheel nvidia-nccl, or the system's. It is called by ctypes, as CUDA's driver is in `cuda`.
"""

import ctypes
import importlib.util
from collections.abc import Iterable
from ctypes import byref, c_char, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.backends.opencl.ranks.buckets import Span
from polyarr.backends.opencl.runtime.cuda import Cuda
from polyarr.core.errors import BackendError
from polyarr.core.spec import bfloat16, float16, float32, float64

LIBRARY = "libnccl.so.2"
OLDEST = 21000  # 2.10, the first with bfloat16 and means
KINDS = {float16: 6, float32: 7, float64: 8, bfloat16: 9}
REDUCTIONS = {"sum": 0, "mean": 4}  # its largest and smallest are other numbers than NumPy's where there is a nan


class NcclError(BackendError):
    """NCCL is not here, or refuses."""


class Ticket(ctypes.Structure):
    """ncclUniqueId of nccl.h: what one process draws, and all others need to meet it."""

    _fields_ = (("internal", c_char * 128),)


def load() -> Any:
    """The library.

    Errors:  NcclError if there is none
    """
    found = [str(path) for path in _of_wheels() if path.exists()]
    for path in (*found, LIBRARY):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reason = error
    raise NcclError(f"NCCL does not load: {reason}; install it with: pip install 'polyarr[nccl]'")


def _of_wheels() -> Iterable[Path]:
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # no wheel of NVIDIA's at all
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
        """Call a function."""
        if status := getattr(self._library, name)(*args):
            self._library.ncclGetErrorString.restype = ctypes.c_char_p
            text = (self._library.ncclGetErrorString(status) or b"").decode()
            raise NcclError(f"NCCL: {name}: {text or status}")

    def ticket(self) -> bytes:
        """For the processes that are to meet."""
        drawn = Ticket()
        self("ncclGetUniqueId", byref(drawn))
        return bytes(drawn)


class Communicator:
    """This process among those that met."""

    def __init__(self, nccl: Nccl, cuda: Cuda, ticket: bytes, rank: int, size: int) -> None:
        self._nccl, self._cuda, self._own = nccl, cuda, c_void_p()
        with cuda.current():
            nccl("ncclCommInitRank", byref(self._own), c_int(size), Ticket.from_buffer_copy(ticket), c_int(rank))
        self._stream = cuda.stream()

    def all_reduce(self, spans: Iterable[Span], dtype: np.dtype, reduction: str) -> None:
        """Reduce memory in its place: that has happened after wait()."""
        kind, how = c_int(KINDS[dtype]), c_int(REDUCTIONS[reduction])
        with self._cuda.current():
            self._nccl("ncclGroupStart")
            try:
                for chunk, nbytes in spans:
                    place, count = c_void_p(chunk.address), c_size_t(nbytes // dtype.itemsize)
                    self._nccl("ncclAllReduce", place, place, count, kind, how, self._own, c_void_p(self._stream))
            finally:
                self._nccl("ncclGroupEnd")

    def wait(self) -> None:
        """Wait for what was reduced.

        Errors:  NcclError if that failed
        """
        self._cuda.wait_for(self._stream)
        status = c_int()
        self._nccl("ncclCommGetAsyncError", self._own, byref(status))
        if status.value:
            raise NcclError(f"NCCL: a reduction failed with error {status.value}; another process may have ended")

    def end(self) -> None:
        """Leave, without waiting for the others."""
        if self._own:
            self._nccl("ncclCommAbort", self._own)
            self._own = c_void_p()
