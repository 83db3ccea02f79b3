"""Guards: check cheaply that a call has the signature of the previous one, without building a cache key.

A guard visits the leaves of an argument tree in the order of `arguments.flatten` and appends the inputs that it finds
to `inputs`. It may return False for a tree that does match; the caller then builds the key.
"""

import weakref
from collections.abc import Callable, Iterable
from itertools import repeat
from operator import attrgetter, is_, itemgetter
from typing import Any

from polyarr.capture.arguments import NAME_TYPES, PLAIN_TYPES, is_input
from polyarr.core.array import Array
from polyarr.core.program import Inputs, Kept, kept_of
from polyarr.tree import VERSION, Versioned, children

Guard = Callable[[Any, Inputs], bool]
IMMUTABLE = {*PLAIN_TYPES, float, complex, bytes}  # types whose values cannot change
MIN_KEPT = 16  # inputs of a tree that are worth being kept
SPEC, VALUE, BACKEND = map(attrgetter, ("spec", "buf", "backend"))
_MISSING = object()


def guard_for(
    tree: Any, scalars_are_inputs: bool = True, is_donated: bool = False, is_inner: bool = False
) -> Guard | None:
    """Return a guard for trees with the structure of `tree`, or None if its structure cannot be guarded.

    Args:
        tree: The tree.
        scalars_are_inputs: Whether its numbers are inputs.
        is_donated: Whether the caller donates its arrays, so that their values are not to be kept.
        is_inner: Whether the tree is part of one whose guard remembers what it accepted.
    """
    more = scalars_are_inputs, is_donated
    kind = type(tree)
    if is_input(tree, scalars_are_inputs):
        return _guard_array(tree.spec) if kind is Array else _guard_scalar(kind)
    if kind is list or kind is tuple:
        is_whole = not is_inner and len(tree) > 1 and all(map(_is_versioned, tree))
        guard = _guard_sequence(kind, [guard_for(child, *more, is_inner or is_whole) for child in tree], tree)
        return _remembering(guard, is_donated, kind) if guard and is_whole else guard
    if kind is dict:
        inner = {name: guard_for(child, *more, is_inner) for name, child in tree.items()}
        return _guard_mapping(kind, tree, lambda tree: tree, inner)
    found = None if tree is None else children(tree)
    if found is None:
        return _guard_constant(tree)
    own, is_versioned = getattr(tree, "__dict__", {}), _is_versioned(tree)
    if any(own.get(name, _MISSING) is not child for name, child in found.items()):
        return None
    inner = {name: guard_for(v, *more, is_inner or is_versioned) for name, v in found.items()}
    guard = _guard_mapping(kind, own, vars, inner)
    return _remembering(guard, is_donated) if guard and is_versioned and not is_inner else guard


def _guard_array(spec: Any) -> Guard:
    def matches(value: Any, inputs: Inputs) -> bool:
        inputs.append(value)
        return type(value) is Array and (value.spec is spec or value.spec == spec)

    return matches


def _guard_scalar(kind: type) -> Guard:
    def matches(value: Any, inputs: Inputs) -> bool:
        inputs.append(value)
        return type(value) is kind

    return matches


def _guard_constant(expected: Any) -> Guard | None:
    """Return a guard for a constant, or None if its contents may change without changing its identity."""
    kind = type(expected)
    if isinstance(expected, (list, dict)) or (
        isinstance(expected, tuple) and not IMMUTABLE.issuperset(map(type, expected))
    ):
        return None
    is_plain = kind in PLAIN_TYPES
    return lambda value, inputs: value is expected or (is_plain and type(value) is kind and value == expected)


def _guard_sequence(
    kind: type[list[Any]] | type[tuple[Any, ...]], found: list[Guard | None], members: Any
) -> Guard | None:
    guards = [guard for guard in found if guard is not None]
    if len(guards) != len(found):
        return None

    def matches(tree: Any, inputs: Inputs) -> bool:
        if type(tree) is not kind or len(tree) != len(guards):
            return False
        return all([guard(child, inputs) for child, guard in zip(tree, guards, strict=True)])

    specs = [member.spec for member in members if type(member) is Array]
    if len(specs) != len(guards):
        return matches

    def match_arrays(tree: Any, inputs: Inputs) -> bool:
        if type(tree) is not kind or len(tree) != len(specs) or {*map(type, tree)} != {Array}:
            return False
        inputs += tree
        return [*map(SPEC, tree)] == specs

    return match_arrays if specs else matches


def _guard_mapping(
    kind: type, own: dict[Any, Any], attributes: Callable, found: dict[Any, Guard | None]
) -> Guard | None:
    """Return a guard for a dict, or for an object with `attributes` `own`; `found` are the guards of its children."""
    guards = [found[name] if name in found else _guard_constant(v) for name, v in own.items()]
    if None in guards or not NAME_TYPES.issuperset(map(type, own)):  # keys such as 1 and True are equal
        return None
    names, settings = [*own], [name for name in own if name not in found]
    pick = itemgetter(*settings, settings[0]) if settings else lambda now: ()  # twice the first: always a tuple
    kept = pick(own)  # kept alive, so that no other object gets their ids
    expected = [*map(id, kept)]
    inner = [
        (name, v.spec if type(v) is Array else None, guard)
        for (name, v), guard in zip(own.items(), guards, strict=True) if name in found
    ]  # fmt: skip

    def matches(tree: Any, inputs: Inputs, kept: Any = kept) -> bool:
        if type(tree) is not kind:
            return False
        now = attributes(tree)
        if [*now] != names or [*map(id, pick(now))] != expected:
            return False
        for name, spec, guard in inner:
            value = now[name]
            if spec is not None and type(value) is Array and value.spec is spec:  # the common case, without a call
                inputs.append(value)
            elif not guard(value, inputs):  # type: ignore[misc]
                return False
        return True

    return matches


class _Remembered:
    """A tree that a guard accepted.

    Attributes:
        version: VERSION before that.
        contents: The lists and dicts of the tree, with what they held.
        inputs: Its arrays.
        specs: Their Specs.
        kept: The inputs for calls in which they have not changed.
    """

    def __init__(self, version: object, contents: list[tuple[Any, list[Any]]], inputs: list[Any]) -> None:
        self.version, self.contents, self.inputs = version, contents, inputs
        self.specs = [*map(SPEC, inputs)]
        self.kept: Kept | None = None
        self._ids = list[int]()

    def add_to(self, inputs: Inputs, is_donated: bool) -> bool:
        """Append the arrays to the inputs of a call; return whether they have the same Specs."""
        wanted = not is_donated and inputs.kept is None and len(self.inputs) >= MIN_KEPT
        if wanted and (kept := self._known()) is not None:
            inputs.keep(kept, self.inputs)
        else:
            inputs += self.inputs
        return [*map(SPEC, self.inputs)] == self.specs

    def _known(self) -> Kept | None:
        """Return the Kept of the arrays if it has their values; a new one if they had these at the last call, too."""
        values, kept = [*map(VALUE, self.inputs)], self.kept  # read once, as other threads assign it
        if kept is not None and len(kept.values) == len(values) and all(map(is_, values, kept.values)):
            if all(map(is_, map(BACKEND, self.inputs), repeat(kept.leaves[0].backend))):
                return kept
        ids = [*map(id, values)]
        is_one = ids == self._ids and len({*map(id, map(BACKEND, self.inputs))}) == 1
        kept = self.kept = kept_of(self.inputs, values) if is_one else None
        self._ids = ids
        return kept


class _Last:
    """The containers that a guard met last.

    Attributes:
        met: Weak references to them, and what is remembered of them. Replaced as one object: between two assignments,
            another thread would find what is remembered of other containers.
    """

    def __init__(self) -> None:
        self.met: tuple[list[weakref.ref], _Remembered | None] = [], None

    def begin(self, parts: Iterable[Any]) -> None:
        """Note containers that are met for the first time; forget them when one dies."""
        this = weakref.ref(self)  # a cycle would hold what is remembered until a collection

        def forget(part: weakref.ref) -> None:
            last = this()
            if last is not None and any(part is one for one in last.met[0]):
                last.met = [], None

        self.met = [weakref.ref(part, forget) for part in parts], None


def _remembering(matches: Guard, is_donated: bool, kind: type | None = None) -> Guard:
    """Return a guard that visits a tree of Versioned containers again only if a container may have changed.

    What it remembers lives no longer than the tree, and begins when the same tree is met twice in a row.

    Args:
        matches: The guard that visits the tree.
        is_donated: Whether the arrays are donated.
        kind: The type of a list or tuple of such containers; None for one container.
    """
    last = _Last()

    def guard(tree: Any, inputs: Inputs) -> bool:
        if kind is not None and type(tree) is not kind:
            return False
        parts = (tree,) if kind is None else tree
        refs, found = last.met
        is_last = len(parts) == len(refs) and all(map(is_, parts, [part() for part in refs]))
        if found is not None and is_last and found.version is VERSION[0] and _are_same(found.contents):
            return found.add_to(inputs, is_donated)
        version, start = VERSION[0], len(inputs)
        if not matches(tree, inputs):
            return False
        if not is_last:
            last.begin(parts)
            return True
        remembered = _remembered(parts, version, inputs[start:])
        if remembered and found and [*map(id, remembered.inputs)] == [*map(id, found.inputs)]:
            remembered.kept = found.kept
        last.met = refs, remembered
        return True

    return guard


def _remembered(parts: Iterable[Any], version: object, inputs: list[Any]) -> _Remembered | None:
    """Return what to remember of containers with these inputs; None if a change might not be noticed."""
    contents = list[tuple[Any, list[Any]]]()
    if not all([_find_contents(part, contents) for part in parts]) or not {*map(type, inputs)} <= {Array}:
        return None
    return _Remembered(version, contents, inputs)


def _are_same(contents: list[tuple[Any, list[Any]]]) -> bool:
    """Return whether lists and dicts have the same members as before."""
    for container, members in contents:
        now = container if type(container) is list else [*container, *container.values()]
        if len(now) != len(members) or any(a is not b for a, b in zip(now, members, strict=True)):
            return False
    return True


def _find_contents(tree: Any, found: list[tuple[Any, list[Any]]]) -> bool:
    """Append the lists and dicts of a tree with their contents; return whether all other containers are Versioned."""
    kind = type(tree)
    if kind is list or kind is dict:
        found.append((tree, [*tree] if kind is list else [*tree, *tree.values()]))
    elif kind is not Array and kind is not tuple and not _is_versioned(tree):
        return children(tree) is None
    own = {} if kind is Array else children(tree) or {}
    return all([_find_contents(child, found) for child in own.values()])


def _is_versioned(tree: Any) -> bool:
    """Return whether each change of an attribute of a container is counted."""
    kind: type = type(tree)
    base: type = Versioned
    return kind.__setattr__ is base.__setattr__ and kind.__delattr__ is base.__delattr__
