"""sort and argsort: tiles are sorted on their own, then runs are merged pairwise. Stable, for rows of any length.

CPUs sort long tiles by radix sort, short ones by insertion and merging. GPUs use radix sort for very long rows.
"""

from functools import lru_cache, partial
from typing import cast

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.reductions.scan import cumulative_sum
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.geometry import CpuGeometry, GpuGeometry
from polyarr.backends.opencl.runtime.layout import Buffer, swapped
from polyarr.backends.opencl.runtime.program import Program
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.core.spec import FLOATS, SIGNED, Spec, bfloat16, float16, float32

EACH, MIN_TILE = 16, 64  # on GPUs: elements per work-item, and elements per tile at least
DIGIT, DIGIT_GROUP = 8, 256  # radix sort on GPUs: bits of a digit, work-items per group
UNSIGNED = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}
INFINITIES = {float16: "0x7c00", bfloat16: "0x7f80", float32: "0x7f800000"}
INT32 = np.dtype("int32")


def _sorted(
    values: bool, device: Device, out: Spec, x: Buffer, *, axis: int, descending: bool, stable: bool = True
) -> Buffer:
    """Return the sorted elements along axis, or their order; only the first ones if out is shorter there.

    nan counts as the largest value.
    """
    last = x.ndim - 1
    x = dense(device, swapped(x, axis, last))
    result = device.empty(Spec((*x.shape[:last], out.shape[axis]), out.dtype))
    if result.size:
        choose(device, "sort", VARIANTS, x, descending, result, values)
    return swapped(result, axis, last)


argsort, sort = partial(_sorted, False), partial(_sorted, True)


def order(device: Device, x: Buffer) -> Buffer:
    """Return the order that sorts a dense 1-d x, as int32."""
    return choose(device, "sort", VARIANTS, x, False, None, False)


def _sort_serially(device: Device, x: Buffer, descending: bool, result: Buffer | None, values: bool) -> Buffer:
    """Sort on CPUs: work-items sort tiles, then merge spans of runs. Return the order as int32, and fill result."""
    n, program = x.shape[-1], device.plans[_program](x.dtype, descending)
    geometry = cast("CpuGeometry", device.geometry)
    tile, span = geometry.sort_tile, geometry.sort_span
    rows, memories = x.size // n, _pair(device, x) + _pair(device, x)
    tiles = rows * -(-n // tile)
    items, group, each = device.geometry.items(tiles, least=1)
    program.sort_tiles_serial(items, group, x.memory, *(b.memory for b in memories), n, tile, tiles, each)
    width, pieces = tile, rows * -(-n // span)
    while width < n:
        work, group, _ = device.geometry.one_each(pieces)
        program.merge_runs(work, group, *(b.memory for b in memories), n, width, pieces, span)
        memories = memories[2:] + memories[:2]
        width *= 2
    if result is not None:
        work, group, each = geometry.items(result.size)
        numbers = n, int(values), result.shape[-1], result.size, each
        program.finish(work, group, x.memory, memories[1].memory, result.memory, *numbers)
    return memories[1]


def _sort_on_gpu(device: Device, x: Buffer, descending: bool, result: Buffer | None, values: bool) -> Buffer:
    """Sort on GPUs; return result, or without one the order as int32."""
    n, geometry = x.shape[-1], cast("GpuGeometry", device.geometry)
    merges, digits = (-(-n // _tile(device, x)) - 1).bit_length(), x.dtype.itemsize * 8 // DIGIT
    by_digits = n >= geometry.sort_long and merges > geometry.sort_merges * digits
    return (_radix_sort if by_digits else _sort_by_merging)(device, x, descending, result, values)


def _radix_sort(device: Device, x: Buffer, descending: bool, result: Buffer | None, values: bool) -> Buffer:
    """Radix sort, least significant digit first: a histogram, its prefix sums and a stable scatter per digit."""
    n, itemsize = x.shape[-1], x.dtype.itemsize
    program = device.plans[_digit_program](x.dtype, descending)
    rows, tiles, passes = x.size // n, -(-n // (DIGIT_GROUP * EACH)), itemsize * 8 // DIGIT
    counted = Spec((rows, tiles << DIGIT), INT32)
    work, group, out = (rows * tiles * DIGIT_GROUP,), (DIGIT_GROUP,), (result or x).memory  # x: not written
    kept = (result or x).shape[-1]
    source: tuple[Buffer, Buffer] | None = None
    target: tuple[Buffer, Buffer] | None = None
    for turn in range(passes):
        first, last = int(turn == 0), int(turn == passes - 1 and result is not None)
        source, target = target, source or (None if last else _pair(device, x))
        keys, index = (b.memory for b in source or (x, x))
        counts, shift = device.empty(counted), turn * DIGIT
        program.count_digits(work, group, keys, counts.memory, n, tiles, shift, first)
        sums = cumulative_sum(device, counted, counts, axis=1, dtype=INT32)
        to = [b.memory for b in target or (x, x)]
        numbers = n, tiles, shift, first, last, int(values), kept
        program.by_digit(work, group, keys, index, *to, x.memory, out, counts.memory, sums.memory, *numbers)
    return result or cast("tuple[Buffer, Buffer]", target)[1]


def _digit_program(device: Device, dtype: np.dtype, descending: bool) -> Program:
    return device.build("sort_digits", **key_macros(dtype, descending), ITEM_BITS=DIGIT, LANES=DIGIT_GROUP, EACH=EACH)


def _sort_by_merging(device: Device, x: Buffer, descending: bool, result: Buffer | None, values: bool) -> Buffer:
    """Merge sort: cooperating work-items sort each tile in local memory, then merge runs tile by tile."""
    n = x.shape[-1]
    tile = min(_tile(device, x), max(MIN_TILE, 1 << (n - 1).bit_length()))
    program, tiles_per_group, group = device.plans[_gpu_program](x.dtype, descending, tile)
    tiles = x.size // n * -(-n // tile)
    work, out = (-(-tiles // tiles_per_group) * group,), (result or x).memory  # x: not written
    kept = (result or x).shape[-1]
    last = int(n <= tile and result is not None)
    source: tuple[Buffer, Buffer] | None = None if last else _pair(device, x)
    spare: tuple[Buffer, Buffer] | None = None
    memories = [b.memory for b in source or (x, x)]
    program.sort_tiles(work, (group,), x.memory, *memories, out, n, tiles, last, int(values), kept)
    width = tile
    while width < n:
        last = int(2 * width >= n and result is not None)
        target = source if last else spare or _pair(device, x)
        memories = [b.memory for b in (*(source or ()), *(target or ()))]
        program.merge_tiles(work, (group,), *memories, x.memory, out, n, width, tiles, last, int(values), kept)
        source, spare = target, source
        width *= 2
    return result if last and result is not None else cast("tuple[Buffer, Buffer]", source)[1]


def _tile(device: Device, x: Buffer) -> int:
    """Return the elements of a tile, whose keys and positions (4, 8 or 16 bytes) fit into local memory."""
    return device.geometry.sort_tile // (2 if x.dtype.itemsize > 4 else 1)


def _pair(device: Device, x: Buffer) -> tuple[Buffer, Buffer]:
    """Allocate workspace for keys and an index."""
    return device.empty(Spec(x.shape, key_dtype(x.dtype))), device.empty(Spec(x.shape, INT32))


VARIANTS = (
    Variant("merge", "sorted tiles, merged pairwise, on CPUs", _sort_serially, "cpu"),
    Variant("tiles", "tiles in local memory, merged; long rows by digits; on GPUs", _sort_on_gpu, "gpu"),
)


@lru_cache
def key_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the sort keys of a dtype."""
    return np.dtype(f"uint{8 * dtype.itemsize}")


def key_macros(dtype: np.dtype, descending: bool) -> dict[str, str | int]:
    """Return the macros of keys.cl."""
    kind = 2 if dtype in FLOATS else 1 if dtype in SIGNED else 0
    infinity = INFINITIES.get(dtype, "0x7ff0000000000000UL")
    return {
        "KEY": UNSIGNED[dtype.itemsize], "BITS": 8 * dtype.itemsize, "KIND": kind, "INFINITY_BITS": infinity,
        "DESCENDING": int(descending),
    }  # fmt: skip


def _program(device: Device, dtype: np.dtype, descending: bool) -> Program:
    return device.build("sort", **key_macros(dtype, descending))


def _gpu_program(device: Device, dtype: np.dtype, descending: bool, tile: int) -> tuple[Program, int, int]:
    """Return the program, the tiles per work-group, and the work-items per work-group."""
    lanes = tile // EACH
    has_room = device.features.local_memory >= 6144 * dtype.itemsize  # of 128 work-items: keys, positions, padding
    tiles_per_group = max(1, (128 if has_room else 64) // lanes)
    sizes = {"ITEM_BITS": 8 * dtype.itemsize, "LANES": lanes, "TILES_PER_GROUP": tiles_per_group, "EACH": EACH}
    program = device.build("sort_gpu", **key_macros(dtype, descending), **sizes)
    return program, tiles_per_group, lanes * tiles_per_group
