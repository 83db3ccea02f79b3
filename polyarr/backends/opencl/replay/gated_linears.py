"""Fuses the two products of a gated feed-forward with their multiplication, for the few rows of a decoded token."""

from math import prod

from polyarr import ops
from polyarr.backends.opencl.gemm import linear
from polyarr.backends.opencl.gemm.gated_linear import gated_linear
from polyarr.backends.opencl.gemm.quantized_linear import quantized_linear
from polyarr.backends.opencl.replay.steps import Steps, launcher_of
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.table import KERNELS, following
from polyarr.core.program import Program, Step, flat
from polyarr.core.spec import NARROW

MAX_ROWS = 64  # of the kernels that multiply by both weights


def fuse_gated_linears(device: Device, program: Program) -> Program:
    """Return the program in which a product of two linear layers of the same x is one step.

    A layer's result must be used for nothing else. Programs of devices without such a kernel stay as they are.
    """
    if not any(variant.may_suit(device.features) for variant in device.vendor.gated):
        return program
    steps = Steps(program)
    for n, step in enumerate(program.steps):
        if launcher_of(step) is not KERNELS[ops.multiply] or not _is_small(program, step):
            continue
        made = [m for v in step.inputs[1:] if (m := steps.only_maker(v)) is not None]
        layers = [program.steps[m] for m in made]
        if len(layers) == 2 and _are_alike(program, *layers):
            gate, up = layers if layers[1].params["activation"] is None else reversed(layers)
            if up.params["activation"] is None:
                inputs = step.inputs[0], gate.inputs[1], gate.inputs[2:], up.inputs[2:]
                params = {"activation": gate.params["activation"]}
                call = following(device, gated_linear)
                fused = gate._replace(part="kernel", call=call, inputs=inputs, params=params, outputs=step.outputs)
                steps.join(n, made, fused)
    return steps.program()


def _is_small(program: Program, step: Step) -> bool:
    """Return whether a step computes few rows of 16-bit floats from two arrays of the same Spec."""
    spec = program.specs[step.outputs]
    return (
        spec.dtype in NARROW and 0 < prod(spec.shape[:-1]) <= MAX_ROWS
        and all(program.specs.get(v) == spec for v in step.inputs[1:])
    )  # fmt: skip


def _are_alike(program: Program, left: Step, right: Step) -> bool:
    """Return whether two steps are layers of the same x, with weights and biases of the same Specs."""
    launcher = launcher_of(left)
    if launcher not in (linear.forward, quantized_linear) or launcher_of(right) is not launcher:
        return False
    specs = [[program.specs.get(v) for v in flat(step.inputs[2:])] for step in (left, right)]
    return left.inputs[1] == right.inputs[1] and specs[0] == specs[1]
