"""polyarr.compile: capture a function once per form of its arguments, and run what was captured from then on."""

import functools
import inspect
import os
import threading
import types
import warnings
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from polyarr import random
from polyarr.capture.arguments import read, sharing
from polyarr.capture.captured import DONATED, Captured, captured, refuse_donated
from polyarr.capture.familiar import test_of
from polyarr.core.array import Array, spec_of
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, stand_in
from polyarr.core.errors import BackendError, CaptureError
from polyarr.core.precision import get_matmul_precision
from polyarr.core.program import Program
from polyarr.core.spec import told
from polyarr.core.tape import reads, records

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
BACKEND, NODE = attrgetter("backend"), attrgetter("node")
MANY = 8  # captures of one function, after which it is likely that something changes from call to call


class CaptureWarning(RuntimeWarning):
    """A function that is captured again and again."""


class Form(NamedTuple):
    """What arguments that were captured have in common.

    around    what of it is not in the arguments
    tests     for each argument, and for what is captured by name, if it is like that: see familiar.py; None: not yet
    same      which of the arrays are one: fn sees one then, and what it does to that it does to both
    gone      which of what is fed the caller gives away
    captured  what runs
    """

    around: tuple[Any, ...]
    tests: list[Any] | None
    same: tuple[int, ...] | None
    gone: list[int]
    captured: Captured

    def is_that_of(self, around: tuple[Any, ...], given: tuple[Any, ...], fed: list[Any]) -> bool:
        """Whether a call has it; what is fed to it then. One that is not recognised may have it all the same."""
        if self.around != around or self.tests is None or len(self.tests) != len(given):
            return False
        if None in self.tests or not all([test(value, fed) for test, value in zip(self.tests, given, strict=True)]):
            return False
        first = next((leaf.backend for leaf in fed if type(leaf) is Array), None)
        return self.captured.backend is (first or get_backend()) and sharing(fed) == self.same


class Compiled(Generic[P, R]):
    """A function that is captured on its first call with arguments of one form, and run from then on: see compile.

    many  captures, after which one more is warned of
    """

    many = MANY

    def __init__(self, fn: Callable[P, R], constants: frozenset[str], captures: Any, donate: frozenset[str]) -> None:
        functools.update_wrapper(self, fn)
        self.is_plain = os.environ.get("POLYARR_COMPILE") == "0"
        self.fn, self.captures, self.constants, self.donate = fn, captures, constants, donate
        self.names, self.rest = _positional(fn)
        self._forms: dict[Any, Form] = {}
        self._last: Form | None = None  # the one that was met last, if not for the first time
        self._lock = threading.RLock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What fn gives."""
        # In another capture it is a part of that; and a checkpoint around it has to see which arrays it reads.
        if self.is_plain or stand_in.get() is not None or reads.get() is not None:
            return self.fn(*args, **kwargs)
        around = get_matmul_precision(), *map(_kind, random.get_state()), tuple(kwargs)
        form, fed, key, gone = self._last, list[Any](), [*around], list[int]()
        if form is None or not form.is_that_of(around, (*args, *kwargs.values(), self.captures), fed):
            form, fed = None, []
            try:
                self._read(args, kwargs, fed, key, gone)
            except RecursionError:
                raise CaptureError(f"compile: an argument of {_name(self.fn)} contains itself; give a tree") from None
        arrays = [leaf for leaf in fed if type(leaf) is Array]
        if records() and any(map(NODE, arrays)):
            return self.fn(*args, **kwargs)  # the tape has to see what it does
        backend = self._backend(arrays)
        if form is None:
            same = sharing(fed)
            form = self._form((*key, same, id(backend)), around, same, gone, backend, args, kwargs)
        return form.captured.call(fed, [fed[i] for i in form.gone])

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method, which is captured with its Module as the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """As fn itself: a function is pickled by its name and not copied, anything else is; captures stay behind."""
        if isinstance(self.fn, types.FunctionType):
            return self.__qualname__
        return Compiled, (self.fn, self.constants, self.captures, self.donate)

    def programs(self) -> list[Program]:
        """What was captured, in order; printing one shows its steps."""
        return [form.captured.program for form in self._forms.values()]

    def _read(self, args: tuple, kwargs: dict[str, Any], fed: list[Any], key: list[Any], gone: list[int]) -> None:
        """Fill fed and key from the arguments, and gone with the places of what the caller gives away."""
        for name, value in (*self._named(args), *kwargs.items()):
            start = len(fed)
            read(value, fed, key, name not in self.constants)
            if name in self.donate:
                gone += [i for i in range(start, len(fed)) if type(fed[i]) is Array]
        read(self.captures, fed, key, numbers=False)

    def _named(self, args: tuple) -> Iterable[tuple[str, Any]]:
        if len(args) <= len(self.names):
            return zip(self.names, args, strict=False)
        return zip((*self.names, *[self.rest] * (len(args) - len(self.names))), args, strict=True)

    def _backend(self, arrays: list[Array]) -> Backend:
        if not arrays:
            return get_backend()
        first = arrays[0].backend
        if first is not DONATED and [*map(BACKEND, arrays)].count(first) == len(arrays):
            return first
        for a in arrays:
            if a.backend is DONATED:
                refuse_donated()
            if a.backend is not first and not first.meets(a.backend):
                text = f"compile: arguments of {_name(self.fn)} live on {first.name!r} and {a.backend.name!r}"
                raise BackendError(f"{text}; bring them to one backend with .to(name)")
        return first

    def _form(
        self, key: tuple, around: tuple, same: tuple[int, ...] | None, gone: list[int], backend: Backend,
        args: tuple, kwargs: dict[str, Any],
    ) -> Form:  # fmt: skip
        """What was captured under a key; when it is met for the second time, how it is recognised from then on."""
        given = [(name, value, name not in self.constants) for name, value in (*self._named(args), *kwargs.items())]
        with self._lock:
            form = self._forms.get(key)
            if form is None:
                found = captured(self.fn, _name(self.fn), backend, given, len(args), self.captures)
                form = self._forms[key] = Form(around, None, same, gone, found)
                if len(self._forms) == self.many + 1:
                    _warn(self.fn, self.many)
            else:
                if form.tests is None:
                    tests = [test_of(value, numbers) for _, value, numbers in given]
                    form = self._forms[key] = form._replace(tests=[*tests, test_of(self.captures, numbers=False)])
                self._last = form
            return form


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
) -> Any:
    """fn, a function of trees, captured once for each form of its arguments, and then run without Python between ops.

    The form is all but the values of arrays and numbers: trees, shapes, dtypes, Modules' settings, strings, the
    backend. What fn does besides computing with arrays happens while it is captured, once. Also a decorator.

    constants  the names of arguments whose numbers are constants, so that `if n > 3` works: a capture for each value
    captures   a tree of arrays that fn uses without being given them; read at every call, as arguments are
    donate     the names of arguments that the caller gives away: the memory of their arrays is free after its last use

    Errors:  CaptureError where fn, while it is captured, reads an array's values, asks for a number's value, uses an
             array that it was not given or changes a container that it was given; TypeError for what is no plain
             function, and for a name that is none of its arguments
    """
    options = {"constants": _names("constants", constants), "donate": _names("donate", donate)}
    if fn is None:
        return functools.partial(compile, captures=captures, **options)
    if not callable(fn) or inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(f"compile: {told(fn)} is no plain function; what runs later cannot be captured")
    known = inspect.signature(fn).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for option, names in options.items():
        if unknown := [] if anything else sorted(names - known.keys()):
            raise TypeError(f"compile: {option} names {unknown[0]!r}; {_name(fn)} takes {', '.join(known)}")
    return Compiled(fn, options["constants"], captures, options["donate"])


def _names(option: str, given: str | Iterable[str]) -> frozenset[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"compile: {option} is {told(given)}; it must be an argument's name, or several")
    return frozenset(names)


def _positional(fn: Callable) -> tuple[tuple[str, ...], str]:
    """The names of fn's arguments by position, and that of all further ones."""
    parameters = inspect.signature(fn).parameters.values()
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return names, next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")


def _kind(part: Any) -> Any:
    """What of a part of the random state belongs to the form."""
    return spec_of(part)


def _name(fn: Callable) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _warn(fn: Callable, many: int) -> None:
    text = f"compile: {_name(fn)} was captured {many + 1} times; other shapes, strings or constants are captured anew"
    warnings.warn(text, CaptureWarning, stacklevel=4)
