"""Launch geometry of the kernels that work row by row or block by block, and sums over columns."""

from functools import lru_cache
from typing import Any

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, spec_of
from polyarr.backends.opencl.program import Program, types
from polyarr.core.spec import Spec, float64

CPU_GROUPS = 8  # work-groups per core: enough to balance, each long enough to be worth its start
GPU_GROUPS = 4  # work-groups per compute unit, where each leaves a partial result
GPU_ITEMS = 256  # work-items per group
LONGEST = 256  # rows that a group adds up one by one where it leaves a partial result

Geometry = tuple[tuple[int, int], tuple[int, int], int]


@lru_cache(maxsize=4096)
def row_macros(is_cpu: bool, cols: int) -> dict[str, int]:
    """LANES work-items share a row, ROWS rows share a work-group, WIDE partial results per work-item."""
    if is_cpu:
        wide = 8 if cols <= 128 else 16 if cols <= 512 else 32  # folding many costs more than a short row itself
        return {"LANES": 1, "WIDE": wide, "ROWS": 1}
    lanes = 8
    while lanes < GPU_ITEMS and lanes * 4 < cols:
        lanes *= 2
    return {"LANES": lanes, "WIDE": 4, "ROWS": max(1, GPU_ITEMS // 2 // lanes)}


@lru_cache(maxsize=4096)
def row_geometry(is_cpu: bool, compute_units: int, rows: int, cols: int, persistent: bool) -> Geometry:
    """Global and local size, and rows_each: how many sets of ROWS rows a work-group takes.

    On a GPU that is one set, unless the groups are to be persistent, because each leaves a partial result: then they
    are few, but not so few that the sum of their rows would lose digits.
    """
    macros = row_macros(is_cpu, cols)
    sets = -(-rows // macros["ROWS"])
    groups = compute_units * (CPU_GROUPS if is_cpu else GPU_GROUPS) if is_cpu or persistent else sets
    each = max(1, -(-sets // max(groups, 1)))
    each = min(each, LONGEST) if persistent else each
    groups = -(-sets // each)
    return (macros["LANES"], groups * macros["ROWS"]), (macros["LANES"], macros["ROWS"]), each


def row_program(device: Device, stem: str, dtype: np.dtype, cols: int, **defines: Any) -> Program:
    """The program of a row kernel for rows of this length."""
    return device.build(stem, **_macros(device.is_cpu, dtype, cols), **defines)


@lru_cache(maxsize=4096)
def _macros(is_cpu: bool, dtype: np.dtype, cols: int) -> dict[str, Any]:
    return {**types(dtype), **row_macros(is_cpu, cols)}


def row_launch(device: Device, rows: int, cols: int, persistent: bool = False) -> Geometry:
    """As row_geometry, on this device."""
    return row_geometry(device.is_cpu, device.features.compute_units, rows, cols, persistent)


def block_macros(is_cpu: bool) -> dict[str, int]:
    """A work-group of GROUP work-items takes BLOCK consecutive elements."""
    return {"GROUP": 1, "BLOCK": 4096} if is_cpu else {"GROUP": GPU_ITEMS, "BLOCK": 4 * GPU_ITEMS}


def block_launch(macros: dict[str, int], size: int) -> tuple[tuple[int], tuple[int]]:
    """Global and local size for so many elements."""
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
    columns, split, tile = (1, 1, 16) if device.is_cpu else (32, 8, 1)
    program = device.build("rows", **types(out.dtype), COLUMNS=columns, SPLIT=split, TILE=tile)
    groups = -(-cols // (columns * tile))
    program.column_sums((groups * columns, split), (columns, split), partials.memory, result.memory, parts, cols)
    return result
