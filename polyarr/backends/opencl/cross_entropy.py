"""Cross entropy, forward and backward.

What is saved is each row's largest logit and the logarithm of its sum, and what the loss was divided by, which
stays on the device.
"""

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, spec_of
from polyarr.backends.opencl.program import STORED, Program
from polyarr.backends.opencl.rows import row_launch, row_program, rows_of, wide
from polyarr.core.spec import Spec

Saved = tuple[Buffer, Buffer]


def cross_entropy(
    device: Device, out: Spec, logits: Buffer, targets: Buffer,
    *, ignore_index: int, label_smoothing: float, reduction: str,
) -> tuple[Buffer, Saved]:  # fmt: skip
    """The loss of logits (..., V) against targets (...), reduced by mean, sum or not at all."""
    fault = device.faults.call()
    x, targets = dense(device, logits), dense(device, targets)
    rows, cols = rows_of(x.shape)
    acc = wide(x.dtype)
    saved, loss = device.empty(Spec((rows, 2), acc)), device.empty(out)
    losses = loss if reduction == "none" else device.empty(Spec((rows,), acc))
    work, group, each = row_launch(device, rows, cols)
    _program(device, x, targets, cols, reduction, label_smoothing).cross_entropy_forward(
        work, group, x.memory, targets.memory, losses.memory, saved.memory, *fault,
        ignore_index, label_smoothing, rows, cols, each,
    )  # fmt: skip
    if reduction == "none":
        return loss, (saved, saved)
    divisor = device.empty(Spec((), acc))
    program = _program(device, x, targets, rows, reduction, label_smoothing)
    _, group, _ = row_launch(device, 1, rows)
    program.cross_entropy_reduce(
        group, group, losses.memory, targets.memory, loss.memory, divisor.memory,
        ignore_index, int(reduction == "mean"), rows,
    )  # fmt: skip
    return loss, (saved, divisor)


def cross_entropy_backward(
    device: Device, g: Buffer, saved: Saved, logits: Buffer, targets: Buffer,
    *, wanted: tuple[bool, bool], ignore_index: int, label_smoothing: float, reduction: str,
) -> tuple[Buffer, None]:  # fmt: skip
    """The gradient of the logits: softmax less the smoothed one-hot target, times g over the divisor."""
    g, x, targets = (dense(device, b) for b in (g, logits, targets))
    rows, cols = rows_of(x.shape)
    dx = device.empty(spec_of(x))
    statistics, divisor = saved
    work, group, each = row_launch(device, rows, cols)
    _program(device, x, targets, cols, reduction, label_smoothing).cross_entropy_backward(
        work, group, g.memory, x.memory, targets.memory, statistics.memory, divisor.memory, dx.memory,
        ignore_index, label_smoothing, rows, cols, each,
    )  # fmt: skip
    return dx, None


def _program(device: Device, x: Buffer, targets: Buffer, cols: int, reduction: str, smoothing: float) -> Program:
    index = STORED[targets.dtype][0]
    reduced, smoothed = int(reduction != "none"), int(smoothing != 0)
    return row_program(device, "cross_entropy", x.dtype, cols, INDEX=index, REDUCED=reduced, SMOOTHED=smoothed)
