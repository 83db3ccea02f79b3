"""Root-mean-square norm, forward and backward. What is saved is each row's reciprocal root mean square."""

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, spec_of
from polyarr.backends.opencl.program import Program
from polyarr.backends.opencl.rows import column_sums, dense_or_none, row_launch, row_program, rows_of, wide
from polyarr.core.spec import Spec


def rms_norm(device: Device, out: Spec, x: Buffer, weight: Buffer | None, *, eps: float) -> tuple[Buffer, Buffer]:
    """Divide by the root of the mean square of the last axis, then scale; weight may be None."""
    x, weight = dense(device, x), dense_or_none(device, weight)
    rows, cols = rows_of(x.shape)
    y, saved = device.empty(out), device.empty(Spec((rows,), wide(x.dtype)))
    work, group, each = row_launch(device, rows, cols)
    _program(device, x, weight).rms_norm_forward(
        work, group, x.memory, (weight or x).memory, y.memory, saved.memory, eps, rows, cols, each
    )
    return y, saved


def rms_norm_backward(
    device: Device, g: Buffer, saved: Buffer, x: Buffer, weight: Buffer | None,
    *, wanted: tuple[bool, bool], eps: float,
) -> tuple[Buffer, Buffer | None]:  # fmt: skip
    """The gradients of x and weight; that of x comes with the other."""
    g, x, w = dense(device, g), dense(device, x), dense_or_none(device, weight)
    rows, cols = rows_of(x.shape)
    dx = device.empty(spec_of(x))
    work, group, each = row_launch(device, rows, cols, persistent=True)
    dweight = device.empty(Spec((work[1], cols), saved.dtype)) if wanted[1] else None
    _program(device, x, weight, wanted[1]).rms_norm_backward(
        work, group, g.memory, x.memory, (w or x).memory, saved.memory, dx.memory, (dweight or saved).memory,
        rows, cols, each,
    )  # fmt: skip
    return dx, column_sums(device, weight, dweight)


def _program(device: Device, x: Buffer, weight: Buffer | None, wanted: bool = True) -> Program:
    has = weight is not None
    return row_program(device, "rms_norm", x.dtype, x.shape[-1], HAS_WEIGHT=int(has), WANTS_WEIGHT=int(has and wanted))
