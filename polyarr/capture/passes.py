"""Passes over a program: dead code and common subexpression elimination, which are sound because kernels are pure."""

from typing import Any

from polyarr.capture.trace import COPY, ScalarFunction
from polyarr.core.program import Program, Step, flat


def simplified(program: Program) -> Program:
    """Return the program after all passes."""
    return without_dead(without_copies(without_repeats(without_dead(program))))


def without_dead(program: Program) -> Program:
    """Remove the steps that no output depends on; functions of numbers stay, for the errors that they raise."""
    needed, steps = {*program.outputs, *(v for step in program.counts for v in flat(step.takes))}, []
    for step in reversed(program.steps):
        if step.gives is None or not needed.isdisjoint(flat(step.gives)):
            needed.update(flat(step.takes))
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
            step = step._replace(takes=_renamed(step.takes, names))
            first = seen.setdefault(_computation(step), step)
            if first is step:
                found.append(step)
            else:
                names.update(zip(flat(step.gives), flat(first.gives), strict=True))
        return tuple(found)

    counts = kept(program.counts)
    steps = kept(program.steps)
    return program._replace(counts=counts, steps=steps, outputs=_renamed(program.outputs, names))


def without_copies(program: Program) -> Program:
    """Remove the identity steps that kept recomputation apart from the first computation."""
    names: dict[int, int] = {}

    def kept(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        found = []
        for step in steps:
            step = step._replace(takes=_renamed(step.takes, names))
            if step.part == COPY:
                names[step.gives] = step.takes[0]
            else:
                found.append(step)
        return tuple(found)

    counts = kept(program.counts)
    steps = kept(program.steps)
    return program._replace(counts=counts, steps=steps, outputs=_renamed(program.outputs, names))


def _computation(step: Step) -> Any:
    """Return a key that is equal for steps that compute the same."""
    if step.part == COPY:
        return step.gives
    call = (id(step.call.fn), step.call.kind) if type(step.call) is ScalarFunction else step.op
    # By repr, because 0.0 == -0.0 and 1 == True are different constants.
    return call, step.part, step.takes, tuple((name, repr(value)) for name, value in step.params.items())


def _renamed(values: Any, names: dict[int, int]) -> Any:
    """Replace value numbers in a step's `takes` or in outputs."""
    if type(values) is tuple:
        return tuple(_renamed(member, names) for member in values)
    return names.get(values, values)
