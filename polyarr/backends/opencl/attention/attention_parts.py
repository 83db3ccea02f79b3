"""Float32 operands of attention as two of float16 each, or three of bfloat16, for matrix units; see parts.py."""

import struct
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from polyarr.backends.opencl.attention.attention_tiled import Call, Problem
from polyarr.backends.opencl.products.parts import DTYPES, HALVES
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.spec import Spec, uint32

ARRAYS, MASK = 4, 3  # q, k, v, dout; which input is the mask
COLUMNS = 64  # of a part in its row
ITEMS, ROWS, GROUPS_PER_UNIT = 128, 8, 16  # of a work-group, rows that it takes at once, and how many there may be


class Parts(NamedTuple):
    """Parts of q, k, v and dout; where these are two, the bits of the largest magnitudes."""

    peaks: Any
    arrays: list[Any]


def make_parts(device: Device, call: Call) -> Parts | None:
    """Where the parts of a call's arrays are to be written; None where they are multiplied as they are."""
    parts = call.problem.parts
    if parts == 1:
        return None
    shapes = ((*reversed(batch), rows, parts * COLUMNS) for batch, rows in batches(call.problem))
    arrays = [device.empty(Spec(shape, DTYPES[parts])) for shape in shapes]
    peaks = device.empty(Spec((ARRAYS,), uint32)).memory if parts == HALVES else None
    return Parts(peaks, [x.memory for x in arrays])


def divide(device: Device, call: Call, walks: int, parts: Parts | None) -> None:
    """Write the parts, if there are any. The peaks are 0 before."""
    if parts is None:
        return
    p, layouts = call.problem, filled([*call.at[:MASK], *call.at[MASK + 1 : len(call.inputs)]])
    given = [item for x, at in zip(mapped(call), layouts, strict=True) for item in (x.memory, at)]
    rows = max(n * prod(batch) for batch, n in batches(p))
    groups = min(-(-rows // ROWS), GROUPS_PER_UNIT * device.features.compute_units)
    work, group = (groups * ITEMS, len(parts.arrays)), (ITEMS, 1)
    numbers, written, length = (walks, p.batch, p.inner, p.t, p.s), filled(parts.arrays), p.lengths[0]
    if p.parts == HALVES:
        program = device.plans[_halves](length)
        program.attention_peaks(work, group, *given, parts.peaks, *numbers)
        program.attention_divide(work, group, *given, parts.peaks, *numbers, *written)
    else:
        device.plans[_thirds](length).attention_divide(work, group, *given, *numbers, *written)


def _halves(device: Device, length: int) -> Any:
    return device.build("attention_parts", KIND="f16", D=length)


def _thirds(device: Device, length: int) -> Any:
    return device.build("attention_thirds", D=length)


def mapped(call: Call) -> list[Buffer]:
    """q, k, v and dout."""
    return filled([x for i, x in enumerate(call.inputs) if i != MASK])


def filled(found: list[Any]) -> list[Any]:
    """With the last one again, where there is no dout."""
    return found + found[-1:] * (ARRAYS - len(found))


def walks(p: Problem) -> int:
    """Which leading axes q, k, v and dout have, as kernels take it."""
    steps = [struct.unpack("3q", packed) for packed in p.layouts]
    return sum((inner > 0) << 2 * i | (outer > 0) << 2 * i + 1 for i, (outer, inner, _) in enumerate(steps))


def room(p: Problem) -> int:
    """Bytes that the parts take."""
    return sum(2 * p.parts * COLUMNS * rows * prod(batch) for batch, rows in batches(p))


def batches(p: Problem) -> Iterator[tuple[tuple[int, int], int]]:
    """Of q, k, v and dout: how many matrices along the inner and the outer axis differ, their rows."""
    for packed, rows in zip(p.layouts, (p.t, p.s, p.s, p.t), strict=False):
        outer, inner, _ = struct.unpack("3q", packed)
        yield (p.inner if inner else 1, p.batch // p.inner if outer else 1), rows
