"""The epilogue of a linear layer with int8 weights: scales, bias and activation."""

from typing import Any

import numpy as np

from polyarr.backends.opencl.gemm.product import Epilogue
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import types


def scaling_plan(
    device: Device, dtype: np.dtype, bias: np.dtype, rows: int, n: int, epilogue: Epilogue
) -> LaunchPlan:
    """Plan the kernel that scales the float product of x and the int8 weight, and adds bias and activation."""
    cut = device.geometry.items(rows * n)
    kernel = device.build("int8_scaling", **macros_of(dtype, bias, epilogue)).int8_scaling
    return LaunchPlan(kernel, cut.work, cut.group, (rows * n, n, cut.each))


def macros_of(dtype: np.dtype, bias: np.dtype, epilogue: Epilogue) -> dict[str, Any]:
    """Return the macros of the epilogue. The bias is read in the dtype in which it is stored."""
    stored = types(bias)
    return {**epilogue.macros(dtype), "BIAS_T": stored["T"], "BIAS_LOAD": stored["LOAD"]}
