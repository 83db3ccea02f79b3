"""The reference backend: all primitives on NumPy, no Fused kernels. Its float64 results are the test oracle."""

from typing import Any

import numpy as np

from polyarr.backends.numpy.table import KERNELS
from polyarr.core.backend import Backend, DLPack
from polyarr.core.dlpack import Shared, is_on_host, memory_of
from polyarr.core.spec import DTYPES
from polyarr.plugins import hookimpl


def start() -> Backend:
    """Return the NumPy backend; its buffers are NumPy arrays."""
    return Backend(
        "numpy",
        KERNELS,
        dtypes=frozenset(DTYPES),
        upload=np.array,
        download=_download,
        hardware="the host's CPU, NumPy",
        dlpack=DLPack(_export, _adopt),
    )


def _download(buf: np.ndarray) -> np.ndarray:
    return np.array(buf, order="C")


def _export(buf: np.ndarray) -> Shared:
    return Shared(lambda stream, copy: np.array(buf, order="C") if copy else buf)


def _adopt(x: Any) -> np.ndarray:
    if not is_on_host(x):
        raise BufferError("it does not lie on the host")
    return memory_of(x)


@hookimpl
def polyarr_backends(register: Any) -> None:
    """Register the backend numpy."""
    register("numpy", start, summary="the reference: NumPy on the CPU", api=2)
