"""Finding, choosing and starting backends, those of plugins among them.

A backend plugin is a module with one hook, named by an entry point of the group "polyarr":

    from polyarr.plugins import hookimpl

    @hookimpl
    def polyarr_backends(register):
        register("mirror", start, install_hint="pip install polyarr-mirror")

    def start():                # or start(device="0"), which also serves "mirror:1"
        return Backend("mirror", kernels, upload=..., download=...)

A plugin may also replace kernels of any backend, by a second hook, `polyarr_kernels(backend) -> {op: kernel}`. Which
plugin is loaded when, its entry point's name says: see polyarr/loading.py.

Hooks run when a plugin is loaded and when a backend starts; never per operation. What fails is recorded with its
distribution, entry point and exception (`failures()`), warned of once, and breaks nothing else.

POLYARR_BACKEND         the backend to begin with, instead of numpy
POLYARR_PLUGINS         of the plugins load only these entry points, separated by commas; empty for none
POLYARR_STRICT_PLUGINS  1: raise what would only be recorded
"""

import contextlib
import difflib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from polyarr.core.backend import Backend, Fused, family_of
from polyarr.core.errors import BackendError
from polyarr.hooks import LEVELS, BackendSpec, DeviceInfo, Diagnosis, Override
from polyarr.hooks import hookimpl as hookimpl  # plugins import it from here
from polyarr.loading import (
    THIS_PROCESS,
    Loader,
    Plugin,
    PluginFailure,
    called,
    has,
    is_strict,
    patience,
    reason_of,
)
from polyarr.loading import PluginWarning as PluginWarning  # for whoever filters warnings

KNOWN = {"opencl": "pip install 'polyarr[opencl]'"}  # backend -> the command that brings what it needs

F = TypeVar("F", bound=Callable[..., Any])
Row = TypeVar("Row")


class BackendStatus(NamedTuple):
    """A backend as `polyarr backends` shows it; the state is "registered", "running" or "failed"."""

    name: str
    distribution: str
    entry_point: str
    state: str
    reason: str = ""
    summary: str = ""
    backend: Backend | None = None
    failure: PluginFailure | None = None


def lacks_library(error: BaseException | None) -> bool:
    """True where something outside polyarr is not installed: a choice, not a defect."""
    return isinstance(error, ImportError) and (error.name or "").partition(".")[0] != "polyarr"


class _State:
    """All that this module remembers."""

    def __init__(self) -> None:
        self.loader = Loader()
        self.not_started: dict[str, PluginFailure] = {}
        self.not_answered: dict[tuple[str, str], PluginFailure] = {}
        self.running: dict[str, Backend] = {}  # by the name that was asked for, and by its own
        self.overrides: dict[str, list[Override]] = {}  # by the running backend's own name
        self.default: Backend | None = None


_state = _State()
_lock = threading.RLock()  # re-entrant: start() may ask for another backend
# The innermost use_backend and those around it, as (backend, outer). Immutable, so contexts can share it.
_scope: ContextVar[tuple[Backend, Any] | None] = ContextVar("polyarr_backend", default=None)


# ---- choosing a backend ----------------------------------------------------------------------------------


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
        return _state.default or _first_default()
    if isinstance(name, Backend):
        return name
    if not isinstance(name, str):
        raise TypeError(f"a backend is given by name or as a Backend, not as {name!r}")
    return _state.running.get(name) or _start(name)


def set_backend(name: str | Backend) -> Backend:
    """Make a backend the default of the whole process, and start it now.

    Errors:  as get_backend
    """
    _state.default = backend = get_backend(name)
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


def _first_default() -> Backend:
    name = os.environ.get("POLYARR_BACKEND", "")
    try:
        return set_backend(name or "numpy")
    except BackendError as error:
        raise BackendError(f"POLYARR_BACKEND={name}: {error}" if name else str(error)) from error


# ---- starting a backend ----------------------------------------------------------------------------------


def _start(name: str) -> Backend:
    with _lock:
        if name in _state.running:
            return _state.running[name]
        base = family_of(name)
        plugin, spec = _offer(base)
        _state.loader.load(base)  # all that may replace kernels of it, also where another plugin's name led here
        arguments = _device_argument(name, spec)
        try:
            with patience(f"{called(plugin.distribution, plugin.entry_point, name)} is starting"):
                backend = _checked(spec.start(**arguments), base)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure = PluginFailure(plugin.distribution, plugin.entry_point, "start", error, name)
            raise _not_started(failure, spec) from error
        # "opencl" and "opencl:0" may be the same device, and arrays of the two must be able to meet.
        running = _state.running.get(backend.name) or _overridden(backend)
        _state.running[name] = _state.running[backend.name] = running
        _state.not_started.pop(base, None)
        return running


def _checked(backend: Any, name: str) -> Backend:
    """What start() returned, if it is the backend that was registered: the name tells where arrays live."""
    if not isinstance(backend, Backend):
        raise TypeError(f"start() must return a Backend, not {type(backend).__name__}")
    if backend.family != name:
        raise ValueError(f"start() returned a Backend called {backend.name!r}; it must be {name!r}, or '{name}:device'")
    return backend


def _overridden(backend: Backend) -> Backend:
    """The backend with the kernels that plugins replace: found here, once, so that no call looks for them.

    Nobody can change the table from here on, neither the plugins that are asked nor the one that made it.
    """
    name, kernels, rows = backend.name, dict(backend.kernels), list[Override]()
    shown = backend._replace(kernels=MappingProxyType(dict(kernels)))
    for plugin in _state.loader.replacing(backend.family):
        ask = functools.partial(_kernels_of, plugin, shown, rows)
        found: dict[Any, Any] = _answer(plugin, f"replace kernels of {name!r}", ask, {})
        kernels |= found
        rows += [Override(name, op.name, plugin.distribution, plugin.entry_point) for op in found]
    _state.overrides[name] = rows
    return backend._replace(kernels=MappingProxyType(kernels))


def _kernels_of(plugin: Plugin, backend: Backend, taken: list[Override]) -> dict[Any, Any]:
    """What a plugin's polyarr_kernels gives, checked."""
    found: dict[Any, Any] = {}
    for answer in plugin.manager.hook.polyarr_kernels(backend=backend):
        found.update(answer)
    for op, kernel in found.items():
        if not hasattr(op, "inputs") or not (callable(kernel) or isinstance(kernel, Fused)):
            raise BackendError(f"polyarr_kernels gave {op!r}: {kernel!r}; it must give op -> kernel or Fused pair")
        for row in taken:
            if row.op == op.name:
                raise BackendError(f"{op.name} is already replaced by {row.distribution}; uninstall one of the two")
    return found


def _device_argument(name: str, spec: BackendSpec) -> dict[str, str]:
    base, colon, device = name.partition(":")
    if not colon:
        return {}
    if not device:
        raise BackendError(f"{name!r} names no device after the colon; write {base!r} or '{base}:0'")
    try:
        takes_device = "device" in inspect.signature(spec.start).parameters
    except ValueError:  # a callable written in C need not say
        takes_device = False
    if not takes_device:
        raise BackendError(f"backend {base!r} takes no device, got {name!r}; write {base!r}")
    return {"device": device}


def _not_started(failure: PluginFailure, spec: BackendSpec) -> BackendError:
    """Record that a backend could not start; the error to raise."""
    error = failure.exception
    _state.not_started[spec.name] = failure
    if not (isinstance(error, BackendError) or lacks_library(error)):  # a defect of the plugin
        with contextlib.suppress(PluginWarning):  # where warnings are errors, the error below says the same
            _state.loader.warn(failure)
    message = f"backend {failure.backend!r} could not start: {reason_of(error)}"
    hint = spec.install_hint or KNOWN.get(spec.name, "")
    way_out = ";"
    if lacks_library(error) and hint:
        message, way_out = f"{message}; install what it needs with: {hint}", ","
    others = sorted({*_state.loader.names} - _state.not_started.keys())
    if others:
        message += f"{way_out} or use: {', '.join(others)}"
    return BackendError(message)


def _offers() -> dict[str, list[tuple[Plugin, BackendSpec]]]:
    """Backend name -> who offers it, of the plugins that were loaded. More than one is an error for whoever asks."""
    offers: dict[str, list[tuple[Plugin, BackendSpec]]] = {}
    for plugin in _state.loader.plugins:
        for spec in plugin.backends:
            offers.setdefault(spec.name, []).append((plugin, spec))
    return offers


def _offer(name: str) -> tuple[Plugin, BackendSpec]:
    loader = _state.loader
    loader.load(name)
    failed = [f.exception for f in loader.failed if f.entry_point == name]
    if name not in _offers() and not failed:
        loader.load()  # it may be that of a plugin with another name
    found = _offers().get(name, [])
    if not found:
        raise BackendError(_unknown(name, loader.names)) from (failed[0] if failed else None)
    if len(found) > 1:
        raise BackendError(_ambiguous(name, [plugin for plugin, _ in found]))
    return found[0]


def _unknown(name: str, installed: list[str]) -> str:
    parts = [f"no backend called {name!r}; installed: {', '.join(installed)}"]
    parts += [f"did you mean {close!r}?" for close in difflib.get_close_matches(name, installed, 1)]
    parts += [str(failure) for failure in _state.loader.failed]
    if name in KNOWN:
        parts.append(f"install it with: {KNOWN[name]}")
    return "; ".join(parts)


def _ambiguous(name: str, plugins: list[Plugin]) -> str:
    who = " and ".join(f"{p.distribution} (entry point {p.entry_point!r})" for p in plugins)
    return f"two plugins offer a backend called {name!r}: {who}; uninstall one, or see POLYARR_PLUGINS"


def _load_all() -> Loader:
    with _lock:
        _state.loader.load()
    return _state.loader


# ---- in-process plugins ----------------------------------------------------------------------------------


def register_plugin(plugin: Any, name: str | None = None) -> None:
    """Add a plugin, a module or any object with hooks, for the life of the process. Its errors are raised.

    Errors:  BackendError or pluggy.PluginValidationError if its hooks are wrong
    """
    entry_point = name or getattr(plugin, "__name__", None) or type(plugin).__name__
    with _lock:
        _state.loader.added.append(_state.loader.registered(THIS_PROCESS, entry_point, plugin))


def unregister_plugin(plugin: Any) -> None:
    """Take back register_plugin, and forget the plugin's backends and those whose kernels it replaced.

    Errors:  ValueError if the plugin was not added by register_plugin
    """
    with _lock:
        added = _state.loader.added
        found = [p for p in added if has(p, plugin)]
        if not found:
            raise ValueError(f"{plugin!r} is not a plugin that register_plugin added")
        names = {spec.name for p in found for spec in p.backends}
        gone = {p.entry_point for p in found}
        replaced = {r.backend for rows in _state.overrides.values() for r in rows if r.entry_point in gone}
        added[:] = [p for p in added if p not in found]
        for name, backend in [*_state.running.items()]:
            if backend.family in names or backend.name in replaced:
                del _state.running[name]
                if backend is _state.default:
                    _state.default = None
        for name in names:
            _state.not_started.pop(name, None)


def forget(*backends: Backend) -> None:
    """For backends that do not survive a fork: who asks for one by name has it started anew, or an error."""
    gone = {backend.name for backend in backends}
    _state.running = {name: backend for name, backend in _state.running.items() if backend.name not in gone}


def _after_fork_in_child() -> None:
    """Another thread may have held the lock when the process was forked; here it never ends."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """For tests: begin anew, as in a new process, and put everything back at the end of the block."""
    global _state
    before, token = _state, _scope.set(None)
    _state = _State()
    try:
        yield
    finally:
        _state = before
        _scope.reset(token)


# ---- what the diagnosing commands show -------------------------------------------------------------------


def failures() -> list[PluginFailure]:
    """Everything that failed and was not mended since."""
    return [*_load_all().failed, *_state.not_started.values(), *_state.not_answered.values()]


def status(start: bool = False) -> list[BackendStatus]:
    """Every backend and every plugin that could not offer one; starts them only if asked to."""
    loader = _load_all()
    rows = [_status_of(name, offers, start) for name, offers in _offers().items()]
    for f in loader.failed:
        rows.append(BackendStatus(f.entry_point, f.distribution, f.entry_point, "failed", str(f), failure=f))
    return rows


def _status_of(name: str, offers: list[tuple[Plugin, BackendSpec]], start: bool) -> BackendStatus:
    plugin, spec = offers[0]
    row = BackendStatus(name, plugin.distribution, plugin.entry_point, "registered", summary=spec.summary)
    if len(offers) > 1:
        return row._replace(state="failed", reason=_ambiguous(name, [plugin for plugin, _ in offers]))
    if start:
        try:
            get_backend(name)
        except BackendError as error:
            return row._replace(state="failed", reason=str(error), failure=_state.not_started.get(name))
    for backend in _state.running.values():
        if backend.family == name:
            return row._replace(state="running", backend=_state.running.get(name, backend))
    failure = _state.not_started.get(name)
    return row._replace(state="failed", reason=str(failure), failure=failure) if failure else row


def overrides() -> list[Override]:
    """Every kernel that plugins replaced in the backends that run."""
    names = dict.fromkeys(backend.name for backend in _state.running.values())
    return [row for name in names for row in _state.overrides[name]]


def without_backend() -> list[str]:
    """The plugins for backends that nobody offers, which are never asked for: one line each."""
    _state.loader.load()
    names, lines = _state.loader.names, list[str]()
    for source in _state.loader.sources:
        if source.backend not in {"", source.entry_point, *names, *_state.not_started}:
            who = called(source.distribution, source.entry_point)
            close = difflib.get_close_matches(source.backend, names, 1)
            hint = f"; did you mean '{close[0]}{source.entry_point[len(source.backend) :]}'?" if close else ""
            lines.append(f"{who} is for the backend {source.backend!r}, which nobody offers{hint}")
    return lines


def devices() -> list[DeviceInfo]:
    """The devices of every plugin that lists them. Asks the drivers, but starts no backend."""
    return _gather("polyarr_devices", "list devices", _device)


def diagnose() -> list[Diagnosis]:
    """What plugins have to say about themselves."""
    return _gather("polyarr_diagnose", "diagnose", _diagnosis)


def caches() -> list[str]:
    """The folders in which plugins keep what was compiled. Asks no driver."""
    return _gather("polyarr_caches", "list caches", str)


def _device(row: DeviceInfo) -> DeviceInfo:
    if not isinstance(row, DeviceInfo):
        raise TypeError(f"polyarr_devices gave {row!r}; it must list polyarr.plugins.DeviceInfo")
    return row


def _diagnosis(row: tuple[str, str]) -> Diagnosis:
    line = Diagnosis(*row)
    if line.level not in LEVELS:
        raise BackendError(f"polyarr_diagnose: level is {line.level!r}; it must be in {', '.join(LEVELS)}")
    return line


def _gather(hook: str, stage: str, row_type: Callable[[Any], Row]) -> list[Row]:
    """What every plugin answers to a hook. One that fails is recorded and left out."""

    def rows_of(plugin: Plugin) -> list[Row]:
        return [row_type(row) for answer in getattr(plugin.manager.hook, hook)() for row in answer]

    nothing: list[Row] = []
    return [row for p in _load_all().plugins for row in _answer(p, stage, functools.partial(rows_of, p), nothing)]


def _answer(plugin: Plugin, stage: str, ask: Callable[[], Row], otherwise: Row) -> Row:
    """ask(), or `otherwise` if it fails, with the failure on record."""
    key = (plugin.entry_point, stage)
    try:
        with patience(f"{called(plugin.distribution, plugin.entry_point)} is asked to {stage}"):
            answer = ask()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failure = PluginFailure(plugin.distribution, plugin.entry_point, stage, error)
        if is_strict():
            raise BackendError(str(failure)) from error
        _state.not_answered[key] = failure
        _state.loader.warn(failure)
        return otherwise
    _state.not_answered.pop(key, None)
    return answer
