"""Skinny GEMM on the tensor cores of NVIDIA GPUs from Ampere on: few rows times a large weight, as in decoding."""

from functools import partial
from typing import Any

import numpy as np

from polyarr.backends.opencl.gemm.product import Arrays, Copies, Epilogue, Plan, Problem, blocks_in
from polyarr.backends.opencl.nvidia.product_check import check
from polyarr.backends.opencl.runtime.commands import Kernel
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.program import types
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.spec import bfloat16, float16

KINDS = {bfloat16: "bf16", float16: "f16"}
MAX_ROWS = 64  # more are faster by larger tiles
MIN_COLUMNS = 256
TILE, PIECE = 16, 8  # columns of a tile, and numbers of a 16-byte load
STEPS = {16: 64, 8: 128, 4: 128}  # of k, for a warp, by the bits of a number of the weight
MANY_COLUMNS, VERY_MANY, FEW = 48, 96, 20  # columns of a weight, per multiprocessor
ROWS = 32  # of a work-group, but for the largest weights
WEIGHTS = 1, 2, 3, 6, 7, 8  # the arguments that the kernel reads early, or may


def shape_of(n: int, k: int, rows: int, bits: int, units: int) -> dict[str, int]:
    """Choose how work-groups multiply so many rows by a weight (n, k) of so many bits per number.

    How many warps split k does not depend on the rows, so neither do the bits of a result.
    """
    steps = blocks_in(k, STEPS[bits])
    warps = min(4 if n >= MANY_COLUMNS * units else 8, _power(steps))
    if rows > ROWS:  # as many columns as local memory holds, or else more work-groups
        kept, tiles = 2 * ROWS if n >= FEW * units else ROWS, 4 if n >= MANY_COLUMNS * units else 2
    else:
        kept = 1 if rows == 1 else blocks_in(rows, 8) * 8
        tiles = 4 if n >= VERY_MANY * units else 2 if n >= FEW * units else 1
    most = 3 if tiles == 1 and kept <= 16 else 1 if kept > ROWS and warps == 8 else 2
    overlaps = bits == 16 or blocks_in(n, TILE * tiles) <= units
    stages = min(most, blocks_in(steps, warps))
    return {"M": kept, "TILES": tiles, "WARPS": warps, "STAGES": stages, "OVERLAPS": int(overlaps)}


def _power(length: int) -> int:
    """Return the smallest power of two that is at least length."""
    return 1 << max(length - 1, 0).bit_length()


def work_of(rows: int, n: int, macros: dict[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the work-items and the size of a work-group."""
    groups, blocks, warps = blocks_in(n, TILE * macros["TILES"]), blocks_in(rows, macros["M"]), macros["WARPS"]
    return (groups * 32, blocks * warps), (32, warps)


def plan(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue
) -> Plan | Copies | None:
    """Plan a product; None if this kernel does not accept it or fails its check on this device."""
    if not is_suited(dtype, p.m, p.n, p.k) or p.batch > 1 or not all(aligned):
        return None
    if p.im2col or not (p.x.along_k and p.y.along_k) or (p.x.kept | p.y.kept) % PIECE:
        return None
    if not is_sound(device, VARIANT):
        return None
    macros = macros_of(dtype, shape_of(p.n, p.k, p.m, 16, device.features.compute_units), epilogue)
    if not is_sound_program(device, VARIANT, macros, partial(check_program, device, dtype, macros, epilogue)):
        return None
    return _launch(device, macros, p)


def is_suited(dtype: np.dtype, rows: int, n: int, k: int) -> bool:
    """Return whether the kernel is for a product of these lengths."""
    return dtype in KINDS and rows <= MAX_ROWS and n >= MIN_COLUMNS and k > 0 and k % PIECE == 0


def macros_of(dtype: np.dtype, shape: dict[str, int], epilogue: Epilogue) -> dict[str, Any]:
    """Return the macros of a program."""
    own = types(dtype)
    named = {f"{name}_{of}": own[of] for name in ("SCALE", "BIAS") for of in ("T", "LOAD")}
    return {**epilogue.macros(dtype), "GATED": 0, "BITS": 0, "IN_BLOCKS": 0, **named, **shape, "KIND": KINDS[dtype]}


def kernel_of(device: Device, macros: dict[str, Any]) -> Kernel:
    """Return the kernel with these macros."""
    kernel = device.build("matmul_skinny", **macros).matmul
    kernel.uses_early = WEIGHTS
    return kernel


def _launch(device: Device, macros: dict[str, Any], p: Problem) -> Plan:
    kernel, (work, group) = kernel_of(device, macros), work_of(p.m, p.n, macros)
    scalars = p.m, p.n, p.k, p.x.kept, p.y.kept

    def launch(arrays: Arrays, x_start: int, y_start: int) -> None:
        x, y, bias, _, out, saved = arrays
        kernel(work, group, x, y, None, bias, out, saved, None, None, None, x_start, y_start, *scalars)

    return Plan(launch, None)


def check_program(device: Device, dtype: np.dtype, macros: dict[str, Any], epilogue: Epilogue) -> None:
    """Check a program against NumPy.

    Raises:
        BackendError: A result is wrong, or memory outside the result was written.
    """
    shape = 1, checked_rows(macros), 2120  # of k: no whole number of steps
    check(device, dtype, (1, 1), 259, epilogue, partial(_launch, device, macros), shape=shape)


def checked_rows(macros: dict[str, Any]) -> int:
    """Return the rows of a check: one less than two work-groups take."""
    return 2 * macros["M"] - 1


def _trial(device: Device) -> None:
    """Check programs of both dtypes.

    Raises:
        BackendError: A program does not build or computes a wrong result.
    """
    for dtype, rows, n in ((bfloat16, 16, 2**13), (float16, 8, 2**9)):
        shape, epilogue = shape_of(n, 2**11, rows, 16, device.features.compute_units), Epilogue(True, "relu", True)
        check_program(device, dtype, macros_of(dtype, shape, epilogue), epilogue)


VARIANT = Variant(
    "skinny", "float16 and bfloat16, up to 64 rows and a weight read along k, on NVIDIA GPUs from Ampere on", plan,
    may_suit=lambda features: features.architecture >= 80, stem="matmul_skinny", trial=_trial,
)  # fmt: skip
