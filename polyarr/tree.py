"""Trees: nested dicts, lists, tuples and registered containers of leaves. None is a container without children.

A class of containers takes part by three attributes: the methods `tree_children(self) -> dict[str, child]` and
`tree_rebuild(self, children) -> new container`, and `frozen`, true if its own leaves are not trained. nn.Module has
them. Functions that walk a tree raise NestingError for one that contains itself, or is nested too deeply.
"""

import copy
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from polyarr.core.errors import NestingError
from polyarr.core.names import answering
from polyarr.core.spec import described

VERSION = [object()]  # another object after each change of an attribute of a Versioned container

__all__ = ["by_name", "children", "items", "leaves", "map", "rebuild", "unflatten"]


class Versioned:
    """Base class of containers that note each change of an attribute in VERSION.

    The object is replaced after the change: whoever visits a container after reading it in another thread meets the
    change, or finds another object the next time. It is new each time, as two threads could make one number of a count.
    Code that changes `vars()` of such a container calls `note_change`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        VERSION[0] = object()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        VERSION[0] = object()


def note_change() -> None:
    """Note that the attributes of a Versioned container have changed in another way."""
    VERSION[0] = object()


def children(tree: Any) -> dict[Any, Any] | None:
    """Return the named children of a container, or None for a leaf.

    Args:
        tree: Any object.

    Returns:
        Dict from keys, indices or attribute names to children; None for a leaf.

    Examples:
        >>> from polyarr import tree
        >>> tree.children([7, 8])
        {0: 7, 1: 8}
    """
    kind: type = type(tree)
    of = _children_of(kind)
    return None if of is None else of(tree)


@lru_cache(maxsize=1024)
def _children_of(kind: type) -> Callable[[Any], dict[Any, Any]] | None:
    """Return the function that lists the children of containers of a class; cached, since every leaf asks for it."""
    if hasattr(kind, "tree_children"):
        return kind.tree_children
    if issubclass(kind, dict):
        return lambda tree: tree
    if issubclass(kind, (list, tuple)):
        return lambda tree: dict(enumerate(tree))
    return (lambda tree: {}) if kind is type(None) else None


def rebuild(tree: Any, found: dict[Any, Any]) -> Any:
    """Return a container like tree with other children, as a dict from names."""
    if hasattr(type(tree), "tree_rebuild"):
        return tree.tree_rebuild(found)
    if isinstance(tree, dict):
        return dict(found) if type(tree) is dict else _refilled(tree, found)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*found.values())
    return None if tree is None else type(tree)(found.values())


def _refilled(tree: dict[Any, Any], found: dict[Any, Any]) -> dict[Any, Any]:
    """Return a copy of a dict with other members, which keeps what else a subclass holds, such as a default."""
    new = copy.copy(tree)
    new.clear()
    new.update(found)
    return new


def items(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Iterate over (path, leaf) for every leaf, in order. A path is a tuple of keys, indices and attribute names.

    Args:
        tree: Any tree.
        path: Path that the paths start with.

    Returns:
        Iterator of tuples (path, leaf).

    Raises:
        NestingError: The tree contains itself.

    Examples:
        >>> from polyarr import tree
        >>> list(tree.items({"a": 1, "b": [2, 3]}))
        [(('a',), 1), (('b', 0), 2), (('b', 1), 3)]
    """
    found = children(tree)
    return iter([(path, tree)]) if found is None else _all_items(tree, found, path)


def _all_items(tree: Any, found: dict[Any, Any], path: tuple) -> Iterator[tuple[tuple, Any]]:
    try:
        yield from _items(found, path)
    except RecursionError:
        raise _nested(tree) from None


def _nested(tree: Any) -> NestingError:
    return NestingError(f"tree: {described(tree)} contains itself, or is nested too deeply; it must be a tree")


def _items(found: dict[Any, Any], path: tuple) -> Iterator[tuple[tuple, Any]]:
    for name, child in found.items():
        inner = children(child)
        if inner is None:
            yield (*path, name), child
        else:
            yield from _items(inner, (*path, name))


def by_name(tree: Any) -> dict[str, Any]:
    """Return every leaf by its dotted path, in order.

    Args:
        tree: Any tree.

    Returns:
        Dict from dotted paths to leaves.

    Raises:
        NestingError: The tree contains itself.

    Examples:
        >>> from polyarr import tree
        >>> tree.by_name({"a": 1, "b": [2, 3]})
        {'a': 1, 'b.0': 2, 'b.1': 3}
    """
    found = children(tree)
    try:
        return {"": tree} if found is None else _by_name(found, "", {})
    except RecursionError:
        raise _nested(tree) from None


def _by_name(found: dict[Any, Any], prefix: str, named: dict[str, Any]) -> dict[str, Any]:
    for name, child in found.items():
        inner = children(child)
        if inner is None:
            named[f"{prefix}{name}"] = child
        else:
            _by_name(inner, f"{prefix}{name}.", named)
    return named


def leaves(tree: Any) -> list[Any]:
    """Return every leaf, in order.

    Args:
        tree: Any tree.

    Returns:
        List of leaves.

    Raises:
        NestingError: The tree contains itself.

    Examples:
        >>> from polyarr import tree
        >>> tree.leaves({"a": 1, "b": [2, None, 3]})
        [1, 2, 3]
    """
    return [leaf for _, leaf in items(tree)]


def frozen(tree: Any) -> list[bool]:
    """Return for every leaf, in order, whether the container that it belongs to is frozen: not to be trained."""
    try:
        return _frozen(tree, False)
    except RecursionError:
        raise _nested(tree) from None


def trainable(tree: Any) -> dict[str, Any]:
    """Return every leaf that is not frozen by its dotted path, in order."""
    named = zip(by_name(tree).items(), frozen(tree), strict=True)
    return {name: leaf for (name, leaf), is_frozen in named if not is_frozen}


def _frozen(node: Any, inherited: bool) -> list[bool]:
    found = children(node)
    if found is None:
        return [inherited]
    own = getattr(node, "frozen", False) if hasattr(type(node), "tree_children") else inherited
    return [is_frozen for child in found.values() for is_frozen in _frozen(child, own)]


def unflatten(tree: Any, new_leaves: Any) -> Any:
    """Return a tree like `tree` with other leaves, in the order of `leaves`.

    Args:
        tree: Any tree.
        new_leaves: Iterable of as many leaves.

    Returns:
        Tree with the containers of `tree`.

    Raises:
        ValueError: There are too few or too many leaves.
        NestingError: The tree contains itself.

    Examples:
        >>> from polyarr import tree
        >>> tree.unflatten({"a": 1, "b": [2, 3]}, [10, 20, 30])
        {'a': 10, 'b': [20, 30]}
    """
    rest = iter(new_leaves)
    done = object()

    def build(node: Any) -> Any:
        found = children(node)
        if found is not None:
            return rebuild(node, {name: build(child) for name, child in found.items()})
        leaf = next(rest, done)
        if leaf is done:
            raise ValueError("tree.unflatten: fewer leaves than the tree has")
        return leaf

    try:
        result = build(tree)
    except RecursionError:
        raise _nested(tree) from None
    if next(rest, done) is not done:
        raise ValueError("tree.unflatten: more leaves than the tree has")
    return result


def map(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return a tree of fn applied leaf by leaf to trees of one structure.

    A Module and the dict of its parameters have the same structure.

    Args:
        fn: Function of as many leaves as there are trees.
        tree: Tree whose containers the result has.
        *others: Trees with leaves at the same paths.

    Returns:
        Tree with the containers of `tree`.

    Raises:
        ValueError: A tree lacks a path that another has; the error names the first.
        NestingError: A tree contains itself.

    Examples:
        >>> from polyarr import tree
        >>> tree.map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]})
        {'a': 11, 'b': [22]}
    """
    listed = [list(items(t)) for t in (tree, *others)]
    paths = [path for path, _ in listed[0]]
    for other in listed[1:]:
        if [path for path, _ in other] != paths:
            differing = set(paths) ^ {path for path, _ in other}
            at = ".".join(str(key) for key in min(differing, key=str)) if differing else "the order"
            raise ValueError(f"tree.map: the trees differ at {at}")
    return unflatten(tree, [fn(*(leaf for _, leaf in row)) for row in zip(*listed, strict=True)])


if not TYPE_CHECKING:  # to a type checker, every name would seem to be there
    __getattr__ = answering(__name__, __all__)
