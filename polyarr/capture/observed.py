"""Running a program while it is observed: each step is reported as a call of its op."""

from functools import partial
from typing import Any

from polyarr.capture.run import runner
from polyarr.core import watch
from polyarr.core.array import spec_of
from polyarr.core.backend import Backend
from polyarr.core.program import Program, Run, Step
from polyarr.core.spec import Spec
from polyarr.core.watch import Call


def run(program: Program, backend: Backend, inputs: list[Any]) -> list[Any]:
    """Return the outputs' values; errors carry a note that names the step."""
    scalar_steps, steps = (
        tuple([step._replace(call=partial(_call, program, backend, step)) for step in steps])
        for steps in (program.scalar_steps, program.steps)
    )
    return runner(program._replace(scalar_steps=scalar_steps, steps=steps))(inputs)


def run_whole(program: Program, whole: Run, backend: Backend, inputs: list[Any]) -> list[Any]:
    """Return the outputs' values of a run with the launches of an unobserved one; the backend reports their steps."""
    specs = tuple(program.specs[slot] for slot in program.inputs if slot in program.specs)
    call = Call(Named(program.name), specs, {}, backend)
    with watch.calling(call) as found:
        watch.report_begin(call, "captured", None)
        return found(whole(inputs))


def step_call(program: Program, step: Step, outer: Call | None) -> Call:
    """Return the call that a step of a program stands for; its time on the host is 0."""
    specs, out = _specs_and_out(program, step)
    backend = None if outer is None else outer.backend
    call = Call(Named(step.name) if step.part == "group" else step.op, specs, step.params, backend)
    call.outer, call.part, call.out, call.step = outer, step.part, out, step
    return call


class Named:
    """Name of a call that is not of an op: a captured function, or a fused group of its steps."""

    def __init__(self, name: str) -> None:
        self.name = name


def _call(program: Program, backend: Backend, step: Step, *args: Any, **params: Any) -> Any:
    if step.op is None:
        return step.call(*args, **params)
    if step.part == "group":
        return tuple(run(step.op, backend, list(args[1:])))
    specs, out = _specs_and_out(program, step)
    call = Call(step.op, specs, step.params, backend, "backward" if step.part == "backward" else "")
    call.step = step
    with watch.calling(call) as found:
        watch.report_begin(call, step.part, out)
        return found(watch.with_launches(step.call, call, backend)(*args, **params))


def _specs_and_out(program: Program, step: Step) -> tuple[tuple, Any]:
    """Return the Specs of a step's inputs, without what a Fused kernel saved, and of its result."""
    first, *others = _specs(program, step.inputs[:1] + step.inputs[1 + (step.part == "backward") :])
    return ((first, *others), tuple(others)) if step.part == "backward" else (tuple(others), first)


def _specs(program: Program, inputs: tuple) -> tuple:
    """Return the Specs of a step's arguments."""
    return tuple([_specs(program, t) if type(t) is tuple else _spec(program, t) for t in inputs])


def _spec(program: Program, slot: int) -> Any:
    if slot in program.specs:
        return program.specs[slot]
    if slot in program.scalars:
        return Spec((), program.scalars[slot])
    value = program.constants.get(slot)
    return value if type(value) in (Spec, tuple) else spec_of(value)
