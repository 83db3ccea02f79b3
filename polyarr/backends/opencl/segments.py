"""Adding many updates to few slices, the same way every time: updates are grouped by a sort, then summed.

Where the slices are few and short, a CPU needs no sort.
"""

from math import log2, prod
from typing import Any

import numpy as np

from polyarr.backends.opencl import sort
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program, types
from polyarr.backends.opencl.runtime.source import SCALARS
from polyarr.backends.opencl.scan import sum_dtype
from polyarr.core.spec import Spec, float32

GROUP = 128  # work-items per group on a GPU, a power of two
COLUMNS = 64  # columns that a CPU's work-item sums at once
FEW = 4096  # numbers in all slices
LEAST_SPAN = 32  # sorted updates that a work-item of a GPU adds up
INT32 = np.dtype("int32")


def adds_atomically(device: Device) -> bool:
    """True on a GPU that started with POLYARR_DETERMINISTIC=0: it adds float32 in any order, so the last bits vary."""
    return device.geometry.adds_atomically and not device.deterministic


def add(device: Device, fault: Any, result: Buffer, updates: Buffer, indices: Buffer, *, axis: int) -> None:
    """Add updates to the slices of result that indices name; all dense, result made by the caller after fault."""
    outer, n, inner = prod(result.shape[:axis]), result.shape[axis], prod(result.shape[axis + 1 :])
    if updates.size == 0 or result.size == 0:
        return
    program = device.plans[_program](result.dtype, indices.dtype)
    keys = device.empty(Spec((indices.size,), INT32))
    items, group, _ = device.geometry.items(indices.size)
    program.wrap_indices(items, group, indices.memory, keys.memory, *fault, n, indices.size)
    if result.dtype == float32 and adds_atomically(device):
        items, pointers = -(-updates.size // GROUP) * GROUP, (result.memory, updates.memory, keys.memory)
        program.add_atomically((items,), (GROUP,), *pointers, n, keys.size, inner, updates.size)
        return
    if device.geometry.sums_few and n * inner <= FEW and keys.size > n and sum_dtype(device, result.dtype) != float32:
        _add_serially(device, program, result, updates, keys, (outer, n, inner))
        return
    order = sort.order(device, keys)
    args = (result.memory, updates.memory, keys.memory, order.memory, n, keys.size, inner)
    FAMILIES[device.geometry.kind](device, program, args, (outer, n, inner), SCALARS[types(result.dtype)["ACC"]])


def _sum_in_spans(device: Device, program: Program, args: Any, shape: tuple[int, int, int], acc: np.dtype) -> None:
    """A work-item for a span of the sorted updates and a block of columns."""
    (outer, _, inner), count = shape, args[-2]
    spans = min(4 * device.geometry.units, -(-count // 16))
    program.segments_serial((spans, -(-inner // COLUMNS), outer), (1, 1, 1), *args, -(-count // spans))


def _sum_in_parts(device: Device, program: Program, args: Any, shape: tuple[int, int, int], acc: np.dtype) -> None:
    """A work-item for a part of the sorted updates and a column; then one for each segment that goes on."""
    result, _, keys, order, n, count, inner = args
    span = max(LEAST_SPAN, 1 << round(log2(count) / 2))  # about as many updates in a part as there are parts
    parts, lanes = -(-count // span), min(GROUP, 1 << (inner - 1).bit_length())
    blocks, sets = -(-inner // lanes), -(-parts // (GROUP // lanes))
    partial = device.empty(Spec((shape[0], parts, 2, inner), acc)).memory
    work, total = GROUP * blocks * sets * shape[0], shape[0] * parts * inner
    program.segments_parts((work,), (GROUP,), *args[:4], partial, n, count, inner, blocks, lanes, span)
    items = -(-total // GROUP) * GROUP
    program.segments_join((items,), (GROUP,), result, keys, order, partial, n, count, inner, span, total)


FAMILIES = {"cpu": _sum_in_spans, "gpu": _sum_in_parts}


def _add_serially(
    device: Device, program: Program, result: Buffer, updates: Buffer, keys: Buffer, shape: tuple[int, int, int]
) -> None:
    outer, n, inner = shape
    parts = min(4 * device.geometry.units, -(-keys.size // device.geometry.least_part))
    partial = device.empty(Spec((parts, *shape), sum_dtype(device, result.dtype)))
    args = (n, keys.size, inner, -(-keys.size // parts))
    program.slots_serial((parts, outer), (1, 1), partial.memory, updates.memory, keys.memory, *args)
    items = min(-(-result.size // COLUMNS), 8 * device.geometry.units)
    program.slots_join((items,), None, result.memory, partial.memory, parts, result.size)


def _program(device: Device, dtype: np.dtype, index: np.dtype) -> Program:
    atomics = 0 if dtype != float32 else 2 if device.features.nvidia else 1
    index_type = "int" if index == INT32 else "long"
    wide = types(sum_dtype(device, dtype))["ACC"]
    return device.build(
        "segments", INDEX=index_type, GROUP=GROUP, COLUMNS=COLUMNS, ATOMICS=atomics, WIDE=wide, **types(dtype)
    )
