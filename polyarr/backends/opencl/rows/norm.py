"""Layer norm and RMS norm, forward and backward. Forward saves the mean (layer norm only) and rstd of each row."""

from functools import partial
from typing import Any

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.reductions.reduce import launcher as reduction
from polyarr.backends.opencl.rows.rows import alike, dense_or_none, groups_of, row_plan, wide
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, spec_of
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.core.spec import Spec

SUM = reduction("sum")


def _forward(
    centred: int, device: Device, out: Spec, x: Buffer, weight: Buffer | None, bias: Buffer | None = None, *, eps: float
) -> Any:
    """Normalize the last axis, then scale and shift. weight and bias are None or of x's dtype; else NotImplemented."""
    if not alike(x, weight, bias):
        return NotImplemented
    return _launch(device, out, dense(device, x), None, weight, bias, eps, centred)[1]


def _of_sum(
    centred: int, device: Device, out: Spec, x: Buffer, added: Buffer, weight: Buffer | None,
    bias: Buffer | None = None, *, eps: float,
) -> tuple[Buffer, tuple[Buffer, Buffer]]:  # fmt: skip
    """Return x + added (of one shape), and the norm of the sum; weight and bias are of x's dtype."""
    return _launch(device, out, dense(device, x), dense(device, added), weight, bias, eps, centred)


layer_norm, rms_norm = partial(_forward, 1), partial(_forward, 0)
layer_norm_of_sum, rms_norm_of_sum = partial(_of_sum, 1), partial(_of_sum, 0)


def layer_norm_backward(
    device: Device, g: Buffer, saved: Buffer, x: Buffer, weight: Buffer | None, bias: Buffer | None,
    added: Buffer | None = None, *, wanted: tuple[bool, bool, bool], eps: float,
) -> tuple[Buffer, Buffer | None, Buffer | None]:  # fmt: skip
    """Return the gradients of x (plus `added`), weight and bias; the first one is always computed."""
    return _backward(device, g, saved, x, weight, bias, added, wanted, 1)


def rms_norm_backward(
    device: Device, g: Buffer, saved: Buffer, x: Buffer, weight: Buffer | None, added: Buffer | None = None,
    *, wanted: tuple[bool, bool], eps: float,
) -> tuple[Buffer, Buffer | None]:  # fmt: skip
    """Return the gradients of x (plus `added`) and weight; the first one is always computed."""
    return _backward(device, g, saved, x, weight, None, added, (*wanted, False), 0)[:2]


def _launch(
    device: Device, out: Spec, x: Buffer, added: Buffer | None, weight: Buffer | None, bias: Buffer | None, eps: float,
    centred: int,
) -> tuple[Buffer, tuple[Buffer, Buffer]]:  # fmt: skip
    """Run forward; return the normalized input (x, or its sum with `added`), and (result, saved)."""
    weight, bias = dense_or_none(device, weight), dense_or_none(device, bias)
    plan = _plan(device, "forward", x, added, weight, bias, centred)
    total = x if added is None else device.empty(out)
    y, saved = device.empty(out), device.empty(Spec((plan.numbers[0], 1 + centred), wide(x.dtype)))
    arrays = x, added or x, weight or x, bias or x, y if added is None else total, y, saved  # y for total: not written
    plan.kernel(plan.work, plan.group, *[a.memory for a in arrays], eps, *plan.numbers)
    return total, (y, saved)


def _backward(
    device: Device, g: Buffer, saved: Buffer, x: Buffer, weight: Buffer | None, bias: Buffer | None,
    added: Buffer | None, wanted: tuple[bool, bool, bool], centred: int,
) -> tuple[Buffer, Buffer | None, Buffer | None]:  # fmt: skip
    g, x, w, added = dense(device, g), dense(device, x), dense_or_none(device, weight), dense_or_none(device, added)
    dx = device.empty(spec_of(x))
    plan = _plan(device, "backward", x, added, weight, bias, centred, wanted[1:])
    partials = Spec((groups_of(plan), x.shape[-1]), saved.dtype)
    parts = {name: device.empty(partials) for name, want in zip(("weight", "bias"), wanted[1:], strict=True) if want}
    arrays = g.memory, x.memory, (added or x).memory, (w or x).memory, saved.memory, dx.memory
    summed = [parts.get(name, saved).memory for name in ("weight", "bias")]  # saved is a placeholder, not written
    plan.kernel(plan.work, plan.group, *arrays, *summed, *plan.numbers)
    found = {name: SUM(device, Spec(x.shape[-1:], x.dtype), part, axis=(0,)) for name, part in parts.items()}
    return dx, found.get("weight"), found.get("bias")


def _plan(
    device: Device, which: str, x: Buffer, added: Buffer | None, weight: Buffer | None, bias: Buffer | None,
    centred: int, wanted: tuple[bool, ...] | None = None,
) -> LaunchPlan:  # fmt: skip
    """Plan a launch. Forward uses the program whose backward kernel computes all gradients, to build only one.

    On GPUs 16-bit floats have two, because their rows are divided otherwise where columns are summed.
    """
    present = weight is not None, bias is not None
    wants = present if wanted is None else wanted
    return device.plans[row_plan](
        "norm", which, x.dtype, x.shape, which == "backward", True, CENTRED=centred,
        HAS_WEIGHT=int(present[0]), HAS_BIAS=int(present[1]), WANTS_WEIGHT=int(wants[0]), WANTS_BIAS=int(wants[1]),
        ADDS=int(added is not None),
    )  # fmt: skip
