"""Guards of captured calls accept exactly the arguments whose signature is equal."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.capture.arguments import flatten
from polyarr.capture.guards import guard_for
from polyarr.core.errors import CaptureError
from polyarr.core.program import Inputs

A, B, SHORT = pa.zeros((2, 3)), pa.ones((2, 3)), pa.zeros(2)


@dataclass(frozen=True)
class Config:
    width: int = 3


class Pair(NamedTuple):
    first: object
    second: object


class Layer(nn.Module):
    def __init__(self, **given):
        vars(self).update(given)


class Elsewhere(nn.Module):
    """A module whose children are not its attributes."""

    def __init__(self, *arrays):
        self.rate, self._held = 0.5, {"arrays": arrays}

    def tree_children(self):
        return dict(enumerate(self._held["arrays"]))


NAMES = ["a"]
PLAIN = [
    A, B, SHORT, A.astype("float16"), 1, 2, 1.0, 0.0, -0.0, float("nan"), True, None, "text", "other",
    [A], [A, 1], (A, 1), [A, 1.0], [A, True], [], (), {}, {"x": A}, {"x": B}, {"y": A}, {"x": A, "y": 1},
    {"y": 1, "x": A}, {1: A}, {True: A}, [[A], A], [A, [A]], [None], OrderedDict(x=A), Pair(A, 1), Pair(1, A),
]  # fmt: skip
LAYERS = [
    Layer(w=A), Layer(w=B, rate=1), Layer(w=A, rate=1.0), Layer(w=A, rate=True), Layer(rate=1, w=A), Layer(w=A, rate=2),
    Layer(w=SHORT, rate=1), Layer(w=A, rate=A), Layer(w=A, config=Config()), Layer(w=A, config=Config(4)),
    Layer(w=[A, B], sizes=(1, 2)), Layer(w=[A], sizes=(1, 2)), Layer(w=A, sizes=(1, True)),
    Layer(inner=Layer(w=A), on=None), Layer(inner=Layer(w=A, frozen=True), on=None), nn.Linear(3, 2),
    nn.Linear(3, 2).freeze(), nn.Linear(3, 2).eval(), nn.Linear(3, 2, bias=False), Elsewhere(A), Elsewhere(A, B),
    Layer(w=A, names=NAMES), Layer(w=A, names=["a"]),
]  # fmt: skip


def flattened(tree, numbers):
    inputs, key = [], []
    flatten(tree, inputs, key, numbers)
    return [*map(id, inputs)], key


@pytest.mark.parametrize("numbers", [True, False])
def test_what_a_guard_accepts_flattens_alike(numbers):
    accepted = 0
    for tree in (*PLAIN, *LAYERS):
        matches = guard_for(tree, numbers)
        for other in (*PLAIN, *LAYERS) if matches else ():
            inputs = Inputs()
            if matches(other, inputs):
                accepted += 1
                ids, key = flattened(other, numbers)
                assert [*map(id, inputs)] == ids and key == flattened(tree, numbers)[1], (tree, other)
    assert accepted > len(PLAIN)


def test_models_are_guarded():
    for tree in (A, 1.5, None, [A, (1, B)], {"x": {"y": A}}, nn.Linear(3, 2), Layer(c=Config())):
        assert guard_for(tree)(tree, Inputs())
    model = nn.TransformerBlock(4, 2)
    matches, inputs = guard_for(model), Inputs()
    assert matches(pa.tree.map(lambda a: a + 1, model), inputs) and len(inputs) == len(pa.tree.leaves(model))


@pytest.mark.parametrize("tree", [OrderedDict(x=A), Pair(A, 1), {1: A}, Elsewhere(A), Layer(w=A, names=NAMES)], ids=str)
def test_no_guard_for_what_may_change_unseen(tree):
    assert guard_for(tree) is None


def test_a_settings_content_is_looked_at(backend):
    layer, calls = Layer(w=pa.ones(2), names=["a"]), []

    @pa.compile
    def fn(layer):
        calls.append(list(layer.names))
        return layer.w * len(layer.names)

    for names in (["a"], ["a"], ["a"], ["a", "b"], ["a", "b"]):
        layer.names[:] = names
        assert fn(layer).tolist() == [len(names)] * 2
    assert calls == [["a"], ["a", "b"]]


def test_signatures_may_alternate(backend):
    calls = []

    @pa.compile(donate="y")
    def fn(x, y, k=1):
        calls.append(x.shape)
        return x * k + y

    for turn in range(4):
        for shape in ((2,), (3,)):
            for k in (turn, turn + 0.5):
                x, y = pa.ones(shape), pa.ones(shape)
                assert fn(x, y, k).tolist() == fn(x, pa.ones(shape), k=k).tolist() == [k + 1.0] * shape[0]
                with pytest.raises(CaptureError, match="donated"):
                    y + 1
    assert len(calls) == 8  # two shapes, two kinds of numbers, by position and by name


def test_an_array_of_numpy_is_still_refused(backend):
    fn = pa.compile(lambda x: x)
    fn(A), fn(A)
    with pytest.raises(CaptureError, match="numpy"):
        fn(np.zeros((2, 3), np.float32))
