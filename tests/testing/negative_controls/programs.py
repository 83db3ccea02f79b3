"""Faults in the execution of captured programs: replays on NumPy that each omit something."""

import threading

import numpy as np

from polyarr import ops
from polyarr.capture.run import runner
from tests.testing.negative_controls.aliases import root_of
from tests.testing.negative_controls.table import fault

CAPTURES, RUNS = "backend-captures", "backend-runs"
OTHER = "the result has other bits"


def changing(change):
    """Return a replay that changes the inputs of every run: change(program, inputs) -> inputs."""

    def replay(program, plain):
        return lambda inputs: plain(change(program, inputs))

    return replay


def planted(says, case=RUNS):
    """Enter a replay into the table."""

    def enter(replay):
        def plant(backend):
            return backend._replace(replay=replay)

        plant.__name__ = replay.__name__
        fault("numpy", {case: says}, steady=True)(plant)
        return replay

    return enter


def state_of(program):
    """Return the positions of the random key and the counter among the inputs; none without random numbers."""
    return [-2, -1] if any(step.op is ops.random_bits for step in program.steps) else []


def masked(inputs, places):
    for i in places:
        inputs[i] &= 0xFFFFFFFF
    return inputs


@planted(rf"compiled, with the random key 4294967301 after 0 draws: {OTHER}")
def a_random_key_has_32_bits(program, plain):
    return changing(lambda program, inputs: masked(inputs, state_of(program)[:1]))(program, plain)


@planted(rf"compiled, with the random key 5 after 4294967303 draws: {OTHER}")
def a_number_of_draws_has_32_bits(program, plain):
    return changing(lambda program, inputs: masked(inputs, state_of(program)[1:]))(program, plain)


@planted(rf"compiled, with the random key \d+ after \d+ draws: {OTHER}")
def draws_of_one_shape_are_merged(program, plain):
    steps, first = [], {}
    for step in program.steps:
        merged = first.setdefault((step.op, repr(step.params)), step) if step.op is ops.random_bits else step
        steps.append(step._replace(inputs=merged.inputs))
    return runner(program._replace(steps=tuple(steps)))


def as_kind(program, inputs, kind):
    return inputs if state_of(program) else [int(kind(i)) if type(i) is int else i for i in inputs]


@planted(rf"compiled, with the number 2147483649: {OTHER}")
def a_number_is_kept_as_float32(program, plain):
    return changing(lambda program, inputs: as_kind(program, inputs, np.float32))(program, plain)


@planted(rf"compiled, with the number 32769: {OTHER}")
def a_number_has_16_bits(program, plain):
    return changing(lambda program, inputs: as_kind(program, inputs, lambda n: (n + 2**15) % 2**16 - 2**15))(
        program, plain
    )


def begun(x, begin_of):
    """Return a slice of the same memory that starts elsewhere."""
    root = root_of(x) if isinstance(x, np.ndarray) else x
    if root is x or root.ndim != 1 or not x.flags.c_contiguous or x.dtype != root.dtype:
        return x
    begin = (x.__array_interface__["data"][0] - root.__array_interface__["data"][0]) // x.itemsize
    return root[begin_of(begin) :][: x.size].reshape(x.shape)


@planted(rf"compiled, with a view that begins at 65539: {OTHER}")
def a_view_begins_at_16_bits(program, plain):
    return changing(lambda program, inputs: [begun(x, lambda n: n % 2**16) for x in inputs])(program, plain)


@planted(rf"compiled, with a view that begins at 16777217: {OTHER}")
def a_view_begins_at_a_float(program, plain):
    return changing(lambda program, inputs: [begun(x, lambda n: int(np.float32(n))) for x in inputs])(program, plain)


@planted(rf"compiled, with weights in turn \d+: {OTHER}")
def weights_that_are_kept_are_those_of_the_first_model(program, plain):
    first = []

    def run(inputs):
        if inputs.kept is not None:
            first[:] = first or inputs.kept.values
            inputs[inputs.start : inputs.start + len(first)] = first
        return plain(inputs)

    return run


@planted(rf"compiled, with weights in turn \d+: {OTHER}")
def what_stands_beside_kept_weights_is_kept_too(program, plain):
    def run(inputs):
        if inputs.kept is not None:
            inputs[:] = inputs.notes.setdefault(run, [*inputs])
        return plain(inputs)

    return run


@planted(r"compiled, with \d+ and \d+, among runs that raise: another outcome")
def what_a_run_that_raised_was_given_stays(program, plain):
    left = []

    def run(inputs):
        before = left.pop() if left else inputs
        given = [b if isinstance(b, np.ndarray) else i for b, i in zip(before, inputs, strict=True)]
        kept = [*given]
        try:
            return plain(given)
        except LookupError:
            left[:] = [kept]
            raise

    return run


@planted(rf"compiled, in 4 threads: {OTHER}")
def threads_share_the_inputs_of_a_run(program, plain):
    shared, turn = [], threading.Condition()

    def run(inputs):
        with turn:
            shared[:] = inputs
            turn.notify_all()
            if threading.current_thread() is not threading.main_thread():
                turn.wait(0.02)
            return plain([*shared])

    return run


KEPT = "compiled: an input's memory is kept after the call"


@fault("opencl", {RUNS: KEPT})
def a_replay_keeps_its_last_inputs(backend):
    def replay(program, plain):
        return the_last_inputs_are_kept(program, backend.replay(program, plain))

    return backend._replace(replay=replay)


@planted(KEPT)
def the_last_inputs_are_kept(program, plain):
    kept = []

    def run(inputs):
        kept[:] = inputs
        return plain(inputs)

    return run


@planted(r"compiled \w+( \w+)*, with arrays \(.*\): (the result|an array) is another one", CAPTURES)
def inputs_that_were_one_memory_are(program, plain):
    first = []

    def run(inputs):
        if not first:
            first.extend(next(j for j, other in enumerate(inputs) if other is mine) for mine in inputs)
        return plain([inputs[j] for j in first])

    return run


@planted(r"compiled \w+( \w+)*, with arrays \(.*\): (the result|an array) is another one", CAPTURES)
def an_output_that_is_an_input_is_that_of_the_first_run(program, plain):
    first = {}

    def run(inputs):
        given = [*inputs]
        found = plain(inputs)
        return [first.setdefault(i, f) if any(f is g for g in given) else f for i, f in enumerate(found)]

    return run


@planted(r"compiled \w+( \w+)*, with arrays \(.*\): (the result|an array) is another one", CAPTURES)
def an_output_that_is_there_twice_is_new_once(program, plain):
    first = {}

    def run(inputs):
        found = plain(inputs)
        return [
            first.setdefault(i, f) if slot in program.outputs[:i] else f
            for i, (slot, f) in enumerate(zip(program.outputs, found, strict=True))
        ]

    return run


@fault("numpy", {"captured-add": "add on numpy: compiled, with arrays .*: a view of one was written over"})
def donated_memory_is_used_again_though_a_view_refers_to_it(backend):
    def replay(program, plain):
        def run(inputs):
            buffers = [b for v, b in zip(program.inputs, inputs, strict=True) if v in program.donated]
            found = plain(inputs)
            for b in buffers:
                if isinstance(b, np.ndarray) and b.flags.writeable and not any(np.shares_memory(b, f) for f in found):
                    b[...] = 0
            return found

        return run

    return backend._replace(replay=replay)
