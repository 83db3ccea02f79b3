"""polyarr.compile and Python details: changed captures, NumPy scalars, copies, other dicts."""

import copy
import math
import pickle
from collections import OrderedDict, defaultdict

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.core import watch
from polyarr.profiling.tracing import Debugger
from polyarr.testing.compare import bits


@pa.compile
def doubled(x):
    return x * 2


def test_containers_of_captures_may_not_change_and_stay_as_they_were(backend):
    layer, held = pa.nn.Linear(2, 2), {"w": pa.ones((2,)), "more": [pa.ones((2,))]}
    weight, w = layer.weight, held["w"]

    def in_a_dict(x):
        held["w"] = held["w"] * x
        return held["w"]

    def in_a_list(x):
        held["more"].append(x)
        return x

    def in_a_module(x):
        layer.weight = layer.weight * x
        return layer(x)

    def fails(x):
        in_a_module(x)
        raise ValueError("stop")

    for fn, captures in ((in_a_dict, held), (in_a_list, held), (in_a_module, {"m": layer})):
        compiled = pa.compile(fn, captures=captures)
        for _ in range(2):
            with pytest.raises(pa.CaptureError, match=rf"^compile: {fn.__name__} changes what is in captures="):
                compiled(pa.ones((2,)))
    with pytest.raises(ValueError, match="stop"):
        pa.compile(fails, captures=layer)(pa.ones((2,)))
    assert layer.weight is weight and held["w"] is w and len(held["more"]) == 1
    assert bits(layer(pa.ones((1, 2)))) and held["w"].tolist() == [1, 1]


def test_numpy_computes_with_numbers_at_every_run():
    def fn(x, n):
        return x * np.sqrt(n) * (np.float64(0.1) * n) + (n * np.int64(3) - np.maximum(n, 2))

    compiled, x = pa.compile(fn), pa.asarray([1.0, 3.0])
    for n in (1, 3, 7, 2.5, 0.5):
        assert bits(compiled(x, n)) == bits(fn(x, n))
    assert len(compiled.programs()) == 2


@pytest.mark.parametrize(
    "fn",
    [
        round,
        math.floor,
        complex,
        np.asarray,
        lambda n: np.ones(2) * n,
        lambda n: np.float32(0.1) * n,  # an object array would use Python float arithmetic
        lambda n: np.add.reduce([n, n]),
    ],
)
def test_what_needs_a_numbers_value_says_so(fn):
    for n in (3, 2.5):
        with pytest.raises(pa.CaptureError, match="asks for the value of a number that changes from run to run"):
            pa.compile(lambda n: fn(n))(n)


def test_keys_that_are_equal_but_of_other_types_have_other_signatures():
    compiled = pa.compile(lambda given: (type(next(iter(given))).__name__, given))
    for key in (1, True, 1.0, 1):
        kind, given = compiled({key: pa.ones(())})
        assert kind == type(key).__name__ == type(next(iter(given))).__name__
    assert len(compiled.programs()) == 3


def test_settings_that_are_equal_but_compute_otherwise_have_other_signatures():
    class Scale(nn.Module):
        def __init__(self, by):
            self.by, self.weight = by, pa.ones(())

        def __call__(self):
            return type(self.by).__name__, self.weight * float(self.by)

    compiled, settings = pa.compile(lambda layer: layer()), (1, True, 1.0, 0.0, -0.0)
    for by in settings * 2:
        kind, y = compiled(Scale(by))
        assert kind == type(by).__name__ and repr(y.item()) == repr(float(by))
    assert len(compiled.programs()) == len(settings)


def test_the_zeros_are_two_constants(backend):
    x = pa.asarray([1.0])
    both = pa.compile(lambda x: (1 / (x * 0.0), 1 / (x * -0.0)))(x)
    assert [y.item() for y in both] == [math.inf, -math.inf]


def test_a_number_is_an_index(backend):
    def fn(x, n):
        before = x[n], x[..., n, None], x[n, [1, 0]]
        x[n] = x[n - 1] * 2
        x[0, n] = n
        return (*before, x)

    compiled = pa.compile(fn)
    for n in (1, 2, -1, -2):
        mine, theirs = (pa.asarray(np.arange(9.0, dtype=np.float32).reshape(3, 3)) for _ in range(2))
        assert bits(compiled(mine, n)) == bits(fn(theirs, n)) and bits(mine) == bits(theirs)
    assert len(compiled.programs()) == 1
    with pytest.raises(IndexError, match=r"^indexing: x is float32\[3, 3\]; index 3 is out of range for axis 0"):
        compiled(mine, 3)


def test_a_number_that_does_not_fit_raises_as_without_compiling():
    def fn(x, n):
        x[0] = n
        return x

    for call in (fn, pa.compile(fn)):
        with pytest.raises(OverflowError, match=r"^x\[key\] = value: value is 300; int8 holds"):
            call(pa.ones((2,), dtype="int8"), 300)


def test_what_contains_itself_is_no_tree():
    def returned(x):
        found = [x]
        found.append(found)
        return found

    with pytest.raises(pa.CaptureError, match=r"^compile: an argument of <lambda> contains itself; give a tree$"):
        pa.compile(lambda given: given[0])(returned(pa.ones(())))
    with pytest.raises(pa.CaptureError, match=r"^compile: what returned returns contains itself; return a tree$"):
        pa.compile(returned)(pa.ones(()))


def test_memory_stats_bears_what_a_capture_leaked(backend):
    kept = []
    pa.compile(lambda x: kept.append(x + 1) or x)(pa.ones((3,)))
    assert str(pa.memory_stats())
    kept.clear()


def test_observers_may_observe_a_capture(backend):
    compiled, x = pa.compile(lambda x: pa.tanh(x @ x) + 1), pa.ones((2, 2))
    with pa.profile() as profile:
        first = compiled(x)
    assert "tanh" in str(profile) and bits(first) == bits(compiled(x))
    with watch.observing(Debugger()):
        assert bits(pa.compile(lambda x: pa.tanh(x @ x) + 1)(x)) == bits(first)


def test_a_compiled_function_is_pickled_and_copied_as_its_function_is(backend):
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert doubled(pa.ones(())).tolist() == 2
    assert copy.deepcopy({"fn": doubled})["fn"] is doubled

    class Model(pa.nn.Module):
        def __init__(self):
            self.by = 2.0
            self.fast = pa.compile(self.scaled)

        def scaled(self, x):
            return x * self.by

    first = Model()
    assert first.fast(pa.ones(())).tolist() == 2
    second = copy.deepcopy(first)
    second.by = 5.0
    assert (first.fast(pa.ones(())).tolist(), second.fast(pa.ones(())).tolist()) == (2, 5)


def test_other_dicts_are_arguments_and_results(backend):
    compiled = pa.compile(lambda given: given)
    for given in (defaultdict(list, a=pa.ones(())), OrderedDict(b=pa.ones(()), a=2)):
        found = compiled(given)
        assert type(found) is type(given) and list(found) == list(given)
    assert compiled(defaultdict(list, a=1))["new"] == []
