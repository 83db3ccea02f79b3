"""Passes over a program. Kernels are pure by contract, so what nobody needs goes, and what is computed twice is one."""

from typing import Any

from polyarr.capture.trace import AGAIN, Count
from polyarr.core.program import Program, Step, flat


def simplified(program: Program) -> Program:
    """The program after all passes."""
    return without_dead(without_again(without_repeats(without_dead(program))))


def without_dead(program: Program) -> Program:
    """Without the steps that no output depends on; checks of numbers stay, for the errors that they raise."""
    needed = set(program.outputs)

    def kept(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        found = []
        for step in reversed(steps):
            if step.gives is None or not needed.isdisjoint(flat(step.gives)):
                needed.update(flat(step.takes))
                found.append(step)
        return tuple(found[::-1])

    steps = kept(program.steps)
    counts = kept(program.counts)
    constants = {v: c for v, c in program.constants.items() if v in needed}
    return program._replace(steps=steps, counts=counts, constants=constants)


def without_repeats(program: Program) -> Program:
    """With one step where several call the same kernel with the same values.

    What a checkpoint computes again starts from values of its own, and so stays: it was to be computed twice.
    """
    seen: dict[Any, Step] = {}
    names: dict[int, int] = {}

    def kept(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        found = []
        for step in steps:
            step = step._replace(takes=_renamed(step.takes, names))
            first = seen.setdefault(_what(step), step)
            if first is step:
                found.append(step)
            else:
                names.update(zip(flat(step.gives), flat(first.gives), strict=True))
        return tuple(found)

    counts = kept(program.counts)
    steps = kept(program.steps)
    return program._replace(counts=counts, steps=steps, outputs=_renamed(program.outputs, names))


def without_again(program: Program) -> Program:
    """Without the steps that give what they take as another value, which kept apart what is to be computed twice."""
    names: dict[int, int] = {}

    def kept(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        found = []
        for step in steps:
            step = step._replace(takes=_renamed(step.takes, names))
            if step.part == AGAIN:
                names[step.gives] = step.takes[0]
            else:
                found.append(step)
        return tuple(found)

    counts = kept(program.counts)
    steps = kept(program.steps)
    return program._replace(counts=counts, steps=steps, outputs=_renamed(program.outputs, names))


def _what(step: Step) -> Any:
    """Equal for steps that compute the same."""
    if step.part == AGAIN:
        return step.gives
    call = (id(step.call.fn), step.call.kind) if type(step.call) is Count else step.op
    # 0.0 equals -0.0, and 1 equals True: not the same constant.
    return call, step.part, step.takes, tuple((name, repr(value)) for name, value in step.params.items())


def _renamed(values: Any, names: dict[int, int]) -> Any:
    """A step's takes, or outputs, with other numbers."""
    if type(values) is tuple:
        return tuple(_renamed(member, names) for member in values)
    return names.get(values, values)
