"""Groups of fused steps in captured programs: which steps are fused, their bits, and faults that the kit must catch."""

import re
from random import Random

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.capture import fuse
from polyarr.capture.run import runner
from polyarr.core.program import Fusion, Kind, Program, Step, flat
from polyarr.core.spec import Spec, float32
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import bits

JOINED_CASE = next(case.run for case in cases() if case.name == "backend-joined")


def plainly(group, kind):
    """Run a group's steps one after the other."""
    run = runner(group)
    return lambda outs, *inputs: tuple(run([*inputs]))


JOINED = (ops.add, ops.subtract, ops.multiply, ops.divide, ops.exp, ops.tanh, ops.less, ops.greater, ops.where)
FUSION = Fusion(lambda step, specs, out: Kind(out.shape) if step.op in JOINED else None, plainly, 12)


@pytest.fixture
def joining(on_numpy):
    """Return NumPy with a fake fusion."""
    with pa.use_backend(on_numpy._replace(fusion=FUSION)) as backend:
        yield backend


def array(*shape, seed=0):
    return pa.asarray(np.random.default_rng(seed).standard_normal(shape))


def names(fn, *args):
    """Return the steps of fn's program by name, after checking its value."""
    compiled = pa.compile(fn)
    assert bits(compiled(*args)) == bits(fn(*args)) == bits(compiled(*args))
    return [step.name for step in compiled.programs()[0].steps]


def test_a_chain_is_one_group_whatever_is_broadcast_to_it(joining):
    found = names(lambda a, b, c, d: ops.tanh(a * b + c) * d, array(4, 3), array(4, 3), array(3), array(4, 1))
    assert found == ["multiply+add+tanh+multiply"]


def test_what_others_need_leaves_the_group(joining):
    def fn(x):
        y = x * 2.0
        z = ops.exp(y)
        return y, ops.sum(z, axis=0), z + y

    assert names(fn, array(4, 3)) == ["multiply+exp+add", "sum"]


def test_a_group_never_waits_for_itself(joining):
    def fn(x):
        y = x * 2.0
        return y - ops.sum(y, axis=1, keepdims=True)

    assert names(fn, array(4, 3)) == ["multiply", "sum", "subtract"]


def test_what_the_rows_need_is_computed_with_them(joining):
    def fn(x):
        return (x - 1.0) / ops.exp(ops.sum(x, axis=1, keepdims=True) + 0.5)

    assert names(fn, array(4, 3)) == ["sum", "subtract+add+exp+divide"]


def test_steps_that_may_report_keep_their_order(joining):
    """The first take is needed later than the second one, by a group that starts before it."""

    def fn(x, i):
        y = x * 2.0
        first = ops.take(y, i, axis=0)
        return first, y + ops.take(x, i, axis=0)

    found = names(fn, array(3), pa.asarray([2, 0, 1]))
    assert [name for name in found if name == "take"] == ["take", "take"]
    assert found[0] == "multiply", "joined with the sum, it would let the second come first"


def test_long_programs_are_fused_in_stretches(joining, monkeypatch):
    def fn(x):
        first = x * 1.01
        y = first
        for _ in range(8):
            y = ops.tanh(y)
        return y + first, ops.sum(y, axis=0)

    monkeypatch.setattr(fuse, "MAX_STRETCH", 4)
    chain = ["tanh"] * 8
    assert names(fn, array(3)) == ["+".join(["multiply", *chain[:3]]), "+".join(chain[:4]), "tanh+add", "sum"]


def test_equal_groups_share_a_function(joining):
    def fn(x, w):
        for factor in (2.0, 2.0, 2.0, -0.0, 0.0):
            x = ops.tanh(x @ w) * factor
        return ops.tanh(x @ w[:, :1]) * 2.0

    compiled = pa.compile(fn)
    x, w = array(4, 3), array(3, 3, seed=1)
    assert bits(compiled(x, w)) == bits(fn(x, w))
    calls = [step.call for step in compiled.programs()[0].steps if step.name == "tanh+multiply"]
    assert [calls.index(call) for call in calls] == [0, 0, 0, 3, 4, 5]


def test_groups_have_an_end(joining):
    def long(x):
        for _ in range(fuse.MAX_STEPS + 9):
            x = x * 1.01
        return x

    assert names(long, array(3)) == ["+".join(["multiply"] * fuse.MAX_STEPS), "+".join(["multiply"] * 9)]
    many = [array(5, seed=i) for i in range(20)]
    found = names(lambda arrays: sum(arrays[1:], start=arrays[0]), many)
    assert [name.count("add") for name in found] == [10, 9], "11 arrays and a result at most"


def test_observers_see_a_group_with_its_steps(joining, capsys, monkeypatch):
    fn = pa.compile(lambda x: ops.exp(x) * 2.0)
    fn(array(3))
    assert "multiply" in str(fn.programs()[0])
    with pa.profile() as profile:
        fn(array(3))
    assert re.search(r"\bexp\b", str(profile)) and re.search(r"\bmultiply\b", str(profile))


FULL, ROWS, OUT = Spec((4, 4), float32), Spec((4, 1), float32), 1000


def written(random):
    """Return a random program whose steps use earlier values."""
    steps, specs, reach = [], {0: FULL}, random.choice((0.1, 0.3, 0.7))
    for i in range(1, random.randint(4, 45)):
        op = random.choices((ops.add, ops.exp, ops.sum, ops.take), (6, 1, 2, 1))[0]
        inputs = [max(0, i - 1 - int(random.expovariate(reach))) for _ in range(1 + (op is ops.add))]
        specs[i] = ROWS if op is ops.sum or (op is not ops.take and all(specs[v] == ROWS for v in inputs)) else FULL
        steps.append(Step(op, "kernel", None, (OUT, *inputs), {}, i, "file.py:1"))
    return Program(
        "f", (), tuple(steps), OUT + 1, {OUT: FULL}, (0,), tuple(random.sample(range(1, i + 1), 2)), specs, {}
    )


def test_whatever_is_joined_every_step_runs_once_with_what_it_takes():
    def kind(step, specs, out):
        if step.op is ops.sum:
            return Kind(specs[0].shape, "", 1) if specs[0] == FULL else None
        return None if step.op is ops.take else Kind(out.shape)

    for seed in range(200):
        program = written(random := Random(seed))
        joined = fuse.fused(program, Fusion(kind, lambda group, kind: None, random.choice((3, 6, 16))))
        there, ran = {0, *joined.constants}, []
        for step in joined.steps:
            assert there.issuperset(flat(step.inputs)), seed
            parts, own = (step.op.steps, {*step.op.inputs, OUT}) if step.part == "group" else ((step,), there)
            for part in parts:
                assert own.issuperset(flat(part.inputs)), seed
                own.add(part.outputs)
                ran.append(part.outputs)
            there.update(flat(step.outputs))
        assert there.issuperset(program.outputs) and sorted(ran) == [step.outputs for step in program.steps], seed
        inputs = {step.outputs for step in program.steps if step.op is ops.take}
        assert [v for v in ran if v in inputs] == sorted(inputs), seed


# ---- planted faults ----------------------------------------------------------------------------------------------


def a_group_that_waits_for_itself(patch):
    real = fuse._reached
    patch.setattr(fuse, "_reached", lambda edges, order: [0] * len(real(edges, order)))


def a_result_that_stays_inside(patch):
    """Omit a result that another step needs."""
    real = fuse.Groups.edges

    def edges(self, steps):
        taken, needed = real(self, steps)
        return taken, needed[-1:]

    patch.setattr(fuse.Groups, "edges", edges)


FAULTS = (a_group_that_waits_for_itself, a_result_that_stays_inside)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_kit_sees_it(joining, monkeypatch, plant):
    JOINED_CASE(joining, Effort())
    plant(monkeypatch)
    with pytest.raises(Exception, match=r"unsupported operand|NoneType|have other bits"):
        JOINED_CASE(joining, Effort())


def test_the_step_of_a_group_says_what_it_is(joining):
    compiled = pa.compile(lambda x: ops.exp(x) * 2.0)
    compiled(array(3))
    (step,) = compiled.programs()[0].steps
    assert type(step) is Step and step.part == "group" and len(step.op.steps) == 2
