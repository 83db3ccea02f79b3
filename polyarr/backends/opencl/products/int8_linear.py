"""A linear layer whose weight is int8: few rows read it in place, for many it becomes a matrix of floats."""

from math import prod

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.elementwise import astype
from polyarr.backends.opencl.products import thin
from polyarr.backends.opencl.products.int8_scaling import macros_of, scaling_plan
from polyarr.backends.opencl.products.matmul import product
from polyarr.backends.opencl.products.product import Epilogue
from polyarr.backends.opencl.rows import wide
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, swapped
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import Spec

FEW_ROWS = 8  # up to as many it is faster to read bytes again than to write floats


def int8_linear(
    device: Device, out: Spec, x: Buffer, weight: Buffer, scale: Buffer, bias: Buffer | None, *,
    activation: str | None,
) -> Buffer:  # fmt: skip
    """activation(x @ weight.T * scale + bias)."""
    (n, depth), rows = weight.shape, prod(x.shape[:-1])
    x, y = reshaped(dense(device, x), (rows, depth)), device.empty(out)
    if not out.size:
        return y
    scale = _as_wide(device, scale, x.dtype)
    epilogue = Epilogue(bias is not None, activation or "none")
    bias = scale if bias is None else dense(device, bias)
    if rows > FEW_ROWS:
        plan, given = device.plans[scaling_plan](x.dtype, bias.dtype, rows, n, epilogue), [_product(device, x, weight)]
    else:
        given = [x, dense(device, weight)]
        plan = device.plans[FAMILIES[device.geometry.kind]](x.dtype, bias.dtype, rows, n, depth, epilogue)
    plan.kernel(plan.work, plan.group, *[b.memory for b in (*given, scale, bias, y)], *plan.numbers)
    return y


def _product(device: Device, x: Buffer, weight: Buffer) -> Buffer:
    """That of x and the codes, as floats."""
    x, weight = (_as_wide(device, a, x.dtype) for a in (x, weight))
    return product(device, Spec((x.shape[0], weight.shape[0]), x.dtype), x, swapped(weight))[0]


def _as_wide(device: Device, buf: Buffer, dtype: np.dtype) -> Buffer:
    """buf, dense, in the dtype that sums of dtype are kept in."""
    due = wide(dtype)
    return dense(device, buf) if buf.dtype == due else astype(device, Spec(buf.shape, due), buf, dtype=due)


def _cpu_plan(
    device: Device, dtype: np.dtype, bias: np.dtype, rows: int, n: int, depth: int, epilogue: Epilogue
) -> LaunchPlan:
    # One vector of sums is not enough for a CPU: it would wait for each sum before the next.
    lanes, each = {"LANES": 1, "ROWS": 1, "WIDE": 4 * vector_width(device)}, device.geometry.thin_columns(n, True)
    program = device.build("int8_linear", **macros_of(dtype, bias, epilogue), **lanes)
    return LaunchPlan(program.int8_linear, (1, -(-n // each)), (1, 1), (rows, n, depth, each))


FAMILIES = {"cpu": _cpu_plan, "gpu": thin.plan_of_bytes}
