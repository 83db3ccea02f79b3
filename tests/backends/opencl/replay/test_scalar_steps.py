"""Scalars that several steps of a recorded program compute alike are computed once per run."""

import operator

import numpy as np
import pytest

import polyarr as pa
from polyarr.capture.trace import ScalarFunction
from polyarr.core.program import Step
from tests.helpers.opencl_modules import opencl_modules

(recorded_run,) = opencl_modules("recorded_run")
CONSTANTS = [None, None, 1, True, 1.0, 0.0, -0.0, (0.0,), (-0.0,), [1], *[None] * 20]  # by slot


def scalar(call, inputs, output):
    step = Step(None, "number", call, inputs, {}, output, "here", "", False)
    return step, step


def test_only_equal_calls_of_equal_numbers_are_joined():
    add, again = ScalarFunction(operator.add, int), ScalarFunction(operator.add, int)
    steps = [
        scalar(add, (0, 2), 10), scalar(again, (0, 2), 11), scalar(operator.add, (0, 2), 12),
        scalar(add, (11, 1), 13), scalar(add, (10, 1), 14), scalar(add, (0, 3), 15), scalar(add, (0, 4), 16),
        scalar(add, (0, 5), 17), scalar(add, (0, 6), 18), scalar(add, ((7, 0),), 19), scalar(add, ((8, 0),), 20),
        scalar(add, (9,), 21), scalar(add, (9,), 22), scalar(add, (0,), None), scalar(add, (0,), None),
    ]  # fmt: skip
    kept, same = recorded_run.unique_scalar_steps(steps, CONSTANTS)
    assert same == {11: 10, 14: 13}
    assert [step.outputs for step, _ in kept] == [10, 12, 13, 15, 16, 17, 18, 19, 20, 21, 22, None, None]
    assert kept[2][0].inputs == (10, 1)


@pytest.mark.polyarr_backend("opencl")
def test_a_function_of_a_number_is_called_once_for_equal_numbers(backend):
    calls = []

    def rate(step):
        calls.append(step)
        return 0.5 * step

    def fn(x, step, other):
        return x * pa.evaluate(rate, step) + pa.evaluate(rate, step) - pa.evaluate(rate, other), step + 1, step + 1

    compiled, x = pa.compile(fn), pa.asarray(np.float32([1, 2]))
    for step in range(4):
        found, expected = compiled(x, step, 7 - step), fn(x, step, 7 - step)
        assert found[0].tolist() == expected[0].tolist() and found[1:] == expected[1:]
        if step == 3:
            assert calls[-5:-3] == [3, 4], "the replay's two calls, before the three of fn"
