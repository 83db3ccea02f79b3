"""How a call meets an op's signature: positional and by name, what may be an input, and what to say if it is not."""

import inspect
from typing import Any

import numpy as np

from polyarr.core.array import NUMBERS, Array, flatten
from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, described


def bound(op: Any, args: tuple, params: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Fill absent optional inputs, and take extra positional arguments as parameters in their order."""
    n = len(op.inputs)
    extra = dict(zip(op.defaults, args[n:], strict=False))
    if len(args) - n > len(op.defaults) or extra.keys() & params.keys():
        raise TypeError(f"{op.name}: too many arguments; it takes {op.name}{inspect.signature(op.__wrapped__)}")
    return bound_by_name(op, args[:n], {**extra, **params})


def bound_by_name(op: Any, args: tuple, params: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    inputs = {name: params.get(name, default) for name, default in list(op.optional.items())[len(args) :]}
    params = {name: value for name, value in params.items() if name not in inputs}
    missing = [name for name, value in inputs.items() if value is inspect.Parameter.empty]
    if missing or (unknown := params.keys() - op.defaults.keys()):
        raise TypeError(usage(op, missing, set() if missing else unknown))
    return (*args, *inputs.values()), params


def accepted(op: Any, name: str, a: Any) -> Any:
    if type(a) in (list, tuple):
        if any(type(member) in (list, tuple) for member in a):
            raise TypeError(f"{op.name}: {name} is a list of lists; make it an array, by polyarr.asarray")
        return tuple(accepted(op, name, member) for member in a)
    if isinstance(a, np.generic) and a.dtype.kind in "biuf":
        return a.item()
    if type(a) in (Array, Spec) or type(a) in NUMBERS or a is None:
        return a
    if isinstance(a, (bool, int, float)):
        return next(kind for kind in (bool, int, float) if isinstance(a, kind))(a)
    raise TypeError(
        f"{op.name}: {name} is a {type(a).__module__}.{type(a).__qualname__}; "
        "it must be a polyarr array (see polyarr.asarray) or a Python number"
    )


def frozen(op: Any, name: str, value: Any) -> Any:
    """A parameter that can be hashed: lists become tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(frozen(op, name, member) for member in value)
    if type(value).__hash__ is None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"{op.name}: {name} is a {kind}; it must be made of Python numbers, tuples or names")
    return value


def signature(arguments: list[inspect.Parameter]) -> inspect.Signature:
    """What a call accepts: `squeeze(x, 0)` as well as `squeeze(x, axis=0)`."""
    has_default = [a.default is not a.empty for a in arguments]
    if has_default != sorted(has_default):
        return inspect.Signature(arguments)
    return inspect.Signature([a.replace(kind=a.POSITIONAL_OR_KEYWORD) for a in arguments])


def usage(op: Any, missing: list[str], unknown: set[str]) -> str:
    given = f"missing {', '.join(missing)}" if missing else f"unknown argument {', '.join(sorted(unknown))}"
    return f"{op.name}: {given}; it takes {op.name}{inspect.signature(op.__wrapped__)}"


def unfit(op: Any, specs: tuple, error: AttributeError) -> str:
    """The complaint about the input that the op's rule took for an array, so that it met the error; "" for no input."""
    for name, spec in zip(op.inputs, specs, strict=True):
        if (type(spec) is Spec and not spec.is_number) or (spec is None and op.optional[name] is None):
            continue
        if error.obj is (spec.dtype if type(spec) is Spec else spec):
            given = "a list" if type(spec) is tuple else spec
            return f"{op.name}: {name} is {given}; it must be an array"
    return ""


def no_array(op: Any, specs: tuple) -> str:
    """The complaint about None, or a number that comes first, where a body needs an array and would name another op."""
    for i, (name, spec) in enumerate(zip(op.inputs, specs, strict=True)):
        is_number = type(spec) is Spec and spec.is_number and i not in (*op.promoted, *op.indices, *op.numbers)
        if (is_number and i == 0) or (spec is None and op.optional[name] is inspect.Parameter.empty):
            required = "an array or a Python number" if i in op.numbers else "an array"
            return f"{op.name}: {name} is {described(spec)}; it must be {required}"
    return ""


def mixed(op: Any, args: Any) -> str:
    found = list({id(a.backend): a.backend.name for a in flatten(args) if type(a) is Array}.values())
    names = " and ".join(map(repr, found)) if len({*found}) > 1 else f"{len(found)} backends called {found[0]!r}"
    return f"{op.name}: inputs live on {names}; bring them to one backend with .to(name)"


class GroupError(BackendError):
    """A backend has nothing of an op's group."""

    def __init__(self, told: str, backend: Backend) -> None:
        super().__init__(told)
        self.backend = backend


def lacking(op: Any, backend: Backend) -> BackendError:
    told, way = f"{op.name}: backend {backend.name!r} has no", 'with x.to("numpy")'
    if op.group and all(other.group != op.group for other in backend.kernels):
        return GroupError(f"{told} {op.group}; compute it on one that has (see polyarr ops), {way}", backend)
    return BackendError(f"{told} kernel for it; compute it on another one, {way}")


def unwanting(op: Any, backward: Any) -> str:
    """The complaint about a backward of API 1; among **params, it would take wanted for a parameter of the op."""
    try:
        if "wanted" in inspect.signature(backward).parameters:
            return ""
    except (TypeError, ValueError):  # a callable written in C need not say
        return ""
    told = "since api 2 it is backward(g, saved, *buffers, wanted, **params)"
    return f"{op.name}: backward of its pair has no parameter wanted; {told}"


def misshapen(op: Any, backend: Backend, half: str, found: Any, due: str) -> str:
    given = described(found) + (f" of {len(found)}" if type(found) in (tuple, list) else "")
    return f"{op.name}: {half} of the pair of backend {backend.name!r} gave {given}; it must give a tuple of {due}"
