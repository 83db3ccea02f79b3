"""Linear layers whose weight each row chooses: a kernel for few rows reads the chosen weights where they are."""

from math import prod

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import types
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import Spec

MAX_ROWS_PER_GROUP = 16  # rows up to which the kernel is faster than products of tiles, into which weights are copied
GPU_LANES, GPU_ROWS, GPU_WIDE = 32, 4, 4
INT32 = np.dtype("int32")


def grouped_linear(device: Device, out: Spec, x: Buffer, weight: Buffer, groups: Buffer) -> Buffer:
    """Return y (..., n) for x (..., k), weight (e, n, k) and groups (...); NotImplemented for many rows."""
    rows, (count, n, k) = prod(groups.shape), weight.shape
    if rows > MAX_ROWS_PER_GROUP * count:  # shapes alone decide: captured functions replay the decision
        return NotImplemented
    fault = device.faults.call()
    x, weight, groups, y = dense(device, x), dense(device, weight), dense(device, groups), device.empty(out)
    if out.size:
        plan = device.plans[_plan](x.dtype, groups.dtype, rows, count, n, k)
        memory = (x.memory, weight.memory, groups.memory, y.memory)
        plan.kernel(plan.work, plan.group, *memory, *fault, *plan.numbers)
    return y


def _plan(device: Device, dtype: np.dtype, index: np.dtype, rows: int, count: int, n: int, k: int) -> LaunchPlan:
    if device.geometry.kind == "cpu":
        # With a single vector of sums, a CPU would wait for each addition before it starts the next.
        lanes, lines, wide = 1, 1, 4 * vector_width(device)
        each = max(1, device.geometry.gemv_columns(n, True))
    else:
        lanes, lines, wide, each = GPU_LANES, GPU_ROWS, GPU_WIDE, 1
    macros = {"LANES": lanes, "ROWS": lines, "WIDE": wide, "INDEX": "int" if index == INT32 else "long"}
    kernel = device.build("grouped_linear", **types(dtype), **macros).grouped_linear
    work = (lanes, -(-n // (each * lines)) * lines, count)
    return LaunchPlan(kernel, work, (lanes, lines, 1), (rows, count, n, k, each))
