"""Where the largest elements are: by selection if they are few, else by a sort."""

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, swapped
from polyarr.backends.opencl.runtime.program import Program
from polyarr.backends.opencl.sort import INT32, argsort, key_dtype, key_macros
from polyarr.core.spec import Spec

GROUP, ROOM = 256, 2048  # work-items that share a row on a GPU, and elements of which they can choose
FAR = 2**30  # elements of a row that an int counts with room to spare
FEW = 2  # a sort is faster than heaps of more than one in so many elements
SHORT = 4096  # bytes of a row that a GPU sorts faster than a group chooses from them, if it is one tile


def argtopk(device: Device, out: Spec, x: Buffer, *, k: int, axis: int) -> Buffer:
    """The first k of the descending order of x along axis."""
    if not out.size or FEW * k > x.shape[axis]:
        return _by_sort(device, out, x, k, axis)
    return FAMILIES[device.geometry.kind](device, out, x, k, axis)


def _by_sort(device: Device, out: Spec, x: Buffer, k: int, axis: int) -> Buffer:
    return argsort(device, out, x, axis=axis, descending=True)


def _by_heaps(device: Device, out: Spec, x: Buffer, k: int, axis: int) -> Buffer:
    """A heap for each work-item, which takes some rows one after the other."""
    last = x.ndim - 1
    x = dense(device, swapped(x, axis, last))
    n = x.shape[last]
    rows = x.size // n
    items, group, each = device.geometry.items(rows, least=1)
    keys, index = (device.empty(Spec((*items, k), dtype)) for dtype in (key_dtype(x.dtype), INT32))
    result = device.empty(Spec((*x.shape[:last], k), out.dtype))
    program = device.plans[_program](x.dtype)
    program.argtopk_serial(items, group, x.memory, keys.memory, index.memory, result.memory, n, k, rows, each)
    return swapped(result, axis, last)


def _by_bounds(device: Device, out: Spec, x: Buffer, k: int, axis: int) -> Buffer:
    """A group for each row."""
    short = min(SHORT // x.dtype.itemsize, device.geometry.sort_tile)
    if k > GROUP or not short < x.shape[axis] < FAR:
        return _by_sort(device, out, x, k, axis)
    last = x.ndim - 1
    x = dense(device, swapped(x, axis, last))
    n = x.shape[last]
    result = device.empty(Spec((*x.shape[:last], k), out.dtype))
    program = device.plans[_gpu_program](x.dtype)
    program.argtopk_group((x.size // n * GROUP,), (GROUP,), x.memory, result.memory, n, k)
    return swapped(result, axis, last)


def _gpu_program(device: Device, dtype: np.dtype) -> Program:
    return device.build("topk_gpu", **key_macros(dtype, descending=True), GROUP=GROUP, ROOM=ROOM)


def _program(device: Device, dtype: np.dtype) -> Program:
    return device.build("topk", **key_macros(dtype, descending=True))


FAMILIES = {"cpu": _by_heaps, "gpu": _by_bounds}
