"""Adding many updates to few slices, the same way every time: updates are grouped by a sort, then summed."""

import os
from math import prod

import numpy as np

from polyarr.backends.opencl import sort
from polyarr.backends.opencl.device import Buffer, Device
from polyarr.backends.opencl.program import Program, types
from polyarr.core.spec import Spec, float32

GROUP = 128  # work-items per group on a GPU, a power of two
COLUMNS = 64  # columns that a CPU's work-item sums at once
INT32 = np.dtype("int32")


def add(device: Device, result: Buffer, updates: Buffer, indices: Buffer, *, axis: int) -> None:
    """Add updates to the slices of result that indices name; all dense, result made by the caller just now.

    With POLYARR_DETERMINISTIC=0 a GPU adds float32 atomically: in any order, so the last bits vary.
    """
    outer, n, inner = prod(result.shape[:axis]), result.shape[axis], prod(result.shape[axis + 1 :])
    if updates.size == 0 or result.size == 0:
        return
    program = _build(device, result.dtype, indices.dtype)
    keys = device.empty(Spec((indices.size,), INT32))
    items = min(indices.size, 64) if device.is_cpu else -(-indices.size // GROUP) * GROUP
    program.wrap_indices(items, None, indices.memory, keys.memory, device.fault_record(), n, indices.size)
    if not device.is_cpu and result.dtype == float32 and os.environ.get("POLYARR_DETERMINISTIC") == "0":
        items, pointers = -(-updates.size // GROUP) * GROUP, (result.memory, updates.memory, keys.memory)
        program.add_atomically(items, GROUP, *pointers, n, keys.size, inner, updates.size)
        return
    order = sort.order(device, keys)
    args = (result.memory, updates.memory, keys.memory, order.memory, n, keys.size, inner)
    if device.is_cpu:
        spans = min(4 * device.features.compute_units, -(-keys.size // 16))
        work = (spans, -(-inner // COLUMNS), outer)
        program.segments_serial(work, (1, 1, 1), *args, -(-keys.size // spans))
    else:
        lanes = _lanes(n, keys.size, inner)
        blocks = -(-inner // lanes)
        program.segments_group(GROUP * blocks * keys.size * outer, GROUP, *args, blocks, lanes)


def _lanes(n: int, count: int, inner: int) -> int:
    """How many columns a group takes side by side; the rest of its work-items share out the updates of a slice."""
    per_slice = count // min(n, count)
    wanted = GROUP if per_slice < 4 else GROUP // 2 if per_slice < 16 else GROUP // 8
    return min(wanted, 1 << (inner - 1).bit_length())


def _build(device: Device, dtype: np.dtype, index: np.dtype) -> Program:
    atomics = 0 if dtype != float32 else 2 if device.features.nvidia else 1
    index_type = "int" if index == INT32 else "long"
    return device.build("segments", INDEX=index_type, GROUP=GROUP, COLUMNS=COLUMNS, ATOMICS=atomics, **types(dtype))
