"""Elementwise steps read arrays from before broadcasting, which they do themselves: so more steps can be fused."""

import numpy as np

from polyarr import ops
from polyarr.capture.passes import Pass, readers_of, reads_elements, without_dead
from polyarr.core.program import Fusion, Program, Step
from polyarr.core.spec import Spec


def without_broadcasts(program: Program, fusion: Fusion) -> Program:
    """Return the program in which steps that the backend can fuse read arrays from before broadcast_to where they can.

    A step with one array operand computes before broadcasting, unless a step reads its result to which the layout
    matters. The results of single steps are the same.
    """
    if not any(step.op is ops.broadcast_to for step in program.steps):
        return program
    return without_dead(_Broadcasts(program, fusion).run())


class _Broadcasts(Pass):
    """The new steps; `source` has each broadcast array's step and operand."""

    def __init__(self, program: Program, fusion: Fusion) -> None:
        super().__init__(program)
        self._fusion = fusion
        self._source: dict[int, tuple[Step, int]] = {}
        self._users = readers_of(program)

    def add(self, step: Step) -> None:
        """Add a step, or what replaces it."""
        if step.part == "kernel" and step.op is ops.broadcast_to:
            self._source[step.outputs] = step, step.inputs[1]
        elif self._is_elementwise(step):
            arrays = [v for v in step.inputs[1:] if v in self.specs]
            if len(arrays) == 1 and arrays[0] in self._source and self._has_any_layout(step):
                step = self._before_broadcasting(step, arrays[0])
            else:
                step = self._with_operands(step)
        self.steps.append(step)

    def _is_elementwise(self, step: Step) -> bool:
        kind = self._fusion.kind_of(step, self._program.spec)
        return kind is not None and not kind.reduced

    def _has_any_layout(self, step: Step) -> bool:
        """Return whether all that reads the result of a step gives the same bits if that is broadcast."""
        users = self._users.get(step.outputs, [])
        return all(reads_elements(user, self._fusion, self._program.spec) for user in users)

    def _with_operands(self, step: Step) -> Step:
        """Return the step with operands from before broadcasting, as long as its result keeps its shape."""
        for i, v in enumerate(step.inputs[1:], 1):
            inputs = list(step.inputs)
            if v in self._source:
                inputs[i] = self._source[v][1]
                shapes = [self.specs[x].shape for x in inputs[1:] if x in self.specs]
                if np.broadcast_shapes(*shapes) == self.specs[step.outputs].shape:
                    step = step._replace(inputs=tuple(inputs))
        return step

    def _before_broadcasting(self, step: Step, v: int) -> Step:
        """Add the step for the array before broadcasting; return the step that broadcasts its result."""
        broadcast, source = self._source[v]
        out, small = self.specs[step.outputs], self.new(Spec(self.specs[source].shape, self.specs[step.outputs].dtype))
        inputs = tuple([source if x == v else x for x in step.inputs[1:]])
        self.steps.append(step._replace(inputs=(self.constant(self.specs[small]), *inputs), outputs=small))
        self._source[step.outputs] = broadcast, small
        inputs = self.constant(out), small
        return broadcast._replace(inputs=inputs, outputs=step.outputs, params={"shape": out.shape})
