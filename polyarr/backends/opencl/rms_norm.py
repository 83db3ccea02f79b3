"""Root-mean-square norm, forward and backward. What is saved is each row's reciprocal root mean square."""

from typing import Any

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, spec_of
from polyarr.backends.opencl.plans import LaunchPlan
from polyarr.backends.opencl.rows import alike, column_sums, dense_or_none, groups_of, row_plan, wide
from polyarr.core.spec import Spec


def rms_norm(device: Device, out: Spec, x: Buffer, weight: Buffer | None, *, eps: float) -> Any:
    """Divide by the root of the mean square of the last axis, then scale; weight may be None, or of x's dtype."""
    if not alike(x, weight):
        return NotImplemented
    x, weight = dense(device, x), dense_or_none(device, weight)
    plan = _plan(device, "forward", x, weight)
    y, saved = device.empty(out), device.empty(Spec(plan.numbers[:1], wide(x.dtype)))
    arrays = x.memory, (weight or x).memory, y.memory, saved.memory
    plan.kernel(plan.work, plan.group, *arrays, eps, *plan.numbers)
    return y, saved


def rms_norm_backward(
    device: Device, g: Buffer, saved: Buffer, x: Buffer, weight: Buffer | None,
    *, wanted: tuple[bool, bool], eps: float,
) -> tuple[Buffer, Buffer | None]:  # fmt: skip
    """The gradients of x and weight; that of x comes with the other."""
    g, x, w = dense(device, g), dense(device, x), dense_or_none(device, weight)
    dx = device.empty(spec_of(x))
    plan = _plan(device, "backward", x, weight, wanted[1])
    dweight = device.empty(Spec((groups_of(plan), x.shape[-1]), saved.dtype)) if wanted[1] else None
    arrays = g.memory, x.memory, (w or x).memory, saved.memory, dx.memory, (dweight or saved).memory
    plan.kernel(plan.work, plan.group, *arrays, *plan.numbers)
    return dx, column_sums(device, weight, dweight)


def _plan(device: Device, which: str, x: Buffer, weight: Buffer | None, wanted: bool = True) -> LaunchPlan:
    """How to launch; forward shares the program whose backward kernel gives both gradients."""
    has = weight is not None
    return device.plans[row_plan](
        "rms_norm", which, x.dtype, x.shape, which == "backward", True,
        HAS_WEIGHT=int(has), WANTS_WEIGHT=int(has and wanted),
    )  # fmt: skip
