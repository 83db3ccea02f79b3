"""Launch geometry of the kernels that work row by row or block by block, and sums over columns."""

from typing import Any

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.geometry import Cut
from polyarr.backends.opencl.layout import Buffer, spec_of
from polyarr.backends.opencl.program import Program, types
from polyarr.core.spec import Spec, float64

LONGEST = 256  # rows that a group adds up one by one where it leaves a partial result


def row_launch(device: Device, rows: int, cols: int, persistent: bool = False) -> Cut:
    """Global and local size, and how many sets of ROWS rows a work-group takes.

    Groups are persistent where each leaves a partial result: they are few then, but not so few that the sum of their
    rows would lose digits.
    """
    macros = device.geometry.row_macros(cols)
    sets = -(-rows // macros["ROWS"])
    each = max(1, -(-sets // max(device.geometry.row_groups(sets, persistent), 1)))
    each = min(each, LONGEST) if persistent else each
    groups = -(-sets // each)
    return Cut((macros["LANES"], groups * macros["ROWS"]), (macros["LANES"], macros["ROWS"]), each)


def row_program(device: Device, stem: str, dtype: np.dtype, cols: int, **defines: Any) -> Program:
    """The program of a row kernel for rows of this length."""
    return device.build(stem, **types(dtype), **device.geometry.row_macros(cols), **defines)


def block_launch(device: Device, size: int) -> tuple[tuple[int], tuple[int]]:
    """Global and local size for so many elements, where a group takes a block of consecutive ones."""
    macros = device.geometry.blocks
    return (-(-size // macros["BLOCK"]) * macros["GROUP"],), (macros["GROUP"],)


def wide(dtype: np.dtype) -> np.dtype:
    """The dtype that sums of dtype are kept in: ACC."""
    return float64 if dtype == float64 else np.dtype("float32")


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many rows, and the length of the last axis."""
    cols = shape[-1]
    return Spec(shape[:-1], float64).size, cols


def dense_or_none(device: Device, buf: Buffer | None) -> Buffer | None:
    """As dense, for an input that may be missing."""
    return None if buf is None else dense(device, buf)


def column_sums(device: Device, like: Buffer | None, partials: Buffer | None) -> Buffer | None:
    """The sums over axis 0 of partials (parts, cols), with the shape (cols) and the dtype of like; None for None."""
    if like is None or partials is None:
        return None
    out = spec_of(like)
    result = device.empty(out)
    parts, cols = partials.shape
    columns, split, tile = device.geometry.column_sums.values()
    program = device.build("rows", **types(out.dtype), **device.geometry.column_sums)
    groups = -(-cols // (columns * tile))
    program.column_sums((groups * columns, split), (columns, split), partials.memory, result.memory, parts, cols)
    return result
