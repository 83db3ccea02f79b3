"""Softmax and log-softmax, forward and backward. Forward saves the result."""

from functools import partial

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.rows.rows import row_plan
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, moved, spec_of
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.core.spec import Spec

MAX_PLAIN_SUM = 2**16  # columns whose plain sums keep their digits on a CPU


def _plan(device: Device, which: str, like: Buffer, in_logs: int) -> LaunchPlan:
    is_long = int(like.shape[-1] > MAX_PLAIN_SUM and device.geometry.kind == "cpu")
    return device.plans[row_plan]("softmax", which, like.dtype, like.shape, IN_LOGS=in_logs, LONG=is_long)


def _forward(in_logs: int, device: Device, out: Spec, x: Buffer, *, axis: int) -> tuple[Buffer, Buffer]:
    """Return the result with axis moved back, and as it was computed, with axis last, for backward."""
    x = dense(device, moved(x, axis, x.ndim - 1))
    y = device.empty(spec_of(x))
    plan = _plan(device, "forward", x, in_logs)
    plan.kernel(plan.work, plan.group, x.memory, y.memory, *plan.numbers)
    return moved(y, y.ndim - 1, axis), y


def _backward(
    in_logs: int, device: Device, g: Buffer, y: Buffer, x: Buffer, *, wanted: tuple[bool], axis: int
) -> tuple[Buffer]:
    """Return the gradient, from the result with axis last."""
    g = dense(device, moved(g, axis, g.ndim - 1))
    dx = device.empty(spec_of(y))
    plan = _plan(device, "backward", y, in_logs)
    plan.kernel(plan.work, plan.group, g.memory, y.memory, dx.memory, *plan.numbers)
    return (moved(dx, dx.ndim - 1, axis),)


softmax, log_softmax = partial(_forward, 0), partial(_forward, 1)
softmax_backward, log_softmax_backward = partial(_backward, 0), partial(_backward, 1)
