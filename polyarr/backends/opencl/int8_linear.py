"""A linear layer whose weight is int8: few rows read it in place, for many it becomes a matrix of floats."""

from collections.abc import Callable
from math import prod

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.elementwise import EXPRESSIONS, astype, launch
from polyarr.backends.opencl.layout import Buffer, reshaped, swapped
from polyarr.backends.opencl.matmul import product
from polyarr.backends.opencl.plans import LaunchPlan
from polyarr.backends.opencl.program import types
from polyarr.backends.opencl.rows import wide
from polyarr.backends.opencl.tuning import vector_width
from polyarr.core.spec import Spec

FEW_ROWS = 8  # up to as many it is faster to read bytes again than to write floats


def int8_linear(device: Device, out: Spec, x: Buffer, weight: Buffer, scale: Buffer) -> Buffer:
    """x @ weight.T * scale."""
    (n, depth), rows = weight.shape, prod(x.shape[:-1])
    x = reshaped(dense(device, x), (rows, depth))
    scale = dense(device, _as_wide(device, scale, x.dtype))
    if rows > FEW_ROWS or not out.size:
        return reshaped(_of_floats(device, Spec((rows, n), out.dtype), x, weight, scale), out.shape)
    y, weight = device.empty(out), dense(device, weight)
    plan = device.plans[_plan](x.dtype, rows, n, depth)
    plan.kernel(plan.work, plan.group, x.memory, weight.memory, scale.memory, y.memory, *plan.numbers)
    return y


def _of_floats(device: Device, out: Spec, x: Buffer, weight: Buffer, scale: Buffer) -> Buffer:
    x, weight = (_as_wide(device, a, x.dtype) for a in (x, weight))
    y, _ = product(device, Spec(out.shape, x.dtype), x, swapped(weight))
    return launch(device, out, y, reshaped(scale, (1, scale.size)), expression=EXPRESSIONS["multiply"])


def _as_wide(device: Device, buf: Buffer, dtype: np.dtype) -> Buffer:
    """buf in the dtype that sums of dtype are kept in."""
    due = wide(dtype)
    return buf if buf.dtype == due else astype(device, Spec(buf.shape, due), buf, dtype=due)


def _plan(device: Device, dtype: np.dtype, rows: int, n: int, depth: int) -> LaunchPlan:
    lanes = FAMILIES[device.geometry.kind](device)
    program = device.build("int8_linear", **types(dtype), **lanes)
    each = device.geometry.thin_columns(n, True)
    group = lanes["LANES"], lanes["ROWS"]
    work = lanes["LANES"], -(-n // (each * lanes["ROWS"])) * lanes["ROWS"]
    return LaunchPlan(program.int8_linear, work, group, (rows, n, depth, each))


# One vector of sums is not enough for a CPU: it would wait for each sum before the next.
FAMILIES: dict[str, Callable[[Device], dict[str, int]]] = {
    "cpu": lambda device: {"LANES": 1, "ROWS": 1, "WIDE": 4 * vector_width(device)},
    "gpu": lambda device: {"LANES": 32, "ROWS": 4, "WIDE": 4},
}
