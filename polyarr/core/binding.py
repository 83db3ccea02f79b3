"""Matching the arguments of a call to an op's inputs and parameters, and the errors if they do not match."""

import inspect
from typing import Any

import numpy as np

from polyarr.core.array import NUMBERS, Array, flatten
from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError, NestingError
from polyarr.core.keywords import instead_of
from polyarr.core.spec import Spec, described, shown


def bound(op: Any, args: tuple, params: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Fill in optional inputs that are absent, and take extra positional arguments as parameters in their order."""
    n = len(op.inputs)
    extra = dict(zip(op.defaults, args[n:], strict=False))
    if len(args) - n > len(op.defaults) or extra.keys() & params.keys():
        raise TypeError(f"{op.name}: too many arguments; it takes {op.name}{inspect.signature(op.__wrapped__)}")
    return bound_by_name(op, args[:n], {**extra, **params})


def bound_by_name(op: Any, args: tuple, params: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Take inputs given by keyword, and check that no input is missing and no parameter unknown."""
    inputs = {name: params.get(name, default) for name, default in list(op.optional.items())[len(args) :]}
    params = {name: value for name, value in params.items() if name not in inputs}
    missing = [name for name, value in inputs.items() if value is inspect.Parameter.empty]
    if missing or params.keys() - op.defaults.keys():
        raise TypeError(usage(op, missing, params.keys() - op.defaults.keys()))
    return (*args, *inputs.values()), params


def as_input(op: Any, name: str, a: Any) -> Any:
    """Convert an argument of an op to an Array, Spec, Python number, None or tuple of them; TypeError otherwise."""
    if type(a) in (list, tuple):
        if any(type(member) in (list, tuple) for member in a):
            raise TypeError(f"{op.name}: {name} is a list of lists; make it an array, by polyarr.asarray")
        return tuple(as_input(op, name, member) for member in a)
    if isinstance(a, np.generic) and a.dtype.kind in "biufc":
        return a.item()
    if type(a) in (Array, Spec) or type(a) in NUMBERS or a is None:
        return a
    if isinstance(a, (bool, int, float)):
        return next(kind for kind in (bool, int, float) if isinstance(a, kind))(a)
    raise TypeError(
        f"{op.name}: {name} is a {type(a).__module__}.{type(a).__qualname__}; "
        f"it must be a polyarr array, so write polyarr.asarray({name}), or a Python number"
    )


def hashable(op: Any, name: str, value: Any) -> Any:
    """Make a parameter hashable: lists become tuples."""
    if isinstance(value, (list, tuple)):
        try:
            return tuple(hashable(op, name, member) for member in value)
        except RecursionError:
            deep = f"{op.name}: {name} contains itself, or is nested too deeply"
            raise NestingError(f"{deep}; it must be made of Python numbers, tuples or names") from None
    if type(value).__hash__ is None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"{op.name}: {name} is a {kind}; it must be made of Python numbers, tuples or names")
    return value


def check_flags(op: Any, params: dict[str, Any]) -> None:
    """Check the parameters that are True or False: by position, other libraries have other parameters there.

    Raises:
        TypeError: One is no bool.
    """
    for name, default in op.defaults.items():
        if type(default) is bool and not isinstance(params[name], (bool, np.bool_)):
            raise TypeError(f"{op.name}: {name} is {shown(params[name])}; it must be True or False")


def signature(arguments: list[inspect.Parameter]) -> inspect.Signature:
    """Return the signature of an op; parameters may be positional: `squeeze(x, 0)` and `squeeze(x, axis=0)`."""
    has_default = [a.default is not a.empty for a in arguments]
    if has_default != sorted(has_default):
        return inspect.Signature(arguments)
    return inspect.Signature([a.replace(kind=a.POSITIONAL_OR_KEYWORD) for a in arguments])


def usage(op: Any, missing: list[str], unknown: set[str]) -> str:
    """Return the error message for missing or unknown arguments."""
    known = {**op.optional, **op.defaults}
    named = ", ".join(f"{name}{instead_of(name, known)}" for name in sorted(unknown))
    given = [f"missing {', '.join(missing)}"] if missing else []
    given += [f"unknown argument {named}"] if unknown else []
    return f"{op.name}: {', '.join(given)}; it takes {op.name}{inspect.signature(op.__wrapped__)}"


def wrong_input(op: Any, specs: tuple, error: AttributeError) -> str:
    """Return the error message for the input that the op's rule wrongly took for an array; "" if there is none."""
    for name, spec in zip(op.inputs, specs, strict=True):
        if (type(spec) is Spec and not spec.is_number) or (spec is None and op.optional[name] is None):
            continue
        if error.obj is spec.dtype if type(spec) is Spec else error.obj == spec:  # spec_of makes a new tuple
            given = "a list" if type(spec) is tuple else spec
            return f"{op.name}: {name} is {given}; it must be an array"
    return ""


def missing_array(op: Any, specs: tuple) -> str:
    """Return the error message for None or a leading number where a decomposition needs an array, else ""."""
    for i, (name, spec) in enumerate(zip(op.inputs, specs, strict=True)):
        is_number = type(spec) is Spec and spec.is_number and i not in (*op.promoted, *op.indices, *op.numbers)
        if (is_number and i == 0) or (spec is None and op.optional[name] is inspect.Parameter.empty):
            required = "an array or a Python number" if i in op.numbers else "an array"
            return f"{op.name}: {name} is {described(spec)}; it must be {required}"
    return ""


def mixed_backends(op: Any, args: Any) -> str:
    """Return the error message for inputs on several backends.

    Raises:
        CaptureError: One was donated to a compiled function.
    """
    backends = {id(a.backend): a.backend for a in flatten(args) if type(a) is Array}.values()
    for backend in backends:
        backend.kernels.get(op)  # those of donated arrays raise
    found = [backend.name for backend in backends]
    names = " and ".join(map(repr, found)) if len({*found}) > 1 else f"{len(found)} backends called {found[0]!r}"
    return f"{op.name}: inputs live on {names}; bring them to one backend with .to(name)"


class GroupError(BackendError):
    """Backend without any kernel of an op's group."""

    def __init__(self, message: str, backend: Backend) -> None:
        super().__init__(message)
        self.backend = backend


def lacking(op: Any, backend: Backend) -> BackendError:
    """Return the error for an op that the backend has no kernel for."""
    message, way = f"{op.name}: backend {backend.name!r} has no", 'with x.to("numpy")'
    if op.group and all(other.group != op.group for other in backend.kernels):
        return GroupError(f"{message} {op.group}; compute it on one that has (see polyarr ops), {way}", backend)
    return BackendError(f"{message} kernel for it; compute it on another one, {way}")


def outdated_backward(op: Any, backward: Any) -> str:
    """Return the error message for a backward function of API 1, without the parameter `wanted`; else ""."""
    try:
        if "wanted" in inspect.signature(backward).parameters:
            return ""
    except (TypeError, ValueError):  # a callable written in C may have no signature
        return ""
    message = "since api 2 it is backward(g, saved, *buffers, wanted, **params)"
    return f"{op.name}: backward of its Fused kernel has no parameter wanted; {message}"


def wrong_result(op: Any, backend: Backend, function: str, found: Any, due: str) -> str:
    """Return the error message for a Fused kernel whose `function` did not return the required tuple."""
    given = described(found) + (f" of {len(found)}" if type(found) in (tuple, list) else "")
    where = f"{function} of the Fused kernel of backend {backend.name!r}"
    return f"{op.name}: {where} gave {given}; it must give a tuple of {due}"
