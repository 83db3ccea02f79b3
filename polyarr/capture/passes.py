"""Passes over a program: dead code and common subexpression elimination, which are sound because kernels are pure."""

from typing import Any

from polyarr.capture.trace import COPY, ScalarFunction
from polyarr.core.program import Program, Step, flat


def simplified(program: Program) -> Program:
    """Return the program after all passes."""
    return without_dead(without_copies(without_repeats(without_dead(program))))


def without_dead(program: Program) -> Program:
    """Remove the steps that no output depends on; scalar steps stay, for the errors that they raise."""
    needed, steps = {*program.outputs, *(v for step in program.scalar_steps for v in flat(step.inputs))}, []
    for step in reversed(program.steps):
        if step.outputs is None or not needed.isdisjoint(flat(step.outputs)):
            needed.update(flat(step.inputs))
            steps.append(step)
    constants = {v: c for v, c in program.constants.items() if v in needed}
    return program._replace(steps=tuple(steps[::-1]), constants=constants)


def without_repeats(program: Program) -> Program:
    """Merge steps that call the same kernel with the same values.

    Recomputation by a checkpoint starts from copied values, so it is not merged with the first computation.
    """
    seen: dict[Any, Step] = {}
    names: dict[int, int] = {}

    def kept(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        found = []
        for step in steps:
            step = step._replace(inputs=_renamed(step.inputs, names))
            first = seen.setdefault(_computation(step), step)
            if first is step:
                found.append(step)
            else:
                names.update(zip(flat(step.outputs), flat(first.outputs), strict=True))
        return tuple(found)

    scalar_steps = kept(program.scalar_steps)
    steps = kept(program.steps)
    return program._replace(scalar_steps=scalar_steps, steps=steps, outputs=_renamed(program.outputs, names))


def without_copies(program: Program) -> Program:
    """Remove the identity steps that kept recomputation apart from the first computation."""
    names: dict[int, int] = {}

    def kept(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        found = []
        for step in steps:
            step = step._replace(inputs=_renamed(step.inputs, names))
            if step.part == COPY:
                names[step.outputs] = step.inputs[0]
            else:
                found.append(step)
        return tuple(found)

    scalar_steps = kept(program.scalar_steps)
    steps = kept(program.steps)
    return program._replace(scalar_steps=scalar_steps, steps=steps, outputs=_renamed(program.outputs, names))


def _computation(step: Step) -> Any:
    """Return a key that is equal for steps that compute the same."""
    if step.part == COPY:
        return step.outputs
    call = (id(step.call.fn), step.call.kind) if type(step.call) is ScalarFunction else step.op
    # By repr, because 0.0 == -0.0 and 1 == True are different constants.
    return call, step.part, step.inputs, tuple((name, repr(value)) for name, value in step.params.items())


def _renamed(values: Any, names: dict[int, int]) -> Any:
    """Replace slots in a step's inputs or in outputs."""
    if type(values) is tuple:
        return tuple(_renamed(member, names) for member in values)
    return names.get(values, values)
