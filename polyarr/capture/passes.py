"""Passes over a program: dead code and common subexpression elimination, which are sound because kernels are pure."""

from collections.abc import Callable, Iterator
from typing import Any

from polyarr import ops
from polyarr.capture.trace import COPY, ScalarFunction
from polyarr.core.program import Fusion, Program, Step, flat, renamed
from polyarr.core.spec import Spec


class Pass:
    """Steps and values that replace those of a program; `names` has the value that replaces another one."""

    def __init__(self, program: Program) -> None:
        self.steps, self.size, self.names = list[Step](), program.size, dict[int, int]()
        self.specs, self.constants, self._program = {**program.specs}, {**program.constants}, program

    def add(self, step: Step) -> None:
        """Add a step, or what replaces it."""
        self.steps.append(step)

    def run(self) -> Program:
        """Return the program after all its steps were added."""
        for step in self._program.steps:
            self.add(step)
        steps, outputs = tuple(self.steps), renamed(self._program.outputs, self.names)
        specs, constants = self.specs, self.constants
        return self._program._replace(steps=steps, size=self.size, specs=specs, constants=constants, outputs=outputs)

    def new(self, spec: Spec) -> int:
        """Return a new array value."""
        self.specs[self.size] = spec
        self.size += 1
        return self.size - 1

    def constant(self, value: Any) -> int:
        """Return a new constant."""
        self.constants[self.size] = value
        self.size += 1
        return self.size - 1


def simplified(program: Program) -> Program:
    """Return the program after all passes."""
    return without_dead(without_copies(without_repeats(without_dead(program))))


def without_dead(program: Program) -> Program:
    """Remove the steps that no output depends on; scalar steps stay, for the errors that they raise.

    Inputs need no steps, even if some compute them.
    """
    needed, steps = {*program.outputs, *(v for step in program.scalar_steps for v in flat(step.inputs))}, []
    given = {*program.inputs}
    for step in reversed(program.steps):
        if step.outputs is None or not needed.isdisjoint({*flat(step.outputs)} - given):
            needed.update(flat(step.inputs))
            steps.append(step)
    constants = {v: c for v, c in program.constants.items() if v in needed}
    return program._replace(steps=tuple(steps[::-1]), constants=constants)


def without_repeats(program: Program) -> Program:
    """Merge steps that call the same kernel with the same values.

    Recomputation by a checkpoint starts from copied values, so it is not merged with the first computation.
    """
    seen: dict[Any, Step] = {}

    def earlier(step: Step) -> Any:
        first = seen.setdefault(_computation(step), step)
        return None if first is step else tuple(flat(first.outputs))

    return _without(program, earlier)


def without_copies(program: Program) -> Program:
    """Remove the identity steps that kept recomputation apart from the first computation."""
    return _without(program, lambda step: step.inputs if step.part == COPY else None)


def readers_of(program: Program) -> dict[int, list[Step]]:
    """Return the steps that read each value."""
    found: dict[int, list[Step]] = {}
    for step in program.steps:
        for v in flat(step.inputs):
            found.setdefault(v, []).append(step)
    return found


def reads_elements(step: Step, fusion: Fusion, spec_of: Callable[[int], Any]) -> bool:
    """Return whether a step gives the same bits for inputs in any layout.

    A sum does not: it may add the elements of a view in another order than those of a dense array.
    """
    kind = fusion.kind_of(step, spec_of)
    is_copy = step.part == "kernel" and step.op in (ops.concat, ops.slice_update)
    return is_copy or (kind is not None and not kind.reduced)


def _without(program: Program, same: Callable[[Step], Any]) -> Program:
    """Remove each step for which `same` returns the slots that already have its outputs' values, and not None."""
    names: dict[int, int] = {}

    def kept(steps: tuple[Step, ...]) -> Iterator[Step]:
        for step in steps:
            if names and (inputs := renamed(step.inputs, names)) != step.inputs:
                step = step._replace(inputs=inputs)
            slots = same(step)
            if slots is None:
                yield step
            else:
                names.update(zip(flat(step.outputs), slots, strict=True))

    scalar_steps, steps = tuple(kept(program.scalar_steps)), tuple(kept(program.steps))
    return program._replace(scalar_steps=scalar_steps, steps=steps, outputs=renamed(program.outputs, names))


def _computation(step: Step) -> Any:
    """Return a key that is equal for steps that compute the same."""
    if step.part == COPY:
        return step.outputs
    call = (id(step.call.fn), step.call.kind) if isinstance(step.call, ScalarFunction) else step.op
    # By repr, because 0.0 == -0.0 and 1 == True are different constants.
    return call, step.part, step.inputs, tuple((name, repr(value)) for name, value in step.params.items())
