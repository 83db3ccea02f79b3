"""Recognising trees of a form that was read before, in a fraction of the time that reading them takes.

A test says whether a tree reads as another one did, and appends to `fed` what `arguments.read` would. It looks at the
same things in the same order, but makes no key; what it does not know it does not recognise.
"""

from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any

from polyarr.capture.arguments import NAMES, PLAIN, is_fed
from polyarr.core.array import Array
from polyarr.tree import children

Test = Callable[[Any, list[Any]], bool]
FIXED = {*PLAIN, float, complex, bytes}  # types whose values stay as they are
SPEC = attrgetter("spec")
_NOTHING = object()  # is no value


def test_of(tree: Any, numbers: bool = True) -> Test | None:
    """The test for trees that read as this one, with numbers that are fed or constants; None for an unusual tree."""
    kind = type(tree)
    if is_fed(tree, numbers):
        return _array(tree.spec) if kind is Array else _number(kind)
    if kind is list or kind is tuple:
        return _listed(kind, [test_of(child, numbers) for child in tree], tree)
    if kind is dict:
        return _named(kind, tree, lambda tree: tree, tree, numbers)
    found = None if tree is None else children(tree)
    if found is None:
        return _setting(tree)
    own = getattr(tree, "__dict__", {})
    if any(own.get(name, _NOTHING) is not child for name, child in found.items()):
        return None
    return _named(kind, own, vars, found, numbers)


def _array(spec: Any) -> Test:
    def has_form(value: Any, fed: list[Any]) -> bool:
        fed.append(value)
        return type(value) is Array and (value.spec is spec or value.spec == spec)

    return has_form


def _number(kind: type) -> Test:
    def has_form(value: Any, fed: list[Any]) -> bool:
        fed.append(value)
        return type(value) is kind

    return has_form


def _setting(due: Any) -> Test | None:
    """For what is the same at every run. Of what may change inside, its identity says nothing."""
    kind = type(due)
    if isinstance(due, (list, dict)) or (isinstance(due, tuple) and not FIXED.issuperset(map(type, due))):
        return None
    is_plain = kind in PLAIN
    return lambda value, fed: value is due or (is_plain and type(value) is kind and value == due)


def _listed(kind: type, tests: list[Test | None], members: Any) -> Test | None:
    if None in tests:
        return None

    def has_form(tree: Any, fed: list[Any]) -> bool:
        if type(tree) is not kind or len(tree) != len(tests):
            return False
        return all([test(child, fed) for child, test in zip(tree, tests, strict=True)])  # type: ignore[misc]

    specs = [member.spec for member in members if type(member) is Array]
    if len(specs) != len(tests):
        return has_form

    def are_arrays(tree: Any, fed: list[Any]) -> bool:
        if type(tree) is not kind or len(tree) != len(specs) or {*map(type, tree)} != {Array}:
            return False
        fed += tree
        return [*map(SPEC, tree)] == specs

    return are_arrays if specs else has_form


def _named(kind: type, own: dict[Any, Any], of: Callable, found: dict[Any, Any], numbers: bool) -> Test | None:
    """For a dict, or an object of which `of` gives the attributes `own`: those in found are children."""
    tests = [test_of(v, numbers) if name in found else _setting(v) for name, v in own.items()]
    if None in tests or not NAMES.issuperset(map(type, own)):  # 1 and True are one name
        return None
    names, settings = [*own], [name for name in own if name not in found]
    pick = itemgetter(*settings, settings[0]) if settings else lambda now: ()  # of one name a tuple, too
    kept = pick(own)  # so that their identities stay their own
    due = [*map(id, kept)]
    inner = [
        (name, v.spec if type(v) is Array else None, test)
        for (name, v), test in zip(own.items(), tests, strict=True) if name in found
    ]  # fmt: skip

    def has_form(tree: Any, fed: list[Any], kept: Any = kept) -> bool:
        if type(tree) is not kind:
            return False
        now = of(tree)
        if [*now] != names or [*map(id, pick(now))] != due:
            return False
        for name, spec, test in inner:
            value = now[name]
            if spec is not None and type(value) is Array and value.spec is spec:  # mostly, and a call takes longer
                fed.append(value)
            elif not test(value, fed):  # type: ignore[misc]
                return False
        return True

    return has_form
