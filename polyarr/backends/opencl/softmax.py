"""Softmax and log-softmax, forward and backward. What is saved is the result."""

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, moved, spec_of
from polyarr.backends.opencl.program import Program
from polyarr.backends.opencl.rows import row_launch, row_program, rows_of
from polyarr.core.spec import Spec


def softmax(device: Device, out: Spec, x: Buffer, *, axis: int) -> tuple[Buffer, Buffer]:
    """Softmax along axis."""
    return _forward(device, x, axis, in_logs=0)


def softmax_backward(
    device: Device, g: Buffer, saved: Buffer, x: Buffer, *, wanted: tuple[bool], axis: int
) -> tuple[Buffer]:
    """The gradient of softmax."""
    return _backward(device, g, saved, axis, in_logs=0)


def log_softmax(device: Device, out: Spec, x: Buffer, *, axis: int) -> tuple[Buffer, Buffer]:
    """The logarithm of softmax along axis."""
    return _forward(device, x, axis, in_logs=1)


def log_softmax_backward(
    device: Device, g: Buffer, saved: Buffer, x: Buffer, *, wanted: tuple[bool], axis: int
) -> tuple[Buffer]:
    """The gradient of log_softmax."""
    return _backward(device, g, saved, axis, in_logs=1)


def _forward(device: Device, x: Buffer, axis: int, in_logs: int) -> tuple[Buffer, Buffer]:
    """The result with axis back in its place, and as it was computed: with axis last."""
    x = dense(device, moved(x, axis, x.ndim - 1))
    y = device.empty(spec_of(x))
    rows, cols = rows_of(x.shape)
    work, group, each = row_launch(device, rows, cols)
    _program(device, x, cols, in_logs).softmax_forward(work, group, x.memory, y.memory, rows, cols, each)
    return moved(y, y.ndim - 1, axis), y


def _backward(device: Device, g: Buffer, y: Buffer, axis: int, in_logs: int) -> tuple[Buffer]:
    g = dense(device, moved(g, axis, g.ndim - 1))
    dx = device.empty(spec_of(y))
    rows, cols = rows_of(y.shape)
    work, group, each = row_launch(device, rows, cols)
    program = _program(device, y, cols, in_logs)
    program.softmax_backward(work, group, g.memory, y.memory, dx.memory, rows, cols, each)
    return (moved(dx, dx.ndim - 1, axis),)


def _program(device: Device, x: Buffer, cols: int, in_logs: int) -> Program:
    return row_program(device, "softmax", x.dtype, cols, IN_LOGS=in_logs)
