"""A linear layer whose weight is int8: few rows read it in place, for many it becomes a matrix of floats."""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.elementwise import astype
from polyarr.backends.opencl.products.int8_scaling import macros_of, scaling_plan
from polyarr.backends.opencl.products.matmul import product
from polyarr.backends.opencl.products.product import Epilogue
from polyarr.backends.opencl.rows import wide
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, swapped
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import vector_types
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
        plan = device.plans[_plan](x.dtype, bias.dtype, rows, n, depth, epilogue)
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


def _plan(
    device: Device, dtype: np.dtype, bias: np.dtype, rows: int, n: int, depth: int, epilogue: Epilogue
) -> LaunchPlan:
    family = FAMILIES[device.geometry.kind]
    lanes = family.lanes(device, dtype, n, depth)
    program = device.build(family.file, **macros_of(dtype, bias, epilogue), **lanes)
    each = lanes.get("AHEAD") or device.geometry.thin_columns(n, True)
    work = lanes["LANES"], -(-n // (each * lanes["ROWS"])) * lanes["ROWS"]
    return LaunchPlan(program.int8_linear, work, (lanes["LANES"], lanes["ROWS"]), (rows, n, depth, each))


def _cpu_lanes(device: Device, dtype: np.dtype, n: int, depth: int) -> dict[str, Any]:
    # One vector of sums is not enough for a CPU: it would wait for each sum before the next.
    return {"LANES": 1, "ROWS": 1, "WIDE": 4 * vector_width(device)}


def _gpu_lanes(device: Device, dtype: np.dtype, n: int, depth: int) -> dict[str, Any]:
    vector = 1 if depth % VECTOR or dtype.itemsize * VECTOR > 16 else VECTOR
    ahead = AHEAD if n > MANY else 1
    return {
        "LANES": 32, "ROWS": 4, "WIDE": 1, "AHEAD": ahead, "VECTOR": vector, **vector_types(dtype, vector),
        "CODES": "char" + str(vector) * (vector > 1),
    }  # fmt: skip


VECTOR, AHEAD, MANY = 4, 4, 1 << 14  # codes that a work-item reads at once; columns of a line, where there are many


class Family(NamedTuple):
    """The kernel for a kind of device, and how its work-items go along a row of weights."""

    file: str
    lanes: Callable[[Device, np.dtype, int, int], dict[str, Any]]


FAMILIES = {"cpu": Family("int8_linear", _cpu_lanes), "gpu": Family("int8_linear_gpu", _gpu_lanes)}
