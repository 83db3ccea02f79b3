"""Products on the matrix units of NVIDIA's Hopper: which they take, with which tiles, and how they are tried.

They are of 16-bit floats, and of float32 in parts (parts.py): three, which are as exact as float32 arithmetic, or two
where that is precise enough.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.products.parts import DTYPES, HALVES, MOST_MATRICES, THIRDS, WALKS, divided, room
from polyarr.backends.opencl.products.product import (
    Arrays,
    Copies,
    Epilogue,
    Operand,
    Plan,
    Problem,
    blocks_in,
    to_copy,
)
from polyarr.backends.opencl.products.product_check import check
from polyarr.backends.opencl.products.tensor_map import ALIGNMENT, WORDS, tensor_map
from polyarr.backends.opencl.runtime.commands import Kernel
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import whole_row
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.spec import Spec, bfloat16, float16, float32

KINDS = {bfloat16: "bf16", float16: "f16", float32: "f16"}
ROWS, STEP, ITEMS, SIDES = 128, 64, 384, 2  # of a tile, of k, of a work-group; warp groups that multiply
MAPS = 4  # x, y, out, saved
IN_CACHE = 2**24  # bytes of x that stay in the second cache while columns of y pass
# What a tile costs beside its products, in steps; what sharing costs, what more where a work-group has pieces of two
# tiles, and each piece of a column of a shared tile, in the time of a column's step.
EDGE, SHARING, UNEVEN, JOINING = 2.5, 2000, 2500, 3.2
LEAST_COPIED = 512  # rows, columns, and the cube root of operations, from when on a copy costs less than it saves
LEAST_DIVIDED = {HALVES: 1400, THIRDS: 1200}  # likewise, of dividing float32 into so many parts
MOST_ROOM = 16  # parts of the device's memory, of which one may be taken for parts of operands
LEAST_SHARE = 8  # steps of k that are worth a work-group
SHARED = 1.04  # what products of shared tiles cost more
MOST_TURNS = 16  # of a multiprocessor: longer products get less power, of which larger tiles need less


@dataclass(frozen=True)
class Tile:
    """The macros of kernels/matmul_wgmma.cl that fill a multiprocessor's local memory."""

    COLUMNS: int
    STAGES: int
    BUFFERS: int
    TURNS: int = 0
    TOGETHER: int = 0


# What a step of k costs with a tile, in the time of a column: narrow ones read x more often than their share. Where
# tiles are multiplied in turn a step costs more, and nothing is written while nothing is multiplied.
COSTS = {Tile(256, 4, 2): 256, Tile(192, 4, 2): 196, Tile(128, 6, 2): 141, Tile(64, 8, 2): 100, Tile(192, 4, 2, 1): 210}


class Choice(NamedTuple):
    """Which tile, how many tiles are cut along k, how many work-groups, and how many tiles along m run together."""

    tile: Tile
    shared: int
    groups: int
    raster: int


# With parts there are twice as many sums in registers, or three times where all products of a step are together.
PARTS_COSTS = {
    1: COSTS,
    HALVES: {Tile(192, 5, 1): 196, Tile(128, 3, 2, TOGETHER=1): 120, Tile(64, 4, 2, TOGETHER=1): 66},
    THIRDS: {Tile(192, 5, 1): 196, Tile(128, 6, 2): 141, Tile(64, 8, 2): 100},
}


def choose(p: Problem, units: int, costs: dict[Tile, float] = COSTS) -> Choice:
    """The tile that takes least time on so many multiprocessors."""
    return min(_choices(p, units, costs), key=lambda found: _time(p, found, units, costs[found.tile]))


def _choices(p: Problem, units: int, candidates: Iterable[Tile]) -> Iterator[Choice]:
    steps = blocks_in(p.k, STEP)
    for tile in candidates:
        tiles = _tiles(p, tile)
        if tile.TURNS and not units < tiles <= MOST_TURNS * units:
            continue
        yield Choice(tile, 0, min(units, tiles), _raster(p, tile, units))
        groups = units - units % tiles if 2 * tiles <= units else units  # equal shares where there are few tiles
        if tile.COLUMNS < 256 and not tile.TURNS and tiles < 2 * units and tiles * steps >= groups * LEAST_SHARE:
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
    """So many that what runs at once shares rows of x and columns of y, or that x stays in the cache."""
    high, wide = blocks_in(p.m, ROWS), blocks_in(p.n, tile.COLUMNS)
    if tile.TURNS:
        return 8
    if 2 * p.m * p.k <= IN_CACHE:
        return high
    if wide <= 4:
        return units // wide
    return 8 if 2 * p.m * p.k > 4 * IN_CACHE else 16


# ---- the plan ----------------------------------------------------------------------------------------------------


def plan(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue
) -> Plan | Copies | None:
    """How to run a product; None if it is not for these kernels, or they do not compute rightly here."""
    parts = parts_of(dtype, epilogue)
    if dtype not in KINDS or p.windows or p.k == 0 or not is_sound(device, VARIANT):
        return None
    operations, copies = p.batch * p.m * p.n * p.k, to_copy(p, aligned)
    pitch = whole_row(p.n, dtype.itemsize) if epilogue.pads and min(p.m, p.n) >= LEAST_COPIED else p.n
    if parts > 1:  # which are copies themselves; rows of out are written by whole 16 bytes
        if operations < LEAST_DIVIDED[parts] ** 3 or 4 * pitch % ALIGNMENT or p.batch > MOST_MATRICES:
            return None
        if room(p, parts) > device.features.global_memory // MOST_ROOM:
            return None
        walked = p._replace(k=WALKS[parts] * blocks_in(p.k, STEP) * STEP)
        choice = choose(walked, device.features.compute_units, PARTS_COSTS[parts])
    elif any(copies):
        return copies if min(p.m, p.n) >= LEAST_COPIED and operations >= LEAST_COPIED**3 else None
    else:
        choice = choose(p, device.features.compute_units)
    macros = _macros(dtype, p, choice, epilogue, pitch)
    if not is_sound_program(device, VARIANT, macros, partial(_check, device, dtype, macros, epilogue)):
        return None
    return _launch(device, dtype, p, aligned, choice, macros, pitch)


def parts_of(dtype: np.dtype, epilogue: Epilogue) -> int:
    """How many numbers of 16 bits one of the dtype becomes."""
    return 1 if dtype != float32 else THIRDS if epilogue.precision == "highest" else HALVES


def _macros(dtype: np.dtype, p: Problem, choice: Choice, epilogue: Epilogue, pitch: int) -> dict[str, Any]:
    along, parts = {"X_ALONG_K": int(p.x.along_k), "Y_ALONG_K": int(p.y.along_k)}, parts_of(dtype, epilogue)
    kind = KINDS[DTYPES.get(parts, dtype)]
    flags = {"ALIGNED": int(pitch * dtype.itemsize % ALIGNMENT == 0), "SHARES": int(choice.shared > 0)}
    flags |= {"WALKS": WALKS[parts], "IMAGES": 0}
    return {**epilogue.macros(dtype), **asdict(choice.tile), "KIND": kind, **along, **flags}


def _launch(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], choice: Choice, macros: dict[str, Any],
    pitch: int,
) -> Plan:  # fmt: skip
    kernel, walks, divide = device.build("matmul_wgmma", **macros).matmul, macros["WALKS"], None
    parts = next(parts for parts, found in WALKS.items() if found == walks)
    if parts > 1:
        p, divide = divided(device, p, aligned, parts)
    maps = device.upload(np.concatenate(_maps(dtype, p, choice.tile, pitch, parts))).memory
    multiply = launch_of(device, kernel, p, choice, walks, pitch, maps)

    def launch(arrays: Arrays, x_start: int, y_start: int) -> None:
        x, y, *others = arrays
        told = None
        if divide:
            x, y, told = divide((x, y), (x_start, y_start))
            x_start = y_start = 0
        multiply((x, y, *others), (told, told), x_start, y_start)

    sums = Spec((choice.groups, ROWS, choice.tile.COLUMNS), float32) if choice.shared else None
    return Plan(launch, sums, 0 if pitch == p.n else pitch)


def launch_of(
    device: Device, kernel: Kernel, p: Problem, choice: Choice, walks: int, pitch: int, maps: Any, *further: Any
) -> Callable[[Arrays, tuple[Any, Any], int, int], None]:
    """The launch of a kernel, with arrays, what is told of x and of y, and where they start."""
    own_maps, words = device.plans[_scratch]()
    tiles = blocks_in(p.m, ROWS), blocks_in(p.n, choice.tile.COLUMNS)
    flags = (int(step > 0) for op in (p.x, p.y) for step in (op.outer, op.inner))
    steps, in_all = (1 if choice.tile.TOGETHER else walks) * blocks_in(p.k, STEP), tiles[0] * tiles[1] * p.batch
    numbers = (p.m, p.n, p.k, pitch, steps, *tiles, in_all, choice.shared, choice.raster, p.inner, *flags)
    structure = np.array(numbers, np.int32).tobytes()  # one argument costs less than many
    work, group = (choice.groups * ITEMS,), (ITEMS,)

    def launch(arrays: Arrays, told: tuple[Any, Any], x_start: int, y_start: int) -> None:
        kernel(work, group, *arrays, *told, maps, own_maps, words, x_start, y_start, structure, *further)

    return launch


def _scratch(device: Device) -> tuple[Any, Any]:
    """Where work-groups write their tensor maps, and the words by which they wait for each other, 0 in between.

    All launches share them: one kernel runs after the other.
    """
    units = device.features.compute_units
    maps = device.empty_words(2 * MAPS * WORDS * units)
    return maps, device.empty_words(SIDES * units)


def _maps(dtype: np.dtype, p: Problem, tile: Tile, pitch: int, parts: int = 1) -> list[np.ndarray]:
    each = dtype.itemsize
    row = each * whole_row(pitch, each)  # where rows are written without the map, it may have any
    out = tensor_map(dtype, (p.n, p.m, p.batch), (row, row * p.m), (128 // each, 64, 1))
    stored, outer = DTYPES.get(parts, dtype), parts if parts > 1 else p.batch // p.inner
    return [
        _operand_map(stored, p, p.x, p.m, outer, ROWS), _operand_map(stored, p, p.y, p.n, outer, tile.COLUMNS), out, out
    ]  # fmt: skip


def _operand_map(dtype: np.dtype, p: Problem, op: Operand, kept: int, outer: int, rows: int) -> np.ndarray:
    """Boxes are 64 long along the contiguous axis, and as high as a tile or a step of k."""
    lengths, high = ((p.k, kept), rows) if op.along_k else ((kept, p.k), STEP)
    batch = (p.inner if op.inner else 1, outer if op.outer else 1)
    steps = (2 * op.step, 2 * op.inner or ALIGNMENT, 2 * op.outer or ALIGNMENT)
    return tensor_map(dtype, (*lengths, *batch), steps, (STEP, high, 1, 1))


# ---- the check of a program, and the trial -----------------------------------------------------------------------


def _check(device: Device, dtype: np.dtype, macros: dict[str, Any], epilogue: Epilogue) -> None:
    """Try a program with whole tiles, or with shared ones.

    Errors:  BackendError if a result is wrong, or something else was written to
    """

    def plan_of(p: Problem) -> Plan:
        tile = Tile(*(macros[field.name] for field in fields(Tile)))
        shared = _tiles(p, tile) if macros["SHARES"] else 0
        choice = Choice(tile, shared, min(device.features.compute_units, _tiles(p, tile) + 3), 2)
        return _launch(device, dtype, p, (True, True), choice, macros, p.n)

    device.plans[_scratch]()  # which is kept, and not between canaries
    along = macros["X_ALONG_K"], macros["Y_ALONG_K"]
    check(device, dtype, along, 264 if macros["ALIGNED"] else 259, epilogue, plan_of)


def _trial(device: Device) -> None:
    """Some programs of both dtypes, in all layouts, with whole and with shared tiles.

    Errors:  BackendError if one does not build or computes wrongly
    """
    large, wide, middle, small, in_turn = COSTS
    (first, _, together), (_, second, _) = PARTS_COSTS[HALVES], PARTS_COSTS[THIRDS]
    cases = (
        (bfloat16, 1, 1, 0, large, 1, "highest"), (bfloat16, 1, 0, 1, wide, 1, "highest"),
        (float16, 0, 0, 1, middle, 1, "highest"), (float16, 0, 1, 0, small, 0, "highest"),
        (bfloat16, 0, 0, 0, in_turn, 0, "highest"),
        (float32, 1, 0, 1, first, 1, "high"), (float32, 0, 1, 1, second, 1, "highest"),
        (float32, 1, 1, 1, together, 1, "high"),
    )  # fmt: skip
    for dtype, x_along_k, y_along_k, shares, tile, aligned, precision in cases:
        epilogue = Epilogue(True, "relu", True, precision)
        parts = parts_of(dtype, epilogue)
        along = {"X_ALONG_K": x_along_k, "Y_ALONG_K": y_along_k}
        flags = {"KIND": KINDS[DTYPES.get(parts, dtype)], **along, "ALIGNED": aligned, "SHARES": shares}
        flags |= {"WALKS": WALKS[parts], "IMAGES": 0}
        macros = {**epilogue.macros(dtype), **asdict(tile), **flags}
        _check(device, dtype, macros, epilogue)


VARIANT = Variant(
    "wgmma", "matmul_wgmma", lambda features: features.architecture == 90, plan, _trial, tells_precision=True
)
