"""Fuses residual additions with norms: a norm of a sum, and the gradient of a norm added to another gradient.

Each residual connection of a model has one of either, which are as large as its activations.
"""

from collections.abc import Callable

from polyarr.backends.opencl.replay.steps import Steps, launcher_of
from polyarr.backends.opencl.rows import norm
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.table import following
from polyarr.core.program import Program

OF_SUM: dict[Callable, Callable] = {norm.layer_norm: norm.layer_norm_of_sum, norm.rms_norm: norm.rms_norm_of_sum}
AND_SUM: set[Callable] = {norm.layer_norm_backward, norm.rms_norm_backward}  # with the other gradient as one more input


def fuse_residual_adds(device: Device, program: Program) -> Program:
    """Return the program with fewer steps, where launchers of this device compute two of them together."""
    steps = Steps(program)
    for n, step in enumerate(program.steps):
        launcher = launcher_of(step)
        if launcher in OF_SUM:
            for m, x, y in steps.sums_of(step.inputs[1]):
                if steps.are_there(m, step.inputs[2:]):
                    inputs, outputs = (step.inputs[0], x, y, *step.inputs[2:]), (step.inputs[1], step.outputs)
                    call = following(device, OF_SUM[launcher])
                    steps.join(m, [n], step._replace(call=call, inputs=inputs, outputs=outputs))
        elif launcher in AND_SUM:
            for m, other in steps.only_sum_with(step.outputs[0]):
                if steps.are_there(n, (other,)):
                    inputs, outputs = (*step.inputs, other), (program.steps[m].outputs, *step.outputs[1:])
                    call = following(device, launcher)  # without the checks of an op's own inputs
                    steps.join(n, [m], step._replace(call=call, inputs=inputs, outputs=outputs))
    return steps.program()
