"""Launch parameters of kernels that work row by row or block by block."""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.runtime.commands import InPlace
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import types, vector_types
from polyarr.core.spec import Spec, float64

MAX_SETS_PER_PARTIAL = 256  # sets of rows that a work-group adds up in one partial result


def row_plan(
    device: Device, stem: str, which: str, dtype: np.dtype, shape: tuple[int, ...], persistent: bool = False,
    lined_up: bool = False, **defines: Any,
) -> LaunchPlan:  # fmt: skip
    """Plan <stem>_<which>, a kernel along rows; its numbers are rows, cols, and sets of rows per group.

    `persistent` groups each write one partial result: there are few of them, but enough that sums keep their digits.
    `lined_up` assigns the same columns of all rows to the same work-item.
    """
    rows, cols = rows_of(shape)
    geometry = device.geometry
    macros = geometry.row_macros(rows, cols, dtype.itemsize, lined_up, persistent)
    vector = vector_types(dtype, macros["VECTOR"]) if "VECTOR" in macros else {}
    sets = -(-rows // macros["ROWS"])
    each = max(1, -(-sets // max(geometry.row_groups(sets, persistent, dtype.itemsize), 1)))
    each = min(each, MAX_SETS_PER_PARTIAL) if persistent else each
    work, group = geometry.row_work(-(-sets // each), macros), (macros["LANES"], macros["ROWS"])
    program = device.build(stem + geometry.row_files, **types(dtype), **macros, **vector, **defines)
    return LaunchPlan(getattr(program, f"{stem}_{which}"), work, group, (rows, cols, each))


def groups_of(plan: LaunchPlan) -> int:
    """Return the number of work-groups of a plan."""
    return prod(plan.work) // prod(plan.group or (1,))


def block_plan(
    device: Device, stem: str, which: str, dtype: np.dtype, size: int, in_place: tuple[InPlace, ...], **defines: Any
) -> LaunchPlan:
    """Plan a kernel whose groups process blocks of consecutive elements; its number is the size."""
    blocks = device.geometry.blocks(dtype.itemsize)
    vector = vector_types(dtype, blocks["VECTOR"])
    program, group = device.build(stem, **types(dtype), **blocks, **vector, **defines), blocks["GROUP"]
    kernel = getattr(program, which)
    kernel.in_place = in_place
    return LaunchPlan(kernel, (-(-size // blocks["BLOCK"]) * group,), (group,), (size,))


def wide(dtype: np.dtype) -> np.dtype:
    """Return the arithmetic dtype of a float dtype: ACC in kernels."""
    return float64 if dtype == float64 else np.dtype("float32")


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of rows, and the length of the last axis."""
    cols = shape[-1]
    return Spec(shape[:-1], float64).size, cols


def alike(x: Buffer, *others: Buffer | None) -> bool:
    """Return whether all arrays that are not None have x's dtype; otherwise the op's decomposition is used."""
    return all(b is None or b.dtype == x.dtype for b in others)


def dense_or_none(device: Device, buf: Buffer | None) -> Buffer | None:
    """Return dense(buf), or None for a missing input."""
    return None if buf is None else dense(device, buf)
