"""Skinny GEMM with a quantized weight on the tensor cores of NVIDIA GPUs from Ampere on."""

from functools import partial
from typing import Any

import numpy as np

from polyarr.backends.opencl.gemm.dequantize import Quantized, layer_macros
from polyarr.backends.opencl.gemm.gated_linear import Layer
from polyarr.backends.opencl.gemm.product import Epilogue
from polyarr.backends.opencl.nvidia.product_check import agree
from polyarr.backends.opencl.nvidia.skinny import (
    KINDS,
    MAX_ROWS,
    MIN_COLUMNS,
    checked_rows,
    kernel_of,
    shape_of,
    work_of,
)
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.spec import Spec, bfloat16, float16, float32, int8, uint8
from polyarr.ops.quantized import QUANTIZED_BLOCK


def plan(
    device: Device, weight: Quantized, epilogue: Epilogue, x: Buffer, codes: Buffer, scale: Buffer, bias: Buffer,
    out: Buffer,
) -> Buffer | None:  # fmt: skip
    """Compute a layer; None if this kernel does not accept it or fails its check on this device."""
    layer = Layer(codes, scale, bias)
    if not is_suited(x, weight, layer) or not is_sound(device, VARIANT):
        return None
    shape = shape_of(weight.n, weight.k, x.shape[0], weight.bits, device.features.compute_units)
    macros = macros_of(x.dtype, bias.dtype, shape, weight, epilogue)
    check = partial(check_program, device, x.dtype, bias.dtype, macros, weight, epilogue)
    if not is_sound_program(device, VARIANT, macros, check):
        return None
    return _launch(device, weight, macros, x, codes, scale, bias, out)


def is_suited(x: Buffer, weight: Quantized, layer: Layer) -> bool:
    """Return whether the kernel is for a product with this weight, whose arrays are dense."""
    multiple = 2 * QUANTIZED_BLOCK if weight.in_blocks else 16  # scales of blocks are read in pairs
    if x.dtype not in KINDS or x.shape[0] > MAX_ROWS or weight.n < MIN_COLUMNS or weight.k % multiple:
        return False
    if weight.in_blocks and weight.scale not in KINDS:
        return False
    return not any(a.offset for a in (x, *layer) if a is not None)


def macros_of(
    dtype: np.dtype, bias: np.dtype, shape: dict[str, int], weight: Quantized, epilogue: Epilogue
) -> dict[str, Any]:
    """Return the macros of a program."""
    kinds = {"KIND": KINDS[dtype], "SCALE_KIND": KINDS.get(weight.scale, "f16")}
    return {**layer_macros(dtype, bias, weight, epilogue), **shape, **kinds, "GATED": 0}


def _launch(
    device: Device, weight: Quantized, macros: dict[str, Any], x: Buffer, codes: Buffer, scale: Buffer, bias: Buffer,
    out: Buffer,
) -> Buffer:  # fmt: skip
    rows, n, k = x.shape[0], weight.n, weight.k
    kernel_of(device, macros)(
        *work_of(rows, n, macros), x.memory, codes.memory, scale.memory, bias.memory, out.memory, None, None, None,
        None, 0, 0, rows, n, k, k, k * weight.bits // 8,
    )  # fmt: skip
    return out


def check_program(
    device: Device, dtype: np.dtype, bias_dtype: np.dtype, macros: dict[str, Any], weight: Quantized,
    epilogue: Epilogue,
) -> None:  # fmt: skip
    """Check a program against NumPy.

    Raises:
        BackendError: A result is wrong, or memory outside the result was written.
    """
    generator, n, rows = np.random.default_rng(0), 259, checked_rows(macros)
    k = 64 * 35 if weight.in_blocks else 32 * 69 if weight.bits == 4 else 16 * 139  # no whole number of steps
    x, bias = (generator.standard_normal(s).astype(t) for s, t in (((rows, k), dtype), (n, bias_dtype)))
    codes = generator.integers(-127 if weight.bits == 8 else -8, 128 if weight.bits == 8 else 8, (n, k))
    blocks = k // QUANTIZED_BLOCK if weight.in_blocks else 1
    scale = (generator.random((n, blocks)) / 64 + 1 / 64).astype(weight.scale)
    wanted = codes * np.repeat(scale.astype(np.float64), k // blocks, axis=1)
    with device.guarded():
        stored = _packed(codes) if weight.bits == 4 else codes.astype(int8)
        arrays = x, stored, scale if weight.in_blocks else scale[:, 0], bias
        own, packed, factor, added = (device.upload(a) for a in arrays)
        out = device.empty(Spec((rows, n), dtype))
        _launch(device, weight._replace(n=n, k=k), macros, own, packed, factor, added, out)
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
        (bfloat16, 16, 8, False), (float16, 8, 8, True), (bfloat16, 16, 4, True), (bfloat16, 1, 8, True),
    ):  # fmt: skip
        weight = Quantized(2**12, 2**11, bits, in_blocks, float16 if in_blocks else float32)
        epilogue = Epilogue(True, "relu")
        shape = shape_of(weight.n, weight.k, rows, bits, device.features.compute_units)
        check_program(device, dtype, dtype, macros_of(dtype, dtype, shape, weight, epilogue), weight, epilogue)


VARIANT = Variant(
    "skinny_quantized", "float16 and bfloat16, up to 64 rows, on NVIDIA GPUs from Ampere on", plan,
    may_suit=lambda features: features.architecture >= 80, stem="matmul_skinny", trial=_trial,
)  # fmt: skip
