"""Arguments of gradient transforms: their checks, and the errors that say what was given and what is required."""

import inspect
from collections.abc import Callable
from typing import Any

from polyarr import tree
from polyarr.core.array import Array
from polyarr.core.errors import GradientError
from polyarr.core.record import check_gradient, note
from polyarr.core.spec import FLOATS, INEXACT, described, shown
from polyarr.core.tape import Node, reads


def carries_gradient(leaf: Any) -> bool:
    """Return whether a leaf can have a gradient: a floating-point or complex array."""
    return type(leaf) is Array and leaf.dtype in INEXACT


def note_arguments(args: Any) -> None:
    """Note the arguments of a transform for a checkpoint around it, as no op may read them as they are."""
    if reads.get() is not None:
        tree.map(note, args)


def check_scalar(asked: str, value: Any) -> None:
    """Raise GradientError unless value is a floating-point scalar array."""
    if type(value) is not Array:
        pair = ", or (scalar array, anything) with has_aux=True" if isinstance(value, tuple) else ""
        raise GradientError(f"{asked}: fn returned {type(value).__name__}; it must return a scalar array{pair}")
    if value.shape != () or value.dtype not in FLOATS:
        raise GradientError(f"{asked}: fn returned {value.spec}; it must return a real floating-point scalar")


def check_callable(transform: str, fn: Any) -> None:
    """Raise GradientError unless fn is callable."""
    if not callable(fn):
        raise GradientError(f"{transform}: fn is {described(fn)}; it must be a function")


def argument_numbers(asked: str, argnums: Any) -> tuple[int, ...]:
    """Return argnums, an int or a tuple of ints, as a tuple, or raise GradientError."""
    found = tuple(argnums) if isinstance(argnums, (tuple, list)) else (argnums,)
    if not found or not all(isinstance(i, int) and not isinstance(i, bool) for i in found):
        raise GradientError(f"{asked}: argnums is {shown(argnums)}; it must be an int or a tuple of ints")
    return found


def check_given(asked: str, args: list, wanted: tuple[int, ...]) -> None:
    """Raise GradientError if argnums names an argument that was not given by position, or one twice."""
    for i in wanted:
        if not -len(args) <= i < len(args):
            given = f"argnums names argument {i} of {len(args)} that were given by position"
            raise GradientError(f"{asked}: {given}; give what is differentiated by position, not by name")
    if len({i % len(args) for i in wanted}) < len(wanted):
        raise GradientError(f"{asked}: argnums is {wanted} for {len(args)} arguments; it must name each at most once")


def without_floats(args: tuple, wanted: tuple[int, ...]) -> str:
    """Return the error text for arguments without a floating-point array that is not frozen."""
    named = " and ".join(f"argument {i} is {described(args[i])}" for i in wanted)
    if any(map(carries_gradient, tree.leaves([args[i] for i in wanted]))):
        return f"all arrays are frozen: {named}; unfreeze() what is to have a gradient"
    return f"no floating-point array among the arguments: {named}; wrap numbers with polyarr.asarray, cast integers"


def two_values(found: Any, whose: str, required: str) -> Any:
    """Return a tuple of two values, or raise GradientError."""
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise GradientError(f"{whose} returned {described(found)}; it must return {required}")
    return found


def cotangents(given: Any, due: Any) -> list:
    """Return the leaves of a cotangent in the order of the value's leaves; None for zeros.

    due is the value without its buffers. Each array must have the shape, dtype and backend of its leaf.
    """
    parts = tree.children(due)
    if given is None:
        return [None for _ in tree.leaves(due)]
    if parts is None:
        if type(due) is Array:
            check_gradient("vjp: a cotangent is", given, due.spec, due.backend)
        return [given]
    found = tree.children(given)
    if found is not None:
        found = {name: None for name in parts if _is_empty(given, name)} | found
    if found is None or found.keys() != parts.keys():
        raise GradientError(f"vjp: a cotangent is {_listed(given)} for {_listed(due)}; they must be alike")
    return [leaf for name, part in parts.items() for leaf in cotangents(found[name], part)]


def _is_empty(container: Any, name: Any) -> bool:
    """Return whether a Module has no array at this attribute, which is then none of its children."""
    return hasattr(type(container), "tree_children") and not tree.leaves(getattr(container, str(name), 0))


def _listed(given: Any) -> str:
    """Return the description of a tree with the names or indices of its children."""
    parts = ", ".join(map(str, tree.children(given) or ()))
    return f"{described(given)} with {parts}" if parts else described(given)


def name_of_node(node: Node, *functions: Callable) -> str:
    """Return the name by which one of the functions closes over the array with this node."""
    for fn in functions:
        for path, leaf in tree.items(_held_by(fn)):
            if type(leaf) is Array and leaf.node is node:
                return repr(".".join(map(str, path)))
    return "an array"


def _held_by(fn: Callable) -> dict[str, Any]:
    """Return what a function reads beside its arguments, by name."""
    own = {"self": fn.__self__} if inspect.ismethod(fn) else {}
    plain = inspect.unwrap(getattr(fn, "__func__", fn))
    if not inspect.isfunction(plain):
        return own
    found = inspect.getclosurevars(plain)
    return {**found.globals, **found.nonlocals, **own}


def by_position(fn: Callable, args: tuple, named: dict[str, Any]) -> tuple:
    """Return the arguments of a call of fn, all by position, as its gradient takes them."""
    bound = inspect.signature(fn).bind(*args, **named)
    if bound.kwargs:
        raise GradientError(f"custom_vjp: {', '.join(bound.kwargs)} is keyword-only; fn must take it by position")
    return bound.args
