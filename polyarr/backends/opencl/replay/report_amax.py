"""Lets elementwise groups report the amax of inputs of split-precision convolutions, which else read them once more.

See nvidia/split.py.
"""

from polyarr import ops
from polyarr.backends.opencl.replay.fusion import ElementGroup
from polyarr.backends.opencl.runtime.device import Device
from polyarr.core.program import Program, Step, flat
from polyarr.core.spec import float32


def with_reported_amax(device: Device, program: Program) -> Program:
    """Return the program with such groups, if the device uses amax."""
    if not device.vendor.uses_amax(device):
        return program
    split = {step.takes[1] for step in program.steps if _is_split(step)}
    return program._replace(steps=tuple([_reporting(program, step, split) for step in program.steps]))


def _is_split(step: Step) -> bool:
    return step.op is ops.conv and step.part == "forward" and step.params.get("precision") == "high"


def _reporting(program: Program, step: Step, split: set[int]) -> Step:
    if not isinstance(step.call, ElementGroup):
        return step
    outputs = [i for i, v in enumerate(flat(step.gives)) if v in split and program.specs[v].dtype == float32]
    return step._replace(call=step.call.reporting(outputs[0])) if outputs else step
