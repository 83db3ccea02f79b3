"""Products on the matrix units of NVIDIA's Hopper (wgmma): which ones, with which tiles, and their checks.

The operands are 16-bit floats, or float32 split into bfloat16 terms (see split.py): three, as exact as float32
arithmetic, or two where the precision allows it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.gemm.product import (
    Arrays,
    Copies,
    Epilogue,
    Operand,
    Plan,
    Problem,
    blocks_in,
    terms_of,
)
from polyarr.backends.opencl.nvidia.product_check import check
from polyarr.backends.opencl.nvidia.split import MAX_MATRICES, passes, split_bytes, split_product
from polyarr.backends.opencl.nvidia.tensor_map import ALIGNMENT, WORDS, tensor_map, to_copy
from polyarr.backends.opencl.runtime.commands import Kernel
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import whole_row
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.spec import Spec, bfloat16, float16, float32

KINDS = {bfloat16: "bf16", float16: "f16", float32: "bf16"}
ROWS, STEP, ITEMS, SIDES = 128, 64, 384, 2  # of a tile; of k per step; work-items; warp groups that multiply
MAPS = 4  # x, y, out, saved
OWN_MAPS = 9  # the argument that the kernel writes before it waits for the one before it
MAX_CACHED_BYTES = 2**24  # bytes of x that stay in the L2 cache while columns of y pass
# Costs of a tile besides its products, in steps; and in column-steps: of sharing tiles, of work-groups with pieces of
# two tiles, and of joining a column of a shared tile.
EDGE, SHARING, UNEVEN, JOINING = 2.5, 2000, 2500, 3.2
MIN_COPY_SIZE = 512  # rows, columns and cube root of operations from which on a copy pays off
MIN_SPLIT_SIZE = {2: 1400, 3: 1200}  # likewise of splitting float32 into this many terms
WORKSPACE_FRACTION = 16  # split operands may take this fraction of the device's memory (1 / 16)
MIN_STEPS_PER_GROUP = 8  # steps of k that are worth a work-group
SHARED = 1.04  # relative cost of products of shared tiles


@dataclass(frozen=True)
class Tile:
    """The macros of matmul_wgmma.cl that fill a multiprocessor's local memory."""

    COLUMNS: int
    STAGES: int
    BUFFERS: int
    TURNS: int = 0
    TOGETHER: int = 0


# The cost of a step of k by tile, in columns: narrow tiles read x more often. Where two tiles alternate (TURNS), a step
# costs more, but writing one overlaps with multiplying the other.
COSTS: dict[Tile, float]
COSTS = {Tile(256, 4, 2): 256, Tile(192, 4, 2): 196, Tile(128, 6, 2): 141, Tile(64, 8, 2): 100, Tile(192, 4, 2, 1): 210}

# Likewise with an activation other than relu, to which the sums of wide tiles that alternate leave too few registers.
# Narrow ones would suit other products, too, but need more power, which limits a training step.
ACTIVATED_COSTS = {tile: cost for tile, cost in COSTS.items() if not tile.TURNS} | {Tile(128, 6, 2, 1): 128}


class Choice(NamedTuple):
    """A tile, the number of tiles split along k, of work-groups, and of tiles along m that run together."""

    tile: Tile
    shared: int
    groups: int
    raster: int


# Split products keep two sets of sums in registers.
TERMS_COSTS: dict[int, dict[Tile, float]] = {
    1: COSTS,
    2: {Tile(192, 5, 1): 196, Tile(128, 3, 2, TOGETHER=1): 120, Tile(64, 4, 2, TOGETHER=1): 66},
    3: {Tile(192, 5, 1): 196, Tile(128, 6, 2): 141, Tile(64, 8, 2): 100},
}


def choose(p: Problem, units: int, costs: dict[Tile, float] = COSTS) -> Choice:
    """Return the fastest tile on this number of multiprocessors."""
    return min(_choices(p, units, costs), key=lambda found: _time(p, found, units, costs[found.tile]))


def _choices(p: Problem, units: int, candidates: Iterable[Tile]) -> Iterator[Choice]:
    steps = blocks_in(p.k, STEP)
    for tile in candidates:
        tiles = _tiles(p, tile)
        if tile.TURNS and tiles <= units:
            continue
        yield Choice(tile, 0, min(units, tiles), _raster(p, tile, units))
        groups = units - units % tiles if 2 * tiles <= units else units  # equal shares if there are few tiles
        is_long = tiles * steps >= groups * MIN_STEPS_PER_GROUP
        if tile.COLUMNS < 256 and not tile.TURNS and tiles < 2 * units and is_long:
            yield Choice(tile, tiles, groups, 4)


def _time(p: Problem, found: Choice, units: int, cost: float) -> float:
    steps, tiles = blocks_in(p.k, STEP), _tiles(p, found.tile)
    if found.shared:
        uneven = UNEVEN if found.groups % tiles else 0
        joining = SHARING + uneven + JOINING * found.tile.COLUMNS * blocks_in(found.groups, tiles)
        return SHARED * tiles * steps / found.groups * cost + joining
    each = blocks_in(tiles, units)
    return (each * steps + (1 if found.tile.TURNS else each) * EDGE) * cost


def _tiles(p: Problem, tile: Tile) -> int:
    return blocks_in(p.m, ROWS) * blocks_in(p.n, tile.COLUMNS) * p.batch


def _raster(p: Problem, tile: Tile, units: int) -> int:
    """Return the tiles along m that run together, so that concurrent tiles share x and y, or x stays in the cache."""
    high, wide = blocks_in(p.m, ROWS), blocks_in(p.n, tile.COLUMNS)
    if tile.TURNS:
        return 8
    if 2 * p.m * p.k <= MAX_CACHED_BYTES:
        return high
    if wide <= 4:
        return units // wide
    return 8 if 2 * p.m * p.k > 4 * MAX_CACHED_BYTES else 16


def plan(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue
) -> Plan | Copies | None:
    """Plan a product; None if these kernels do not accept it or fail their check on this device."""
    terms = terms_of(dtype, epilogue.precision)
    if dtype not in KINDS or p.im2col or p.k == 0 or not is_sound(device, VARIANT):
        return None
    operations, copies = p.batch * p.m * p.n * p.k, to_copy(p, aligned)
    pitch = whole_row(p.n, dtype.itemsize) if epilogue.pads and min(p.m, p.n) >= MIN_COPY_SIZE else p.n
    if terms > 1:  # split operands are copies already; rows of out are written by whole 16 bytes
        if operations < MIN_SPLIT_SIZE[terms] ** 3 or 4 * pitch % ALIGNMENT or p.batch > MAX_MATRICES:
            return None
        if split_bytes(p, terms) > device.features.global_memory // WORKSPACE_FRACTION:
            return None
        with_im2col = p._replace(k=passes(terms) * blocks_in(p.k, STEP) * STEP)
        choice = choose(with_im2col, device.features.compute_units, TERMS_COSTS[terms])
    elif any(copies):
        return copies if min(p.m, p.n) >= MIN_COPY_SIZE and operations >= MIN_COPY_SIZE**3 else None
    else:
        costs = COSTS if epilogue.activation in ("none", "relu") else ACTIVATED_COSTS
        choice = choose(p, device.features.compute_units, costs)
    macros = _macros(dtype, p, choice, epilogue, pitch)
    if not is_sound_program(device, VARIANT, macros, partial(_check, device, dtype, macros, epilogue)):
        return None
    return _launch(device, dtype, p, aligned, choice, macros, pitch)


def _macros(dtype: np.dtype, p: Problem, choice: Choice, epilogue: Epilogue, pitch: int) -> dict[str, Any]:
    along = {"X_ALONG_K": int(p.x.along_k), "Y_ALONG_K": int(p.y.along_k)}
    flags = {"ALIGNED": int(pitch * dtype.itemsize % ALIGNMENT == 0), "SHARES": int(choice.shared > 0)}
    flags |= {"TERMS": terms_of(dtype, epilogue.precision), "IMAGES": 0}
    return {**epilogue.macros(dtype), **asdict(choice.tile), "KIND": KINDS[dtype], **along, **flags}


def _launch(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], choice: Choice, macros: dict[str, Any],
    pitch: int,
) -> Plan:  # fmt: skip
    kernel, terms, split = device.build("matmul_wgmma", **macros).matmul, macros["TERMS"], None
    if terms > 1:
        p, split = split_product(device, p, aligned, terms)
    maps = device.upload(np.concatenate(_maps(dtype, p, choice.tile, pitch, terms))).memory
    multiply = launch_of(device, kernel, p, choice, terms, pitch, maps)

    def launch(arrays: Arrays, x_start: int, y_start: int) -> None:
        x, y, *others = arrays
        special = None
        if split:
            x, y, special = split((x, y), (x_start, y_start))
            x_start = y_start = 0
        multiply((x, y, *others), (special, special), x_start, y_start)

    sums = Spec((choice.groups, ROWS, choice.tile.COLUMNS), float32) if choice.shared else None
    return Plan(launch, sums, 0 if pitch == p.n else pitch)


def launch_of(
    device: Device, kernel: Kernel, p: Problem, choice: Choice, terms: int, pitch: int, maps: Any, *further: Any
) -> Callable[[Arrays, tuple[Any, Any], int, int], None]:
    """Return the launcher of a kernel; it takes the arrays, the flags of x and y (see split.py), and their offsets."""
    kernel.uses_early = (OWN_MAPS,)
    own_maps, words = device.plans[_scratch]()
    tiles = blocks_in(p.m, ROWS), blocks_in(p.n, choice.tile.COLUMNS)
    flags = (int(step > 0) for op in (p.x, p.y) for step in (op.outer, op.inner))
    steps, in_all = (1 if choice.tile.TOGETHER else passes(terms)) * blocks_in(p.k, STEP), tiles[0] * tiles[1] * p.batch
    numbers = (p.m, p.n, p.k, pitch, steps, *tiles, in_all, choice.shared, choice.raster, p.inner, *flags)
    structure = np.array(numbers, np.int32).tobytes()  # one argument costs less than many
    work, group = (choice.groups * ITEMS,), (ITEMS,)

    def launch(arrays: Arrays, special: tuple[Any, Any], x_start: int, y_start: int) -> None:
        kernel(work, group, *arrays, *special, maps, next(own_maps), words, x_start, y_start, structure, *further)

    return launch


def _scratch(device: Device) -> tuple[Iterator[Any], Any]:
    """Allocate the work-groups' tensor maps, and the words by which they wait for each other, 0 between kernels.

    All launches share them, because kernels run in order. Maps alternate between two places.
    """
    units = device.features.compute_units
    maps = [device.empty_words(2 * MAPS * WORDS * units) for _ in range(2)]
    return cycle(maps), device.empty_words(SIDES * units)


def _maps(dtype: np.dtype, p: Problem, tile: Tile, pitch: int, terms: int = 1) -> list[np.ndarray]:
    each = dtype.itemsize
    row = each * whole_row(pitch, each)  # rows that are written without the map may have any pitch
    out = tensor_map(dtype, (p.n, p.m, p.batch), (row, row * p.m), (128 // each, 64, 1))
    stored, outer = (bfloat16, terms) if terms > 1 else (dtype, p.batch // p.inner)
    return [
        _operand_map(stored, p, p.x, p.m, outer, ROWS), _operand_map(stored, p, p.y, p.n, outer, tile.COLUMNS), out, out
    ]  # fmt: skip


def _operand_map(dtype: np.dtype, p: Problem, op: Operand, kept: int, outer: int, rows: int) -> np.ndarray:
    """Return the tensor map of an operand, in tiles of 64 along the contiguous axis, as high as a tile or a step."""
    lengths, high = ((p.k, kept), rows) if op.along_k else ((kept, p.k), STEP)
    batch = (p.inner if op.inner else 1, outer if op.outer else 1)
    steps = (2 * op.step, 2 * op.inner or ALIGNMENT, 2 * op.outer or ALIGNMENT)
    return tensor_map(dtype, (*lengths, *batch), steps, (STEP, high, 1, 1))


def _check(device: Device, dtype: np.dtype, macros: dict[str, Any], epilogue: Epilogue) -> None:
    """Check a program with whole or with shared tiles against NumPy.

    Raises:
        BackendError: A result is wrong, or memory outside the result was written.
    """

    def plan_of(p: Problem) -> Plan:
        tile = Tile(*(macros[field.name] for field in fields(Tile)))
        shared = _tiles(p, tile) if macros["SHARES"] else 0
        choice = Choice(tile, shared, min(device.features.compute_units, _tiles(p, tile) + 3), 2)
        return _launch(device, dtype, p, (True, True), choice, macros, p.n)

    device.plans[_scratch]()  # it is kept, so it must not lie between canaries
    along = macros["X_ALONG_K"], macros["Y_ALONG_K"]
    check(device, dtype, along, 264 if macros["ALIGNED"] else 259, epilogue, plan_of)


def _trial(device: Device) -> None:
    """Check programs of both dtypes, in all layouts, with whole and with shared tiles.

    Raises:
        BackendError: A program does not build or computes a wrong result.
    """
    large, wide, middle, small, in_turn = COSTS
    (first, _, together), (_, second, _) = TERMS_COSTS[2], TERMS_COSTS[3]
    cases = (
        (bfloat16, 1, 1, 0, large, 1, "highest"), (bfloat16, 1, 0, 1, wide, 1, "highest"),
        (float16, 0, 0, 1, middle, 1, "highest"), (float16, 0, 1, 0, small, 0, "highest"),
        (bfloat16, 0, 0, 0, in_turn, 0, "highest"),
        (float32, 1, 0, 1, first, 1, "high"), (float32, 0, 1, 1, second, 1, "highest"),
        (float32, 1, 1, 1, together, 1, "high"),
    )  # fmt: skip
    for dtype, x_along_k, y_along_k, shares, tile, aligned, precision in cases:
        epilogue = Epilogue(True, "relu", True, precision)
        along = {"X_ALONG_K": x_along_k, "Y_ALONG_K": y_along_k}
        flags = {"KIND": KINDS[dtype], **along, "ALIGNED": aligned, "SHARES": shares}
        flags |= {"TERMS": terms_of(dtype, precision), "IMAGES": 0}
        macros = {**epilogue.macros(dtype), **asdict(tile), **flags}
        _check(device, dtype, macros, epilogue)


VARIANT = Variant(
    "wgmma", "float16, bfloat16 and float32 (split into terms), on Hopper", plan,
    may_suit=lambda features: features.architecture == 90, stem="matmul_wgmma", trial=_trial, tells_precision=True,
)  # fmt: skip
