"""Trees of nested containers: flattened, rebuilt and mapped."""

from collections import OrderedDict, namedtuple
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyarr as pa
from polyarr import nn, ops, tree

Point = namedtuple("Point", "x y")
trees = st.recursive(
    st.one_of(st.integers(), st.text(max_size=3), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Point, inner, inner),
    ),
    max_leaves=12,
)


@given(trees)
def test_unflatten_undoes_leaves(value: object) -> None:
    assert tree.unflatten(value, tree.leaves(value)) == value
    assert tree.map(lambda leaf: leaf, value) == value


@given(trees)
def test_items_name_every_leaf_once(value: object) -> None:
    found = list(tree.items(value))
    assert len({path for path, _ in found}) == len(found)
    for path, leaf in found:
        at = value
        for step in path:
            at = at[step]
        assert at == leaf


@given(trees)
def test_leaves_by_name_have_dotted_paths(value: object) -> None:
    expected = {".".join(map(str, path)): leaf for path, leaf in tree.items(value)}
    assert list(tree.by_name(value).items()) == list(expected.items())


@given(trees)
def test_map_of_several(value: object) -> None:
    assert tree.leaves(tree.map(lambda a, b: (a, b, "leaf"), value, value)) == [
        part for leaf in tree.leaves(value) for part in (leaf, leaf, "leaf")
    ]


def test_containers_keep_their_type() -> None:
    value = {"a": Point([1], (2,)), "b": OrderedDict(z=3)}
    found = tree.map(str, value)
    assert found == {"a": Point(["1"], ("2",)), "b": OrderedDict(z="3")}
    assert type(found["a"]) is Point and type(found["b"]) is OrderedDict and type(found["a"].y) is tuple


def test_none_is_an_empty_container() -> None:
    assert tree.leaves([1, None, {"a": None}]) == [1]
    assert tree.map(lambda leaf: leaf + 1, (None, 1)) == (None, 2)


def test_a_class_may_take_part() -> None:
    class Box:
        def __init__(self, held: object, name: str) -> None:
            self.held, self.name = held, name

        def tree_children(self) -> dict:
            return {"held": self.held}

        def tree_rebuild(self, children: dict) -> "Box":
            return Box(children["held"], self.name)

    found = tree.map(lambda leaf: leaf * 2, [Box((1, 2), "box")])
    assert found[0].held == (2, 4) and found[0].name == "box"
    assert [path for path, _ in tree.items([Box((1, 2), "box")])] == [(0, "held", 0), (0, "held", 1)]


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"the trees differ at b"):
        tree.map(lambda a, b: a, {"a": 1, "b": 2}, {"a": 1})
    with pytest.raises(ValueError, match=r"the trees differ at a\.0"):
        tree.map(lambda a, b: a, {"a": [1]}, {"a": 1})
    with pytest.raises(ValueError, match="fewer leaves"):
        tree.unflatten([1, 2], [1])
    with pytest.raises(ValueError, match="more leaves"):
        tree.unflatten([1, 2], [1, 2, 3])


# ---- what is no tree -------------------------------------------------------------------------------------------


def _loop() -> list:
    loop: list = [1.0]
    loop.append(loop)
    return loop


def _deep() -> list:
    deep: list = [1.0]
    for _ in range(2000):
        deep = [deep]
    return deep


def _own_child() -> nn.Module:
    model = nn.Linear(2, 2)
    model.child = model
    return model


ENTRANCES: dict[str, Callable] = {
    "map": lambda t: tree.map(lambda leaf: leaf, t),
    "leaves": tree.leaves,
    "by_name": tree.by_name,
    "frozen": tree.frozen,
    "grad": pa.grad(lambda x: pa.ones(())),
    "value_and_grad": lambda t: pa.value_and_grad(lambda x: pa.ones(()))([pa.ones(2), t]),
    "vjp": lambda t: pa.vjp(lambda x: t, pa.ones(2)),
    "jvp": lambda t: pa.jvp(lambda x: x, (pa.ones(2),), (t,)),
    "stop_gradient": pa.stop_gradient,
    "checkpoint": lambda t: pa.grad(lambda x: ops.sum(pa.checkpoint(lambda y: x)(t)))(pa.ones(2)),
    "optimizer": lambda t: pa.optim.AdamW(0.1).init(t),
    "all_reduce": lambda t: pa.distributed.World(0, 1, 0, "numpy", None, None).mean(t),
}


@pytest.mark.parametrize(
    ("name", "given_as"),
    [(name, _loop) for name in ENTRANCES]
    + [(name, given) for name in ("map", "by_name", "frozen") for given in (_deep, _own_child)],
)
def test_what_contains_itself_or_is_too_deep_is_refused_in_one_line(
    on_numpy: object, name: str, given_as: Callable
) -> None:
    with pytest.raises(pa.NestingError, match=r"^[^\n]*contains itself, or is nested too deeply[^\n]*$"):
        ENTRANCES[name](given_as())


@pytest.mark.parametrize("given_as", [_loop, _deep])
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (pa.asarray, pa.NestingError),
        (lambda t: pa.compile(lambda x: x)(t), pa.CaptureError),
        (lambda t: pa.compile(lambda x: t)(pa.ones(2)), pa.CaptureError),
        (lambda t: pa.save("never-written.safetensors", t), ValueError),
        (lambda t: ops.concat([pa.ones(2), t]), TypeError),
        (lambda t: ops.reshape(pa.ones(2), shape=t), pa.NestingError),
        (lambda t: pa.ones(2)[t], IndexError),
        (lambda t: pa.zeros(t), TypeError),
        (lambda t: pa.zeros(2, dtype=t), pa.DtypeError),
    ],
)
def test_lists_that_contain_themselves_are_refused_everywhere(
    on_numpy: object, given_as: Callable, call: Callable, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        call(given_as())
    assert type(caught.value) is not RecursionError and "\n" not in str(caught.value)


def test_a_change_reads_nothing_that_another_thread_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two changes at once could be noted as one, and a guard between them would miss the second."""

    class Unread(list):
        def __getitem__(self, i):
            raise AssertionError("a change reads what it replaces")

    layer, noted = nn.Linear(2, 2), Unread([0])
    monkeypatch.setattr(tree, "VERSION", noted)
    found = []
    for change in (lambda: setattr(layer, "bias", None), lambda: delattr(layer, "bias"), tree.note_change):
        change()
        found.append(next(iter(noted)))
    assert len({0, *found}) == 4
