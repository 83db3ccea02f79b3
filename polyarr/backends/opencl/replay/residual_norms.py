"""Fuses residual additions with norms: a norm of a sum, and the gradient of a norm added to another gradient.

Each residual connection of a model has one of either, which are as large as its activations.
"""

from collections.abc import Callable, Iterator

from polyarr import ops
from polyarr.backends.opencl.rows import norm
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.table import KERNELS, following
from polyarr.core.program import Program, Step, flat

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
                    steps.join(m, n, step._replace(call=call, inputs=inputs, outputs=outputs))
        elif launcher in AND_SUM:
            for m, other in steps.only_sum_with(step.outputs[0]):
                if steps.are_there(n, (other,)):
                    inputs, outputs = (*step.inputs, other), (program.steps[m].outputs, *step.outputs[1:])
                    call = following(device, launcher)  # without the checks of an op's own inputs
                    steps.join(n, m, step._replace(call=call, inputs=inputs, outputs=outputs))
    return program._replace(steps=tuple([step for step in steps.all if step is not None]))


class Steps:
    """A program's steps; one that was fused into another is None."""

    def __init__(self, program: Program) -> None:
        self.all: list[Step | None] = [*program.steps]
        self._program = program
        self._maker = {v: n for n, step in enumerate(program.steps) for v in flat(step.outputs)}
        self._users: dict[int, list[int]] = {}
        for n, step in enumerate(program.steps):
            for v in flat(step.inputs):
                self._users.setdefault(v, []).append(n)

    def sums_of(self, v: int) -> Iterator[tuple[int, int, int]]:
        """Yield the step that computes a value and its two addends, if it adds two arrays of the value's Spec."""
        m = self._maker.get(v)
        if m is not None and self._is_sum(m):
            yield m, *self._program.steps[m].inputs[1:]

    def only_sum_with(self, v: int) -> Iterator[tuple[int, int]]:
        """Yield the step that adds a value to another one, and that one, if nothing else uses the value."""
        users = self._users.get(v, [])
        if len(users) == 1 and v not in self._program.outputs and self._is_sum(users[0]):
            x, y = self._program.steps[users[0]].inputs[1:]
            yield users[0], y if x == v else x

    def are_there(self, n: int, values: tuple) -> bool:
        """Return whether values are computed before step n."""
        return all(self._maker.get(v, -1) < n for v in flat(values))

    def join(self, kept: int, gone: int, step: Step) -> None:
        """Replace two steps by one."""
        self.all[kept], self.all[gone] = step, None

    def _is_sum(self, n: int) -> bool:
        """Return whether a step adds two arrays of its result's Spec, and is not fused yet."""
        step, specs = self._program.steps[n], self._program.specs
        if self.all[n] is not step or launcher_of(step) is not KERNELS[ops.add]:
            return False
        return all(specs.get(v) == specs[step.outputs] for v in step.inputs[1:])


def launcher_of(step: Step) -> object:
    """Return the launcher that a step calls, unless it was replaced."""
    return getattr(step.call, "__wrapped__", None)
