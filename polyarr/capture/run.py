"""Running a program on any backend: call its kernels one after the other, without inference and recording."""

from typing import Any

from polyarr.core.program import Program, Run, assigned, last_uses, lookup


def runner(program: Program) -> Run:
    """Return a function from the inputs' values to the outputs' values."""
    first: list[Any] = [None] * program.size
    for slot, constant in program.constants.items():
        first[slot] = constant
    last = [()] * len(program.scalar_steps) + last_uses(program)
    rows = [
        (step, step.call, step.inputs, all(type(slot) is int for slot in step.inputs), step.params, step.outputs, dead)
        for step, dead in zip(program.scalar_steps + program.steps, last, strict=True)
    ]

    def run(inputs: list[Any]) -> list[Any]:
        values = first.copy()
        for slot, value in zip(program.inputs, inputs, strict=True):
            values[slot] = value
        inputs.clear()  # so that donated memory is freed after its last use
        value = step = None
        try:
            for step, call, slots, is_flat, params, outputs, dead in rows:  # noqa: B007  step is used by the error
                found = call(*[values[slot] if is_flat else lookup(values, slot) for slot in slots], **params)
                if type(outputs) is int:
                    values[outputs] = found
                else:
                    for slot, value in assigned(outputs, found):
                        values[slot] = value
                    value = None
                for slot in dead:
                    values[slot] = None
                found = None
        except Exception as error:
            if step is not None:
                program.note(error, step)
            raise
        return [values[slot] for slot in program.outputs]

    return run
