"""Linear layers with int8 weights: a GEMV kernel reads int8 directly; for many rows the weight is converted to floats.
"""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import astype
from polyarr.backends.opencl.gemm import gemv
from polyarr.backends.opencl.gemm.int8_scaling import macros_of, scaling_plan
from polyarr.backends.opencl.gemm.matmul import product
from polyarr.backends.opencl.gemm.product import Epilogue
from polyarr.backends.opencl.rows.rows import wide
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, swapped
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import Spec

MAX_GEMV_ROWS = 8  # rows of x up to which reading int8 again is faster than writing the weight as floats


def int8_linear(
    device: Device, out: Spec, x: Buffer, weight: Buffer, scale: Buffer, bias: Buffer | None, *,
    activation: str | None,
) -> Buffer:  # fmt: skip
    """Return activation(x @ weight.T * scale + bias) of shape (..., n).

    x is (..., depth), weight (n, depth) int8, scale (n,) and bias (n,) or None.
    """
    (n, depth), rows = weight.shape, prod(x.shape[:-1])
    x, y = reshaped(dense(device, x), (rows, depth)), device.empty(out)
    if not out.size:
        return y
    scale = _as_wide(device, scale, x.dtype)
    epilogue = Epilogue(bias is not None, activation or "none")
    bias = scale if bias is None else dense(device, bias)
    if rows > MAX_GEMV_ROWS:
        plan, given = device.plans[scaling_plan](x.dtype, bias.dtype, rows, n, epilogue), [_product(device, x, weight)]
    else:
        given = [x, dense(device, weight)]
        plan = device.plans[_gemv_plan](x.dtype, bias.dtype, rows, n, depth, epilogue)
    plan.kernel(plan.work, plan.group, *[b.memory for b in (*given, scale, bias, y)], *plan.numbers)
    return y


def _product(device: Device, x: Buffer, weight: Buffer) -> Buffer:
    """Return x @ weight.T with the int8 weight converted to the accumulator dtype of x."""
    x, weight = (_as_wide(device, a, x.dtype) for a in (x, weight))
    return product(device, Spec((x.shape[0], weight.shape[0]), x.dtype), x, swapped(weight))[0]


def _as_wide(device: Device, buf: Buffer, dtype: np.dtype) -> Buffer:
    """Return buf, dense, in the dtype in which sums of dtype are accumulated."""
    due = wide(dtype)
    return dense(device, buf) if buf.dtype == due else astype(device, Spec(buf.shape, due), buf, dtype=due)


def _cpu_plan(
    device: Device, dtype: np.dtype, bias: np.dtype, rows: int, n: int, depth: int, epilogue: Epilogue
) -> LaunchPlan:
    """Plan the GEMV kernel of a CPU."""
    # With a single vector of sums, a CPU would wait for each addition before it starts the next.
    lanes, each = {"LANES": 1, "ROWS": 1, "WIDE": 4 * vector_width(device)}, device.geometry.gemv_columns(n, True)
    program = device.build("int8_linear", **macros_of(dtype, bias, epilogue), **lanes)
    return LaunchPlan(program.int8_linear, (1, -(-n // each)), (1, 1), (rows, n, depth, each))


def _gemv_plan(device: Device, *problem: Any) -> LaunchPlan:
    return choose(device, "int8 linear", VARIANTS, *problem)


VARIANTS = (
    Variant("gemv", "up to 8 rows on CPUs", _cpu_plan, "cpu"),
    Variant("gemv", "up to 8 rows on GPUs", gemv.plan_int8, "gpu"),
)
