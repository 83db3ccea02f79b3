"""Softmax and log-softmax, forward and backward. Forward saves the result."""

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.rows.rows import row_plan
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, moved, spec_of
from polyarr.core.spec import Spec


def softmax(device: Device, out: Spec, x: Buffer, *, axis: int) -> tuple[Buffer, Buffer]:
    """Return the softmax along axis, and the array saved for backward."""
    return _forward(device, x, axis, in_logs=0)


def softmax_backward(
    device: Device, g: Buffer, saved: Buffer, x: Buffer, *, wanted: tuple[bool], axis: int
) -> tuple[Buffer]:
    """Return the gradient of softmax."""
    return _backward(device, g, saved, axis, in_logs=0)


def log_softmax(device: Device, out: Spec, x: Buffer, *, axis: int) -> tuple[Buffer, Buffer]:
    """Return the log-softmax along axis, and the array saved for backward."""
    return _forward(device, x, axis, in_logs=1)


def log_softmax_backward(
    device: Device, g: Buffer, saved: Buffer, x: Buffer, *, wanted: tuple[bool], axis: int
) -> tuple[Buffer]:
    """Return the gradient of log_softmax."""
    return _backward(device, g, saved, axis, in_logs=1)


def _forward(device: Device, x: Buffer, axis: int, in_logs: int) -> tuple[Buffer, Buffer]:
    """Return the result with axis moved back, and as it was computed, with axis last."""
    x = dense(device, moved(x, axis, x.ndim - 1))
    y = device.empty(spec_of(x))
    plan = device.plans[row_plan]("softmax", "forward", x.dtype, x.shape, IN_LOGS=in_logs)
    plan.kernel(plan.work, plan.group, x.memory, y.memory, *plan.numbers)
    return moved(y, y.ndim - 1, axis), y


def _backward(device: Device, g: Buffer, y: Buffer, axis: int, in_logs: int) -> tuple[Buffer]:
    g = dense(device, moved(g, axis, g.ndim - 1))
    dx = device.empty(spec_of(y))
    plan = device.plans[row_plan]("softmax", "backward", y.dtype, y.shape, IN_LOGS=in_logs)
    plan.kernel(plan.work, plan.group, g.memory, y.memory, dx.memory, *plan.numbers)
    return (moved(dx, dx.ndim - 1, axis),)
