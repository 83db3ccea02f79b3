"""DLPack exchange with CUDA libraries, on devices whose memory pool is shared with CUDA."""

from functools import partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from polyarr.backends.opencl.copying.copy import duplicate
from polyarr.backends.opencl.nvidia.cuda import LEGACY, Piece, SharedPool
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.backend import DLPack
from polyarr.core.dlpack import CUDA, Shared, memory_of
from polyarr.core.spec import Spec

UNORDERED = -1  # DLPack's stream value for a consumer that synchronizes on its own


def dlpack_of(device: Device) -> DLPack | None:
    """Return the DLPack functions of a device; None if it does not share memory with CUDA."""
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
    """Lend the memory as an ndarray at its device address, which the host must not read."""
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
    """A buffer as an object with the array interface of NumPy, at its device address."""

    def __init__(self, buf: Buffer, address: int) -> None:
        self._buf, each = buf, buf.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "typestr": np.dtype(f"u{each}" if each < 16 else "c16").str,
            "shape": buf.shape,
            "strides": tuple(each * stride for stride in buf.strides),
            "data": (address + each * buf.offset, False),
        }


def _adopt(device: Device, x: Any) -> Buffer:
    """Adopt a DLPack array: zero-copy if it lies in the pool, else by a copy, as OpenCL can only use its own memory.

    Raises:
        BufferError: x is on another device, or memory shared with CUDA does not suffice for the copy.
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
            device.commands.finish()  # pending commands may still use the recycled memory
            pool.cuda.copy(_piece(memory).address, start, end - start, LEGACY)
            offset = 0
        else:
            offset = start - _piece(memory).address
        pool.cuda.wait_for(LEGACY)
    offset += given.__array_interface__["data"][0] - start
    strides = tuple(stride // each for stride in given.strides)
    return Buffer(memory, given.shape, given.dtype, strides, offset // each, device.faults.mine().origin)
