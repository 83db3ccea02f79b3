"""Arrays that are shared through DLPack with who computes on CUDA, where the pool's memory is CUDA's, too."""

from functools import partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from polyarr.backends.opencl.copy import duplicate
from polyarr.backends.opencl.runtime.cuda import LEGACY, Piece, SharedPool
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.backend import DLPack
from polyarr.core.dlpack import CUDA, Shared, memory_of
from polyarr.core.spec import Spec

UNORDERED = -1  # the stream of who wants to wait by himself


def dlpack_of(device: Device) -> DLPack | None:
    """How a device shares buffers; None if it does not."""
    return DLPack(partial(_export, device), partial(_adopt, device)) if type(device.pool) is SharedPool else None


def _export(device: Device, buf: Buffer) -> Shared:
    _piece(buf.memory)
    return Shared(partial(_lent, device, buf), (CUDA, device.pool.cuda.number))


def _piece(memory: Any) -> Piece:
    try:
        return memory.cuda.piece
    except AttributeError:
        raise BufferError("memory that CUDA does not know: more than 448 MB, or there was no room") from None


def _lent(device: Device, buf: Buffer, stream: int | None, copy: bool) -> np.ndarray:
    """The memory, as an ndarray that nobody must look into."""
    device.faults.follow((buf,))
    with device.lock:
        if copy or min(buf.strides, default=0) < 0:  # other libraries know no negative strides
            buf = duplicate(device, buf)
        piece = _piece(buf.memory)
        piece.lent, device.lendings = True, device.lendings + 1
        if stream != UNORDERED:
            device.synchronize()
    return np.asarray(_Memory(buf, piece.address)).view(buf.dtype)


class _Memory:
    """A buffer by its address, for NumPy."""

    def __init__(self, buf: Buffer, address: int) -> None:
        self._buf, each = buf, buf.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "typestr": np.dtype(f"u{each}").str,
            "shape": buf.shape,
            "strides": tuple(each * stride for stride in buf.strides),
            "data": (address + each * buf.offset, False),
        }


def _adopt(device: Device, x: Any) -> Buffer:
    """Memory of the pool as it is, and a copy on the device of any other: OpenCL takes only what was made for it.

    Errors:  BufferError for memory elsewhere, and where there is none for the copy that CUDA knows
    """
    pool = device.pool
    if tuple(x.__dlpack_device__()) != (CUDA, pool.cuda.number):
        raise BufferError(f"it does not lie on device {(CUDA, pool.cuda.number)}")
    given = memory_of(x, stream=LEGACY)
    if not given.size:
        return device.empty(Spec(given.shape, given.dtype))
    (start, end), each = byte_bounds(given), given.dtype.itemsize
    with device.lock:
        memory = pool.adopt(start, end, given)
        if memory is None or (start - _piece(memory).address) % each:
            memory = device._allocate(end - start)
            device.commands.finish()  # whoever had this memory before
            pool.cuda.copy(_piece(memory).address, start, end - start, LEGACY)
            offset = 0
        else:
            offset = start - _piece(memory).address
        pool.cuda.wait_for(LEGACY)
    offset += given.__array_interface__["data"][0] - start
    strides = tuple(stride // each for stride in given.strides)
    return Buffer(memory, given.shape, given.dtype, strides, offset // each, device.faults.mine().origin)
