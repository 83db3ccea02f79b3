"""Starting backends by their names, those of plugins among them, and replacing kernels. core/current.py chooses one.

A backend plugin is a module with one hook, named by an entry point of the group "polyarr":

    from polyarr.plugins import hookimpl

    @hookimpl
    def polyarr_backends(register):
        register("mirror", start, install_hint="pip install polyarr-mirror", api=2)

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
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from polyarr.core.backend import Backend, Fused, family_of
from polyarr.core.binding import unwanting
from polyarr.core.current import find_with, forget_default, undecided
from polyarr.core.errors import BackendError
from polyarr.hooks import BackendSpec, Override
from polyarr.hooks import DeviceInfo as DeviceInfo  # plugins import these from here
from polyarr.hooks import hookimpl as hookimpl
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

Row = TypeVar("Row")


def lacks_library(error: BaseException | None) -> bool:
    """True where something outside polyarr is not installed: a choice, not a defect."""
    return isinstance(error, ImportError) and (error.name or "").partition(".")[0] != "polyarr"


class Registry:
    """What was loaded, what was started and what failed: all that is remembered of plugins."""

    def __init__(self) -> None:
        self.loader = Loader()
        self.not_started: dict[str, PluginFailure] = {}
        self.not_answered: dict[tuple[str, str], PluginFailure] = {}
        self.running: dict[str, Backend] = {}  # by the name that was asked for, and by its own
        self.overrides: dict[str, list[Override]] = {}  # by the running backend's own name


_registry = Registry()
_lock = threading.RLock()  # re-entrant: start() may ask for another backend


def registry() -> Registry:
    """All that is remembered in this process."""
    return _registry


# ---- starting a backend ----------------------------------------------------------------------------------


def _named(name: str | None) -> Backend:
    """A backend by its name, started if need be; the one to begin with for None."""
    if name is None:
        return _first()
    return _registry.running.get(name) or _start(name)


def _first() -> Backend:
    name = os.environ.get("POLYARR_BACKEND", "")
    try:
        return _named(name or "numpy")
    except BackendError as error:
        raise BackendError(f"POLYARR_BACKEND={name}: {error}" if name else str(error)) from error


find_with(_named)


def shared(name: str | None, number: int, count: int) -> str:
    """The name of the backend for one of so many processes of this host: each has a device, if there are enough.

    A name with a device is everybody's; None is the backend to begin with.

    Errors:  BackendError if there is no such backend
    """
    name = name or os.environ.get("POLYARR_BACKEND") or "numpy"
    plugin, spec = _offer(family_of(name))
    if spec.shared is None or family_of(name) != name:
        return name
    device = answer(plugin, "share devices", functools.partial(spec.shared, number, count), "")
    return f"{name}:{device}" if device else name


def _start(name: str) -> Backend:
    with _lock:
        if name in _registry.running:
            return _registry.running[name]
        base = family_of(name)
        plugin, spec = _offer(base)
        _registry.loader.load(base)  # all that may replace kernels of it, also where another plugin's name led here
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
        running = _registry.running.get(backend.name) or _overridden(backend)
        _registry.running[name] = _registry.running[backend.name] = running
        _registry.not_started.pop(base, None)
        return running


def _checked(backend: Any, name: str) -> Backend:
    """What start() returned, if it is the backend that was registered: the name tells where arrays live."""
    if not isinstance(backend, Backend):
        raise TypeError(f"start() must return a Backend, not {type(backend).__name__}")
    if backend.family != name:
        raise ValueError(f"start() returned a Backend called {backend.name!r}; it must be {name!r}, or '{name}:device'")
    _check_kernels("its table", backend.kernels)
    return backend


def _check_kernels(giver: str, kernels: Mapping[Any, Any]) -> None:
    """Raise BackendError for what nobody would ever find, or call: a key that is no op, a value that is no kernel.

    And for a Fused pair of API 1, which would fail only when it is asked for a gradient.
    """
    for op, kernel in kernels.items():
        if not hasattr(op, "inputs") or not (callable(kernel) or isinstance(kernel, Fused)):
            ours = not hasattr(op, "inputs") and str(getattr(op, "__module__", "")).startswith("polyarr.")
            hint = f"; {op.__name__} is a function around an op, use polyarr.ops.{op.__name__}" if ours else ""
            raise BackendError(f"{giver} gave {op!r}: {kernel!r}; it must give op -> kernel or Fused pair{hint}")
        if isinstance(kernel, Fused) and (complaint := unwanting(op, kernel.backward)):
            raise BackendError(complaint)


def _overridden(backend: Backend) -> Backend:
    """The backend with the kernels that plugins replace: found here, once, so that no call looks for them.

    Nobody can change the table from here on, neither the plugins that are asked nor the one that made it.
    """
    name, kernels, rows = backend.name, dict(backend.kernels), list[Override]()
    shown = backend._replace(kernels=MappingProxyType(dict(kernels)))
    for plugin in _registry.loader.replacing(backend.family):
        ask = functools.partial(_kernels_of, plugin, shown, rows)
        found: dict[Any, Any] = answer(plugin, f"replace kernels of {name!r}", ask, {})
        kernels |= found
        rows += [Override(name, op.name, plugin.distribution, plugin.entry_point) for op in found]
    _registry.overrides[name] = rows
    # What a backend says that its kernels take holds for its own only: another gets what every backend's does.
    reads, precisions = (
        {op: said for op, said in table.items() if kernels.get(op) is backend.kernels.get(op)}
        for table in (backend.reads, backend.precisions)
    )
    return backend._replace(kernels=MappingProxyType(kernels), reads=reads, precisions=precisions)


def _kernels_of(plugin: Plugin, backend: Backend, taken: list[Override]) -> dict[Any, Any]:
    """What a plugin's polyarr_kernels gives, checked."""
    found: dict[Any, Any] = {}
    for answer in plugin.manager.hook.polyarr_kernels(backend=backend):
        found.update(answer)
    _check_kernels("polyarr_kernels", found)
    for op in found:
        for row in taken:
            if row.op == op.name:
                raise BackendError(f"{op.name} is already replaced by {row.distribution}; uninstall one of the two")
    return found


def answer(plugin: Plugin, stage: str, ask: Callable[[], Row], otherwise: Row) -> Row:
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
        _registry.not_answered[key] = failure
        _registry.loader.warn(failure)
        return otherwise
    _registry.not_answered.pop(key, None)
    return answer


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
    _registry.not_started[spec.name] = failure
    if not (isinstance(error, BackendError) or lacks_library(error)):  # a defect of the plugin
        with contextlib.suppress(PluginWarning):  # where warnings are errors, the error below says the same
            _registry.loader.warn(failure)
    message = f"backend {failure.backend!r} could not start: {reason_of(error)}"
    way_out = ";"
    if lacks_library(error) and spec.install_hint:
        message, way_out = f"{message}; install what it needs with: {spec.install_hint}", ","
    others = sorted({*_registry.loader.names} - _registry.not_started.keys())
    if others:
        message += f"{way_out} or use: {', '.join(others)}"
    return BackendError(message)


def offers() -> dict[str, list[tuple[Plugin, BackendSpec]]]:
    """Backend name -> who offers it, of the plugins that were loaded. More than one is an error for whoever asks."""
    offers: dict[str, list[tuple[Plugin, BackendSpec]]] = {}
    for plugin in _registry.loader.plugins:
        for spec in plugin.backends:
            offers.setdefault(spec.name, []).append((plugin, spec))
    return offers


def _offer(name: str) -> tuple[Plugin, BackendSpec]:
    loader = _registry.loader
    loader.load(name)
    failed = [f.exception for f in loader.failed if f.entry_point == name]
    if name not in offers() and not failed:
        loader.load()  # it may be that of a plugin with another name
    found = offers().get(name, [])
    if not found:
        raise BackendError(_unknown(name, loader.names)) from (failed[0] if failed else None)
    if len(found) > 1:
        raise BackendError(ambiguous(name, [plugin for plugin, _ in found]))
    return found[0]


def _unknown(name: str, installed: list[str]) -> str:
    parts = [f"no backend called {name!r}; installed: {', '.join(installed)}"]
    parts += [f"did you mean {close!r}?" for close in difflib.get_close_matches(name, installed, 1)]
    parts += [str(failure) for failure in _registry.loader.failed]
    return "; ".join(parts)


def ambiguous(name: str, plugins: list[Plugin]) -> str:
    who = " and ".join(f"{p.distribution} (entry point {p.entry_point!r})" for p in plugins)
    return f"two plugins offer a backend called {name!r}: {who}; uninstall one, or see POLYARR_PLUGINS"


def load_all() -> Loader:
    with _lock:
        _registry.loader.load()
    return _registry.loader


# ---- in-process plugins ----------------------------------------------------------------------------------


def register_plugin(plugin: Any, name: str | None = None) -> None:
    """Add a plugin, a module or any object with hooks, for the life of the process. Its errors are raised.

    Errors:  BackendError or pluggy.PluginValidationError if its hooks are wrong
    """
    entry_point = name or getattr(plugin, "__name__", None) or type(plugin).__name__
    with _lock:
        _registry.loader.added.append(_registry.loader.registered(THIS_PROCESS, entry_point, plugin))


def unregister_plugin(plugin: Any) -> None:
    """Take back register_plugin, and forget the plugin's backends and those whose kernels it replaced.

    Errors:  ValueError if the plugin was not added by register_plugin
    """
    with _lock:
        added = _registry.loader.added
        found = [p for p in added if has(p, plugin)]
        if not found:
            raise ValueError(f"{plugin!r} is not a plugin that register_plugin added")
        names = {spec.name for p in found for spec in p.backends}
        gone = {p.entry_point for p in found}
        replaced = {r.backend for rows in _registry.overrides.values() for r in rows if r.entry_point in gone}
        added[:] = [p for p in added if p not in found]
        for name, backend in [*_registry.running.items()]:
            if backend.family in names or backend.name in replaced:
                del _registry.running[name]
                forget_default(backend)
        for name in names:
            _registry.not_started.pop(name, None)


def forget(*backends: Backend) -> None:
    """For backends that do not survive a fork: who asks for one by name has it started anew, or an error."""
    gone = {backend.name for backend in backends}
    _registry.running = {name: backend for name, backend in _registry.running.items() if backend.name not in gone}


def _after_fork_in_child() -> None:
    """Another thread may have held the lock when the process was forked; here it never ends."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """For tests: begin anew, as in a new process, and put everything back at the end of the block."""
    global _registry
    before, _registry = _registry, Registry()
    try:
        with undecided():
            yield
    finally:
        _registry = before
