"""Linear layers whose weight each row chooses: a kernel for few rows reads the chosen weights where they are."""

from math import prod

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import astype
from polyarr.backends.opencl.gemm.dequantize import Quantized
from polyarr.backends.opencl.rows.rows import wide
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import types
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import Spec
from polyarr.ops.quantized import QUANTIZED_BLOCK

MAX_ROWS_PER_GROUP = 16  # rows up to which the kernel is faster than products of tiles, into which weights are copied
GPU_LANES, GPU_ROWS, GPU_WIDE = 32, 4, 4
HALF_BLOCK = QUANTIZED_BLOCK // 2
INT32 = np.dtype("int32")


def grouped_linear(device: Device, out: Spec, x: Buffer, weight: Buffer, groups: Buffer) -> Buffer:
    """Return y (..., n) for x (..., k), weight (e, n, k) and groups (...); NotImplemented for many rows."""
    rows, (count, n, k) = prod(groups.shape), weight.shape
    if rows > MAX_ROWS_PER_GROUP * count:  # shapes alone decide: captured functions replay the decision
        return NotImplemented
    return _launched(device, out, (rows, count, n, k), None, x, weight, groups)


def quantized_grouped_linear(
    device: Device, out: Spec, x: Buffer, codes: Buffer, scale: Buffer, groups: Buffer
) -> Buffer:
    """Return y (..., n) for x (..., k), codes (e, n, k) or (e, n, k / 2), scale and groups (...).

    NotImplemented for many rows.
    """
    rows, count, weight = prod(groups.shape), codes.shape[0], Quantized.of(codes, scale)
    if rows > MAX_ROWS_PER_GROUP * count:
        return NotImplemented
    x = x if x.dtype == wide(x.dtype) else astype(device, Spec(x.shape, wide(x.dtype)), x, dtype=wide(x.dtype))
    return _launched(device, out, (rows, count, weight.n, weight.k), weight, x, codes, scale, groups)


def _launched(
    device: Device, out: Spec, sizes: tuple[int, ...], weight: Quantized | None, *inputs: Buffer
) -> Buffer:
    """Launch the kernel of a weight; the last of the inputs are the groups."""
    fault = device.faults.call("grouped_linear" if weight is None else "quantized_grouped_linear")
    inputs, y = tuple(dense(device, a) for a in inputs), device.empty(out)
    if out.size:
        plan = device.plans[_plan](out.dtype, inputs[-1].dtype, sizes, weight)
        plan.kernel(plan.work, plan.group, *[a.memory for a in (*inputs, y)], *fault, *plan.numbers)
    return y


def _plan(
    device: Device, dtype: np.dtype, index: np.dtype, sizes: tuple[int, ...], weight: Quantized | None
) -> LaunchPlan:
    _, count, n, _ = sizes
    if device.geometry.kind == "cpu":
        # With a single vector of sums, a CPU would wait for each addition before it starts the next.
        lanes, lines, sums = 1, 1, 4 * vector_width(device)
        each = max(1, device.geometry.gemv_columns(n, True))
    else:
        lanes, lines, sums, each = GPU_LANES, GPU_ROWS, GPU_WIDE, 1
    macros = {**types(dtype), "LANES": lanes, "ROWS": lines, "INDEX": "int" if index == INT32 else "long"}
    if weight is None:
        kernel = device.build("grouped_linear", **macros, WIDE=sums).grouped_linear
    else:
        kernel = device.build("grouped_quantized", **macros, **weight.macros, WIDE=HALF_BLOCK).grouped_quantized
    work = (lanes, -(-n // (each * lines)) * lines, count)
    return LaunchPlan(kernel, work, (lanes, lines, 1), (*sizes, each))
