"""Float32 operands of attention split into bfloat16 terms for matrix units; see split.py."""

import struct
from collections.abc import Iterator
from math import prod
from typing import Any

from polyarr.backends.opencl.attention.attention_tiled import Call, Problem
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.spec import Spec, bfloat16

ARRAYS, MASK = 4, 3  # q, k, v, dout; the index of the mask among the inputs
COLUMNS = 64  # columns of one term in its row
ITEMS, ROWS, GROUPS_PER_UNIT = 128, 8, 16  # of a work-group; rows that it takes at once; work-groups per unit


def split(device: Device, call: Call, walks: int) -> list[Any]:
    """Return the split terms of q, k, v and dout; none if they are multiplied as they are."""
    p = call.problem
    if p.terms == 1:
        return []
    shapes = ((*reversed(batch), rows, p.terms * COLUMNS) for batch, rows in batches(p))
    terms = [device.empty(Spec(shape, bfloat16)).memory for shape in shapes]
    layouts = padded([*call.at[:MASK], *call.at[MASK + 1 : len(call.inputs)]])
    inputs = [item for x, at in zip(tensors(call), layouts, strict=True) for item in (x.memory, at)]
    rows = max(n * prod(batch) for batch, n in batches(p))
    groups = min(-(-rows // ROWS), GROUPS_PER_UNIT * device.features.compute_units)
    work, group = (groups * ITEMS, len(terms)), (ITEMS, 1)
    kernel, numbers = device.plans[_kernel](p.lengths[0], p.terms), (walks, p.batch, p.inner, p.group, p.t, p.s)
    kernel(work, group, *inputs, *numbers, *padded(terms))
    return terms


def _kernel(device: Device, length: int, terms: int) -> Any:
    return device.build("attention_split", D=length, TERMS=terms).attention_split


def tensors(call: Call) -> list[Buffer]:
    """Return q, k, v and dout."""
    return padded([x for i, x in enumerate(call.inputs) if i != MASK])


def padded(found: list[Any]) -> list[Any]:
    """Return the list extended to four entries by its last one, where there is no dout."""
    return found + found[-1:] * (ARRAYS - len(found))


def walks(p: Problem) -> int:
    """Return the bits, as kernels take them, that say which leading axes q, k, v and dout have."""
    steps = [struct.unpack("3q", packed) for packed in p.layouts]
    return sum((inner > 0) << 2 * i | (outer > 0) << 2 * i + 1 for i, (outer, inner, _) in enumerate(steps))


def split_bytes(p: Problem) -> int:
    """Return the bytes that the split terms take."""
    return sum(2 * p.terms * COLUMNS * rows * prod(batch) for batch, rows in batches(p))


def batches(p: Problem) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield, for q, k, v and dout, the numbers of distinct matrices along the inner and the outer axis, and their rows.
    """
    heads = p.inner // p.group
    lengths = (p.inner, p.t), (heads, p.s), (heads, p.s), (p.inner, p.t)
    for packed, (wide, rows) in zip(p.layouts, lengths, strict=False):
        outer, inner, _ = struct.unpack("3q", packed)
        yield (wide if inner else 1, p.batch // p.inner if outer else 1), rows
