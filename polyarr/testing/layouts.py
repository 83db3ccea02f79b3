"""Memory layouts of the inputs of checks, made with polyarr's own views, so that kernels get strides and offsets.

A layout is a function (host array, axis, upload) -> array; the axis is the one that a broadcast array repeats.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.spec import INEXACT


def _filler(dtype: np.dtype) -> Any:
    """Return the value between and around the elements of a view, which makes a kernel's stray reads visible."""
    return np.nan if dtype in INEXACT else True if dtype.kind == "b" else np.iinfo(dtype).max


def _transposed(host: np.ndarray, axis: int, upload: Callable) -> Array:
    return ops.permute_dims(upload(host.transpose()), axes=tuple(reversed(range(host.ndim))))


def _stepped(host: np.ndarray, axis: int, upload: Callable) -> Array:
    window = (slice(1, None, 2),) * host.ndim
    wide = np.full([2 * n + 1 for n in host.shape], _filler(host.dtype), host.dtype)
    wide[window] = host
    return upload(wide)[window]


def _reversed(host: np.ndarray, axis: int, upload: Callable) -> Array:
    backwards = (slice(None, None, -1),) * host.ndim
    return upload(host[backwards])[backwards]


def _mirrored(host: np.ndarray, axis: int, upload: Callable) -> Array:
    return upload(host[..., ::-1])[..., ::-1] if host.ndim else upload(host)


def _offset(host: np.ndarray, axis: int, upload: Callable) -> Array:
    longer = np.full((host.shape[0] + 3, *host.shape[1:]) if host.ndim else (3,), _filler(host.dtype), host.dtype)
    window = slice(2, 2 + host.shape[0]) if host.ndim else 1
    longer[window] = host
    return upload(longer)[window]


def _broadcast(host: np.ndarray, axis: int, upload: Callable) -> Array:
    return ops.broadcast_to(upload(first_slice(host, axis)), shape=host.shape)


def first_slice(host: np.ndarray, axis: int) -> np.ndarray:
    return host.take(range(min(1, host.shape[axis])), axis=axis) if host.ndim and host.size else host


LAYOUTS: dict[str, Callable[[np.ndarray, int, Callable], Array]] = {
    "plain": lambda host, axis, upload: upload(host),
    "transposed": _transposed,
    "stepped": _stepped,
    "reversed": _reversed,
    "mirrored": _mirrored,
    "offset": _offset,
    "broadcast": _broadcast,
    "transposed, offset": lambda host, axis, upload: _transposed(host, axis, lambda a: _offset(a, axis, upload)),
    "broadcast, offset": lambda host, axis, upload: _broadcast(host, axis, lambda a: _offset(a, axis, upload)),
}


REPEATING = ("broadcast", "broadcast, offset")  # layouts in which several elements share memory
