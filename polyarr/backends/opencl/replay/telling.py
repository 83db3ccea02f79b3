"""Elementwise groups that tell the largest magnitude of what they give to a convolution, which would read all of it for
that before it divides it: see products/parts.py.
"""

from polyarr import ops
from polyarr.backends.opencl.products.parts import divides
from polyarr.backends.opencl.replay.fusion import ElementGroup
from polyarr.backends.opencl.runtime.device import Device
from polyarr.core.program import Program, Step, flat
from polyarr.core.spec import float32


def with_told_peaks(device: Device, program: Program) -> Program:
    """The program with such groups, where the device divides operands."""
    if not divides(device):
        return program
    divided = {step.takes[1] for step in program.steps if _divides(step)}
    return program._replace(steps=tuple([_telling(program, step, divided) for step in program.steps]))


def _divides(step: Step) -> bool:
    return step.op is ops.conv and step.part == "forward" and step.params.get("precision") == "high"


def _telling(program: Program, step: Step, divided: set[int]) -> Step:
    if not isinstance(step.call, ElementGroup):
        return step
    told = [i for i, v in enumerate(flat(step.gives)) if v in divided and program.specs[v].dtype == float32]
    return step._replace(call=step.call.telling(told[0])) if told else step
