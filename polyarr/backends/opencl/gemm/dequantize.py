"""Quantized weights as kernels read them, and the kernel that converts them to floats."""

from typing import Any, NamedTuple, Self

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.gemm.product import Epilogue
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import types
from polyarr.core.spec import Spec, int8, uint8
from polyarr.ops.quantized import QUANTIZED_BLOCK


class Quantized(NamedTuple):
    """A quantized weight (n, k) without its arrays.

    Attributes:
        bits: Bits of a code, 8 or 4.
        in_blocks: Whether each block of 32 codes along k has a scale of its own; otherwise each row has.
        scale: Dtype of the scales.
    """

    n: int
    k: int
    bits: int
    in_blocks: bool
    scale: np.dtype

    @classmethod
    def of(cls, codes: Buffer, scale: Buffer) -> Self:
        """Return the weight of these arrays, which may have a leading axis of several weights."""
        bits = 4 if codes.dtype == uint8 else 8
        return cls(codes.shape[-2], codes.shape[-1] * 8 // bits, bits, scale.ndim == codes.ndim, scale.dtype)

    @property
    def codes(self) -> np.dtype:
        """The dtype of the codes."""
        return int8 if self.bits == 8 else uint8

    @property
    def macros(self) -> dict[str, Any]:
        """The macros for how kernels read the weight."""
        found = types(self.scale)
        stored = {"CODE_T": types(self.codes)["T"], "SCALE_T": found["T"], "SCALE_LOAD": found["LOAD"]}
        return {"BITS": self.bits, "IN_BLOCKS": int(self.in_blocks), **stored}


def dequantize(device: Device, dtype: np.dtype, codes: Buffer, scale: Buffer) -> Buffer:
    """Return the weight (n, k) of codes and scale in a floating-point dtype."""
    weight = Quantized.of(codes, scale)
    y = device.empty(Spec((weight.n, weight.k), dtype))
    if y.size:
        plan = device.plans[_dequantizing](dtype, weight)
        arrays = dense(device, codes).memory, dense(device, scale).memory, y.memory
        plan.kernel(plan.work, plan.group, *arrays, *plan.numbers)
    return y


def _dequantizing(device: Device, dtype: np.dtype, weight: Quantized) -> LaunchPlan:
    """Plan a kernel whose work-items convert runs of codes: whole blocks on CPUs, the elements of a vector on GPUs."""
    run = QUANTIZED_BLOCK if device.geometry.kind == "cpu" else device.geometry.vector(dtype.itemsize)
    run = 1 if weight.k % run else run
    cut = device.geometry.items(weight.n * weight.k // run)
    kernel = device.build("dequantize", **types(dtype), **weight.macros, RUN=run).dequantize
    return LaunchPlan(kernel, cut.work, cut.group, (weight.n * weight.k // run, weight.k // run, cut.each))


def layer_macros(dtype: np.dtype, bias: np.dtype, weight: Quantized, epilogue: Epilogue) -> dict[str, Any]:
    """Return the macros of a layer with a quantized weight. The bias is read in the dtype in which it is stored."""
    stored = types(bias)
    return {**epilogue.macros(dtype), **weight.macros, "BIAS_T": stored["T"], "BIAS_LOAD": stored["LOAD"]}
