"""Plans of the kernels that work row by row or block by block, and sums over columns."""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.runtime.commands import InPlace
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import types, vector_types
from polyarr.core.spec import Spec, float64

LONGEST = 256  # rows that a group adds up one by one where it leaves a partial result


def row_plan(
    device: Device, stem: str, which: str, dtype: np.dtype, shape: tuple[int, ...], persistent: bool = False,
    lined_up: bool = False, **defines: Any,
) -> LaunchPlan:  # fmt: skip
    """The launch of <stem>_<which>, which works along rows; numbers are rows, cols, and sets of rows per group.

    Groups are persistent where each leaves a partial result: they are few then, but not so few that the sum of their
    rows would lose digits. Rows are lined up if the same columns of all of them must fall to the same work-item.
    """
    rows, cols = rows_of(shape)
    geometry = device.geometry
    macros = geometry.row_macros(rows, cols, dtype.itemsize, lined_up)
    if "VECTOR" in macros:
        macros = {**macros, **vector_types(dtype, macros["VECTOR"])}
    sets = -(-rows // macros["ROWS"])
    each = max(1, -(-sets // max(geometry.row_groups(sets, persistent), 1)))
    each = min(each, LONGEST) if persistent else each
    work, group = geometry.row_work(-(-sets // each), macros), (macros["LANES"], macros["ROWS"])
    program = device.build(stem + geometry.row_files, **types(dtype), **macros, **defines)
    return LaunchPlan(getattr(program, f"{stem}_{which}"), work, group, (rows, cols, each))


def groups_of(plan: LaunchPlan) -> int:
    """How many groups a plan has, each of which may leave a partial result."""
    return prod(plan.work) // prod(plan.group)


def block_plan(
    device: Device, stem: str, which: str, dtype: np.dtype, size: int, in_place: tuple[InPlace, ...], **defines: Any
) -> LaunchPlan:
    """The launch of a kernel whose groups take blocks of consecutive elements; the number is the size."""
    blocks = device.geometry.blocks(dtype.itemsize)
    vector = vector_types(dtype, blocks["VECTOR"])
    program, group = device.build(stem, **types(dtype), **blocks, **vector, **defines), blocks["GROUP"]
    kernel = getattr(program, which)
    kernel.in_place = in_place
    return LaunchPlan(kernel, (-(-size // blocks["BLOCK"]) * group,), (group,), (size,))


def wide(dtype: np.dtype) -> np.dtype:
    """The dtype that sums of dtype are kept in: ACC."""
    return float64 if dtype == float64 else np.dtype("float32")


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many rows, and the length of the last axis."""
    cols = shape[-1]
    return Spec(shape[:-1], float64).size, cols


def alike(x: Buffer, *others: Buffer | None) -> bool:
    """True if all that are there have x's dtype; where a weight is wider than x, the op's body serves."""
    return all(b is None or b.dtype == x.dtype for b in others)


def dense_or_none(device: Device, buf: Buffer | None) -> Buffer | None:
    """As dense, for an input that may be missing."""
    return None if buf is None else dense(device, buf)


def column_sums(device: Device, dtype: np.dtype, *partials: Buffer) -> list[Buffer]:
    """The sums over axis 0 of one or two arrays (parts, cols), each (cols) of a dtype, in one launch."""
    results = [device.empty(Spec(p.shape[1:], dtype)) for p in partials]
    plan = device.plans[_column_sums](dtype, partials[0].shape, len(partials))
    arrays = partials[0], partials[-1], results[0], results[-1]
    plan.kernel(plan.work, plan.group, *[a.memory for a in arrays], *plan.numbers)
    return results


def _column_sums(device: Device, dtype: np.dtype, shape: tuple[int, int], count: int) -> LaunchPlan:
    macros = device.geometry.column_sums
    columns, split = macros["COLUMNS"], macros["SPLIT"]
    kernel = device.build("rows", **types(dtype), **macros).column_sums
    groups = -(-shape[1] // (columns * macros["TILE"]))
    return LaunchPlan(kernel, (groups * columns, split, count), (columns, split, 1), shape)
