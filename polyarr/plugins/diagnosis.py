"""Status of backends, replaced kernels, devices and caches, for the diagnostic commands."""

import contextlib
import difflib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from polyarr.core.backend import Backend
from polyarr.core.current import get_backend
from polyarr.core.errors import BackendError
from polyarr.plugins import starting
from polyarr.plugins.hooks import LEVELS, BackendSpec, DeviceInfo, Diagnosis, Override
from polyarr.plugins.loading import Plugin, PluginFailure, PluginWarning, plugin_title

Row = TypeVar("Row")


class BackendStatus(NamedTuple):
    """A row of `polyarr backends`; `state` is "registered", "running" or "failed"."""

    name: str
    distribution: str
    entry_point: str
    state: str
    reason: str = ""
    summary: str = ""
    install_hint: str = ""
    backend: Backend | None = None
    failure: PluginFailure | None = None


@contextlib.contextmanager
def no_plugin_warnings() -> Iterator[None]:
    """Silence plugin warnings, where every failure is shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        yield


def failures() -> list[PluginFailure]:
    """Return all failures of plugins that were not resolved since."""
    return [
        *starting.load_all().failed,
        *starting.registry().failed_starts.values(),
        *starting.registry().failed_hooks.values(),
    ]


def status(start: bool = False) -> list[BackendStatus]:
    """Return every backend, and every plugin that failed to provide one; with `start`, start the backends."""
    loader = starting.load_all()
    rows = [_status_of(name, offers, start) for name, offers in starting.offers().items()]
    for f in loader.failed:
        rows.append(BackendStatus(f.entry_point, f.distribution, f.entry_point, "failed", str(f), failure=f))
    return rows


def _status_of(name: str, offers: list[tuple[Plugin, BackendSpec]], start: bool) -> BackendStatus:
    plugin, spec = offers[0]
    owner = plugin.distribution, plugin.entry_point
    row = BackendStatus(name, *owner, "registered", summary=spec.summary, install_hint=spec.install_hint)
    if len(offers) > 1:
        return row._replace(state="failed", reason=starting.ambiguous(name, [plugin for plugin, _ in offers]))
    if start:
        try:
            get_backend(name)
        except BackendError as error:
            return row._replace(state="failed", reason=str(error), failure=starting.registry().failed_starts.get(name))
    for backend in starting.registry().running.values():
        if backend.family == name:
            return row._replace(state="running", backend=starting.registry().running.get(name, backend))
    failure = starting.registry().failed_starts.get(name)
    return row._replace(state="failed", reason=str(failure), failure=failure) if failure else row


def overrides() -> list[Override]:
    """Return all kernels that plugins replaced in the running backends."""
    names = dict.fromkeys(backend.name for backend in starting.registry().running.values())
    return [row for name in names for row in starting.registry().overrides[name]]


def without_backend() -> list[str]:
    """Return one line for each plugin whose backend no plugin provides, so that it is never loaded."""
    starting.registry().loader.load()
    names, lines = starting.registry().loader.names, list[str]()
    for source in starting.registry().loader.sources:
        if source.backend not in {"", source.entry_point, *names, *starting.registry().failed_starts}:
            who = plugin_title(source.distribution, source.entry_point)
            close = difflib.get_close_matches(source.backend, names, 1)
            hint = f"; did you mean '{close[0]}{source.entry_point[len(source.backend) :]}'?" if close else ""
            lines.append(f"{who} is for the backend {source.backend!r}, which nobody offers{hint}")
    return lines


def devices() -> list[DeviceInfo]:
    """Return the devices of all plugins that list them. Queries drivers but starts no backend."""
    return _gather("polyarr_devices", "list devices", _device)


def diagnose() -> list[Diagnosis]:
    """Return the diagnoses of all plugins."""
    return _gather("polyarr_diagnose", "diagnose", _diagnosis)


def caches() -> list[str]:
    """Return the folders in which plugins cache compiled kernels. Queries no driver."""
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
    """Return what all plugins return for a hook; a plugin that fails is recorded and left out."""

    def rows_of(plugin: Plugin) -> list[Row]:
        return [row_type(row) for answer in getattr(plugin.manager.hook, hook)() for row in answer]

    nothing: list[Row] = []
    return [
        row
        for p in starting.load_all().plugins
        for row in starting.ask_plugin(p, stage, functools.partial(rows_of, p), nothing)
    ]
