"""Trees of nested containers: flattened, rebuilt and mapped."""

from collections import OrderedDict, namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarr import tree

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
