"""Skinny GEMM with a quantized weight on the tensor cores of NVIDIA GPUs from Ampere on."""

from functools import partial
from typing import Any

import numpy as np

from polyarr.backends.opencl.gemm.dequantize import Quantized, layer_macros
from polyarr.backends.opencl.gemm.product import Epilogue, blocks_in
from polyarr.backends.opencl.nvidia.product_check import agree
from polyarr.backends.opencl.nvidia.skinny import (
    GROUPS_PER_UNIT,
    KINDS,
    MAX_ROWS,
    MIN_COLUMNS,
    MIN_ROWS,
    ROWS,
    WARPS,
    words_of,
)
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.spec import Spec, bfloat16, float16, float32, int8, uint8
from polyarr.ops.quantized import QUANTIZED_BLOCK

WIDE = 2048  # columns from which on a work-group has 64 of them, so that it reads x less often
STEP = {8: 64, 4: 128}  # of k, by the bits of a code
FEW_SLOTS = 12  # loads of a lane in a step up to which three steps of a warp are in flight, otherwise two


def plan(
    device: Device, weight: Quantized, epilogue: Epilogue, x: Buffer, codes: Buffer, scale: Buffer, bias: Buffer,
    out: Buffer,
) -> Buffer | None:  # fmt: skip
    """Compute a layer; None if this kernel does not accept it or fails its check on this device."""
    rows = x.shape[0]
    if x.dtype not in KINDS or not MIN_ROWS <= rows <= MAX_ROWS or weight.n < MIN_COLUMNS or weight.k % 16:
        return None
    if weight.in_blocks and scale.dtype not in KINDS:
        return None
    if not is_sound(device, VARIANT) or any(b.offset for b in (x, codes, scale, bias)):
        return None
    parts = _parts_of(weight, device.features.compute_units)
    macros = _macros(x.dtype, bias.dtype, rows, weight, epilogue, parts)
    check = partial(_check, device, x.dtype, bias.dtype, macros["BLOCKS"] * ROWS - 1, weight, epilogue, parts)
    if not is_sound_program(device, VARIANT, macros, check):
        return None
    return _launch(device, weight, macros, parts, x, codes, scale, bias, out)


def _tiles_of(weight: Quantized) -> int:
    return 4 if weight.n >= WIDE else 2


def _parts_of(weight: Quantized, units: int) -> int:
    """Return the number of work-groups that share columns, which does not depend on the rows."""
    most = blocks_in(weight.k, STEP[weight.bits]) // WARPS
    return max(1, min(GROUPS_PER_UNIT * units // blocks_in(weight.n, 16 * _tiles_of(weight)), most))


def _macros(
    dtype: np.dtype, bias: np.dtype, rows: int, weight: Quantized, epilogue: Epilogue, parts: int
) -> dict[str, Any]:
    tiles, blocks = _tiles_of(weight), blocks_in(rows, ROWS)
    slots = 2 * tiles + blocks * STEP[weight.bits] // 32
    shape = {"TILES": tiles, "WARPS": WARPS, "BLOCKS": blocks, "STAGES": 3 if slots <= FEW_SLOTS else 2}
    kinds = {"KIND": KINDS[dtype], "SCALE_KIND": KINDS.get(weight.scale, "f16")}
    return {**layer_macros(dtype, bias, weight, epilogue), **shape, **kinds, "SPLIT": int(parts > 1)}


def _launch(
    device: Device, weight: Quantized, macros: dict[str, Any], parts: int, x: Buffer, codes: Buffer, scale: Buffer,
    bias: Buffer, out: Buffer,
) -> Buffer:  # fmt: skip
    columns = 16 * macros["TILES"]
    groups = blocks_in(weight.n, columns)
    outputs = columns * macros["BLOCKS"] * ROWS
    sums = device.empty(Spec((groups, parts, outputs), float32)) if parts > 1 else out
    device.build("matmul_skinny", **macros).matmul(
        (groups * 32, WARPS, parts), (32, WARPS, 1), x.memory, codes.memory, scale.memory, bias.memory, sums.memory,
        device.plans[words_of](), out.memory, None, 0, 0, x.shape[0], weight.n, weight.k, weight.k,
        weight.k * weight.bits // 8,
    )  # fmt: skip
    return out


def _check(
    device: Device, dtype: np.dtype, bias_dtype: np.dtype, rows: int, weight: Quantized, epilogue: Epilogue,
    parts: int,
) -> None:  # fmt: skip
    """Check a program against NumPy.

    Raises:
        BackendError: A result is wrong, or memory outside the result was written.
    """
    generator, n, parts = np.random.default_rng(0), 259 if weight.n < WIDE else WIDE + 3, min(parts, 3)
    small = weight._replace(n=n, k=32 * 33 if weight.in_blocks or weight.bits == 4 else 16 * 67)
    blocks = small.k // QUANTIZED_BLOCK if weight.in_blocks else 1
    x, bias = (generator.standard_normal(s).astype(t) for s, t in (((rows, small.k), dtype), (n, bias_dtype)))
    codes = generator.integers(-127 if weight.bits == 8 else -8, 128 if weight.bits == 8 else 8, (n, small.k))
    scale = (generator.random((n, blocks)) / 64 + 1 / 64).astype(weight.scale)
    if weight.in_blocks:
        factors = np.repeat(scale.astype(dtype), QUANTIZED_BLOCK, axis=1)
        wanted = (codes.astype(dtype) * factors).astype(dtype)
    else:
        wanted = codes * scale.astype(np.float64)
    device.plans[words_of]()  # it is kept, so it must not lie between canaries
    macros = _macros(dtype, bias_dtype, rows, small, epilogue, parts)
    with device.guarded():
        stored = _packed(codes) if weight.bits == 4 else codes.astype(int8)
        arrays = x, stored, scale if weight.in_blocks else scale[:, 0], bias
        own, packed, factor, added = (device.upload(a) for a in arrays)
        for _ in range(2):  # the counters of work-groups must be 0 again after the first launch
            result = device.empty(Spec((rows, n), dtype))
            out = _launch(device, small, macros, parts, own, packed, factor, added, result)
        found = device.download(out)
    agree(x, wanted.T, bias, epilogue, found, None)


def _packed(codes: np.ndarray) -> np.ndarray:
    """Return codes of 4 bits (n, k) in pairs, uint8 of shape (n, k / 2)."""
    low, high = np.moveaxis((codes + 8).reshape(len(codes), -1, 2, QUANTIZED_BLOCK // 2), 2, 0)
    return (low + 16 * high).astype(uint8).reshape(len(codes), -1)


def _trial(device: Device) -> None:
    """Check programs of both dtypes and all forms of weights.

    Raises:
        BackendError: A program does not build or computes a wrong result.
    """
    for dtype, rows, bits, in_blocks in (
        (bfloat16, 15, 8, False), (float16, 7, 8, True), (bfloat16, 31, 4, True), (bfloat16, 7, 8, True),
    ):  # fmt: skip
        weight = Quantized(WIDE, 1024, bits, in_blocks, float16 if in_blocks else float32)
        _check(device, dtype, dtype, rows, weight, Epilogue(True, "relu"), 2)


VARIANT = Variant(
    "skinny_quantized", "float16 and bfloat16, 2 to 32 rows, on NVIDIA GPUs from Ampere on", plan,
    may_suit=lambda features: features.architecture >= 80, stem="matmul_skinny", trial=_trial,
)  # fmt: skip
