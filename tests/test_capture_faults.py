"""Faults planted in what compiles functions: the kit's case `captured` must see each of them."""

from importlib import import_module

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.capture import captured, passes, run
from polyarr.capture.trace import Trace
from polyarr.core.number import Number
from polyarr.testing.cases import Effort, cases
from tests.opencl_modules import opencl_modules

CASES = {case.name: case for case in cases() if case.check == "captured"}


def freed_too_early(patch):
    """Every value, one step before its last use."""
    real = run.last_uses
    patch.setattr(run, "last_uses", lambda program: [*real(program)[1:], ()])


def numbers_baked_in(patch):
    real = Trace._slot
    patch.setattr(Trace, "_slot", lambda self, a: self.constant(a.now) if isinstance(a, Number) else real(self, a))


def constants_confused(patch):
    """The first float stands for all."""
    real, firsts = Trace.constant, {}
    patch.setattr(
        Trace,
        "constant",
        lambda self, value: real(self, firsts.setdefault(id(self), value) if type(value) is float else value),
    )


def params_left_out(patch):
    """Of what tells two steps apart."""
    real = passes._what
    patch.setattr(passes, "_what", lambda step: real(step._replace(params={})))


def outputs_in_memory_of_its_own(patch):
    real = captured.runner

    def runner(program):
        plain, own = real(program), []

        def later(inputs):
            found = plain(inputs)
            own.extend(np.array(f) for f in found[len(own) :])
            for mine, f in zip(own, found, strict=True):
                np.copyto(mine, f)
            return [*own]

        return later

    patch.setattr(captured, "runner", runner)


def arguments_written_over(patch):
    """By the result, wherever it is as large as the first argument."""
    real = captured.runner

    def runner(program):
        plain = real(program)

        def over(inputs):
            given, found = inputs[0], plain(inputs)
            if getattr(given, "nbytes", None) == found[0].nbytes:
                np.copyto(given, found[0])
            return found

        return over

    patch.setattr(captured, "runner", runner)


def twins_for_ever(patch):
    """Arguments that were one array when they were captured are."""
    patch.setattr(import_module("polyarr.capture.compile"), "sharing", lambda fed: None)


FAULTS = {
    freed_too_early: (ops.layer_norm, "object has no attribute|unsupported operand"),
    numbers_baked_in: (ops.add, "compiled, with other numbers: the result has other bits"),
    constants_confused: (ops.layer_norm, "compiled, when it is captured: the result has other bits"),
    params_left_out: (ops.argsort, "compiled, when it is captured: the result with another parameter has other bits"),
    outputs_in_memory_of_its_own: (ops.exp, "compiled, after further runs: the result has other bits"),
    arguments_written_over: (ops.exp, "compiled, when it is captured: an argument was written over"),
    twins_for_ever: (ops.subtract, "compiled, where two inputs were one array: the result has other bits"),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_kit_sees_it(on_numpy, monkeypatch, plant):
    op, says = FAULTS[plant]
    examine = CASES[f"captured-{op.name}"].run
    examine(on_numpy, Effort())
    plant(monkeypatch)
    with pytest.raises(Exception, match=says):
        examine(on_numpy, Effort())


def inputs_written_over_that_are_read_later(patch):
    patch.setattr(replayed("places"), "_is_last", lambda n, place: place.times >> n > 1)


def inputs_written_over_that_were_not_given_away(patch):
    patch.setattr(replayed("replay"), "getrefcount", lambda value: replayed("replay").ALONE)


def places_baked_in(patch):
    patch.setattr(replayed("replay").FirstRun, "_begun", lambda self, i, buf: buf)


def replayed(stem):
    return opencl_modules(stem)[0]


REPLAYED = {
    inputs_written_over_that_are_read_later: "compiled, with arrays that are given away: .* has other bits",
    inputs_written_over_that_were_not_given_away: "compiled, with other arrays: an argument was written over",
    places_baked_in: "compiled, in another place: the result has other bits",
}


@pytest.mark.polyarr_backend("opencl")
@pytest.mark.parametrize("plant", REPLAYED, ids=lambda plant: plant.__name__)
def test_the_kit_sees_it_in_a_replay(backend, monkeypatch, plant):
    examine = CASES["captured-add"].run
    examine(backend, Effort())
    plant(monkeypatch)
    with pytest.raises(Exception, match=REPLAYED[plant]):
        examine(backend, Effort())


def test_what_is_computed_twice_with_other_parameters_is_computed_twice(on_numpy):
    x = pa.asarray(np.arange(6.0))
    fn = pa.compile(lambda x: (ops.roll(x, shift=1), ops.roll(x, shift=2), x * 0.0, x * -0.0, ops.roll(x, shift=1)))
    found = [a.tolist() for a in fn(x)]
    assert found[0] == found[4] == [5, 0, 1, 2, 3, 4]
    assert found[1] == [4, 5, 0, 1, 2, 3]
    assert [np.signbit(f[1]) for f in found[2:4]] == [False, True]
