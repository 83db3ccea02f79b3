"""The current backend, which is meant where none is named: use_backend's, else set_backend's, else the first."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError
from polyarr.core.spec import told

F = TypeVar("F", bound=Callable[..., Any])

# The innermost use_backend and those around it, as (backend, outer). Immutable, so contexts can share it.
_scope: ContextVar[tuple[Backend, Any] | None] = ContextVar("polyarr_backend", default=None)
_default: Backend | None = None


class StandIn(NamedTuple):
    """What stands for a backend while a function is captured.

    target   the backend
    backend  what stands for it: a trace
    lift     Array -> what stands for it, or CaptureError
    again    Array -> the same values as another value of the program, so that what is computed from it is not shared
             with what was computed before
    """

    target: Backend
    backend: Backend
    lift: Callable[[Any], Any]
    again: Callable[[Any], Any]


stand_in: ContextVar[StandIn | None] = ContextVar("polyarr_stand_in", default=None)


def renewed(leaf: Any) -> Any:
    """A leaf from which something is computed that was computed before, to keep less meanwhile."""
    trace = stand_in.get()
    return leaf if trace is None else trace.again(leaf)


def _nobody(name: str | None) -> Backend:
    raise BackendError(f"no backend called {name!r}; import polyarr.plugins, which finds them")


_named: Callable[[str | None], Backend] = _nobody


def find_with(named: Callable[[str | None], Backend]) -> None:
    """Have `named` find backends by their names, and the one to begin with for None."""
    global _named
    _named = named


def get_backend(name: str | Backend | None = None) -> Backend:
    """The backend with this name, started if need be; without a name, the current one.

    The current backend is that of the innermost use_backend, else that of set_backend, else the one that
    POLYARR_BACKEND names, else numpy.

    Errors:  BackendError if there is no such backend, if two plugins offer it, or if it cannot be loaded or start;
             in the last case with the error that it met as its cause
    """
    if name is None:  # creation ops come here: keep it short
        scope = _scope.get()
        if scope is not None:
            return scope[0]
        return _default or set_backend(_named(None))
    if not isinstance(name, (str, Backend)):
        raise TypeError(f"a backend is given by name or as a Backend, not as {told(name)}")
    found = name if isinstance(name, Backend) else _named(name)
    trace = stand_in.get()
    return found if trace is None or found is not trace.target else trace.backend


def chosen() -> Backend | None:
    """The current backend, where somebody chose it or it was needed; None: the first is still to be started."""
    scope = _scope.get()
    return _default if scope is None else scope[0]


def set_backend(name: str | Backend) -> Backend:
    """Make a backend the default of the whole process, and start it now.

    Errors:  as get_backend
    """
    global _default
    _default = backend = get_backend(name)
    return backend


class use_backend:  # noqa: N801  reads as a verb, like the context managers of the standard library
    """Use a backend within a `with` block or a decorated function.

    Threads and asyncio tasks do not disturb each other. May be nested and used again.

    Errors:  as get_backend, on entering; TypeError on decorating a coroutine or generator function
    """

    def __init__(self, name: str | Backend) -> None:
        self.name = name

    def __enter__(self) -> Backend:
        backend = get_backend(self.name)
        _scope.set((backend, _scope.get()))
        return backend

    def __exit__(self, *_: object) -> None:
        scope = _scope.get()
        _scope.set(scope[1] if scope else None)

    def __call__(self, fn: F) -> F:
        """Decorate a function."""
        if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):  # runs after the call returned
            raise TypeError("use_backend decorates plain functions; write `with use_backend(...)` in it")

        @functools.wraps(fn)
        def scoped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return scoped  # type: ignore[return-value]


def synchronize(backend: str | Backend | None = None) -> None:
    """Wait until a backend (None: the current one) has finished everything that was enqueued.

    Errors:  as get_backend, and what the work that it waited for met
    """
    get_backend(backend).synchronize()


def wait(backend: Backend) -> None:
    """Wait for a backend, or for what it stands for: who watches a capture reads nothing from it."""
    trace = stand_in.get()
    (backend if trace is None or trace.backend is not backend else trace.target).synchronize()


def forget_default(*backends: Backend) -> None:
    """Have nobody's set_backend count that chose one of these."""
    global _default
    if any(backend is _default for backend in backends):
        _default = None


@contextlib.contextmanager
def undecided() -> Iterator[None]:
    """A block in which no backend was chosen yet, as in a new process; what was before is put back at its end."""
    global _default
    before, token = _default, _scope.set(None)
    _default = None
    try:
        yield
    finally:
        _default = before
        _scope.reset(token)
