"""Guards remember the Modules that they accepted, and look again after every change."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.capture import guards
from polyarr.capture.arguments import alias_pattern, has_aliases
from polyarr.core.program import Inputs


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch):
    monkeypatch.setattr(guards, "MIN_KEPT", 2)


class Scaled(nn.Module):
    def __init__(self):
        self.w, self.rate, self.inner = pa.ones(2), 2.0, nn.Linear(2, 2)
        self.many, self.named = [pa.ones(2)], {"one": pa.ones(2)}

    def __call__(self, x):
        return sum([x * self.w * self.rate, *self.many, *self.named.values()])


def assigned(model):
    model.rate = 3.0


def assigned_inside(model):
    model.inner.training = False


def deleted(model):
    del model.inner


def appended(model):
    model.many.append(pa.ones(2))


def replaced_in_a_list(model):
    model.many[0] = pa.full(2, 5.0)


def put_into_a_dict(model):
    model.named["more"] = pa.ones(2)


def replaced(model):
    model.w = pa.full(2, 7.0)


def rebound(model):
    model.w.rebind(pa.full(2, 4.0))


def loaded(model):
    model.load_parameters({name: np.full(a.shape, 9.0, np.float32) for name, a in model.named_parameters().items()})


CHANGES = [assigned, assigned_inside, deleted, appended, replaced_in_a_list, put_into_a_dict, replaced, rebound, loaded]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed(backend, change):
    model, x = Scaled(), pa.asarray([1.0, 2.0])
    compiled = pa.compile(lambda model, x: model(x))
    for _ in range(4):
        assert compiled(model, x).tolist() == model(x).tolist()
    change(model)
    for _ in range(4):
        assert compiled(model, x).tolist() == model(x).tolist()


def test_another_dtype_of_the_same_array_is_noticed(backend):
    model, seen = Scaled(), []

    @pa.compile
    def dtype_of(model):
        seen.append(model.w.dtype)
        return model.w * 1

    for dtype in ("float32", "float32", "float32", "float16", "float16"):
        model.w.rebind(model.w.astype(dtype))
        assert dtype_of(model).dtype == dtype
    assert [*map(str, seen)] == ["float32", "float16"]


def test_what_did_not_change_is_not_visited_again(monkeypatch):
    model, inputs, again = Scaled(), Inputs(), Inputs()
    guard = guards.guard_for(model)
    assert guard(model, Inputs()) and guard(model, inputs)
    monkeypatch.setattr(guards, "vars", pytest.fail, raising=False)
    assert guard(model, again) and [*map(id, again)] == [*map(id, inputs)]


def test_a_guard_keeps_no_model_alive(on_numpy):
    model = Scaled()
    guard, found = guards.guard_for(model), [weakref.ref(model.inner), weakref.ref(model.w.buf)]
    for _ in range(3):
        assert guard(model, Inputs())
    del model
    gc.collect()
    assert [ref() for ref in found] == [None, None]


def test_inputs_that_do_not_change_are_kept_until_they_do():
    model = Scaled()
    guard = guards.guard_for([model, Scaled()])
    trees, found = [model, Scaled()], []
    for _ in range(5):
        found.append(Inputs([0]))
        assert guard(trees, found[-1]) and len(found[-1]) == 11
    first, *_, last = found
    assert first.kept is None and last.kept is not None and last.start == 1 and last.others() == [0]
    assert [*map(id, last.kept.values)] == [id(a.buf) for a in last[1:]]
    model.w.rebind(pa.full(2, 4.0))
    for is_kept in (False, True, True):
        again = Inputs()
        assert guard(trees, again) and (again.kept is not None) == is_kept and len(again) == 10
    assert again.kept.values[0] is model.w.buf


def test_guards_share_what_is_kept_of_a_model():
    model, found = Scaled(), []
    guards_of_two_functions = [guards.guard_for(model), guards.guard_for(model)]
    for guard in guards_of_two_functions:
        for _ in range(4):
            inputs = Inputs()
            assert guard(model, inputs)
        found.append(inputs.kept)
    assert found[0] is found[1] and found[0] is not None


def test_donated_inputs_are_not_kept():
    model = Scaled()
    guard = guards.guard_for(model, is_donated=True)
    for _ in range(5):
        inputs = Inputs()
        assert guard(model, inputs) and inputs.kept is None


def test_arrays_on_two_backends_are_not_kept(on_numpy):
    model = Scaled()
    guard = guards.guard_for(model)
    for _ in range(4):
        inputs = Inputs()
        assert guard(model, inputs)
    assert inputs.kept is not None
    inputs[-1].backend = inputs[-1].backend._replace(name="another with the same memory")
    again = Inputs()
    assert guard(model, again) and again.kept is None


def test_values_that_change_at_each_call_are_not_held(on_numpy):
    model = Scaled()
    guard = guards.guard_for(model)
    for _ in range(5):
        assert guard(model, Inputs())
        before = weakref.ref(model.w.buf)
        model.w.rebind(model.w * 2)
        assert guard(model, Inputs()) and before() is None


def test_inputs_beside_kept_ones_may_share_their_memory(backend):
    """Values of the other inputs, and where they lie, are looked at in each call."""
    model, x = Scaled(), pa.asarray([1.0, 2.0])
    compiled = pa.compile(lambda model, x, y: (model(x) - y, x + 1), donate="y")
    wide = pa.arange(6, dtype="float32")
    for turn in range(8):
        for x in (pa.full(2, float(turn)), model.w, model.many[0], wide[1:3], wide[::3], wide[turn % 4 : turn % 4 + 2]):
            y = pa.full(2, 3.0)
            expected = (model(x) - y).tolist(), (x + 1).tolist()
            assert tuple(a.tolist() for a in compiled(model, x, y)) == expected


def rebound_by_a_step(model):
    def step(model):
        model.w *= 2

    pa.compile(step)(model)


def donated_to_a_step(model):
    pa.compile(lambda a: a * 2, donate="a")(model.w)


@pytest.mark.parametrize("change", [rebound, rebound_by_a_step, donated_to_a_step], ids=lambda change: change.__name__)
def test_values_that_are_kept_are_released_before_the_next_call(on_numpy, change):
    model, x = Scaled(), pa.asarray([1.0, 2.0])
    compiled = pa.compile(lambda model, x: model(x))
    for _ in range(8):
        compiled(model, x)
    before = weakref.ref(model.w.buf)
    change(model)
    assert before() is None


def test_a_step_overwrites_donated_weights_that_another_function_kept():
    with pa.use_backend("opencl"):
        evaluate = pa.compile(lambda model, x: model(x))
        step = pa.compile(lambda model: pa.tree.map(lambda w: w * 0.5 + 1, model), donate="model")
        model, x = Scaled(), pa.asarray([1.0, 2.0])
        for calls in (0, 0, 0, 8):
            for _ in range(calls):
                evaluate(model, x)
            memory = model.w.buf.memory.int_ptr
            model = step(model)
        assert model.w.buf.memory.int_ptr == memory


def test_two_models_that_alternate_are_told_apart():
    models, guard = [Scaled(), Scaled()], guards.guard_for(Scaled())
    for model in (*models, *models, models[0], models[0], models[1]):
        inputs = Inputs()
        assert guard(model, inputs) and inputs[0] is model.w
    models[1].rate = 7.0
    assert guard(models[0], Inputs()) and not guard(models[1], Inputs())


def test_a_class_that_assigns_by_itself_is_visited_each_time():
    class Own(Scaled):
        def __setattr__(self, name, value):
            vars(self)[name] = value

    model = Own()
    guard = guards.guard_for(model)
    assert guard(model, Inputs()) and guard(model, Inputs())
    model.rate = 4.0
    assert not guard(model, Inputs())


def test_shared_arrays_are_told_from_equal_ones():
    a, b, c = pa.ones(2), pa.ones(2), pa.ones(2)
    trees = [[a, b, c], [a, 1, a, c], [a, a, 1, b], [a, b, b], [a, a, a], [a, b], [1, 2, 2], [a, b, a, b], [a, b, b, a]]
    for one in trees:
        for other in trees:
            is_same = alias_pattern(other) == alias_pattern(one)
            assert has_aliases(Inputs(other), alias_pattern(one)) == is_same, (one, other)


def test_a_call_in_another_thread_meanwhile_does_not_mix_up_two_models():
    one, other = Scaled(), Scaled()
    matches, others = guards.guard_for(one, is_inner=True), [other]

    def matches_while_another_thread_calls(tree, inputs):
        if len(seen) == 2 and others:
            assert guard(others.pop(), Inputs())
        return matches(tree, inputs)

    seen, guard = [], guards._remembering(matches_while_another_thread_calls, is_donated=False)
    for model in (one, one, other, one, one, other, other):
        seen.append(model)
        inputs = Inputs()
        assert guard(model, inputs) and inputs[0] is model.w


def test_threads_that_call_with_models_of_their_own(backend):
    models, x, wrong = [Scaled() for _ in range(4)], pa.asarray([1.0, 2.0]), []
    for i, model in enumerate(models):
        model.w.rebind(pa.full(2, float(i)))
    compiled, expected = pa.compile(lambda model, x: model(x)), [model(x).tolist() for model in models]

    def work(i):
        for _ in range(100):
            if compiled(models[i], x).tolist() != expected[i]:
                wrong.append(i)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
