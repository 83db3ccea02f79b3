"""Guards: check cheaply that a call has the signature of the previous one, without building a cache key.

A guard visits the leaves of an argument tree in the order of `arguments.flatten` and appends the inputs that it finds
to `inputs`. It may return False for a tree that does match; the caller then builds the key.
"""

from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any

from polyarr.capture.arguments import NAME_TYPES, PLAIN_TYPES, is_input
from polyarr.core.array import Array
from polyarr.tree import children

Guard = Callable[[Any, list[Any]], bool]
IMMUTABLE = {*PLAIN_TYPES, float, complex, bytes}  # types whose values cannot change
SPEC = attrgetter("spec")
_MISSING = object()


def guard_for(tree: Any, scalars_are_inputs: bool = True) -> Guard | None:
    """Return a guard for trees with the structure of `tree`, or None if its structure cannot be guarded."""
    kind = type(tree)
    if is_input(tree, scalars_are_inputs):
        return _guard_array(tree.spec) if kind is Array else _guard_scalar(kind)
    if kind is list or kind is tuple:
        return _guard_sequence(kind, [guard_for(child, scalars_are_inputs) for child in tree], tree)
    if kind is dict:
        return _guard_mapping(kind, tree, lambda tree: tree, tree, scalars_are_inputs)
    found = None if tree is None else children(tree)
    if found is None:
        return _guard_constant(tree)
    own = getattr(tree, "__dict__", {})
    if any(own.get(name, _MISSING) is not child for name, child in found.items()):
        return None
    return _guard_mapping(kind, own, vars, found, scalars_are_inputs)


def _guard_array(spec: Any) -> Guard:
    def matches(value: Any, inputs: list[Any]) -> bool:
        inputs.append(value)
        return type(value) is Array and (value.spec is spec or value.spec == spec)

    return matches


def _guard_scalar(kind: type) -> Guard:
    def matches(value: Any, inputs: list[Any]) -> bool:
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


def _guard_sequence(kind: type, guards: list[Guard | None], members: Any) -> Guard | None:
    if None in guards:
        return None

    def matches(tree: Any, inputs: list[Any]) -> bool:
        if type(tree) is not kind or len(tree) != len(guards):
            return False
        return all([guard(child, inputs) for child, guard in zip(tree, guards, strict=True)])  # type: ignore[misc]

    specs = [member.spec for member in members if type(member) is Array]
    if len(specs) != len(guards):
        return matches

    def match_arrays(tree: Any, inputs: list[Any]) -> bool:
        if type(tree) is not kind or len(tree) != len(specs) or {*map(type, tree)} != {Array}:
            return False
        inputs += tree
        return [*map(SPEC, tree)] == specs

    return match_arrays if specs else matches


def _guard_mapping(
    kind: type, own: dict[Any, Any], attributes: Callable, found: dict[Any, Any], scalars_are_inputs: bool
) -> Guard | None:
    """Return a guard for a dict, or for an object with `attributes` `own`; those in `found` are children."""
    guards = [guard_for(v, scalars_are_inputs) if name in found else _guard_constant(v) for name, v in own.items()]
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

    def matches(tree: Any, inputs: list[Any], kept: Any = kept) -> bool:
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
