"""Running a program on any backend: call its kernels one after the other, without inference and recording."""

from typing import Any

from polyarr.core.program import Program, Run, given, last_uses, taken


def runner(program: Program) -> Run:
    """Return a function from the inputs' values to the outputs' values."""
    first: list[Any] = [None] * program.size
    for slot, constant in program.constants.items():
        first[slot] = constant
    dead = [()] * len(program.counts) + last_uses(program)
    rows = [
        (step, step.call, step.takes, all(type(t) is int for t in step.takes), step.params, step.gives, gone)
        for step, gone in zip(program.counts + program.steps, dead, strict=True)
    ]

    def run(inputs: list[Any]) -> list[Any]:
        values = first.copy()
        for slot, value in zip(program.inputs, inputs, strict=True):
            values[slot] = value
        inputs.clear()  # so that donated memory is freed after its last use
        value = step = None
        try:
            for step, call, takes, is_flat, params, gives, gone in rows:  # noqa: B007  step is used by the error
                found = call(*[values[t] if is_flat else taken(values, t) for t in takes], **params)
                if type(gives) is int:
                    values[gives] = found
                else:
                    for slot, value in given(gives, found):
                        values[slot] = value
                    value = None
                for slot in gone:
                    values[slot] = None
                found = None
        except Exception as error:
            program.note(error, step)
            raise
        return [values[slot] for slot in program.outputs]

    return run
