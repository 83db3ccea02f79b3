"""GELU, forward and backward. Nothing is saved."""

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, spec_of
from polyarr.backends.opencl.program import Program, types
from polyarr.backends.opencl.rows import block_launch
from polyarr.core.spec import Spec


def gelu(device: Device, out: Spec, x: Buffer, *, approximate: str) -> tuple[Buffer, None]:
    """The Gaussian error linear unit, in its tanh form or by erf ("none")."""
    x, y = dense(device, x), device.empty(out)
    program, work, group = _program(device, x, approximate)
    program.gelu_forward(work, group, x.memory, y.memory, x.size)
    return y, None


def gelu_backward(
    device: Device, g: Buffer, saved: None, x: Buffer, *, wanted: tuple[bool], approximate: str
) -> tuple[Buffer]:
    """The gradient of gelu."""
    g, x, dx = dense(device, g), dense(device, x), device.empty(spec_of(x))
    program, work, group = _program(device, x, approximate)
    program.gelu_backward(work, group, g.memory, x.memory, dx.memory, x.size)
    return (dx,)


def _program(device: Device, x: Buffer, approximate: str) -> tuple[Program, tuple[int], tuple[int]]:
    form = "gelu_tanh" if approximate == "tanh" else "gelu"
    program = device.build("gelu", **types(x.dtype), **device.geometry.blocks, FLOATING=1, ACTIVATION=form)
    return program, *block_launch(device, x.size)
