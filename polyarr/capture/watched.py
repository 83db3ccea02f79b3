"""A program's run while somebody watches: each step is a call of its op, made by the op's kernel."""

from typing import Any

from polyarr.core import watch
from polyarr.core.array import spec_of
from polyarr.core.backend import Backend
from polyarr.core.program import Program, Step, given, last_uses, taken
from polyarr.core.spec import Spec
from polyarr.core.watch import Call


def run(program: Program, backend: Backend, inputs: list[Any]) -> list[Any]:
    """The outputs' values. Errors say which step they come from."""
    values = {**program.constants, **dict(zip(program.inputs, inputs, strict=True))}
    inputs.clear()
    for step, dead in zip(program.counts + program.steps, [()] * len(program.counts) + last_uses(program), strict=True):
        try:
            values.update(given(step.gives, _call(program, backend, step, taken(values, step.takes))))
        except Exception as error:
            program.note(error, step)
            raise
        for slot in dead:
            values.pop(slot, None)
    return [values[slot] for slot in program.outputs]


def _call(program: Program, backend: Backend, step: Step, args: tuple) -> Any:
    if step.op is None:
        return step.call(*args, **step.params)
    if step.part == "group":
        return tuple(run(step.op, backend, list(args[1:])))
    first, *others = _specs(program, step.takes[:1] + step.takes[1 + (step.part == "backward") :])
    specs = (first, *others) if step.part == "backward" else tuple(others)
    call = Call(step.op, specs, step.params, backend, "backward" if step.part == "backward" else "")
    with watch.calling(call) as found:
        watch.begin(call, step.part, tuple(others) if step.part == "backward" else first)
        return found(watch.seen(step.call, call, backend)(*args, **step.params))


def _specs(program: Program, takes: tuple) -> tuple:
    """The Specs of a step's arguments."""
    return tuple([_specs(program, t) if type(t) is tuple else _spec(program, t) for t in takes])


def _spec(program: Program, slot: int) -> Any:
    if slot in program.specs:
        return program.specs[slot]
    if slot in program.numbers:
        return Spec((), program.numbers[slot])
    value = program.constants.get(slot)
    return value if type(value) in (Spec, tuple) else spec_of(value)
