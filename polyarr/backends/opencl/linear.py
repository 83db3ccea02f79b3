"""A linear layer with its activation: y = activation(x @ weight.T + bias), and its gradients."""

from itertools import pairwise
from math import prod

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Buffer, Device, row_major
from polyarr.backends.opencl.matmul import Epilogue, multiply
from polyarr.backends.opencl.program import Program, spec_of
from polyarr.core.spec import Spec

CPU_LANES = {"LANES": 1, "WIDE": 32, "SLICES": 1}
GPU_LANES = {"LANES": 32, "WIDE": 1, "SLICES": 8}


def forward(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, *, activation: str | None
) -> tuple[Buffer, Buffer | None]:
    """The layer in one launch. Saves what the activation was applied to; the result serves for relu."""
    columns = weight.shape[0]
    shape = out.shape if len(out.shape) > 1 else (1, columns)
    x = x if x.ndim > 1 else x._replace(shape=(1, *x.shape), strides=(0, *x.strides))
    bias = None if bias is None else dense(device, bias)
    epilogue = Epilogue(bias is not None, activation or "none", activation not in (None, "relu"))
    y, saved = multiply(device, Spec(shape, out.dtype), x, _transposed(weight), bias, epilogue)
    y = _reshaped(y, out.shape)
    return y, y if activation == "relu" else saved


def backward(
    device: Device, g: Buffer, saved: Buffer | None, x: Buffer, weight: Buffer, bias: Buffer | None, *,
    wanted: tuple[bool, bool, bool], activation: str | None,
) -> tuple[Buffer | None, Buffer | None, Buffer | None]:  # fmt: skip
    """The gradients of x, weight and bias."""
    rows, depth = prod(x.shape[:-1]), weight.shape[1]
    gz, dbias = _through_activation(device, _matrix(device, g, rows), saved, bias if wanted[2] else None, activation)
    dx = dweight = None
    if wanted[0]:
        dx = _reshaped(multiply(device, Spec((rows, depth), x.dtype), gz, weight)[0], x.shape)
    if wanted[1]:
        dweight, _ = multiply(device, spec_of(weight), _transposed(gz), _matrix(device, x, rows))
    return dx, dweight, dbias


def _through_activation(
    device: Device, g: Buffer, saved: Buffer | None, bias: Buffer | None, activation: str | None
) -> tuple[Buffer, Buffer | None]:
    """The gradient before the activation, and that of the bias."""
    if activation is None and bias is None:
        return g, None
    g = dense(device, g)
    gz = g if activation is None else device.empty(spec_of(g))
    dbias = None if bias is None else device.empty(spec_of(bias))
    lanes = CPU_LANES if device.is_cpu else GPU_LANES
    groups = -(-g.shape[1] // (lanes["LANES"] * lanes["WIDE"]))
    _program(device, g, bias, activation).linear_gradient(
        (groups * lanes["LANES"], lanes["SLICES"]), (lanes["LANES"], lanes["SLICES"]),
        g.memory, saved and saved.memory, gz.memory, dbias and dbias.memory, *g.shape,
    )  # fmt: skip
    return gz, dbias


def _program(device: Device, g: Buffer, bias: Buffer | None, activation: str | None) -> Program:
    macros = Epilogue(bias is not None, activation or "none").macros(g.dtype)
    lanes = CPU_LANES if device.is_cpu else GPU_LANES
    return device.build("linear", **macros, **lanes, ACTIVATES=int(activation is not None))


def _matrix(device: Device, buf: Buffer, rows: int) -> Buffer:
    """buf (..., n) as (rows, n): a view where one stride walks the rows."""
    walk = [axis for axis in zip(buf.shape[:-1], buf.strides[:-1], strict=True) if axis[0] != 1]
    if any(outer != length * inner for (_, outer), (length, inner) in pairwise(walk)):
        return _reshaped(dense(device, buf), (rows, buf.shape[-1]))
    step = walk[-1][1] if walk else 0
    return buf._replace(shape=(rows, buf.shape[-1]), strides=(step, buf.strides[-1]))


def _reshaped(buf: Buffer, shape: tuple[int, ...]) -> Buffer:
    """A dense buffer in another shape."""
    return buf._replace(shape=shape, strides=row_major(shape))


def _transposed(matrix: Buffer) -> Buffer:
    return matrix._replace(shape=matrix.shape[::-1], strides=matrix.strides[::-1])
