"""Guards remember the Modules that they accepted, and look again after every change."""

import gc
import weakref

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.capture import guards
from polyarr.capture.arguments import alias_pattern, has_aliases


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
    model, inputs, again = Scaled(), [], []
    guard = guards.guard_for(model)
    assert guard(model, []) and guard(model, inputs)
    monkeypatch.setattr(guards, "vars", pytest.fail, raising=False)
    assert guard(model, again) and [*map(id, again)] == [*map(id, inputs)]


def test_a_guard_keeps_no_model_alive(on_numpy):
    model = Scaled()
    guard, found = guards.guard_for(model), [weakref.ref(model.inner), weakref.ref(model.w.buf)]
    for _ in range(3):
        assert guard(model, [])
    del model
    gc.collect()
    assert [ref() for ref in found] == [None, None]


def test_two_models_that_alternate_are_told_apart():
    models, guard = [Scaled(), Scaled()], guards.guard_for(Scaled())
    for model in (*models, *models, models[0], models[0], models[1]):
        inputs = []
        assert guard(model, inputs) and inputs[0] is model.w
    models[1].rate = 7.0
    assert guard(models[0], []) and not guard(models[1], [])


def test_a_class_that_assigns_by_itself_is_visited_each_time():
    class Own(Scaled):
        def __setattr__(self, name, value):
            vars(self)[name] = value

    model = Own()
    guard = guards.guard_for(model)
    assert guard(model, []) and guard(model, [])
    model.rate = 4.0
    assert not guard(model, [])


def test_shared_arrays_are_told_from_equal_ones():
    a, b, c = pa.ones(2), pa.ones(2), pa.ones(2)
    trees = [[a, b, c], [a, 1, a, c], [a, a, 1, b], [a, b, b], [a, a, a], [a, b], [1, 2, 2], [a, b, a, b], [a, b, b, a]]
    for one in trees:
        for other in trees:
            assert has_aliases(other, alias_pattern(one)) == (alias_pattern(other) == alias_pattern(one)), (one, other)
