"""The current backend: the innermost use_backend, else set_backend, else the initial backend."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import numpy as np

from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError
from polyarr.core.spec import shown

F = TypeVar("F", bound=Callable[..., Any])

# The innermost use_backend and those around it, as (backend, outer). Immutable, so contexts can share it.
_scope: ContextVar[tuple[Backend, Any] | None] = ContextVar("polyarr_backend", default=None)
_default: Backend | None = None


class CaptureContext(NamedTuple):
    """Hooks of the capture that runs in this context.

    Attributes:
        target: Backend that the captured function computes on.
        backend: Tracing backend that replaces it during the capture.
        tracer_of: Array -> its tracer if the function captures the array by name; else the array itself.
        lift: Array -> its tracer. Raises CaptureError if the function was not given the array.
        copy: Array -> a new value of the program with the same contents, so that recomputation from it is not merged
            with the first computation.
        constant: (buffer, Spec) -> its tracer, for an array that is the same at every run.
        level: The innermost vmap whose function runs here, a polyarr.batching.level.Level; None in a capture.
    """

    target: Backend
    backend: Backend
    tracer_of: Callable[[Any], Any]
    lift: Callable[[Any], Any]
    copy: Callable[[Any], Any]
    constant: Callable[[Any, Any], Any]
    level: Any = None


capturing: ContextVar[CaptureContext | None] = ContextVar("polyarr_capturing", default=None)


def traced(a: Any) -> Any:
    """Return the tracer of an array that the function being captured uses by name; any other array itself.

    Call this before copying, reading or taking the backend of a handle without an op: later runs have other values.
    """
    capture = capturing.get()
    return a if capture is None else capture.tracer_of(a)


def current_level() -> Any:
    """Return the innermost vmap whose function runs in this context, a Level; None outside of vmap."""
    capture = capturing.get()
    return None if capture is None else capture.level


def renewed(leaf: Any) -> Any:
    """Return a leaf as a new value, from which a checkpoint recomputes instead of keeping intermediate results."""
    capture = capturing.get()
    return leaf if capture is None else capture.copy(leaf)


def _nobody(name: str | None) -> Backend:
    raise BackendError(f"no backend called {name!r}; import polyarr.plugins, which finds them")


_named: Callable[[str | None], Backend] = _nobody


def find_with(named: Callable[[str | None], Backend]) -> None:
    """Set the function that finds a backend by name, and the initial backend for None."""
    global _named
    _named = named


def get_backend(name: str | Backend | None = None) -> Backend:
    """Return the backend with a name, started if necessary; without a name, the current backend.

    The current backend is that of the innermost `use_backend`, else that of `set_backend`, else the one named by the
    environment variable POLYARR_BACKEND, else "numpy".

    Args:
        name: Name such as "numpy" or "opencl:1", a Backend, or None for the current one.

    Returns:
        The Backend.

    Raises:
        BackendError: No backend has this name, two plugins offer it, or it cannot be loaded or started; in the last
            case the cause is the original error.
        TypeError: `name` is neither a name nor a Backend.

    Examples:
        >>> import polyarr as pa
        >>> pa.get_backend("numpy")
        <backend numpy on the host's CPU, NumPy>
    """
    if name is None:  # on the path of every creation op
        scope = _scope.get()
        if scope is not None:
            return scope[0]
        return _default or set_backend(_named(None))
    if not isinstance(name, (str, Backend)):
        convert = "; convert dtypes by astype" if isinstance(name, np.dtype) else ""
        raise TypeError(f"a backend is given by name or as a Backend, not as {shown(name)}{convert}")
    found = name if isinstance(name, Backend) else _named(name)
    capture = capturing.get()
    return found if capture is None or found is not capture.target else capture.backend


def chosen() -> Backend | None:
    """Return the current backend if one was chosen or needed; None if the initial backend has not been started."""
    scope = _scope.get()
    return _default if scope is None else scope[0]


def set_backend(name: str | Backend) -> Backend:
    """Make a backend the default of the whole process, and start it now.

    Args:
        name: Name of a backend, or a Backend.

    Returns:
        The Backend.

    Raises:
        BackendError: As `get_backend`.
        TypeError: As `get_backend`.
    """
    global _default
    _default = backend = get_backend(name)
    return backend


class use_backend:  # noqa: N801  reads as a verb, like the context managers of the standard library
    """Use a backend within a `with` block or a decorated function.

    The choice is local to the thread or asyncio task: a thread that is started inside has the default of `set_backend`,
    unless it runs `contextvars.copy_context().run`. Blocks may be nested, and one object used several times.

    Args:
        name: Name of a backend, or a Backend.

    Raises:
        BackendError: As `get_backend`, on entering the block.
        TypeError: The decorated function is a coroutine or generator function.

    Examples:
        >>> import polyarr as pa
        >>> with pa.use_backend("numpy"):
        ...     pa.zeros(2).device
        'numpy'
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
    """Wait until a backend has finished all enqueued work.

    Args:
        backend: Name of a backend, or a Backend; None: the current one.

    Raises:
        BackendError: As `get_backend`, or an error of the work that was waited for.
    """
    get_backend(backend).synchronize()


def wait(backend: Backend) -> None:
    """Wait for a backend; for the traced backend if `backend` is a tracing backend."""
    capture = capturing.get()
    (backend if capture is None or capture.backend is not backend else capture.target).synchronize()


def forget_default(*backends: Backend) -> None:
    """Reset the default backend if it is one of these."""
    global _default
    if any(backend is _default for backend in backends):
        _default = None


@contextlib.contextmanager
def undecided() -> Iterator[None]:
    """Run a block without a chosen backend, as in a new process, and restore the choice at its end."""
    global _default
    before, token = _default, _scope.set(None)
    _default = None
    try:
        yield
    finally:
        _default = before
        _scope.reset(token)
