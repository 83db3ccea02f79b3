"""Trees: nested dicts, lists, tuples and whatever registers itself; anything else is a leaf.

A container takes part by three attributes of its class: `tree_children(self) -> dict[str, child]`,
`tree_rebuild(self, children) -> a new container`, both as methods, and `frozen`, where its own leaves are not trained.
nn.Module has them.
"""

import copy
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any


def children(tree: Any) -> dict[Any, Any] | None:
    """The named children of a container, or None for a leaf. None itself is a container without children."""
    of = _children_of(type(tree))
    return None if of is None else of(tree)


@lru_cache(maxsize=1024)
def _children_of(kind: type) -> Callable[[Any], dict[Any, Any]] | None:
    """What gives the children of containers of a class; kept, for it is asked of every leaf."""
    if hasattr(kind, "tree_children"):
        return kind.tree_children  # type: ignore[no-any-return]
    if issubclass(kind, dict):
        return lambda tree: tree
    if issubclass(kind, (list, tuple)):
        return lambda tree: dict(enumerate(tree))
    return (lambda tree: {}) if kind is type(None) else None


def rebuild(tree: Any, found: dict[Any, Any]) -> Any:
    """A container like tree with other children."""
    if hasattr(type(tree), "tree_rebuild"):
        return tree.tree_rebuild(found)
    if isinstance(tree, dict):
        return dict(found) if type(tree) is dict else _refilled(tree, found)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*found.values())
    return None if tree is None else type(tree)(found.values())


def _refilled(tree: dict[Any, Any], found: dict[Any, Any]) -> dict[Any, Any]:
    """A copy with other members: what else a dict has, such as a default, only it knows."""
    new = copy.copy(tree)
    new.clear()
    new.update(found)
    return new


def items(tree: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """(path, leaf) for every leaf, in order. A path is a tuple of keys, indices and attribute names."""
    found = children(tree)
    return iter([(path, tree)]) if found is None else _items(found, path)


def _items(found: dict[Any, Any], path: tuple) -> Iterator[tuple[tuple, Any]]:
    for name, child in found.items():
        inner = children(child)
        if inner is None:
            yield (*path, name), child
        else:
            yield from _items(inner, (*path, name))


def by_name(tree: Any) -> dict[str, Any]:
    """Every leaf by its dotted path, in order."""
    found = children(tree)
    return {"": tree} if found is None else _by_name(found, "", {})


def _by_name(found: dict[Any, Any], prefix: str, named: dict[str, Any]) -> dict[str, Any]:
    for name, child in found.items():
        inner = children(child)
        if inner is None:
            named[f"{prefix}{name}"] = child
        else:
            _by_name(inner, f"{prefix}{name}.", named)
    return named


def leaves(tree: Any) -> list[Any]:
    """Every leaf, in order."""
    return [leaf for _, leaf in items(tree)]


def frozen(tree: Any) -> list[bool]:
    """For every leaf, in order, whether it is not to be trained: what it belongs to says so, a Module, say."""
    return _frozen(tree, False)


def trainable(tree: Any) -> dict[str, Any]:
    """Every leaf by its dotted path but for those that are frozen."""
    named = zip(by_name(tree).items(), frozen(tree), strict=True)
    return {name: leaf for (name, leaf), is_frozen in named if not is_frozen}


def _frozen(node: Any, inherited: bool) -> list[bool]:
    found = children(node)
    if found is None:
        return [inherited]
    own = getattr(node, "frozen", False) if hasattr(type(node), "tree_children") else inherited
    return [is_frozen for child in found.values() for is_frozen in _frozen(child, own)]


def unflatten(tree: Any, new_leaves: Any) -> Any:
    """A tree like `tree` with these leaves, in the order of `leaves`.

    Errors:  ValueError if there are too few or too many
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

    result = build(tree)
    if next(rest, done) is not done:
        raise ValueError("tree.unflatten: more leaves than the tree has")
    return result


def map(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """fn applied leaf by leaf to trees of one shape; the result has the containers of the first.

    A Module and the dict of its parameters count as the same shape.

    Errors:  ValueError naming the first path that one tree has and another lacks
    """
    listed = [list(items(t)) for t in (tree, *others)]
    paths = [path for path, _ in listed[0]]
    for other in listed[1:]:
        if [path for path, _ in other] != paths:
            differing = set(paths) ^ {path for path, _ in other}
            at = ".".join(str(key) for key in min(differing, key=str)) if differing else "the order"
            raise ValueError(f"tree.map: the trees differ at {at}")
    return unflatten(tree, [fn(*(leaf for _, leaf in row)) for row in zip(*listed, strict=True)])
