"""Layer norm, forward and backward. What is saved is each row's mean and reciprocal deviation."""

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, spec_of
from polyarr.backends.opencl.program import Program
from polyarr.backends.opencl.rows import column_sums, dense_or_none, row_launch, row_program, rows_of, wide
from polyarr.core.spec import Spec


def layer_norm(
    device: Device, out: Spec, x: Buffer, weight: Buffer | None, bias: Buffer | None, *, eps: float
) -> tuple[Buffer, Buffer]:
    """Normalise the last axis, then scale and shift; weight and bias may be None."""
    x, weight, bias = dense(device, x), dense_or_none(device, weight), dense_or_none(device, bias)
    rows, cols = rows_of(x.shape)
    y, saved = device.empty(out), device.empty(Spec((rows, 2), wide(x.dtype)))
    work, group, each = row_launch(device, rows, cols)
    _program(device, x, weight, bias).layer_norm_forward(
        work, group, x.memory, (weight or x).memory, (bias or x).memory, y.memory, saved.memory,
        eps, rows, cols, each,
    )  # fmt: skip
    return y, saved


def layer_norm_backward(
    device: Device, g: Buffer, saved: Buffer, x: Buffer, weight: Buffer | None, bias: Buffer | None,
    *, wanted: tuple[bool, bool, bool], eps: float,
) -> tuple[Buffer, Buffer | None, Buffer | None]:  # fmt: skip
    """The gradients of x, weight and bias; that of x comes with the others."""
    g, x, w = dense(device, g), dense(device, x), dense_or_none(device, weight)
    rows, cols = rows_of(x.shape)
    dx = device.empty(spec_of(x))
    work, group, each = row_launch(device, rows, cols, persistent=True)
    partials = Spec((work[1], cols), saved.dtype)
    dweight, dbias = (device.empty(partials) if want else None for want in wanted[1:])
    _program(device, x, weight, bias, wanted[1:]).layer_norm_backward(
        work, group, g.memory, x.memory, (w or x).memory, saved.memory, dx.memory,
        (dweight or saved).memory, (dbias or saved).memory, rows, cols, each,
    )  # fmt: skip
    return dx, column_sums(device, weight, dweight), column_sums(device, bias, dbias)


def _program(
    device: Device, x: Buffer, weight: Buffer | None, bias: Buffer | None, wanted: tuple[bool, ...] = (True, True)
) -> Program:
    """The program; by default one whose backward kernel gives all gradients, so that forward mostly shares it."""
    present = {"HAS_WEIGHT": int(weight is not None), "HAS_BIAS": int(bias is not None)}
    asked = {"WANTS_WEIGHT": int(wanted[0] and weight is not None), "WANTS_BIAS": int(wanted[1] and bias is not None)}
    return row_program(device, "layer_norm", x.dtype, x.shape[-1], **present, **asked)
