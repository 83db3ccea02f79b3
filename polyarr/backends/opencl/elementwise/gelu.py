"""GELU, forward and backward, and the gradient of the other activations of linear layers. Nothing is saved."""

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.rows.rows import block_plan
from polyarr.backends.opencl.runtime.commands import InPlace
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, spec_of
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.core.spec import Spec

FORMS = {"none": "gelu", "tanh": "gelu_tanh"}
IN_PLACE = {"gelu_forward": (InPlace(0, 1),), "gelu_backward": (InPlace(0, 2), InPlace(1, 2))}


def gelu(device: Device, out: Spec, x: Buffer, *, approximate: str) -> tuple[Buffer, None]:
    """Return the Gaussian error linear unit of x: its tanh approximation, or the exact one ("none")."""
    x, y = dense(device, x), device.empty(out)
    plan = _plan(device, "gelu_forward", x, FORMS[approximate])
    plan.kernel(plan.work, plan.group, x.memory, y.memory, *plan.numbers)
    return y, None


def gelu_backward(
    device: Device, g: Buffer, saved: None, x: Buffer, *, wanted: tuple[bool], approximate: str
) -> tuple[Buffer]:
    """Return the gradient of x."""
    return (through(device, g, x, FORMS[approximate]),)


def through(device: Device, g: Buffer, x: Buffer, activation: str) -> Buffer:
    """Return the gradient of x, the input of an activation of linear layers, or relu's result, in the shape of g."""
    g, x, dx = dense(device, g), dense(device, x), device.empty(spec_of(g))
    plan = _plan(device, "gelu_backward", x, activation)
    plan.kernel(plan.work, plan.group, g.memory, x.memory, dx.memory, *plan.numbers)
    return dx


def _plan(device: Device, kernel: str, x: Buffer, form: str) -> LaunchPlan:
    return device.plans[block_plan]("gelu", kernel, x.dtype, x.size, IN_PLACE[kernel], FLOATING=1, ACTIVATION=form)
