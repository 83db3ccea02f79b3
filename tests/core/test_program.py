"""core.program and core.number: programs of captured functions, without capturing."""

import operator

import pytest

from polyarr import ops
from polyarr.core.errors import CaptureError
from polyarr.core.number import FloatNumber, IntNumber, check, evaluate
from polyarr.core.program import Program, Step, assigned, flat, last_uses, lookup
from polyarr.core.spec import Spec, float32

SPEC = Spec((2,), float32)


def step(op, inputs, outputs, part="kernel"):
    return Step(op, part, lambda *_: None, inputs, {}, outputs, "file.py:1")


def program(*steps, inputs=(0,), outputs=(), scalar_steps=(), **more):
    return Program("f", scalar_steps, steps, 10, {9: SPEC}, inputs, outputs, {0: SPEC, 1: SPEC, 2: SPEC}, {}, **more)


def test_a_value_is_dropped_after_its_last_use():
    found = last_uses(program(step(ops.exp, (9, 0), 1), step(ops.add, (9, 1, 0), 2), step(ops.exp, (9, 2), 3)))
    assert found == [(), (1, 0), (2, 3)]


def test_outputs_and_constants_are_never_dropped():
    assert last_uses(program(step(ops.exp, (9, 0), 1), step(ops.exp, (9, 1), 2), outputs=(0, 2))) == [(), (1,)]


def test_unused_values_are_dropped_at_once():
    both = step(ops.layer_norm, (9, 0), (1, (2, None, (3,))), "forward")
    assert last_uses(program(both, outputs=(1,))) == [(0, 2, 3)]


def test_takes_and_gives_are_nested():
    assert [*flat((1, (2, None), ((3,),)))] == [1, 2, 3]
    assert lookup({1: "a", 2: "b", 3: "c"}, (1, (2, (3,)))) == ("a", ("b", ("c",)))
    assert [*assigned((1, (None, 2)), ("a", ("b", "c")))] == [(1, "a"), (2, "c")]


def test_a_program_prints_a_step_a_line():
    double = Step(None, "number", operator.mul, (4, 4), {}, 5, "file.py:2")
    shown = program(step(ops.exp, (9, 0), 1), inputs=(0, 4), outputs=(1,), scalar_steps=(double,))
    assert str(shown._replace(scalars={4: int, 5: int})).splitlines() == [
        "f: 2 steps, 2 inputs, 1 output",
        "  inputs: %0 float32[2], %4 int",
        "  %5 int = mul(%4, %4)  # file.py:2",
        "  %1 float32[2] = exp(%0)  # file.py:1",
        "  outputs: %1 float32[2]",
    ]


def test_an_error_names_its_step():
    second, error = step(ops.layer_norm, (1,), (2,), "backward"), ValueError("no")
    program(step(ops.exp, (9, 0), 1), second).note(error, second)
    assert error.__notes__ == ["in step 1, layer_norm backward, of the compiled f; captured at file.py:1"]


def recorded(now, calls):
    def record(fn, numbers, has_output):
        calls.append((fn, numbers, has_output))
        return "recorded"

    return (IntNumber if isinstance(now, int) else FloatNumber)(0, now, record)


@pytest.mark.parametrize("used", [lambda n: n + 1, lambda n: 1 + n, lambda n: -n, lambda n: 2.0**n, lambda n: n // 2])
def test_arithmetic_with_a_number_is_noted(used):
    calls = []
    assert used(recorded(3, calls)) == "recorded"
    assert len(calls) == 1


def test_functions_of_numbers_are_noted_or_called():
    calls = []
    n = recorded(0.5, calls)
    assert evaluate(max, 1, n) == "recorded"
    check(max, (1, n))
    assert [(fn, has_output) for fn, _, has_output in calls] == [(max, True), (max, False)]
    assert evaluate(max, 1, 2) == 2
    with pytest.raises(ZeroDivisionError):
        check(operator.truediv, 1, 0)


@pytest.mark.parametrize("used", [bool, int, float, hash, range, lambda n: n == 3, lambda n: n > 3, lambda n: [1][n]])
def test_asking_for_a_number_s_value_is_an_error_with_its_place(used):
    with pytest.raises(CaptureError, match=r"compile: .*test_program\.py:\d+ asks for the value .*3 at capture"):
        used(recorded(3, []))
