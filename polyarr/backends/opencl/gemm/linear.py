"""Linear layers with their activation, y = activation(x @ weight.T + bias), and their gradients."""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.copying.shape import reshape
from polyarr.backends.opencl.elementwise.gelu import through
from polyarr.backends.opencl.gemm.matmul import SUM, product
from polyarr.backends.opencl.gemm.product import PLAIN, Epilogue
from polyarr.backends.opencl.rows.rows import alike, dense_or_none, wide
from polyarr.backends.opencl.runtime.commands import InPlace
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, broadcast, reshaped, spec_of, swapped
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import vector_types
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.core.spec import Spec

IN_PLACE = (InPlace(0, 2), InPlace(1, 2))  # gz may overwrite g or z
CUT = {"LANES": 32, "SLICES": 8, "DEPTH": 4}  # of a GPU's work-group, see linear_gpu.cl
BLOCK, MAX_BLOCKS = 64, 32768  # rows of a GPU's work-group, and the largest number of such row blocks


def forward(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, *, activation: str | None,
    precision: str = "highest",
) -> Any:  # fmt: skip
    """Compute the layer in one launch, and save the activation's input; relu saves its output instead."""
    if not alike(x, bias):
        return NotImplemented
    columns = weight.shape[0]
    shape = out.shape if len(out.shape) > 1 else (1, columns)
    x = x if x.ndim > 1 else broadcast(x, (1, *x.shape))
    bias = dense_or_none(device, bias)
    saves = activation not in (None, "relu")
    epilogue = Epilogue(bias is not None, activation or "none", saves, precision, pads=activation is None)
    y, saved = product(device, Spec(shape, out.dtype), x, swapped(weight), bias, epilogue)
    y = y if y.shape == out.shape else reshaped(y, out.shape)  # a single row, which has no padding
    return y, y if activation == "relu" else saved


def backward(
    device: Device, g: Buffer, saved: Buffer | None, x: Buffer, weight: Buffer, bias: Buffer | None, *,
    wanted: tuple[bool, bool, bool], activation: str | None, precision: str = "highest",
) -> tuple[Buffer | None, Buffer | None, Buffer | None]:  # fmt: skip
    """Return the gradients of x, weight and bias."""
    rows, depth = prod(x.shape[:-1]), weight.shape[1]
    gz, dbias = through_activation(device, _matrix(device, g, rows), saved, bias if wanted[2] else None, activation)
    dx, dweight, epilogue = None, None, PLAIN._replace(precision=precision)
    if wanted[1]:
        dweight, _ = product(device, spec_of(weight), swapped(gz), _matrix(device, x, rows), None, epilogue)
    if wanted[0]:  # last: in a replay x is dead by then, so dx may reuse its memory
        dx = reshaped(product(device, Spec((rows, depth), x.dtype), gz, weight, None, epilogue)[0], x.shape)
    return dx, dweight, dbias


def through_activation(
    device: Device, g: Buffer, saved: Buffer | None, bias: Buffer | None, activation: str | None
) -> tuple[Buffer, Buffer | None]:
    """Return the gradient before the activation, and the gradient of the bias."""
    if activation is None and bias is None:
        return g, None
    return choose(device, "linear gradient", VARIANTS, dense(device, g), saved, bias, activation)


def _in_passes(
    device: Device, g: Buffer, saved: Buffer | None, bias: Buffer | None, activation: str | None
) -> tuple[Buffer, Buffer | None]:
    """Launch an elementwise kernel, and a sum."""
    gz = g if activation is None or saved is None else through(device, g, saved, activation)
    return gz, None if bias is None else SUM(device, spec_of(bias), gz, axis=(0,))


def _gradient_of_blocks(
    device: Device, g: Buffer, saved: Buffer | None, bias: Buffer | None, activation: str | None
) -> tuple[Buffer, Buffer | None]:
    """Launch the kernel whose work-groups take blocks of rows and columns, and add up their partial sums."""
    gz = g if activation is None else device.empty(spec_of(g))
    plan = device.plans[_blocks_plan](g.shape, g.dtype, bias is not None, activation)
    blocks = plan.work[1] // plan.group[1]
    partials = None if bias is None else device.empty(Spec((blocks, g.shape[1]), wide(g.dtype)))
    arrays = g.memory, saved and saved.memory, gz.memory, partials and partials.memory
    plan.kernel(plan.work, plan.group, *arrays, *plan.numbers)
    return gz, None if bias is None or partials is None else SUM(device, spec_of(bias), partials, axis=(0,))


def _blocks_plan(
    device: Device, shape: tuple[int, int], dtype: np.dtype, bias: bool, activation: str | None
) -> LaunchPlan:
    rows, n = shape
    vector = device.geometry.vector(dtype.itemsize)
    vector = 1 if n % vector else vector
    lanes, slices, rows_each = CUT["LANES"], CUT["SLICES"], max(BLOCK, -(-rows // MAX_BLOCKS))
    macros = Epilogue(bias, activation or "none").macros(dtype)
    program = device.build(
        "linear_gpu", **macros, **CUT, VECTOR=vector, **vector_types(dtype, vector),
        ACTIVATES=int(activation is not None),
    )  # fmt: skip
    work = (-(-n // (lanes * vector)) * lanes, -(-rows // rows_each) * slices)
    program.linear_gradient.in_place = IN_PLACE if activation else ()
    return LaunchPlan(program.linear_gradient, work, (lanes, slices), (rows, n, rows_each))


VARIANTS = (
    Variant("passes", "an elementwise kernel, and a sum, on CPUs", _in_passes, "cpu"),
    Variant("blocks", "work-groups take blocks of rows and columns, on GPUs", _gradient_of_blocks, "gpu"),
)


def _matrix(device: Device, buf: Buffer, rows: int) -> Buffer:
    """Return buf (..., n) as a matrix (rows, n)."""
    out = Spec((rows, buf.shape[-1]), buf.dtype)
    return reshape(device, out, buf, shape=out.shape)
