"""Products on the matrix units of NVIDIA GPUs from Ampere on, one warp per instruction (wgmma.py has Hopper's).

The operands are 16-bit floats, or float32 split into two bfloat16 terms where the precision allows it (see split.py).
The instructions that Hopper shares with older GPUs are in ptx.cl.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.gemm.product import (
    Arrays,
    Axes,
    Copies,
    Epilogue,
    Im2col,
    Plan,
    Problem,
    blocks_in,
    kernel_of,
    terms_of,
)
from polyarr.backends.opencl.nvidia.product_check import check
from polyarr.backends.opencl.nvidia.split import MAX_MATRICES, passes, split_product
from polyarr.backends.opencl.nvidia.tensor_map import to_copy
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.spec import Spec, bfloat16, float16, float32

KINDS = {bfloat16: "bf16", float16: "f16", float32: "bf16"}
STEP, LANES = 32, 32  # elements of k per step; work-items of a warp
PIECE = 8  # elements per 16-byte load
MAX_TERMS = 2  # of float32; three are not worth it without Hopper's instructions
MIN_COPY_SIZE = 256  # rows, columns and cube root of operations from which on a copy pays off
MIN_SPLIT_SIZE = 1024  # cube root of operations from which on splitting float32 pays off
CHECKED_SPLIT_K = 3  # work-groups that share a tile in a check
# Costs in steps of the largest tile: per tile, per join of shared tiles, and per joined part.
EDGE, JOINING, EACH_PART = 6, 12, 0.15
SPLIT_K_WAYS = 1, 2, 3, 4, 6, 8, 12, 16, 24, 32  # ways to split a tile's steps
MIN_STEPS_PER_GROUP = 8  # steps that are worth a work-group
BAND = 8  # tiles along m that run together


@dataclass(frozen=True)
class Tile:
    """The macros of matmul_mma.cl for the size of a tile and of a warp's share of it."""

    TILE_M: int
    TILE_N: int
    WARP_M: int
    WARP_N: int
    STAGES: int = 3

    @property
    def items(self) -> int:
        """The number of work-items of a work-group."""
        return self.TILE_M // self.WARP_M * self.TILE_N // self.WARP_N * LANES


# The cost of a step of k by tile: small tiles read more per multiplication. All fit into 48 KB of local memory.
COSTS = {Tile(128, 128, 64, 64): 1.0, Tile(128, 64, 64, 32): 0.6, Tile(64, 64, 32, 32): 0.36}
SPLIT_COSTS = {Tile(128, 64, 64, 32): 0.6, Tile(64, 64, 32, 32): 0.36}  # two sets of sums in registers


class Choice(NamedTuple):
    """A tile, and the number of work-groups that share one."""

    tile: Tile
    parts: int


def choose(p: Problem, units: int, terms: int = 1) -> Choice:
    """Return the fastest tile on this number of multiprocessors."""
    costs, steps = COSTS if terms == 1 else SPLIT_COSTS, passes(terms) * blocks_in(p.k, STEP)
    return min(_choices(steps, costs), key=lambda found: _time(p, found, units, steps, costs[found.tile]))


def _choices(steps: int, costs: dict[Tile, float]) -> Iterator[Choice]:
    for tile in costs:
        for parts in SPLIT_K_WAYS:
            if parts == 1 or steps >= parts * MIN_STEPS_PER_GROUP:
                yield Choice(tile, parts)


def _time(p: Problem, found: Choice, units: int, steps: int, cost: float) -> float:
    tiles = _tiles(p, found.tile)
    area = found.tile.TILE_M * found.tile.TILE_N / 128**2
    joining = JOINING + EACH_PART * area * tiles * found.parts if found.parts > 1 else 0
    return blocks_in(tiles * found.parts, units) * (steps / found.parts + EDGE) * cost + joining


def _tiles(p: Problem, tile: Tile) -> int:
    return blocks_in(p.m, tile.TILE_M) * blocks_in(p.n, tile.TILE_N) * p.batch


def plan(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue
) -> Plan | Copies | None:
    """Plan a product; None if these kernels do not accept it or fail their check on this device."""
    terms = terms_of(dtype, epilogue.precision)
    is_split = terms > 1
    if terms > MAX_TERMS or dtype not in KINDS or p.k == 0:
        return None
    if p.im2col and not (all(aligned) and _accepts_im2col(p, is_split)):
        return None
    operations, copies = p.batch * p.m * p.n * p.k, Copies(False, False) if p.im2col else to_copy(p, aligned)
    if is_split and (operations < MIN_SPLIT_SIZE**3 or p.batch > MAX_MATRICES):
        return None
    if not is_split and any(copies):
        worth = min(p.m, p.n) >= MIN_COPY_SIZE and operations >= MIN_COPY_SIZE**3
        return copies if worth and is_sound(device, VARIANT) else None
    if not is_sound(device, VARIANT):
        return None
    choice = choose(p, device.features.compute_units, terms)
    macros = _macros(dtype, p, choice, epilogue)
    if not is_sound_program(device, VARIANT, macros, partial(_check, device, dtype, macros, epilogue)):
        return None
    return _launch(device, dtype, p, aligned, choice, macros)


def _accepts_im2col(p: Problem, is_split: bool) -> bool:
    """Return whether the im2col view and the other operand consist of whole 16-byte pieces."""
    if is_split or p.im2col is None:
        return False
    with_im2col, other, length = (p.y, p.x, p.m) if p.of_y else (p.x, p.y, p.n)
    length = p.k if other.along_k else length
    steps = with_im2col.outer, with_im2col.inner, other.outer, other.inner, other.step, length
    return p.im2col.has_runs_of(PIECE, with_im2col.along_k) and not any(step % PIECE for step in steps)


def _macros(dtype: np.dtype, p: Problem, choice: Choice, epilogue: Epilogue) -> dict[str, Any]:
    terms = terms_of(dtype, epilogue.precision)
    flags = {"EVEN": int(p.n % 2 == 0), "SPLIT": int(choice.parts > 1), "TERMS": terms}
    return {**epilogue.macros(dtype), **asdict(choice.tile), "KIND": KINDS[dtype], **p.macros, **flags}


def _launch(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], choice: Choice, macros: dict[str, Any]
) -> Plan:
    program, split = device.build("matmul_mma", **macros), None
    if macros["TERMS"] > 1:
        p, split = split_product(device, p, aligned, macros["TERMS"])
    tile, parts, tiles = choice.tile, choice.parts, _tiles(p, choice.tile)
    counts = p.m, p.n, p.k, blocks_in(p.m, tile.TILE_M), blocks_in(p.n, tile.TILE_N), BAND, parts, p.inner
    steps = p.x.step, p.x.outer, p.x.inner, p.y.step, p.y.outer, p.y.inner
    structure = np.array((*counts, *steps), np.int64).tobytes()
    kernel, im2col = kernel_of(program, p)
    group, work, join_work = (tile.items, 1), (tiles * tile.items, parts), (tiles * tile.items, tile.WARP_M // 16)

    def launch(arrays: Arrays, x_start: int, y_start: int) -> None:
        x, y, bias, sums, out, saved = arrays
        if split:
            x, y, _ = split((x, y), (x_start, y_start))
            x_start = y_start = 0
        kernel(work, group, x, y, bias, sums, out, saved, x_start, y_start, structure, *im2col)
        if parts > 1:
            program.matmul_join(join_work, group, sums, bias, out, saved, structure)

    return Plan(launch, Spec((tiles * parts, tile.TILE_M, tile.TILE_N), float32) if parts > 1 else None)


def _check(device: Device, dtype: np.dtype, macros: dict[str, Any], epilogue: Epilogue) -> None:
    """Check a program against NumPy.

    Raises:
        BackendError: A result is wrong, or memory outside the result was written.
    """
    tile = Tile(*(macros[name] for name in ("TILE_M", "TILE_N", "WARP_M", "WARP_N", "STAGES")))
    choice = Choice(tile, CHECKED_SPLIT_K if macros["SPLIT"] else 1)

    def plan_of(p: Problem) -> Plan:
        return _launch(device, dtype, _as_im2col(p, macros["IM2COL"]), (True, True), choice, macros)

    along = macros["X_ALONG_K"], macros["Y_ALONG_K"]
    check(device, dtype, along, 264 if macros["EVEN"] else 259, epilogue, plan_of, special=False)


def _as_im2col(p: Problem, im2col: int) -> Problem:
    """Return a check's problem with x (1) or y (2) as an im2col view that describes plain strides."""
    if not im2col:
        return p
    of_y = im2col == 2
    along, (other, length) = ((p.n, (p.y, p.k)) if of_y else (p.k, (p.x, p.m)))
    strides_view = Axes((1, 2, 2, length // 4), tuple(other.step * length // n for n in (1, 2, 4, length)))
    pieces = Axes((1, 1, along // PIECE, PIECE), (0, 0, PIECE, 1))
    return p._replace(im2col=Im2col(*((pieces, strides_view) if of_y else (strides_view, pieces))), of_y=of_y)


def _trial(device: Device) -> None:
    """Check programs of both dtypes, in all layouts, with whole and with shared tiles.

    Raises:
        BackendError: A program does not build or computes a wrong result.
    """
    large, middle, small = COSTS
    cases = (
        (bfloat16, 1, 1, 0, large, 1), (bfloat16, 1, 0, 1, middle, 1), (float16, 0, 0, 1, small, 1),
        (float16, 0, 1, 0, large, 0), (float32, 1, 0, 1, middle, 1),
    )  # fmt: skip
    for dtype, x_along_k, y_along_k, split, tile, even in cases:
        epilogue = Epilogue(True, "relu", True, "high")
        along = {"X_ALONG_K": x_along_k, "Y_ALONG_K": y_along_k}
        flags = {"KIND": KINDS[dtype], **along, "EVEN": even, "SPLIT": split, "IM2COL": 0}
        flags["TERMS"] = terms_of(dtype, epilogue.precision)
        _check(device, dtype, {**epilogue.macros(dtype), **asdict(tile), **flags}, epilogue)


VARIANT = Variant(
    "mma", "float16, bfloat16, and float32 with precision high, on NVIDIA GPUs from Ampere on", plan,
    may_suit=lambda features: features.architecture >= 80, stem="matmul_mma", trial=_trial, tells_precision=True,
)  # fmt: skip
