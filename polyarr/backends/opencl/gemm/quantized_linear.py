"""Linear layers with quantized weights: GEMV kernels read the codes; many rows multiply a weight of floats."""

from math import prod

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import astype
from polyarr.backends.opencl.gemm import gemv
from polyarr.backends.opencl.gemm.dequantize import Quantized, dequantize, layer_macros
from polyarr.backends.opencl.gemm.matmul import product
from polyarr.backends.opencl.gemm.product import Epilogue, blocks_in
from polyarr.backends.opencl.rows.rows import wide
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, swapped
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.backends.opencl.runtime.vendor import vendor
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import Spec, float32


def quantized_linear(
    device: Device, out: Spec, x: Buffer, codes: Buffer, scale: Buffer, bias: Buffer | None, *,
    activation: str | None,
) -> Buffer:  # fmt: skip
    """Return activation(x @ weight.T + bias) of shape (..., n), where weight is codes * scale.

    x is (..., k), codes (n, k) int8 or (n, k / 2) uint8, scale (n,) or (n, k / 32), and bias (n,) or None.
    """
    weight, epilogue = Quantized.of(codes, scale), Epilogue(bias is not None, activation or "none")
    x = reshaped(dense(device, x), (prod(x.shape[:-1]), weight.k))
    if not (out.size and weight.k):
        return reshaped(_product(device, x, codes, scale, bias, epilogue), out.shape)
    arrays = x, dense(device, codes), dense(device, scale), x if bias is None else dense(device, bias)
    variants = *vendor().quantized, *VARIANTS
    found = choose(device, "quantized linear", variants, weight, epilogue, *arrays, device.empty(out))
    return reshaped(_product(device, x, codes, scale, bias, epilogue), out.shape) if found is None else found


def _product(
    device: Device, x: Buffer, codes: Buffer, scale: Buffer, bias: Buffer | None, epilogue: Epilogue
) -> Buffer:
    """Return activation(x @ weight.T + bias) for x (rows, k), with the weight converted to floats."""
    dtype = wide(x.dtype) if device.geometry.widens_products else x.dtype
    weight, bias = dequantize(device, dtype, codes, scale), None if bias is None else _as(device, bias, dtype)
    out = Spec((x.shape[0], codes.shape[0]), dtype)
    return _as(device, product(device, out, _as(device, x, dtype), swapped(weight), bias, epilogue)[0], x.dtype)


def _as(device: Device, buf: Buffer, dtype: np.dtype) -> Buffer:
    """Return buf, dense, in a dtype."""
    return dense(device, buf) if buf.dtype == dtype else astype(device, Spec(buf.shape, dtype), buf, dtype=dtype)


def _gemv_on_cpu(device: Device, weight: Quantized, epilogue: Epilogue, x: Buffer, *others: Buffer) -> Buffer | None:
    """Launch the kernel of CPUs, which reads x in the dtype in which sums are accumulated; None for many rows."""
    if x.shape[0] > device.geometry.quantized_rows:
        return None
    plan = device.plans[_cpu_plan](x.dtype, others[2].dtype, x.shape[0], weight, epilogue)
    return _launched(plan, _as(device, x, wide(x.dtype)), *others)


def _gemv_on_gpu(device: Device, weight: Quantized, epilogue: Epilogue, x: Buffer, *others: Buffer) -> Buffer | None:
    """Launch the GEMV kernel of GPUs; None for many rows."""
    if x.shape[0] > device.geometry.quantized_rows:
        return None
    plan = device.plans[gemv.plan_quantized](x.dtype, others[2].dtype, x.shape[0], weight, epilogue)
    return _launched(plan, x, *others)


def _launched(plan: LaunchPlan, *buffers: Buffer) -> Buffer:
    """Launch a plan, and return the last of the buffers, the result."""
    plan.kernel(plan.work, plan.group, *[b.memory for b in buffers], *plan.numbers)
    return buffers[-1]


def _cpu_plan(
    device: Device, dtype: np.dtype, bias: np.dtype, rows: int, weight: Quantized, epilogue: Epilogue
) -> LaunchPlan:
    """Plan tiles whose sums fit into the registers of a CPU."""
    lanes = vector_width(device) * float32.itemsize // wide(dtype).itemsize
    tile = min(1 << (rows - 1).bit_length(), 8 if lanes == 16 else 4)
    columns = 4 if tile <= 2 else 2
    each = blocks_in(device.geometry.gemv_columns(weight.n, True), columns) * columns
    macros = {**layer_macros(dtype, bias, weight, epilogue), "WIDE": lanes, "M": tile, "COLUMNS": columns}
    kernel = device.build("gemv_quantized", **macros).gemv_quantized
    return LaunchPlan(kernel, (blocks_in(weight.n, each),), (1,), (rows, weight.n, weight.k, each))


VARIANTS = (
    Variant("gemv_quantized", "up to 64 rows on CPUs", _gemv_on_cpu, "cpu"),
    Variant("gemv", "up to 8 rows on GPUs", _gemv_on_gpu, "gpu"),
)
