"""Gated linear layers of few rows on the tensor cores of NVIDIA GPUs from Ampere on: both products in one launch."""

from functools import partial
from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.gemm.dequantize import Quantized
from polyarr.backends.opencl.gemm.gated_linear import Layer
from polyarr.backends.opencl.gemm.product import Epilogue
from polyarr.backends.opencl.nvidia import skinny, skinny_quantized
from polyarr.backends.opencl.nvidia.skinny import checked_rows, kernel_of, shape_of, work_of
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, row_major
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, bfloat16, float16, float32


def plan(device: Device, out: Spec, x: Buffer, gate: Layer, up: Layer, activation: str | None) -> Buffer | None:
    """Compute a layer; None if this kernel does not accept it or fails its check on this device."""
    x = reshaped(dense(device, x), (prod(x.shape[:-1]), x.shape[-1]))
    weight = None if gate.scale is None else Quantized.of(gate.weight, gate.scale)
    if not is_sound(device, VARIANT) or not all(_is_suited(x, weight, layer) for layer in (gate, up)):
        return None
    epilogue = Epilogue(gate.bias is not None, activation or "none")
    macros, bias = _macros(device, x, weight, gate, epilogue), x.dtype if gate.bias is None else gate.bias.dtype
    if not is_sound_program(device, VARIANT, macros, partial(_check, device, macros, x.dtype, weight, bias, epilogue)):
        return None
    return reshaped(_launch(device, macros, x, gate, up), out.shape)


def _is_suited(x: Buffer, weight: Quantized | None, layer: Layer) -> bool:
    if any(a.strides != row_major(a.shape) or a.offset for a in (x, *layer) if a is not None):
        return False
    if weight is None:
        return skinny.is_suited(x.dtype, x.shape[0], *layer.weight.shape)
    return skinny_quantized.is_suited(x, weight, layer)


def _macros(device: Device, x: Buffer, weight: Quantized | None, layer: Layer, epilogue: Epilogue) -> dict[str, Any]:
    units, rows = device.features.compute_units, x.shape[0]
    n, k, bits = (*layer.weight.shape, 16) if weight is None else (weight.n, weight.k, weight.bits)
    shape = shape_of(n, k, rows, bits, units)
    shape["TILES"] = max(1, shape["TILES"] // 2)  # of each weight
    if weight is None:
        return skinny.macros_of(x.dtype, shape, epilogue) | {"GATED": 1}
    bias = x.dtype if layer.bias is None else layer.bias.dtype
    return skinny_quantized.macros_of(x.dtype, bias, shape, weight, epilogue) | {"GATED": 1}


def _launch(device: Device, macros: dict[str, Any], x: Buffer, gate: Layer, up: Layer | None) -> Buffer:
    """Compute a layer with these macros; without `up`, the activated product with gate alone."""
    (rows, k), (n, pitch) = x.shape, gate.weight.shape
    out = device.empty(Spec((rows, n), x.dtype))
    first, second = ([a and a.memory for a in layer] if layer else [None] * 3 for layer in (gate, up))
    kernel_of(device, macros)(
        *work_of(rows, n, macros), x.memory, *first, out.memory, None, *second, 0, 0, rows, n, k, k, pitch
    )
    return out


def _check(
    device: Device, macros: dict[str, Any], dtype: np.dtype, weight: Quantized | None, bias: np.dtype,
    epilogue: Epilogue,
) -> None:  # fmt: skip
    """Check the program of one of the products against NumPy, and the program of both against it, bit by bit.

    Raises:
        BackendError: A result is wrong, or memory outside the result was written.
    """
    generator, n, k = np.random.default_rng(0), 259, 64 * 35
    alone = macros | {"GATED": 0}
    if weight is None:
        skinny.check_program(device, dtype, alone, epilogue)
    else:
        skinny_quantized.check_program(device, dtype, bias, alone, weight, epilogue)

    def layer() -> Layer:
        shift = device.upload(generator.standard_normal(n).astype(bias)) if epilogue.bias else None
        if weight is None:
            return Layer(device.upload(generator.standard_normal((n, k)).astype(dtype)), None, shift)
        codes = generator.integers(-128, 128, (n, k * weight.bits // 8)).astype(np.int8).view(weight.codes)
        scale = (generator.random((n, k // 32) if weight.in_blocks else n) / 64).astype(weight.scale)
        return Layer(device.upload(codes), device.upload(scale), shift)

    with device.guarded():
        x = device.upload(generator.standard_normal((checked_rows(macros), k)).astype(dtype))
        gate, up = layer(), layer()
        found = device.download(_launch(device, macros, x, gate, up))
        factors = [_launch(device, alone, x, gate, None), _launch(device, alone | {"ACTIVATION": "none"}, x, up, None)]
        left, right = (device.download(factor).astype(float32) for factor in factors)
    if not np.array_equal(found, (left * right).astype(dtype)):
        raise BackendError("the result is wrong")


def _trial(device: Device) -> None:
    """Check programs of both dtypes and all forms of weights.

    Raises:
        BackendError: A program does not build or computes a wrong result.
    """
    for dtype, rows, bits in ((bfloat16, 8, 16), (float16, 1, 8), (bfloat16, 16, 4)):
        x, weight = device.empty(Spec((rows, 2048), dtype)), None
        layer = Layer(device.empty(Spec((4096, 2048), dtype)), None, None)
        if bits < 16:
            weight = Quantized(4096, 2048, bits, True, float16)
        epilogue = Epilogue(False, "silu")
        _check(device, _macros(device, x, weight, layer, epilogue), dtype, weight, dtype, epilogue)


VARIANT = Variant(
    "skinny_gated", "float16 and bfloat16, up to 64 rows, on NVIDIA GPUs from Ampere on", plan,
    may_suit=lambda features: features.architecture >= 80, stem="matmul_skinny", trial=_trial,
)  # fmt: skip
