"""Cross entropy, forward and backward; losses.cl has the formulas.

Forward saves the largest logit and the log of the sum of exponentials of each row, and the divisor of the loss,
which stays on the device.
"""

from polyarr.backends.opencl.copying.copy import dense, in_rows, padded
from polyarr.backends.opencl.rows.rows import row_plan, wide
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, spec_of
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import STORED
from polyarr.core.spec import Spec

Saved = tuple[Buffer, Buffer]


def cross_entropy(
    device: Device, out: Spec, logits: Buffer, targets: Buffer,
    *, ignore_index: int, label_smoothing: float, reduction: str,
) -> tuple[Buffer, Saved]:  # fmt: skip
    """Return the loss of logits (..., V) against targets (...), reduced by mean, sum or not at all."""
    fault = device.faults.call("cross_entropy")
    (x, pitch), targets = in_rows(device, logits), dense(device, targets)
    plan = _plan(device, "forward", x, x.shape, targets, reduction, label_smoothing)
    rows, acc = plan.numbers[0], wide(x.dtype)
    saved, loss = device.empty(Spec((rows, 2), acc)), device.empty(out)
    losses = loss if reduction == "none" else device.empty(Spec((rows,), acc))
    arrays = x.memory, targets.memory, losses.memory, saved.memory
    plan.kernel(plan.work, plan.group, *arrays, *fault, ignore_index, label_smoothing, pitch, *plan.numbers)
    if reduction == "none":
        return loss, (saved, saved)
    divisor = device.empty(Spec((), acc))
    plan = _plan(device, "reduce", x, (1, rows), targets, reduction, label_smoothing)
    arrays = losses.memory, targets.memory, loss.memory, divisor.memory
    plan.kernel(plan.work, plan.group, *arrays, ignore_index, int(reduction == "mean"), rows)
    return loss, (saved, divisor)


def cross_entropy_backward(
    device: Device, g: Buffer, saved: Saved, logits: Buffer, targets: Buffer,
    *, wanted: tuple[bool, bool], ignore_index: int, label_smoothing: float, reduction: str,
) -> tuple[Buffer, None]:  # fmt: skip
    """Return the gradient of the logits: (softmax - smoothed one-hot target) * g / divisor."""
    g, targets, (x, pitch) = dense(device, g), dense(device, targets), in_rows(device, logits)
    dx = padded(device, spec_of(x), pitch)
    statistics, divisor = saved
    plan = _plan(device, "backward", x, x.shape, targets, reduction, label_smoothing)
    arrays = g.memory, x.memory, targets.memory, statistics.memory, divisor.memory, dx.memory
    plan.kernel(plan.work, plan.group, *arrays, ignore_index, label_smoothing, pitch, *plan.numbers)
    return dx, None


def cross_entropy_and_gradient(
    device: Device, out: tuple[Spec, Spec], g: Buffer, logits: Buffer, targets: Buffer,
    *, ignore_index: int, label_smoothing: float,
) -> tuple[Buffer, Buffer]:  # fmt: skip
    """Return the losses, and the gradient of the logits for the cotangent g of the losses."""
    logits, _ = in_rows(device, logits)
    losses, saved = cross_entropy(
        device, out[0], logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )
    gradient, _ = cross_entropy_backward(
        device, g, saved, logits, targets, wanted=(True, False), ignore_index=ignore_index,
        label_smoothing=label_smoothing, reduction="none",
    )  # fmt: skip
    return losses, gradient


def _plan(
    device: Device, which: str, x: Buffer, shape: tuple[int, ...], targets: Buffer, reduction: str, smoothing: float
) -> LaunchPlan:
    """Plan the launch of a kernel along the rows of an array of this shape."""
    flags = {"REDUCED": int(reduction != "none"), "SMOOTHED": int(smoothing != 0)}
    index = STORED[targets.dtype][0]
    return device.plans[row_plan]("cross_entropy", which, x.dtype, shape, INDEX=index, **flags)
