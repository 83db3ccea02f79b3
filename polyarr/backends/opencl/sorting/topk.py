"""argtopk: the indices of the largest elements, by selection if they are few, else by a sort."""

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, swapped
from polyarr.backends.opencl.runtime.program import Program
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.backends.opencl.sorting.sort import INT32, argsort, key_dtype, key_macros
from polyarr.core.spec import Spec

GROUP, CAPACITY = 256, 2048  # on GPUs: work-items that share a row, and capacity for candidates
MAX_LENGTH = 2**30  # exclusive bound on the elements of a row, so that indices and loop bounds fit into an int
MIN_SELECTIVITY = 2  # elements per selected one from which on selection is faster than a sort
MAX_SORTED_BYTES = 4096  # row size up to which a GPU sorts, in one tile, faster than a work-group selects


def argtopk(device: Device, out: Spec, x: Buffer, *, k: int, axis: int) -> Buffer:
    """Return the first k indices of the descending order of x along axis."""
    return choose(device, "top-k", VARIANTS, out, x, k, axis)


def _by_sort(device: Device, out: Spec, x: Buffer, k: int, axis: int) -> Buffer:
    return argsort(device, out, x, axis=axis, descending=True)


def _by_heaps(device: Device, out: Spec, x: Buffer, k: int, axis: int) -> Buffer | None:
    """Select on CPUs: each work-item processes some rows with a heap."""
    if not out.size or MIN_SELECTIVITY * k > x.shape[axis]:
        return None
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


def _by_group(device: Device, out: Spec, x: Buffer, k: int, axis: int) -> Buffer | None:
    """Select on GPUs: a work-group per row."""
    short = min(MAX_SORTED_BYTES // x.dtype.itemsize, device.geometry.sort_tile)
    if not out.size or k > GROUP or MIN_SELECTIVITY * k > x.shape[axis] or not short < x.shape[axis] < MAX_LENGTH:
        return None
    last = x.ndim - 1
    x = dense(device, swapped(x, axis, last))
    n = x.shape[last]
    result = device.empty(Spec((*x.shape[:last], k), out.dtype))
    program = device.plans[_gpu_program](x.dtype)
    program.argtopk_group((x.size // n * GROUP,), (GROUP,), x.memory, result.memory, n, k)
    return swapped(result, axis, last)


def _gpu_program(device: Device, dtype: np.dtype) -> Program:
    return device.build("topk_gpu", **key_macros(dtype, descending=True), GROUP=GROUP, CAPACITY=CAPACITY)


def _program(device: Device, dtype: np.dtype) -> Program:
    return device.build("topk", **key_macros(dtype, descending=True))


VARIANTS = (
    Variant("heaps", "at most half of a row, on CPUs", _by_heaps, "cpu"),
    Variant("selection", "at most 256 elements of rows longer than a sort's tile, on GPUs", _by_group, "gpu"),
    Variant("sort", "all others", _by_sort),
)
