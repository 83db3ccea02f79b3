"""polyarr.compile: capture a function once per signature of its arguments, then run the captured program."""

import functools
import inspect
import os
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from polyarr import random
from polyarr.capture.arguments import alias_pattern, difference, flatten, has_aliases
from polyarr.capture.captured import Captured, backend_of, captured, name_of
from polyarr.capture.guards import guard_for
from polyarr.core import watch
from polyarr.core.array import Array, spec_of
from polyarr.core.backend import Backend
from polyarr.core.current import capturing, get_backend
from polyarr.core.errors import BackendError, CaptureError
from polyarr.core.names import hint
from polyarr.core.precision import get_matmul_precision
from polyarr.core.program import Inputs, Program
from polyarr.core.spec import shown
from polyarr.core.tape import reads, records

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
MAX_CAPTURES = 8  # per function, before a CaptureWarning: an argument probably differs at every call


class CaptureWarning(RuntimeWarning):
    """Warning about a function that is captured again and again, because its signature keeps changing."""


class Signature(NamedTuple):
    """The signature of a captured call: everything that the captured program was specialized on.

    Attributes:
        context: The part that is not in the arguments: precision, random state and keyword names.
        guards: One guard per argument, and one for `captures`; see guards.py. None until the signature is met again.
        aliases: Which array inputs are the same array, see `alias_pattern`; an in-place change then shows in all of
            them.
        donated: Indices of the inputs that the caller donates.
        captured: The captured function.
    """

    context: tuple[Any, ...]
    guards: list[Any] | None
    aliases: tuple[int, ...] | None
    donated: list[int]
    captured: Captured

    def matches(self, context: tuple[Any, ...], arguments: tuple[Any, ...], inputs: Inputs) -> bool:
        """Return whether a call certainly has this signature; append its inputs to `inputs`."""
        if self.context != context or self.guards is None or len(self.guards) != len(arguments):
            return False
        if None in self.guards or not all([g(value, inputs) for g, value in zip(self.guards, arguments, strict=True)]):
            return False
        first = next((leaf.backend for leaf in inputs if type(leaf) is Array), None)
        return self.captured.backend is (first or get_backend()) and has_aliases(inputs, self.aliases)


class Compiled(Generic[P, R]):
    """A function that is captured at its first call with arguments of each signature; made by `polyarr.compile`.

    Attributes:
        fn: The function itself.
        many: Number of captures after which a further one raises a CaptureWarning.
    """

    many = MAX_CAPTURES

    def __init__(self, fn: Callable[P, R], constants: frozenset[str], captures: Any, donate: frozenset[str]) -> None:
        # The attributes of a Module are its arrays, which may be replaced.
        functools.update_wrapper(self, fn, updated=("__dict__",) if isinstance(fn, types.FunctionType) else ())
        self.is_plain = os.environ.get("POLYARR_COMPILE") == "0"
        self.fn, self.captures, self.constants, self.donate = fn, captures, constants, donate
        self.names, self.rest = _positional(fn)
        self._signatures: dict[Any, Signature] = {}
        self._keys: dict[str, list[Any]] = {}  # of the arguments of the latest capture, by name
        self._last: Signature | None = None  # the last one that was met for at least the second time
        self._lock = threading.RLock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return fn(*args, **kwargs), computed by the captured program of the call's signature."""
        # Within another capture, its ops are traced there; a surrounding checkpoint must see which arrays are read.
        if self.is_plain or capturing.get() is not None or reads.get() is not None:
            return self.fn(*args, **kwargs)
        context = get_matmul_precision(), *map(spec_of, random.get_state()), tuple(kwargs)
        signature, inputs, key, donated = self._last, Inputs(), [*context], list[int]()
        if signature is None or not signature.matches(context, (*args, *kwargs.values(), self.captures), inputs):
            signature, inputs = None, Inputs()
            try:
                self._flatten(args, kwargs, inputs, key, donated)
            except RecursionError:
                raise CaptureError(f"compile: an argument of {name_of(self.fn)} contains itself; give a tree") from None
        if records() and any([leaf.node for leaf in inputs if type(leaf) is Array]):
            return self.fn(*args, **kwargs)  # the tape has to record its ops
        # All that are kept are on one backend.
        arrays = [leaf for leaf in (*inputs[inputs.start : inputs.start + 1], *inputs.others()) if type(leaf) is Array]
        backend = backend_of(self.fn, arrays)
        if signature is None:
            aliases = alias_pattern(inputs)
            signature = self._lookup((*key, aliases, id(backend)), context, aliases, donated, backend, args, kwargs)
        try:
            return signature.captured.call(inputs, [inputs[i] for i in signature.donated])
        except (CaptureError, BackendError, MemoryError):
            raise
        except Exception:
            if not signature.donated and (signature.captured.effects or signature.captured.draws):
                self._raise_as_plain(args, kwargs, [leaf for leaf in inputs if type(leaf) is Array])
            raise

    def _raise_as_plain(self, args: tuple, kwargs: dict[str, Any], arrays: list[Array]) -> None:
        """Run fn itself after a captured run raised, so that the caller sees its changes and draws before the error.

        If fn does not raise, the changes are undone.
        """
        before, state = [(a, a.snapshot()) for a in arrays], random.get_state()
        self.fn(*args, **kwargs)
        for a, then in before:
            a.rebind(then)
        random.set_state(state)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind as a method: the Module is the first argument of the captured function."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle a function by its name, and any other callable with it; captured programs are left out."""
        if isinstance(self.fn, types.FunctionType):
            return self.fn.__qualname__
        return Compiled, (self.fn, self.constants, self.captures, self.donate)

    def programs(self) -> list[Program]:
        """Return the captured programs, in the order of capture; printing one shows its steps.

        Returns:
            List of Program, one per signature.
        """
        return [signature.captured.program for signature in self._signatures.values()]

    def _flatten(
        self, args: tuple, kwargs: dict[str, Any], inputs: list[Any], key: list[Any], donated: list[int]
    ) -> None:
        """Fill inputs and key from the arguments, and donated with the indices of the inputs that are donated."""
        for name, value in (*self._named(args), *kwargs.items()):
            start = len(inputs)
            flatten(value, inputs, key, name not in self.constants)
            if name in self.donate:
                donated += [i for i in range(start, len(inputs)) if type(inputs[i]) is Array]
        flatten(self.captures, inputs, key, scalars_are_inputs=False)

    def _named(self, args: tuple) -> Iterable[tuple[str, Any]]:
        if len(args) <= len(self.names):
            return zip(self.names, args, strict=False)
        return zip((*self.names, *[self.rest] * (len(args) - len(self.names))), args, strict=True)

    def _lookup(
        self, key: tuple, context: tuple, aliases: tuple[int, ...] | None, donated: list[int], backend: Backend,
        args: tuple, kwargs: dict[str, Any], /,
    ) -> Signature:  # fmt: skip
        """Return the Signature of a key, capturing it if it is new; build its guards when it is met again."""
        arguments = [(name, value, name not in self.constants) for name, value in (*self._named(args), *kwargs.items())]
        with self._lock:
            signature = self._signatures.get(key)
            if signature is None:
                name, keys = name_of(self.fn), _keys(arguments)
                why = _change(self._keys, keys)
                event = f"captured again, because {why}" if self._signatures else "captured for the first time"
                watch.report_capture(name, backend, event)
                found = captured(self.fn, name, backend, arguments, len(args), self.captures, donated)
                signature, self._keys = Signature(context, None, aliases, donated, found), keys
                self._signatures[key] = signature
                if len(self._signatures) == self.many + 1:
                    warn_of_captures("compile", name, self.many + 1, why, stacklevel=4)
            else:
                if signature.guards is None:
                    guards = [guard_for(value, numbers, name in self.donate) for name, value, numbers in arguments]
                    guards.append(guard_for(self.captures, scalars_are_inputs=False))
                    signature = self._signatures[key] = signature._replace(guards=guards)
                self._last = signature
            return signature


@overload
def compile(
    fn: Callable[P, R], *, constants: str | Iterable[str] = (), captures: Any = (), donate: str | Iterable[str] = ()
) -> Compiled[P, R]: ...


@overload
def compile(
    *, constants: str | Iterable[str] = (), captures: Any = (), donate: str | Iterable[str] = ()
) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...


def compile(
    fn: Callable[P, R] | None = None,
    *,
    constants: str | Iterable[str] = (),
    captures: Any = (),
    donate: str | Iterable[str] = (),
    **others: Any,
) -> Any:
    """Compile a function of trees: capture it once per signature of its arguments, then run the program.

    The signature is everything but the values of arrays and numbers: trees, shapes, dtypes, attributes of Modules,
    strings and the backend. Side effects of the function happen once, during the capture. Also a decorator.

    A Module, or a method of one, is compiled with its own arrays as captures. Training needs the model as an argument:
    compile a function of it, with the gradient and the update inside.

    Args:
        fn: Function of arrays, numbers and trees of them, or a Module; None to get a decorator.
        constants: Names of arguments whose numbers are constants, so that `if n > 3` works. Each value is captured
            separately.
        captures: Tree of arrays that `fn` uses without receiving them as arguments. They are read at every call, may be
            changed in place and returned, and may be arguments as well.
        donate: Names of arguments whose arrays the caller donates: their memory is freed after its last use, and using
            them afterwards raises CaptureError.
        **others: None; an error names the parameter that does what one of another library does.

    Returns:
        Compiled: a function with the same arguments; without `fn`, a decorator.

    Raises:
        CaptureError: During the capture, `fn` reads an array's values, asks for the value of a number, uses an array
            that it was not given, or changes a container that it was given.
        TypeError: `fn` is not a plain function, or an option names something that is not one of its arguments.

    Examples:
        >>> import polyarr as pa
        >>> @pa.compile
        ... def scale(x, factor):
        ...     return x * factor
        >>> scale(pa.asarray([1.0, 2.0]), 3), scale(pa.asarray([1.0, 2.0]), 4)
        (Array([3., 6.], float32, 'numpy'), Array([4., 8.], float32, 'numpy'))
        >>> len(scale.programs())
        1
    """
    for name in others:
        raise TypeError(f"compile: there is no parameter {name!r}{hint('compile', name)}")
    options = {"constants": _names("constants", constants), "donate": _names("donate", donate)}
    if fn is None:
        return functools.partial(compile, captures=captures, **options)
    known = parameters_of("compile", fn)
    anything = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for option, names in options.items():
        if unknown := [] if anything else sorted(names - known.keys()):
            raise TypeError(f"compile: {option} names {unknown[0]!r}; {name_of(fn)} takes {', '.join(known)}")
    owner = getattr(fn, "__self__", fn)
    if hasattr(type(owner), "tree_children") and captures is not owner:
        captures = (owner, captures)
    return Compiled(fn, options["constants"], captures, options["donate"])


def parameters_of(transform: str, fn: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name; raise TypeError if it cannot be captured."""
    if not callable(fn) or inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(f"{transform}: {shown(fn)} is no plain function; what runs later cannot be captured")
    try:
        return inspect.signature(fn).parameters
    except ValueError:  # of some functions written in C
        raise TypeError(f"{transform}: {name_of(fn)} has no signature; wrap it in a function with parameters") from None


def _names(option: str, given: str | Iterable[str]) -> frozenset[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"compile: {option} is {shown(given)}; it must be an argument's name, or several")
    return frozenset(names)


def _positional(fn: Callable) -> tuple[tuple[str, ...], str]:
    """Return the names of fn's positional parameters, and the name of its *args parameter or ""."""
    parameters = inspect.signature(fn).parameters.values()
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return names, next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")


def _keys(arguments: list[tuple[str, Any, bool]]) -> dict[str, list[Any]]:
    """Return the part of a signature that each argument contributes, by its name."""
    keys: dict[str, list[Any]] = {}
    for name, value, scalars_are_inputs in arguments:
        flatten(value, [], keys.setdefault(name, []), scalars_are_inputs)
    return keys


def _change(before: dict[str, list[Any]], now: dict[str, list[Any]]) -> str:
    """Return in what the arguments of a capture differ from those of the capture before it."""
    changed = [f"{name} {change}" for name in now if (change := difference(before.get(name, []), now[name]))]
    return "; ".join(changed[:3]) or "the precision, the backend or which arguments are one array changed"


def warn_of_captures(transform: str, name: str, count: int, why: str, stacklevel: int) -> None:
    """Warn that a function was captured so often, and say why it was the last time."""
    text = f"{transform}: {name} was captured {count} times, the last time because {why}"
    text += "; each costs more than a plain call: make what changes an array, or a number that is not in constants=, "
    text += "or leave it out"
    warnings.warn(text, CaptureWarning, stacklevel=stacklevel)
