"""The arguments of a compiled function: what is fed to it at every run, and the key under which it was captured."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from polyarr.core.array import Array
from polyarr.core.errors import CaptureError
from polyarr.core.number import Number
from polyarr.core.spec import Spec
from polyarr.tree import children, rebuild

NAMES = {str}  # of a container's children, mostly
PLAIN = {bool, int, str, type(None)}  # types whose values are equal if they are the same


def read(tree: Any, fed: list[Any], key: list[Any], numbers: bool = True) -> None:
    """Append a tree's arrays, and unless they are to be constants its numbers, to fed; what is left of it to key."""
    kind = type(tree)
    if kind is Array:
        fed.append(tree)
        key.append(tree.spec)
    elif numbers and (kind is int or kind is float or issubclass(kind, Number)):
        fed.append(tree)
        key.append(kind)
    elif kind is list or kind is tuple:
        key.append((kind, len(tree)))
        for child in tree:
            read(child, fed, key, numbers)
    elif (found := children(tree)) is not None:
        key.append(kind)
        key.extend(found if NAMES.issuperset(map(type, found)) else map(_constant, found))
        if kind is not dict:
            key.append(_settings(tree, found))
        for child in found.values():
            if type(child) is Array:  # mostly, and a call takes longer
                fed.append(child)
                key.append(child.spec)
            else:
                read(child, fed, key, numbers)
    else:
        key.append(_constant(tree))


def sharing(fed: list[Any]) -> tuple[int, ...] | None:
    """For each array that is fed, which of them is the first that is the same one; None if all are different."""
    if len({*map(id, fed)}) == len(fed):  # mostly
        return None
    handles = [id(leaf) for leaf in fed if type(leaf) is Array]
    if len({*handles}) == len(handles):
        return None
    first: dict[int, int] = {}
    return tuple([first.setdefault(handle, i) for i, handle in enumerate(handles)])


def is_fed(leaf: Any, numbers: bool) -> bool:
    """True for a leaf that read puts into fed."""
    return type(leaf) is Array or (numbers and type(leaf) in (int, float))


def builder(template: Any) -> Callable[[Iterator[Any]], Any]:
    """What makes a tree like template from its leaves in order, faster than tree.unflatten."""
    found = children(template)
    if found is None:
        return next
    kind, names, parts = type(template), [*found], [*map(builder, found.values())]
    if all(part is next for part in parts):  # mostly
        if kind is list or kind is tuple:
            return lambda leaves: kind(islice(leaves, len(names)))
        members = lambda leaves: dict(zip(names, leaves))  # noqa: B905  names end first
    else:
        members = lambda leaves: dict(zip(names, [part(leaves) for part in parts], strict=True))
        if kind is list or kind is tuple:
            return lambda leaves: kind(members(leaves).values())
    made = getattr(template, "tree_rebuild", None) or partial(rebuild, template)
    return members if kind is dict else lambda leaves: made(members(leaves))


def form(tree: Any) -> list[Any]:
    """What a tree is besides its arrays and numbers; and those by identity, so that what was replaced is seen."""
    fed: list[Any] = []
    key: list[Any] = []
    read(tree, fed, key)
    return [*(part for part in key if type(part) is not Spec), *map(id, fed)]


def kept(tree: Any) -> list[tuple[Any, Any]]:
    """The containers of a tree that can be changed, with what is in them, so that put_back undoes the changes."""
    found = children(tree) or {}
    own = [(tree, list(tree))] if isinstance(tree, list) else []
    own += [(tree, dict(tree))] if isinstance(tree, dict) else []
    own += [(vars(tree), dict(vars(tree)))] if hasattr(tree, "__dict__") and hasattr(tree, "tree_children") else []
    return own + [pair for child in found.values() for pair in kept(child)]


def put_back(before: list[tuple[Any, Any]]) -> None:
    """Give containers what they held."""
    for container, held in before:
        if isinstance(container, list):
            container[:] = held
        else:
            container.clear()
            container.update(held)


def _settings(tree: Any, found: dict[Any, Any]) -> tuple:
    """What a container has besides its children, a Module's rate, say."""
    own = getattr(tree, "__dict__", {})
    return tuple([
        (name, type(value), value if type(value) in PLAIN else _constant(value))
        for name, value in own.items()
        if name not in found
    ])  # fmt: skip


def _constant(value: Any) -> Any:
    """What stands for a constant in a key. 1, 1.0 and True are equal, and yet not the same."""
    kind = type(value)
    if kind is list or kind is tuple:
        return (kind, *map(_constant, value))
    if kind is dict:
        return (dict, *((_constant(name), _constant(member)) for name, member in value.items()))
    if isinstance(value, float):
        return kind, repr(value)
    if isinstance(value, np.ndarray):
        raise CaptureError("compile: an argument is a numpy.ndarray; it must be a polyarr array (see polyarr.asarray)")
    return (kind, value) if kind.__hash__ is not None else (kind, _Same(value))


class _Same:
    """Something that cannot be hashed, in a key: it equals itself only."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value
