"""Finding backends: the hooks, a loader that no plugin can break, and the choice of a backend.

A backend plugin is a module with one hook, named by an entry point of the group "polyarr":

    from polyarr.plugins import hookimpl

    @hookimpl
    def polyarr_backends(register):
        register("mirror", start, install_hint="pip install polyarr-mirror")

    def start():                # or start(device="0"), which also serves "mirror:1"
        return Backend("mirror", kernels, upload=..., download=...)

A plugin may also replace kernels of any backend, by a second hook, `polyarr_kernels(backend) -> {op: kernel}`.

Hooks run when plugins are looked for, on the first use of any backend, and when a backend starts; never per
operation. What fails is recorded with its distribution, entry point and exception (`failures()`), warned of once,
and breaks nothing else.

POLYARR_BACKEND         the backend to begin with, instead of numpy
POLYARR_PLUGINS         load only these entry points, separated by commas; empty for none
POLYARR_STRICT_PLUGINS  1: raise what would only be recorded
"""

import contextlib
import difflib
import functools
import importlib
import importlib.metadata
import inspect
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import pluggy

from polyarr.core.backend import Backend, Fused
from polyarr.core.errors import BackendError
from polyarr.hooks import (
    API,
    GROUP,
    LEVELS,
    BackendSpec,
    DeviceInfo,
    Diagnosis,
    Hooks,
    Override,
)
from polyarr.hooks import hookimpl as hookimpl  # plugins import it from here

BUILT_IN = {"numpy": "polyarr.backends.numpy", "opencl": "polyarr.backends.opencl"}
THIS_PROCESS = "this process"  # stands for the distribution of a plugin that was registered by hand
KNOWN = {"opencl": "pip install 'polyarr[opencl]'"}  # backend -> the command that brings what it needs

F = TypeVar("F", bound=Callable[..., Any])
Row = TypeVar("Row")


class PluginWarning(RuntimeWarning):
    """A plugin that failed; everything else works."""


# ---- what became of them ---------------------------------------------------------------------------------


class PluginFailure(NamedTuple):
    """What failed, and in doing what: to load, import, register, start, list devices or diagnose."""

    distribution: str
    entry_point: str
    stage: str
    exception: BaseException
    backend: str = ""

    def __str__(self) -> str:
        what = f"backend {self.backend!r} of plugin" if self.backend else "plugin"
        return f"{what} {self.entry_point!r} ({self.distribution}) could not {self.stage}: {reason_of(self.exception)}"


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


def reason_of(error: BaseException) -> str:
    """An exception in one line. A BackendError is written for users and needs no type's name."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a stranger's exception may fail at that, too
        text = ""
    if isinstance(error, BackendError):
        return text
    return f"{type(error).__name__}{': ' * bool(text)}{text}"


def lacks_library(error: BaseException | None) -> bool:
    """True where something outside polyarr is not installed: a choice, not a defect."""
    return isinstance(error, ImportError) and (error.name or "").partition(".")[0] != "polyarr"


class _Source(NamedTuple):
    """Where a plugin comes from, before it is imported."""

    distribution: str
    entry_point: str
    load: Callable[[], Any]


class _Plugin(NamedTuple):
    """A loaded plugin. Its manager is its own, so that a hook call reaches this plugin and no other."""

    distribution: str
    entry_point: str
    manager: pluggy.PluginManager
    backends: tuple[BackendSpec, ...]


class _State:
    """All that this module remembers."""

    def __init__(self) -> None:
        self.discovered: list[_Plugin] | None = None  # None until the first use of a backend
        self.is_discovering = False
        self.added: list[_Plugin] = []  # by register_plugin
        self.failed: list[PluginFailure] = []  # to load, import or register
        self.not_started: dict[str, PluginFailure] = {}
        self.not_answered: dict[tuple[str, str], PluginFailure] = {}
        self.warned: set[str] = set()
        self.running: dict[str, Backend] = {}
        self.overrides: dict[str, list[Override]] = {}  # by the name of the running backend
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

    Errors:  BackendError if there is no such backend, if two plugins offer it, or if it cannot start
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
        base = name.partition(":")[0]
        plugin, spec = _offer(base)
        arguments = _device_argument(name, spec)
        try:
            backend = spec.start(**arguments)
            if not isinstance(backend, Backend):
                raise TypeError(f"start() must return a Backend, not {type(backend).__name__}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure = PluginFailure(plugin.distribution, plugin.entry_point, "start", error, name)
            raise _not_started(failure, spec) from error
        _state.running[name] = backend = _overridden(name, backend)
        _state.not_started.pop(base, None)
        return backend


def _overridden(name: str, backend: Backend) -> Backend:
    """The backend with the kernels that plugins replace: found here, once, so that no call looks for them."""
    replaced: dict[Any, Any] = {}
    rows: list[Override] = []
    for plugin in _plugins():
        ask = functools.partial(_kernels_of, plugin, backend, rows)
        found: dict[Any, Any] = _answer(plugin, f"replace kernels of {name!r}", ask, {})
        replaced |= found
        rows += [Override(name, op.name, plugin.distribution, plugin.entry_point) for op in found]
    _state.overrides[name] = rows
    return backend._replace(kernels={**backend.kernels, **replaced}) if replaced else backend


def _kernels_of(plugin: _Plugin, backend: Backend, taken: list[Override]) -> dict[Any, Any]:
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
            _warn_once(failure)
    message = f"backend {failure.backend!r} could not start: {reason_of(error)}"
    hint = spec.install_hint or KNOWN.get(spec.name, "")
    if lacks_library(error) and hint:
        message += f"; install what it needs with: {hint}"
    others = sorted(_offers().keys() - {spec.name})
    if others:
        message += f"{',' if ';' in message else ';'} or use: {', '.join(others)}"
    return BackendError(message)


def _offers() -> dict[str, list[tuple[_Plugin, BackendSpec]]]:
    """Backend name -> who offers it. More than one is an error for whoever asks."""
    offers: dict[str, list[tuple[_Plugin, BackendSpec]]] = {}
    for plugin in _plugins():
        for spec in plugin.backends:
            offers.setdefault(spec.name, []).append((plugin, spec))
    return offers


def _offer(name: str) -> tuple[_Plugin, BackendSpec]:
    offers = _offers()
    if name not in offers:
        raise BackendError(_unknown(name, sorted(offers)))
    if len(offers[name]) > 1:
        raise BackendError(_ambiguous(name, [plugin for plugin, _ in offers[name]]))
    return offers[name][0]


def _unknown(name: str, installed: list[str]) -> str:
    parts = [f"no backend called {name!r}; installed: {', '.join(installed)}"]
    parts += [f"did you mean {close!r}?" for close in difflib.get_close_matches(name, installed, 1)]
    parts += [str(failure) for failure in _state.failed]
    if name in KNOWN:
        parts.append(f"install it with: {KNOWN[name]}")
    return "; ".join(parts)


def _ambiguous(name: str, plugins: list[_Plugin]) -> str:
    who = " and ".join(f"{p.distribution} (entry point {p.entry_point!r})" for p in plugins)
    return f"two plugins offer a backend called {name!r}: {who}; uninstall one, or see POLYARR_PLUGINS"


# ---- discovery -------------------------------------------------------------------------------------------


def _plugins() -> list[_Plugin]:
    """Every plugin that works; looks for them the first time."""
    with _lock:
        if _state.discovered is None:
            _discover()
    return [*(_state.discovered or ()), *_state.added]


def _discover() -> None:
    if _state.is_discovering:
        raise BackendError("a backend was asked for while plugins are being imported; ask for it in start()")
    _state.is_discovering = True
    try:
        found = [loaded for source in _sources() if (loaded := _load(source)) is not None]
    finally:
        _state.is_discovering = False
    _state.failed = [f for f in found if isinstance(f, PluginFailure)]
    _state.discovered = [p for p in found if isinstance(p, _Plugin)]
    for failure in _state.failed:
        _warn_once(failure)


def _sources() -> Iterator[_Source]:
    for module in BUILT_IN.values():
        yield _Source(_polyarr(), module, functools.partial(importlib.import_module, module))
    names = os.environ.get("POLYARR_PLUGINS")
    if names is None:
        yield from _installed()
        return
    wanted = {name.strip() for name in names.split(",")} - {""}
    found = [source for source in _installed() if source.entry_point in wanted] if wanted else []
    yield from found
    for name in sorted(wanted - {source.entry_point for source in found}):
        error = BackendError(f"no installed distribution has the entry point {name!r} of POLYARR_PLUGINS")
        yield _Source("not installed", name, functools.partial(_raise, error))


def _installed() -> Iterator[_Source]:
    """The entry points of every distribution, the first of each name, as an import would find it."""
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:  # one damaged distribution, which may have nothing to do with polyarr, must not hide the others
            if f"[{GROUP}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            name = distribution.metadata["Name"]
            title = f"{name} {distribution.version}"
            found = [_Source(title, e.name, e.load) for e in distribution.entry_points.select(group=GROUP)]
        except Exception as error:
            yield _Source("a damaged distribution", "entry_points.txt", functools.partial(_raise, error))
            continue
        if (key := re.sub(r"[-_.]+", "-", name).lower()) not in seen:
            seen.add(key)
            yield from found


def _raise(error: Exception) -> None:
    raise error


def _polyarr() -> str:
    try:
        return f"polyarr {importlib.metadata.version('polyarr')}"
    except importlib.metadata.PackageNotFoundError:  # running from a source tree
        return "polyarr"


def _load(source: _Source) -> _Plugin | PluginFailure:
    """Import and register one plugin. Whatever it does, the others come to their turn."""
    stage = "import"
    try:
        loaded = source.load()
        stage = "register"
        return _registered(source.distribution, source.entry_point, loaded)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may call sys.exit() on import
        failure = PluginFailure(source.distribution, source.entry_point, stage, error)
        _raise_if_strict(failure)
        return failure


def _registered(distribution: str, entry_point: str, plugin: Any) -> _Plugin:
    """The plugin with all that it offers, or an error and nothing."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    manager.register(plugin, entry_point)
    manager.check_pending()
    if not manager.get_hookcallers(plugin):
        raise BackendError("it has no hook; mark polyarr_backends(register) with @polyarr.plugins.hookimpl")
    offered: list[BackendSpec] = []

    def register(name: str | BackendSpec, start: Any = None, **fields: Any) -> None:
        spec = name if isinstance(name, BackendSpec) else BackendSpec(name, start, **fields)
        _check(spec, entry_point)
        offered.append(spec)

    manager.hook.polyarr_backends(register=register)
    return _Plugin(distribution, entry_point, manager, tuple(offered))


def _check(spec: BackendSpec, entry_point: str) -> None:
    """Raise BackendError for a BackendSpec that could not work."""
    if not isinstance(spec.name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", spec.name):
        raise BackendError(f"a backend's name is made of letters, digits, '_' and '-', not {spec.name!r}")
    if spec.api != API:
        raise BackendError(f"backend {spec.name!r} is made for api {spec.api!r}; this polyarr has api {API}")
    if not callable(spec.start):
        raise BackendError(f"backend {spec.name!r}: start must be callable, got {spec.start!r}")
    # A stranger must not be able to take the default backend away, not even by accident.
    if BUILT_IN.get(spec.name, entry_point) != entry_point:
        raise BackendError(f"the backend name {spec.name!r} belongs to {_polyarr()}; choose another")


# ---- in-process plugins ----------------------------------------------------------------------------------


def register_plugin(plugin: Any, name: str | None = None) -> None:
    """Add a plugin, a module or any object with hooks, for the life of the process. Its errors are raised.

    Errors:  BackendError or pluggy.PluginValidationError if its hooks are wrong
    """
    entry_point = name or getattr(plugin, "__name__", None) or type(plugin).__name__
    with _lock:
        _state.added.append(_registered(THIS_PROCESS, entry_point, plugin))


def unregister_plugin(plugin: Any) -> None:
    """Take back register_plugin, and forget the plugin's backends and those whose kernels it replaced.

    Errors:  ValueError if the plugin was not added by register_plugin
    """
    with _lock:
        found = [p for p in _state.added if p.manager.is_registered(plugin)]
        if not found:
            raise ValueError(f"{plugin!r} is not a plugin that register_plugin added")
        names = {spec.name for p in found for spec in p.backends}
        gone = {p.entry_point for p in found}
        names |= {r.backend for rows in _state.overrides.values() for r in rows if r.entry_point in gone}
        _state.added = [p for p in _state.added if p not in found]
        for name in [n for n in _state.running if n in names or n.partition(":")[0] in names]:
            if _state.running.pop(name) is _state.default:
                _state.default = None
        for name in names:
            _state.not_started.pop(name, None)


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
    _plugins()
    return [*_state.failed, *_state.not_started.values(), *_state.not_answered.values()]


def status(start: bool = False) -> list[BackendStatus]:
    """Every backend and every plugin that could not offer one; starts them only if asked to."""
    rows = [_status_of(name, offers, start) for name, offers in _offers().items()]
    for f in _state.failed:
        rows.append(BackendStatus(f.entry_point, f.distribution, f.entry_point, "failed", str(f), failure=f))
    return rows


def _status_of(name: str, offers: list[tuple[_Plugin, BackendSpec]], start: bool) -> BackendStatus:
    plugin, spec = offers[0]
    row = BackendStatus(name, plugin.distribution, plugin.entry_point, "registered", summary=spec.summary)
    if len(offers) > 1:
        return row._replace(state="failed", reason=_ambiguous(name, [plugin for plugin, _ in offers]))
    if start:
        try:
            get_backend(name)
        except BackendError as error:
            return row._replace(state="failed", reason=str(error), failure=_state.not_started.get(name))
    for full_name, backend in _state.running.items():
        if full_name.partition(":")[0] == name:
            return row._replace(state="running", backend=_state.running.get(name, backend))
    failure = _state.not_started.get(name)
    return row._replace(state="failed", reason=str(failure), failure=failure) if failure else row


def overrides() -> list[Override]:
    """Every kernel that plugins replaced in the backends that run."""
    return [row for name in _state.running for row in _state.overrides.get(name, ())]


def devices() -> list[DeviceInfo]:
    """The devices of every plugin that lists them. Asks the drivers, but starts no backend."""
    return _gather("polyarr_devices", "list devices", _device)


def diagnose() -> list[Diagnosis]:
    """What plugins have to say about themselves."""
    return _gather("polyarr_diagnose", "diagnose", _diagnosis)


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

    def rows_of(plugin: _Plugin) -> list[Row]:
        return [row_type(row) for answer in getattr(plugin.manager.hook, hook)() for row in answer]

    nothing: list[Row] = []
    return [row for p in _plugins() for row in _answer(p, stage, functools.partial(rows_of, p), nothing)]


def _answer(plugin: _Plugin, stage: str, ask: Callable[[], Row], otherwise: Row) -> Row:
    """ask(), or `otherwise` if it fails, with the failure on record."""
    key = (plugin.entry_point, stage)
    try:
        answer = ask()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failure = PluginFailure(plugin.distribution, plugin.entry_point, stage, error)
        _raise_if_strict(failure)
        _state.not_answered[key] = failure
        _warn_once(failure)
        return otherwise
    _state.not_answered.pop(key, None)
    return answer


def _raise_if_strict(failure: PluginFailure) -> None:
    if os.environ.get("POLYARR_STRICT_PLUGINS", "") not in ("", "0"):
        raise BackendError(str(failure)) from failure.exception


def _warn_once(failure: PluginFailure) -> None:
    text = str(failure)
    if text not in _state.warned:
        _state.warned.add(text)
        warnings.warn(text, PluginWarning, stacklevel=2)
