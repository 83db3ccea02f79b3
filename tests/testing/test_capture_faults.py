"""Faults planted in polyarr.compile, each of which the kit's check `captured` must catch."""

from importlib import import_module

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.capture import captured, passes, run
from polyarr.capture.trace import Trace
from polyarr.core.array import Array
from polyarr.core.number import Number
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import CheckFailure
from tests.helpers.opencl_modules import opencl_modules

pytestmark = pytest.mark.imports_only

CASES = {case.name: case for case in cases() if case.check == "captured"}


def freed_too_early(patch):
    """Free every value one step before its last use."""
    real = run.last_uses
    patch.setattr(run, "last_uses", lambda program: [*real(program)[1:], ()])


def numbers_baked_in(patch):
    real = Trace._slot
    patch.setattr(Trace, "_slot", lambda self, a: self.constant(a.now) if isinstance(a, Number) else real(self, a))


def constants_confused(patch):
    """Use the first float constant for all."""
    real, firsts = Trace.constant, {}
    patch.setattr(
        Trace,
        "constant",
        lambda self, value: real(self, firsts.setdefault(id(self), value) if type(value) is float else value),
    )


def params_left_out(patch):
    """Omit parameters from the key that distinguishes steps."""
    real = passes._computation
    patch.setattr(passes, "_computation", lambda step: real(step._replace(params={})))


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
    """Overwrite the first argument with a result of the same size."""
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
    """Treat arguments that were one array during capture as one array in all runs."""
    patch.setattr(import_module("polyarr.capture.compile"), "alias_pattern", lambda inputs: None)


def captures_known_by_their_buffers(patch):
    """Treat two handles on one buffer as one array."""

    def expect(self, a):
        handle = self.array(a)
        self._known[id(a.buf)] = a, a.buf, handle.buf
        return handle

    def traced(self, a):
        _, _, held = self._known.get(id(a.buf), (None, None, None))
        return a if held is None else Array(self.backend, held, a.spec, a.node)

    patch.setattr(Trace, "expect", expect)
    patch.setattr(Trace, "_traced", traced)


def arguments_that_are_captures_taken_for_two(patch):
    real = captured.Capture._input

    def traced_input(self, leaf):
        own, self._by_handle = self._by_handle, {}
        try:
            return real(self, leaf)
        finally:
            self._by_handle = {**self._by_handle, **own}

    patch.setattr(captured.Capture, "_input", traced_input)


def captures_given_back_as_they_were(patch):
    """Read returned captures after the handles got their first buffers back."""
    real = captured.Capture._tracer

    def tracer(self, a):
        stand = self._by_handle.get(id(a))
        return real(self, a if stand is None else Array(self.trace.backend, self.trace._known[id(a)][2], a.spec))

    patch.setattr(captured.Capture, "_leaves", lambda self, name, value: [
        tracer(self, a) if type(a) is Array else a for a in pa.tree.leaves(value)
    ])  # fmt: skip


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


HELD = "compiled, with inputs in captures=: another outcome than without"
OF_CAPTURES = {
    captures_known_by_their_buffers: ("backend-captures", r"by the capture, with arrays .*: the result is another"),
    arguments_that_are_captures_taken_for_two: ("captured-exp", HELD),
    captures_given_back_as_they_were: ("captured-exp", HELD),
}


@pytest.mark.parametrize("plant", OF_CAPTURES, ids=lambda plant: plant.__name__)
def test_the_kit_sees_it_in_captures(on_numpy, monkeypatch, plant):
    name, says = OF_CAPTURES[plant]
    examine = next(case.run for case in cases() if case.name == name)
    examine(on_numpy, Effort())
    plant(monkeypatch)
    with pytest.raises(CheckFailure, match=says):
        examine(on_numpy, Effort())


def inputs_written_over_that_are_read_later(patch):
    patch.setattr(replayed("memory_plan"), "_is_last", lambda n, ref: ref.times >> n > 1)


def inputs_written_over_that_were_not_given_away(patch):
    replay = replayed("replay").Replay
    real = replay.__init__
    every = lambda program: program._replace(donated=frozenset(program.inputs))
    patch.setattr(replay, "__init__", lambda self, device, program, run: real(self, device, every(program), run))
    patch.setattr(replayed("recorded_run"), "are_unshared", lambda memories, which: [True] * len(which))


def places_baked_in(patch):
    patch.setattr(replayed("first_run").FirstRun, "_trace_offset", lambda self, recording, i, buf: buf)


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
