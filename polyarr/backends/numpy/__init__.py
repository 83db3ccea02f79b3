"""The reference backend: every primitive on NumPy, no Fused pairs. What it computes in float64 is the oracle."""

from typing import Any

import numpy as np

from polyarr.backends.numpy.table import KERNELS
from polyarr.core.backend import Backend
from polyarr.plugins import hookimpl


def start() -> Backend:
    """The backend. Its buffers are NumPy arrays."""
    return Backend("numpy", KERNELS, upload=np.array, download=_download, hardware="the host's CPU, NumPy")


def _download(buf: np.ndarray) -> np.ndarray:
    return np.array(buf, order="C")


@hookimpl
def polyarr_backends(register: Any) -> None:
    """Offer the backend numpy."""
    register("numpy", start, summary="the reference: NumPy on the CPU", api=2)
