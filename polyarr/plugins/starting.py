"""Starting backends by name, replacing kernels, and plugins of this process. core/current.py selects the backend."""

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
from polyarr.core.binding import outdated_backward
from polyarr.core.current import find_with, forget_default, undecided
from polyarr.core.errors import BackendError
from polyarr.core.op import Op
from polyarr.core.program import Kind, Program, Run, Step
from polyarr.core.spec import Spec
from polyarr.plugins.hooks import BackendSpec, Override
from polyarr.plugins.loading import (
    THIS_PROCESS,
    Loader,
    Plugin,
    PluginFailure,
    PluginWarning,
    plugin_title,
    reason_of,
    report_if_slow,
)
from polyarr.settings import is_on

Row = TypeVar("Row")


def lacks_library(error: BaseException | None) -> bool:
    """Return whether an import error is due to a missing library outside polyarr: a choice, not a defect."""
    return isinstance(error, ImportError) and (error.name or "").partition(".")[0] != "polyarr"


class Registry:
    """State of the plugins of this process: what was loaded, what was started and what failed."""

    def __init__(self) -> None:
        self.loader = Loader()
        self.failed_starts: dict[str, PluginFailure] = {}
        self.failed_hooks: dict[tuple[str, str], PluginFailure] = {}
        self.running: dict[str, Backend] = {}  # by the requested name, and by the backend's own
        self.overrides: dict[str, list[Override]] = {}  # by the running backend's own name


_registry = Registry()
_lock = threading.RLock()  # re-entrant: start() may ask for another backend


def registry() -> Registry:
    """Return the state of the plugins of this process."""
    return _registry


# ---- starting a backend ----------------------------------------------------------------------------------


def _named(name: str | None) -> Backend:
    """Return a backend by name, started if necessary; the initial backend for None."""
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
    """Return the name of the backend for process `number` of `count` on this host: one device each, if possible.

    A name with a device is returned as it is; None is the initial backend.

    Raises:
        BackendError: There is no such backend.
    """
    name = name or os.environ.get("POLYARR_BACKEND") or "numpy"
    plugin, spec = _offer(family_of(name))
    if spec.shared is None or family_of(name) != name:
        return name
    device = ask_plugin(plugin, "share devices", functools.partial(spec.shared, number, count), "")
    return f"{name}:{device}" if device else name


def set_family_default(backend: Backend) -> None:
    """Make the name without a device, such as "opencl", mean this backend from here on."""
    with _lock:
        _registry.running[backend.family] = backend


def _start(name: str) -> Backend:
    with _lock:
        if name in _registry.running:
            return _registry.running[name]
        base = family_of(name)
        plugin, spec = _offer(base)
        _registry.loader.load(base)  # the plugins that may replace its kernels
        arguments = _device_argument(name, spec)
        try:
            with report_if_slow(f"{plugin_title(plugin.distribution, plugin.entry_point, name)} is starting"):
                backend = _checked(spec.start(**arguments), base)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure = PluginFailure(plugin.distribution, plugin.entry_point, "start", error, name)
            raise _not_started(failure, spec) from error
        # "opencl" and "opencl:0" may be one device; their arrays must have one backend.
        running = _registry.running.get(backend.name) or _with_overrides(backend)
        _registry.running[name] = _registry.running[backend.name] = running
        _registry.failed_starts.pop(base, None)
        return running


def _checked(backend: Any, name: str) -> Backend:
    """Return the backend that `start` returned, after checking that it has the registered name."""
    if not isinstance(backend, Backend):
        raise TypeError(f"start() must return a Backend, not {type(backend).__name__}")
    if backend.family != name:
        raise ValueError(f"start() returned a Backend called {backend.name!r}; it must be {name!r}, or '{name}:device'")
    _check_kernels("its table", backend.kernels)
    return backend


def _check_kernels(giver: str, kernels: Mapping[Any, Any]) -> None:
    """Raise BackendError for a key that is no op, a value that is no kernel, or a Fused kernel of API 1."""
    for op, kernel in kernels.items():
        if not hasattr(op, "inputs") or not (callable(kernel) or isinstance(kernel, Fused)):
            ours = not hasattr(op, "inputs") and str(getattr(op, "__module__", "")).startswith("polyarr.")
            hint = f"; {op.__name__} is a function around an op, use polyarr.ops.{op.__name__}" if ours else ""
            raise BackendError(f"{giver} gave {op!r}: {kernel!r}; it must give op -> kernel or Fused{hint}")
        if isinstance(kernel, Fused) and (message := outdated_backward(op, kernel.backward)):
            raise BackendError(message)


def _with_overrides(backend: Backend) -> Backend:
    """Return the backend with the kernels that plugins replace, looked up once, at the start.

    The table is read-only from here on, also for the plugins and for the backend that made it.
    """
    name, kernels, rows = backend.name, dict(backend.kernels), list[Override]()
    shown = backend._replace(kernels=MappingProxyType(dict(kernels)))
    for plugin in _registry.loader.replacing(backend.family):
        ask = functools.partial(_kernels_of, plugin, shown, rows)
        found: dict[Any, Any] = ask_plugin(plugin, f"replace kernels of {name!r}", ask, {})
        kernels |= found
        rows += [Override(name, op.name, plugin.distribution, plugin.entry_point) for op in found]
    _registry.overrides[name] = rows
    replaced = {op for op, kernel in kernels.items() if kernel is not backend.kernels.get(op)}
    if not replaced:
        return backend._replace(kernels=MappingProxyType(kernels))
    # `reads` and `precisions` describe the backend's own kernels; a replaced kernel gets the default arguments.
    reads, precisions = (
        {op: said for op, said in table.items() if op not in replaced} for table in (backend.reads, backend.precisions)
    )
    fusion, replay = backend.fusion, backend.replay
    if fusion is not None:  # which would compute the op by the backend's own expression
        fusion = fusion._replace(kind=functools.partial(_kind_unless_replaced, replaced, fusion.kind))
    if replay is not None:  # which knows the launches and the meaning of the backend's own kernels only
        replay = functools.partial(_replay_unless_replaced, replaced, replay)
    return backend._replace(
        kernels=MappingProxyType(kernels), reads=reads, precisions=precisions, fusion=fusion, replay=replay
    )


def _kind_unless_replaced(
    replaced: set[Op], kind: Callable[..., Kind | None], step: Step, specs: tuple[Spec, ...], out: Spec
) -> Kind | None:
    """Return the Kind that a backend gives a step; None if a plugin replaces the op's kernel."""
    return None if step.op in replaced else kind(step, specs, out)


def _replay_unless_replaced(
    replaced: set[Op], replay: Callable[[Program, Run], Run], program: Program, run: Run
) -> Run:
    """Return a backend's replay of a program; the default run, which calls each kernel, if a plugin replaces one."""
    ops = [step.op for step in program.steps if isinstance(step.op, Op)]  # of a fused group it is a Program
    return replay(program, run) if replaced.isdisjoint(ops) else run


def _kernels_of(plugin: Plugin, backend: Backend, taken: list[Override]) -> dict[Any, Any]:
    """Return what the polyarr_kernels hook of a plugin returns, after checking it."""
    found: dict[Any, Any] = {}
    for answer in plugin.manager.hook.polyarr_kernels(backend=backend):
        found.update(answer)
    _check_kernels("polyarr_kernels", found)
    for op in found:
        for row in taken:
            if row.op == op.name:
                raise BackendError(f"{op.name} is already replaced by {row.distribution}; uninstall one of the two")
    return found


def ask_plugin(plugin: Plugin, stage: str, ask: Callable[[], Row], otherwise: Row) -> Row:
    """Return ask(), or `otherwise` if it raises, and record the failure."""
    key = (plugin.entry_point, stage)
    try:
        with report_if_slow(f"{plugin_title(plugin.distribution, plugin.entry_point)} is asked to {stage}"):
            answer = ask()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failure = PluginFailure(plugin.distribution, plugin.entry_point, stage, error)
        if is_on("POLYARR_STRICT_PLUGINS"):
            raise BackendError(str(failure)) from error
        _registry.failed_hooks[key] = failure
        _registry.loader.warn(failure)
        return otherwise
    _registry.failed_hooks.pop(key, None)
    return answer


def _device_argument(name: str, spec: BackendSpec) -> dict[str, str]:
    base, colon, device = name.partition(":")
    if not colon:
        return {}
    if not device:
        raise BackendError(f"{name!r} names no device after the colon; write {base!r} or '{base}:0'")
    try:
        takes_device = "device" in inspect.signature(spec.start).parameters
    except ValueError:  # a callable written in C may have no signature
        takes_device = False
    if not takes_device:
        raise BackendError(f"backend {base!r} takes no device, got {name!r}; write {base!r}")
    return {"device": device}


def _not_started(failure: PluginFailure, spec: BackendSpec) -> BackendError:
    """Record that a backend could not start, and return the error to raise."""
    error = failure.exception
    _registry.failed_starts[spec.name] = failure
    if not (isinstance(error, BackendError) or lacks_library(error)):  # a defect of the plugin
        with contextlib.suppress(PluginWarning):  # if warnings are errors, the error returned below suffices
            _registry.loader.warn(failure)
    message = f"backend {failure.backend!r} could not start: {reason_of(error)}"
    way_out = ";"
    if lacks_library(error) and spec.install_hint:
        message, way_out = f"{message}; install what it needs with: {spec.install_hint}", ","
    others = sorted({*_registry.loader.names} - _registry.failed_starts.keys())
    if others:
        message += f"{way_out} or use: {', '.join(others)}"
    return BackendError(message)


def offers() -> dict[str, list[tuple[Plugin, BackendSpec]]]:
    """Return, by backend name, the loaded plugins that provide it; more than one is an error when it is requested."""
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
        loader.load()  # a plugin with another name may provide it
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
    """Return the error message for a backend that several plugins provide."""
    who = " and ".join(f"{p.distribution} (entry point {p.entry_point!r})" for p in plugins)
    return f"two plugins offer a backend called {name!r}: {who}; uninstall one, or see POLYARR_PLUGINS"


def load_all() -> Loader:
    """Load all plugins."""
    with _lock:
        _registry.loader.load()
    return _registry.loader


# ---- in-process plugins ----------------------------------------------------------------------------------


def register_plugin(plugin: Any, name: str | None = None) -> None:
    """Add a plugin for the life of the process. Unlike those of installed plugins, its errors are raised.

    Args:
        plugin: Module or object with hooks.
        name: Name in messages; None: the name of the module or class.

    Raises:
        BackendError: A hook's result is invalid.
        pluggy.PluginValidationError: A hook is invalid.
    """
    entry_point = name or getattr(plugin, "__name__", None) or type(plugin).__name__
    with _lock:
        _registry.loader.added.append(_registry.loader.registered(THIS_PROCESS, entry_point, plugin))


def unregister_plugin(plugin: Any) -> None:
    """Remove a plugin that `register_plugin` added, its backends, and the backends whose kernels it replaced.

    Args:
        plugin: The registered module or object.

    Raises:
        ValueError: The plugin was not added by `register_plugin`.
    """
    with _lock:
        added = _registry.loader.added
        found = [p for p in added if p.manager.is_registered(plugin)]
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
            _registry.failed_starts.pop(name, None)


def forget(*backends: Backend) -> None:
    """Remove backends that do not survive a fork; a later request by name starts them anew or raises an error."""
    gone = {backend.name for backend in backends}
    _registry.running = {name: backend for name, backend in _registry.running.items() if backend.name not in gone}


def _after_fork_in_child() -> None:
    """Replace the lock, which another thread may have held during the fork."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """Run a block as in a new process without plugins, and restore the state at its end; for tests."""
    global _registry
    before, _registry = _registry, Registry()
    try:
        with undecided():
            yield
    finally:
        _registry = before
