"""Products on the matrix units of NVIDIA's GPUs from Ampere on, by one warp at a time: see wgmma.py for Hopper's own.

They are of 16-bit floats, and of float32 in parts where that is precise enough (parts.py). Instructions that are not
only Hopper's are in kernels/ptx.cl.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.products.parts import MOST_MATRICES, divided
from polyarr.backends.opencl.products.product import (
    Arrays,
    Axes,
    Copies,
    Epilogue,
    Plan,
    Problem,
    Windows,
    blocks_in,
    kernel_of,
    to_copy,
)
from polyarr.backends.opencl.products.product_check import check
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.spec import Spec, bfloat16, float16, float32

KINDS = {bfloat16: "bf16", float16: "f16", float32: "f16"}
STEP, LANES = 32, 32  # of k; of a warp
PIECE = 8  # elements that are loaded at once
PARTS = 3  # walks along k of float32 in parts
LEAST_COPIED = 256  # rows, columns, and the cube root of operations, from when on a copy costs less than it saves
LEAST_DIVIDED = 1024  # the cube root of operations from when on dividing float32 into parts does
CHECKED_PARTS = 3  # work-groups that share a tile in a check
# In the time of a step of the largest tile: what a tile costs beside its products, adding parts, and each of these.
EDGE, JOINING, EACH_PART = 6, 12, 0.15
SHARES, LEAST_SHARE = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), 8  # parts of a tile's steps; steps worth a work-group
BAND = 8  # tiles along m that run together


@dataclass(frozen=True)
class Tile:
    """The macros of kernels/matmul_mma.cl that say how large a tile is, and how warps share it."""

    TILE_M: int
    TILE_N: int
    WARP_M: int
    WARP_N: int
    STAGES: int = 3

    @property
    def items(self) -> int:
        """Of a work-group."""
        return self.TILE_M // self.WARP_M * self.TILE_N // self.WARP_N * LANES


# What a step of k costs with a tile: small ones read more for what they multiply. All fit into 48 KB of local memory.
COSTS = {Tile(128, 128, 64, 64): 1.0, Tile(128, 64, 64, 32): 0.6, Tile(64, 64, 32, 32): 0.36}
PARTS_COSTS = {Tile(128, 64, 64, 32): 0.6, Tile(64, 64, 32, 32): 0.36}  # with as many sums again in registers


class Choice(NamedTuple):
    """Which tile, and how many work-groups share one."""

    tile: Tile
    parts: int


def choose(p: Problem, units: int, walks: int = 1) -> Choice:
    """The tile that takes least time on so many multiprocessors."""
    costs = COSTS if walks == 1 else PARTS_COSTS
    return min(_choices(p, walks, costs), key=lambda found: _time(p, found, units, walks, costs[found.tile]))


def _choices(p: Problem, walks: int, costs: dict[Tile, float]) -> Iterator[Choice]:
    for tile in costs:
        for parts in SHARES:
            if parts == 1 or walks * blocks_in(p.k, STEP) >= parts * LEAST_SHARE:
                yield Choice(tile, parts)


def _time(p: Problem, found: Choice, units: int, walks: int, cost: float) -> float:
    tiles, steps = _tiles(p, found.tile), walks * blocks_in(p.k, STEP)
    area = found.tile.TILE_M * found.tile.TILE_N / 128**2
    joining = JOINING + EACH_PART * area * tiles * found.parts if found.parts > 1 else 0
    return blocks_in(tiles * found.parts, units) * (steps / found.parts + EDGE) * cost + joining


def _tiles(p: Problem, tile: Tile) -> int:
    return blocks_in(p.m, tile.TILE_M) * blocks_in(p.n, tile.TILE_N) * p.batch


# ---- the plan ----------------------------------------------------------------------------------------------------


def plan(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue
) -> Plan | Copies | None:
    """How to run a product; None if it is not for these kernels, or they do not compute rightly here."""
    in_parts = dtype == float32 and epilogue.precision != "highest"
    if not (in_parts or dtype in (bfloat16, float16)) or p.k == 0:
        return None
    if p.windows and not (all(aligned) and _takes_windows(p, in_parts)):
        return None
    operations, copies = p.batch * p.m * p.n * p.k, Copies(False, False) if p.windows else to_copy(p, aligned)
    if in_parts and (operations < LEAST_DIVIDED**3 or p.batch > MOST_MATRICES):
        return None
    if not in_parts and any(copies):
        worth = min(p.m, p.n) >= LEAST_COPIED and operations >= LEAST_COPIED**3
        return copies if worth and is_sound(device, VARIANT) else None
    if not is_sound(device, VARIANT):
        return None
    choice = choose(p, device.features.compute_units, PARTS if in_parts else 1)
    macros = _macros(dtype, p, choice, epilogue)
    if not is_sound_program(device, VARIANT, macros, partial(_check, device, dtype, macros, epilogue)):
        return None
    return _launch(device, dtype, p, aligned, choice, macros)


def _takes_windows(p: Problem, in_parts: bool) -> bool:
    """True where pieces of 16 bytes are whole, of the windows and of the other operand."""
    if in_parts:
        return False
    walked, other, length = (p.y, p.x, p.m) if p.of_y else (p.x, p.y, p.n)
    length = p.k if other.along_k else length
    steps = walked.outer, walked.inner, other.outer, other.inner, other.step, length
    return p.windows.comes_in(PIECE, walked.along_k) and not any(step % PIECE for step in steps)


def _macros(dtype: np.dtype, p: Problem, choice: Choice, epilogue: Epilogue) -> dict[str, Any]:
    flags = {"EVEN": int(p.n % 2 == 0), "SPLIT": int(choice.parts > 1), "PARTS": PARTS if dtype == float32 else 1}
    return {**epilogue.macros(dtype), **asdict(choice.tile), "KIND": KINDS[dtype], **p.macros, **flags}


def _launch(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], choice: Choice, macros: dict[str, Any]
) -> Plan:
    program, divide = device.build("matmul_mma", **macros), None
    if macros["PARTS"] > 1:
        p, divide = divided(device, p, aligned)
    tile, parts, tiles = choice.tile, choice.parts, _tiles(p, choice.tile)
    counts = p.m, p.n, p.k, blocks_in(p.m, tile.TILE_M), blocks_in(p.n, tile.TILE_N), BAND, parts, p.inner
    steps = p.x.step, p.x.outer, p.x.inner, p.y.step, p.y.outer, p.y.inner
    structure = np.array((*counts, *steps), np.int64).tobytes()
    kernel, windows = kernel_of(program, p)
    group, work, join_work = (tile.items, 1), (tiles * tile.items, parts), (tiles * tile.items, tile.WARP_M // 16)

    def launch(arrays: Arrays, x_start: int, y_start: int) -> None:
        x, y, bias, sums, out, saved = arrays
        peaks = None
        if divide:
            x, y, peaks = divide((x, y), (x_start, y_start))
            x_start = y_start = 0
        kernel(work, group, x, y, bias, sums, out, saved, peaks, x_start, y_start, structure, *windows)
        if parts > 1:
            program.matmul_join(join_work, group, sums, bias, out, saved, peaks, structure)

    return Plan(launch, Spec((tiles * parts, tile.TILE_M, tile.TILE_N), float32) if parts > 1 else None)


# ---- the check of a program, and the trial -----------------------------------------------------------------------


def _check(device: Device, dtype: np.dtype, macros: dict[str, Any], epilogue: Epilogue) -> None:
    """Try a program.

    Errors:  BackendError if a result is wrong, or something else was written to
    """
    tile = Tile(*(macros[name] for name in ("TILE_M", "TILE_N", "WARP_M", "WARP_N", "STAGES")))
    choice = Choice(tile, CHECKED_PARTS if macros["SPLIT"] else 1)

    def plan_of(p: Problem) -> Plan:
        return _launch(device, dtype, _walked(p, macros["WINDOWS"]), (True, True), choice, macros)

    along = macros["X_ALONG_K"], macros["Y_ALONG_K"]
    check(device, dtype, along, 264 if macros["EVEN"] else 259, epilogue, plan_of)


def _walked(p: Problem, windows: int) -> Problem:
    """The problem of a check, with its x (1) or its y (2) as windows that are strides in disguise."""
    if not windows:
        return p
    of_y = windows == 2
    along, (other, length) = ((p.n, (p.y, p.k)) if of_y else (p.k, (p.x, p.m)))
    thirds = Axes((1, 2, 2, length // 4), tuple(other.step * length // n for n in (1, 2, 4, length)))
    pieces = Axes((1, 1, along // PIECE, PIECE), (0, 0, PIECE, 1))
    return p._replace(windows=Windows(*((pieces, thirds) if of_y else (thirds, pieces))), of_y=of_y)


def _trial(device: Device) -> None:
    """Some programs of both dtypes, in all layouts, with whole and with shared tiles.

    Errors:  BackendError if one does not build or computes wrongly
    """
    large, middle, small = COSTS
    cases = (
        (bfloat16, 1, 1, 0, large, 1), (bfloat16, 1, 0, 1, middle, 1), (float16, 0, 0, 1, small, 1),
        (float16, 0, 1, 0, large, 0), (float32, 1, 0, 1, middle, 1),
    )  # fmt: skip
    for dtype, x_along_k, y_along_k, split, tile, even in cases:
        epilogue = Epilogue(True, "relu", True, "high")
        along = {"X_ALONG_K": x_along_k, "Y_ALONG_K": y_along_k}
        flags = {"KIND": KINDS[dtype], **along, "EVEN": even, "SPLIT": split, "WINDOWS": 0}
        parts = {"PARTS": PARTS if dtype == float32 else 1}
        _check(device, dtype, {**epilogue.macros(dtype), **asdict(tile), **flags, **parts}, epilogue)


VARIANT = Variant(
    "mma", "matmul_mma", lambda features: features.architecture >= 80, plan, _trial, tells_precision=True
)
