"""DLPack exchange with other CUDA libraries, on devices that use CUDA's driver. No memory is copied."""

from functools import partial
from typing import Any, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds

from polyarr.backends.opencl.copying.copy import duplicate
from polyarr.backends.opencl.nvidia.cuda import DEFAULT_STREAM
from polyarr.backends.opencl.nvidia.driver import ALIGNMENT, CudaDriver
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.backend import DLPack
from polyarr.core.dlpack import CUDA, Shared, memory_of
from polyarr.core.spec import Spec

UNORDERED = -1  # DLPack's stream value for a consumer that synchronizes on its own


def dlpack_of(device: Device) -> DLPack | None:
    """Return the DLPack functions of a device; None if it does not use CUDA's driver."""
    return DLPack(partial(_export, device), partial(_adopt, device)) if type(device.driver) is CudaDriver else None


def _export(device: Device, buf: Buffer) -> Shared:
    return Shared(partial(_lent, device, buf), (CUDA, cast("CudaDriver", device.driver).cuda.number))


def _lent(device: Device, buf: Buffer, stream: int | None, copy: bool) -> np.ndarray:
    """Lend the memory as an ndarray at its device address, which the host must not read."""
    device.faults.follow((buf,))
    with device.lock:
        if copy or min(buf.strides, default=0) < 0:  # other libraries know no negative strides
            buf = duplicate(device, buf)
        buf.memory.is_lent, device.lendings = True, device.lendings + 1
        if stream != UNORDERED:
            device.synchronize()
    return np.asarray(_Memory(buf)).view(buf.dtype)


class _Memory:
    """A buffer as an object with the array interface of NumPy, at its device address."""

    def __init__(self, buf: Buffer) -> None:
        self._buf, each = buf, buf.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "typestr": np.dtype(f"u{each}" if each < 16 else "c16").str,
            "shape": buf.shape,
            "strides": tuple(each * stride for stride in buf.strides),
            "data": (buf.memory.int_ptr + each * buf.offset, False),
        }


def _adopt(device: Device, x: Any) -> Buffer:
    """Adopt a DLPack array of the same device, whose memory lives as long as the buffer.

    Raises:
        BufferError: x is on another device, or its elements are not aligned.
    """
    driver = cast("CudaDriver", device.driver)
    here = CUDA, driver.cuda.number
    if tuple(x.__dlpack_device__()) != here:
        raise BufferError(f"it does not lie on device {here}")
    given = memory_of(x, stream=DEFAULT_STREAM)
    if not given.size:
        return device.empty(Spec(given.shape, given.dtype))
    (first, end), each = byte_bounds(given), given.dtype.itemsize
    start, address = first // ALIGNMENT * ALIGNMENT, given.__array_interface__["data"][0]
    if address % each:
        raise BufferError(f"its address {address} is not a multiple of {each} bytes")
    driver.cuda.wait_for(DEFAULT_STREAM)
    memory = driver.adopted(start, -(-end // 64) * 64 - start, given)
    strides = tuple(stride // each for stride in given.strides)
    return Buffer(memory, given.shape, given.dtype, strides, (address - start) // each, device.faults.mine().origin)
