"""argsort: short tiles are sorted on their own, then runs are merged two by two. Stable, for rows of any length."""

from functools import lru_cache
from typing import Any

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, swapped
from polyarr.backends.opencl.program import Program
from polyarr.core.spec import FLOATS, SIGNED, Spec, bfloat16, float16, float32

GROUP = 256  # work-items that sort a tile on a GPU
UNSIGNED = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}
INFINITIES = {float16: "0x7c00", bfloat16: "0x7f80", float32: "0x7f800000"}
INT32 = np.dtype("int32")


def argsort(device: Device, out: Spec, x: Buffer, *, axis: int, descending: bool, stable: bool = True) -> Buffer:
    """The order that sorts x along axis, with nan as the largest value."""
    last = x.ndim - 1
    x = dense(device, swapped(x, axis, last))
    result = device.empty(Spec(x.shape, out.dtype))
    if result.size:
        program = device.plans[_program](x.dtype, descending)
        index = _sorted(device, program, x)
        program.widen((result.size,), None, index.memory, result.memory)
    return swapped(result, axis, last)


def order(device: Device, x: Buffer) -> Buffer:
    """The order that sorts a dense 1-d x, as int32."""
    return _sorted(device, device.plans[_program](x.dtype, False), x)


def _sorted(device: Device, program: Program, x: Buffer) -> Buffer:
    n = x.shape[-1]
    rows = x.size // n
    tile, span = device.geometry.sort_tile, device.geometry.sort_span
    keys, index, other_keys, other_index = (
        device.empty(Spec(x.shape, dtype)) for dtype in (key_dtype(x.dtype), INT32, key_dtype(x.dtype), INT32)
    )
    memories = (keys.memory, index.memory, other_keys.memory, other_index.memory)
    FAMILIES[device.geometry.kind](device, program, x, memories, tile)
    width = tile
    while width < n:
        pieces = rows * -(-n // span)
        work, group, _ = device.geometry.one_each(pieces)
        program.merge_runs(work, group, *memories, n, width, pieces, span)
        memories, index, other_index = (*memories[2:], *memories[:2]), other_index, index
        width *= 2
    return index


def _sort_serially(device: Device, program: Program, x: Buffer, memories: tuple[Any, ...], tile: int) -> None:
    """Whole tiles by one work-item after the other."""
    n = x.shape[-1]
    tiles = x.size // n * -(-n // tile)
    items, group, each = device.geometry.items(tiles, least=1)
    program.sort_tiles_serial(items, group, x.memory, *memories, n, tile, tiles, each)


def _sort_in_groups(device: Device, program: Program, x: Buffer, memories: tuple[Any, ...], tile: int) -> None:
    """A work-item for each element, which counts those before it."""
    n = x.shape[-1]
    work = x.size // n * -(-n // GROUP) * GROUP
    program.sort_tiles_group((work,), (GROUP,), x.memory, *memories[:2], n, tile)


FAMILIES = {"cpu": _sort_serially, "gpu": _sort_in_groups}


@lru_cache
def key_dtype(dtype: np.dtype) -> np.dtype:
    """What the keys of elements are."""
    return np.dtype(f"uint{8 * dtype.itemsize}")


def key_macros(dtype: np.dtype, descending: bool) -> dict[str, str | int]:
    """The macros of keys.cl."""
    kind = 2 if dtype in FLOATS else 1 if dtype in SIGNED else 0
    infinity = INFINITIES.get(dtype, "0x7ff0000000000000UL")
    return {
        "KEY": UNSIGNED[dtype.itemsize], "BITS": 8 * dtype.itemsize, "KIND": kind, "INFINITY_BITS": infinity,
        "DESCENDING": int(descending),
    }  # fmt: skip


def _program(device: Device, dtype: np.dtype, descending: bool) -> Program:
    return device.build("sort", **key_macros(dtype, descending), GROUP=GROUP)
