"""Arguments of a compiled function: its inputs at every run, and the cache key under which it was captured."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from polyarr.core.array import Array
from polyarr.core.errors import CaptureError
from polyarr.core.number import Number
from polyarr.core.program import Inputs
from polyarr.core.spec import Spec, shown
from polyarr.tree import children, note_change, rebuild

NAME_TYPES = {str}  # names of children that need no conversion for the key
PLAIN_TYPES = {bool, int, str, type(None)}  # equal values of one of these types are interchangeable


def flatten(tree: Any, inputs: list[Any], key: list[Any], scalars_are_inputs: bool = True) -> None:
    """Append a tree's arrays, and its numbers if they are inputs, to `inputs`; append everything else to `key`."""
    kind = type(tree)
    if kind is Array:
        inputs.append(tree)
        key.append(tree.spec)
    elif scalars_are_inputs and (kind is int or kind is float or issubclass(kind, Number)):
        inputs.append(tree)
        key.append(kind)
    elif kind is list or kind is tuple:
        key.append((kind, len(tree)))
        for child in tree:
            flatten(child, inputs, key, scalars_are_inputs)
    elif (found := children(tree)) is not None:
        key.append(kind)
        if NAME_TYPES.issuperset(map(type, found)):
            key.extend(found)
        else:  # in one part: a constant that follows an empty dict has the same key as such a name
            key.append(tuple(map(_constant_key, found)))
        if kind is not dict:
            key.append(_attributes_key(tree, found))
        for child in found.values():
            if type(child) is Array:  # the common case, without a call
                inputs.append(child)
                key.append(child.spec)
            else:
                flatten(child, inputs, key, scalars_are_inputs)
    else:
        key.append(_constant_key(tree))


def alias_pattern(inputs: list[Any]) -> tuple[int, ...] | None:
    """Return, per array input, the index of the first input that is the same array; None if all differ."""
    if len({*map(id, inputs)}) == len(inputs):  # the common case
        return None
    handles = [id(leaf) for leaf in inputs if type(leaf) is Array]
    if len({*handles}) == len(handles):
        return None
    first: dict[int, int] = {}
    return tuple([first.setdefault(handle, i) for i, handle in enumerate(handles)])


def has_aliases(inputs: Inputs, aliases: tuple[int, ...] | None) -> bool:
    """Return whether alias_pattern(inputs) is `aliases`; faster than to compute it, as weights are often shared."""
    if aliases is None:
        if (kept := inputs.kept) is not None and len(kept.ids) == len(kept.leaves):
            others = inputs.others()
            ids = {*map(id, others)}
            if len(ids) == len(others) and kept.ids.isdisjoint(ids):
                return True
        return alias_pattern(inputs) is None
    handles = [id(leaf) for leaf in inputs if type(leaf) is Array]
    is_repeated = len(handles) == len(aliases) and [handles[i] for i in aliases] == handles
    return is_repeated and len({*handles}) == len({*aliases})


def is_input(leaf: Any, scalars_are_inputs: bool) -> bool:
    """Return whether `flatten` appends a leaf to `inputs`, of a call that is not within a capture."""
    return type(leaf) is Array or (scalars_are_inputs and type(leaf) in (int, float))


def unflattener(template: Any) -> Callable[[Iterator[Any]], Any]:
    """Return a function that builds a tree like `template` from an iterator over its leaves."""
    found = children(template)
    if found is None:
        return next
    kind, names, parts = type(template), [*found], [*map(unflattener, found.values())]
    if all(part is next for part in parts):  # no nested containers
        if kind is list or kind is tuple:
            return lambda leaves: kind(islice(leaves, len(names)))
        members = lambda leaves: dict(zip(names, leaves))  # noqa: B905  more leaves may follow
    else:
        members = lambda leaves: dict(zip(names, [part(leaves) for part in parts], strict=True))
        if kind is list or kind is tuple:
            return lambda leaves: kind(members(leaves).values())
    made = getattr(template, "tree_rebuild", None) or partial(rebuild, template)
    return members if kind is dict else lambda leaves: made(members(leaves))


def fingerprint(tree: Any) -> list[Any]:
    """Return the structure and constants of a tree, and its inputs by identity: equal only if nothing was replaced."""
    inputs: list[Any] = []
    key: list[Any] = []
    flatten(tree, inputs, key)
    return [*(part for part in key if type(part) is not Spec), *map(id, inputs)]


def containers_of(tree: Any) -> list[tuple[Any, Any]]:
    """Return the mutable containers of a tree with copies of their contents, for `restore`."""
    found = children(tree) or {}
    own: list[tuple[Any, Any]] = [(tree, list(tree))] if isinstance(tree, list) else []
    own += [(tree, dict(tree))] if isinstance(tree, dict) else []
    own += [(vars(tree), dict(vars(tree)))] if hasattr(tree, "__dict__") and hasattr(tree, "tree_children") else []
    return own + [pair for child in found.values() for pair in containers_of(child)]


def restore(before: list[tuple[Any, Any]]) -> None:
    """Give containers their earlier contents."""
    for container, members in before:
        if isinstance(container, list):
            container[:] = members
        else:
            container.clear()
            container.update(members)
    note_change()


def _attributes_key(tree: Any, found: dict[Any, Any]) -> tuple:
    """Return the key of a container's attributes that are not children, such as a Module's dropout rate."""
    own = getattr(tree, "__dict__", {})
    try:
        return tuple([
            (name, type(value), value if type(value) in PLAIN_TYPES else _constant_key(value))
            for name, value in own.items()
            if name not in found
        ])  # fmt: skip
    except CaptureError:
        for name, value in own.items():
            if isinstance(value, np.ndarray):
                required = "it must be a polyarr array; if it is not trained, in a Module with is_state = frozen = True"
                raise CaptureError(f"compile: {type(tree).__name__}.{name} is a numpy.ndarray; {required}") from None
        raise


def _constant_key(value: Any) -> Any:
    """Return the cache key of a constant; 1, 1.0 and True have different keys, and so have 0.0 and -0.0."""
    kind = type(value)
    if kind is list or kind is tuple:
        return (kind, *map(_constant_key, value))
    if kind is frozenset:
        return kind, frozenset(map(_constant_key, value))
    if kind is dict:
        return (dict, *((_constant_key(name), _constant_key(member)) for name, member in value.items()))
    if isinstance(value, (float, complex, np.generic)):
        return kind, repr(value)
    if isinstance(value, np.ndarray):
        raise CaptureError("compile: an argument is a numpy.ndarray; it must be a polyarr array (see polyarr.asarray)")
    return (kind, value) if kind.__hash__ is not None else (kind, _ByIdentity(value))


def difference(before: list[Any], now: list[Any]) -> str:
    """Return in what two keys of an argument differ first, as the end of a sentence; "" if they are equal."""
    if before == now:
        return ""
    parts = next(((a, b) for a, b in zip(before, now, strict=False) if a != b), ("", ""))
    kinds = [part[0] if type(part) is tuple and type(part[0]) is type else object for part in parts]
    if all(issubclass(kind, np.generic) for kind in kinds):
        return f"is a NumPy {kinds[1].__name__}, a constant; a Python number, as of .item(), may change"
    old, new = map(_shown_part, parts)
    return f"was {old} and is {new}" if old != new else "has another structure or other settings"


def _shown_part(part: Any) -> str:
    """Show a part of a key: the Spec of an array, the type of a number or container, or a constant."""
    if type(part) is tuple and len(part) == 2 and type(part[0]) is type:
        kind, value = part
        return f"a {kind.__name__} of {value}" if kind in (list, tuple) and type(value) is int else shown(value)
    return part.__name__ if type(part) is type else str(part) if type(part) is Spec else "other settings"


class _ByIdentity:
    """Key of an object that cannot be hashed; equal only for the same object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.value is self.value
