"""Skinny GEMM on the tensor cores of NVIDIA GPUs from Ampere on: few rows times a large weight, as in decoding."""

from functools import partial
from typing import Any

import numpy as np

from polyarr.backends.opencl.gemm.product import Arrays, Copies, Epilogue, Plan, Problem, blocks_in
from polyarr.backends.opencl.nvidia.product_check import check
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.program import types
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.spec import Spec, bfloat16, float16, float32

KINDS = {bfloat16: "bf16", float16: "f16"}
MIN_ROWS, MAX_ROWS = 2, 32  # one row is faster by the GEMV kernel, more than 32 by larger tiles
MIN_COLUMNS = 256
TILES, WARPS = 2, 4  # of a work-group: blocks of y, and warps
COLUMNS, ROWS, STEP, PIECE = 16 * TILES, 8, 64, 8  # of a work-group, of a block of x, along k, and of a 16-byte load
MAX_DEEP_ROWS = 16  # rows up to which four steps of a warp are in flight
GROUPS_PER_UNIT = 2  # work-groups that a multiprocessor runs at a time


def parts_of(n: int, k: int, units: int) -> int:
    """Return the number of work-groups that share columns. It does not depend on the rows, so neither do their bits."""
    return max(1, min(GROUPS_PER_UNIT * units // blocks_in(n, COLUMNS), blocks_in(k, STEP) // WARPS))


def plan(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue
) -> Plan | Copies | None:
    """Plan a product; None if this kernel does not accept it or fails its check on this device."""
    if dtype not in KINDS or p.batch > 1 or not MIN_ROWS <= p.m <= MAX_ROWS or p.n < MIN_COLUMNS or not all(aligned):
        return None
    if p.im2col or not (p.x.along_k and p.y.along_k) or (p.k | p.x.kept | p.y.kept) % PIECE or not p.k:
        return None
    if not is_sound(device, VARIANT):
        return None
    parts = parts_of(p.n, p.k, device.features.compute_units)
    macros = _macros(dtype, p.m, parts, epilogue)
    if not is_sound_program(device, VARIANT, macros, partial(_check, device, dtype, macros, epilogue)):
        return None
    return _launch(device, p, parts, macros)


def _macros(dtype: np.dtype, rows: int, parts: int, epilogue: Epilogue) -> dict[str, Any]:
    stages = 4 if rows <= MAX_DEEP_ROWS else 2
    shape = {"TILES": TILES, "WARPS": WARPS, "BLOCKS": blocks_in(rows, ROWS), "STAGES": stages}
    own = types(dtype)
    named = {f"{name}_{of}": own[of] for name in ("SCALE", "BIAS") for of in ("T", "LOAD")}
    plain = {"BITS": 0, "IN_BLOCKS": 0, **named}
    return {**epilogue.macros(dtype), **plain, **shape, "SPLIT": int(parts > 1), "KIND": KINDS[dtype]}


def _launch(device: Device, p: Problem, parts: int, macros: dict[str, Any]) -> Plan:
    kernel, words = device.build("matmul_skinny", **macros).matmul, device.plans[words_of]()
    groups = blocks_in(p.n, COLUMNS)
    work, group = (groups * 32, WARPS, parts), (32, WARPS, 1)
    scalars = p.m, p.n, p.k, p.x.kept, p.y.kept

    def launch(arrays: Arrays, x_start: int, y_start: int) -> None:
        x, y, bias, sums, out, saved = arrays
        kernel(work, group, x, y, None, bias, sums, words, out, saved, x_start, y_start, *scalars)

    outputs = COLUMNS * macros["BLOCKS"] * ROWS
    return Plan(launch, Spec((groups, parts, outputs), float32) if parts > 1 else None)


def words_of(device: Device) -> Any:
    """Allocate the counters by which work-groups that share columns find out which is the last.

    They are 0 between kernels, which run in order.
    """
    return device.empty_words(GROUPS_PER_UNIT * device.features.compute_units)


def _check(device: Device, dtype: np.dtype, macros: dict[str, Any], epilogue: Epilogue) -> None:
    """Check a program against NumPy.

    Raises:
        BackendError: A result is wrong, or memory outside the result was written.
    """

    def plan_of(p: Problem) -> Plan:
        return _launch(device, p, 3 if macros["SPLIT"] else 1, macros)

    device.plans[words_of]()  # it is kept, so it must not lie between canaries
    check(device, dtype, (1, 1), 259, epilogue, plan_of, shape=(1, ROWS * macros["BLOCKS"] - 1, 456))


def _trial(device: Device) -> None:
    """Check programs of both dtypes.

    Raises:
        BackendError: A program does not build or computes a wrong result.
    """
    for dtype, rows, parts in ((bfloat16, 16, 3), (float16, 32, 1)):
        epilogue = Epilogue(True, "relu", True)
        _check(device, dtype, _macros(dtype, rows, parts, epilogue), epilogue)


VARIANT = Variant(
    "skinny", "float16 and bfloat16, 2 to 32 rows and a weight read along k, on NVIDIA GPUs from Ampere on", plan,
    may_suit=lambda features: features.architecture >= 80, stem="matmul_skinny", trial=_trial,
)  # fmt: skip
