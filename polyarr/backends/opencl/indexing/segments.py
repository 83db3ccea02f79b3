"""Segmented sums for scatter_add and embedding: updates are grouped by a sort and summed, deterministically.

On CPUs, few and short slices are summed without a sort, and the sort counts indices that are not spread far.
"""

from math import log2, prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.reductions.scan import sum_dtype
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.geometry import MAX_ITEMS
from polyarr.backends.opencl.runtime.layout import Buffer, with_parts
from polyarr.backends.opencl.runtime.program import Program, types
from polyarr.backends.opencl.runtime.source import SCALARS
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.backends.opencl.sorting import sort
from polyarr.core.errors import BackendError
from polyarr.core.spec import COMPLEX, Spec, float32

GROUP = 128  # work-items per group on a GPU, a power of two
COLUMNS = 64  # columns that a work-item of a CPU sums at once
MAX_UNSORTED_ELEMENTS = 4096  # elements of all slices up to which a CPU sums without a sort
MAX_COUNTED_SLICES = 8  # slices per index, and per part of the indices, up to which a CPU sorts by counting
MIN_SPAN = 32  # sorted updates that a work-item of a GPU adds up, at least
INT32, INT64 = np.dtype("int32"), np.dtype("int64")
MAX_INT = 2**31 - 1
MAX_INT32_KEY_SLICES = MAX_INT  # slices up to which keys have 32 bits


def adds_atomically(device: Device) -> bool:
    """Return whether float32 is added atomically, in any order: on GPUs that started with POLYARR_DETERMINISTIC=0."""
    return device.geometry.adds_atomically and not device.deterministic


def add(device: Device, fault: Any, result: Buffer, updates: Buffer, indices: Buffer, *, axis: int) -> None:
    """Add updates to the slices of result at indices. All are dense; the caller allocates result after `fault`."""
    if result.dtype in COMPLEX:  # sums of their parts
        result, updates = with_parts(result), with_parts(updates)
    outer, n, inner = prod(result.shape[:axis]), result.shape[axis], prod(result.shape[axis + 1 :])
    if updates.size == 0 or result.size == 0:
        return
    if indices.size > MAX_INT:  # the sorted order is of int32
        raise BackendError(f"scatter_add: {indices.size} indices; opencl adds at most {MAX_INT} at once")
    key = INT32 if n <= MAX_INT32_KEY_SLICES else INT64
    program = device.plans[_program](result.dtype, indices.dtype, key)
    keys = device.empty(Spec((indices.size,), key))
    items, group, span = device.geometry.items(indices.size)
    program.wrap_indices(items, group, indices.memory, keys.memory, *fault, n, indices.size, span)
    if result.dtype == float32 and adds_atomically(device):
        most = min(-(-updates.size // GROUP) * GROUP, MAX_ITEMS)
        pointers = (result.memory, updates.memory, keys.memory)
        program.add_atomically((most,), (GROUP,), *pointers, n, keys.size, inner, updates.size)
        return
    is_small = n * inner <= MAX_UNSORTED_ELEMENTS and keys.size > n
    if device.geometry.sums_few and is_small and sum_dtype(device, result.dtype) != float32:
        _add_serially(device, program, result, updates, keys, (outer, n, inner))
        return
    order = _order(device, program, keys, n)
    args = (result.memory, updates.memory, keys.memory, order.memory, n, keys.size, inner)
    choose(device, "segments", VARIANTS, program, args, (outer, n, inner), SCALARS[types(result.dtype)["ACC"]])


def _order(device: Device, program: Program, keys: Buffer, n: int) -> Buffer:
    """Return the stable order of keys from 0 to n, as int32."""
    parts = min(device.geometry.units, MAX_COUNTED_SLICES * keys.size // (n + 1))
    if not device.geometry.sums_few or parts == 0:
        return sort.order(device, keys)
    order, counts = device.empty(Spec(keys.shape, INT32)), device.empty(Spec((parts, n + 1), INT32))
    span = -(-keys.size // parts)
    program.count_keys((parts,), (1,), keys.memory, counts.memory, n, keys.size, span)
    program.count_slots((1,), (1,), counts.memory, n, parts)
    program.place_keys((parts,), (1,), keys.memory, order.memory, counts.memory, n, keys.size, span)
    return order


def _sum_in_spans(device: Device, program: Program, args: Any, shape: tuple[int, int, int], acc: np.dtype) -> Any:
    """Sum on CPUs: one work-item per span of sorted updates and block of columns."""
    (outer, _, inner), count = shape, args[-2]
    spans = min(4 * device.geometry.units, -(-count // 16))
    program.segments_serial((spans, -(-inner // COLUMNS), outer), (1, 1, 1), *args, -(-count // spans))
    return args[0]


def _sum_in_parts(device: Device, program: Program, args: Any, shape: tuple[int, int, int], acc: np.dtype) -> Any:
    """Sum on GPUs: one work-item per part of sorted updates and column; then one per segment that spans parts."""
    result, _, keys, order, n, count, inner = args
    span = max(MIN_SPAN, 1 << round(log2(count) / 2))  # about as many updates in a part as there are parts
    parts, lanes = -(-count // span), min(GROUP, 1 << (inner - 1).bit_length())
    blocks, sets = -(-inner // lanes), -(-parts // (GROUP // lanes))
    partial = device.empty(Spec((shape[0], parts, 2, inner), acc)).memory
    work, total = GROUP * blocks * sets * shape[0], shape[0] * parts * inner
    program.segments_parts((work,), (GROUP,), *args[:4], partial, n, count, inner, blocks, lanes, span)
    items = -(-total // GROUP) * GROUP
    program.segments_join((items,), (GROUP,), result, keys, order, partial, n, count, inner, span, total)
    return result


VARIANTS = (
    Variant("spans", "a work-item per span of sorted updates, on CPUs", _sum_in_spans, "cpu"),
    Variant("parts", "a work-item per part of sorted updates and column, on GPUs", _sum_in_parts, "gpu"),
)


def _add_serially(
    device: Device, program: Program, result: Buffer, updates: Buffer, keys: Buffer, shape: tuple[int, int, int]
) -> None:
    outer, n, inner = shape
    parts = min(4 * device.geometry.units, -(-keys.size // device.geometry.least_part))
    partial = device.empty(Spec((parts, *shape), sum_dtype(device, result.dtype)))
    args = (n, keys.size, inner, -(-keys.size // parts))
    program.slots_serial((parts, outer), (1, 1), partial.memory, updates.memory, keys.memory, *args)
    items = min(-(-result.size // COLUMNS), 8 * device.geometry.units)
    program.slots_join((items,), (1,), result.memory, partial.memory, parts, result.size)


def _program(device: Device, dtype: np.dtype, index: np.dtype, key: np.dtype) -> Program:
    return device.build(
        "segments", INDEX="int" if index == INT32 else "long", KEY="int" if key == INT32 else "long", GROUP=GROUP,
        COLUMNS=COLUMNS, ATOMICS=0 if dtype != float32 else 2 if device.features.nvidia else 1,
        WIDE=types(sum_dtype(device, dtype))["ACC"], **types(dtype),
    )  # fmt: skip
