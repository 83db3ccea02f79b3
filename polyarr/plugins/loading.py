"""Loading plugins on demand, so that none can break or delay what works without it.

A plugin is what an entry point of the group "polyarr" names. The name of the entry point tells, before anything is
imported, which backend the plugin is for:

    mine = "polyarr_mine"                   the backend mine; loaded when mine is requested
    "numpy.gelu" = "polyarr_fast_gelu"      kernels for numpy (any name after the dot); loaded before numpy starts

All plugins are loaded if the requested backend has no entry point of its name, and by commands that list everything,
such as `polyarr backends` and `polyarr doctor`.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pluggy

from polyarr.core.errors import BackendError
from polyarr.plugins.hooks import API, GROUP, BackendSpec, Hooks
from polyarr.settings import is_on

BUILT_IN = {"numpy": "polyarr.backends.numpy", "opencl": "polyarr.backends.opencl"}
THIS_PROCESS = "this process"  # distribution of plugins added by register_plugin
SLOW_SECONDS = 10.0  # seconds after which a slow plugin is named on standard error


class PluginWarning(RuntimeWarning):
    """Warning about a plugin that failed; everything else works."""


class PluginFailure(NamedTuple):
    """Failure of a plugin.

    Attributes:
        distribution: Distribution of the plugin.
        entry_point: Entry point of the plugin.
        stage: What failed: "load", "import", "register", "start", "list devices", "diagnose" and so on.
        exception: The error.
        backend: Name of the backend, if one failed to start.
    """

    distribution: str
    entry_point: str
    stage: str
    exception: BaseException
    backend: str = ""

    def __str__(self) -> str:
        who = plugin_title(self.distribution, self.entry_point, self.backend)
        return f"{who} could not {self.stage}: {reason_of(self.exception)}"


def plugin_title(distribution: str, entry_point: str, backend: str = "") -> str:
    """Return the name of a plugin, or of a backend of it, for messages."""
    what = f"backend {backend!r} of plugin" if backend else "plugin"
    return f"{what} {entry_point!r} ({distribution})"


def reason_of(error: BaseException) -> str:
    """Return an exception as one line; without its type for a BackendError, which is written for users."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # __str__ of a third party's exception may itself raise
        text = ""
    if isinstance(error, BackendError):
        return text
    return f"{type(error).__name__}{': ' * bool(text)}{text}"


class Source(NamedTuple):
    """A plugin before it is imported.

    Attributes:
        distribution: Distribution of the plugin.
        entry_point: Name of the entry point.
        load: () -> the plugin, imported.
        backend: Backend that the plugin is for; "" if unknown.
    """

    distribution: str
    entry_point: str
    load: Callable[[], Any]
    backend: str


class Plugin(NamedTuple):
    """A loaded plugin, with a plugin manager of its own, so that a hook call reaches only this plugin."""

    distribution: str
    entry_point: str
    manager: pluggy.PluginManager
    backends: tuple[BackendSpec, ...]


# ---- what is installed -----------------------------------------------------------------------------------


def _sources() -> Iterator[Source]:
    """Yield the entry points to load: those of polyarr, and all others or those that POLYARR_PLUGINS names."""
    for name, module in BUILT_IN.items():
        yield Source(_polyarr(), name, functools.partial(importlib.import_module, module), name)
    names = os.environ.get("POLYARR_PLUGINS")
    if names is None:
        yield from _installed()
        return
    wanted = {name.strip() for name in names.split(",")} - {"", *BUILT_IN}
    found = [source for source in _installed() if source.entry_point in wanted] if wanted else []
    yield from found
    for name in sorted(wanted - {source.entry_point for source in found}):
        error = BackendError(f"no installed distribution has the entry point {name!r} of POLYARR_PLUGINS")
        yield Source("not installed", name, functools.partial(_raise, error), "")


def _installed() -> Iterator[Source]:
    """Yield the entry points of all distributions; of distributions with one name the first, as for imports."""
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:  # a damaged distribution, which may have nothing to do with polyarr, must not hide the others
            if f"[{GROUP}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            name = distribution.metadata["Name"]
            title = f"{name} {distribution.version}"
            points = distribution.entry_points.select(group=GROUP)
            found = [Source(title, e.name, e.load, e.name.partition(".")[0]) for e in points]
        except Exception as error:
            yield Source("a damaged distribution", "entry_points.txt", functools.partial(_raise, error), "")
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


# ---- loading ---------------------------------------------------------------------------------------------


class Loader:
    """The installed plugins, the loaded ones, and those that failed. Not thread-safe."""

    def __init__(self) -> None:
        self.added: list[Plugin] = []  # by register_plugin
        self._known: list[Source] | None = None
        self._loaded: dict[Source, Plugin | PluginFailure] = {}
        self._loading: list[Source] = []
        self._warned: set[str] = set()

    @property
    def sources(self) -> list[Source]:
        """Installed plugins. Reading this imports nothing."""
        if self._known is None:
            self._known = list(_sources())
        return self._known

    @property
    def plugins(self) -> list[Plugin]:
        """Plugins loaded or added so far. A module that two entry points name is one plugin."""
        found = [p for s in self.sources if isinstance(p := self._loaded.get(s), Plugin)]
        return [*{id(p.manager): p for p in found}.values(), *self.added]

    @property
    def failed(self) -> list[PluginFailure]:
        """Failures to load."""
        return [f for s in self.sources if isinstance(f := self._loaded.get(s), PluginFailure)]

    @property
    def names(self) -> list[str]:
        """Names of the backends known without loading more plugins, without those that failed."""
        offered = {spec.name for plugin in self.plugins for spec in plugin.backends}
        named = {s.backend for s in self.sources if s not in self._loaded and s.entry_point == s.backend}
        return sorted(offered | named)

    def load(self, backend: str | None = None) -> None:
        """Load the plugins for a backend; None: all plugins."""
        new = [
            self._load(source)
            for source in self.sources
            # A source without a backend, as with a misspelt name in POLYARR_PLUGINS, is never requested by name.
            if source not in self._loaded and (backend in (None, source.backend) or not source.backend)
        ]
        for failure in filter(None, new):
            self.warn(failure)

    def replacing(self, backend: str) -> list[Plugin]:
        """Return the plugins that may replace kernels of a backend: those for it, and those added."""
        found = [(s, self._loaded.get(s)) for s in self.sources if s.backend == backend]
        named = {id(p.manager): p._replace(entry_point=s.entry_point) for s, p in found if isinstance(p, Plugin)}
        return [*named.values(), *self.added]

    def _load(self, source: Source) -> PluginFailure | None:
        """Import and register one plugin; return its failure, so that the others are loaded anyway."""
        who = plugin_title(source.distribution, source.entry_point)
        if source in self._loading:
            raise BackendError(f"{who} asked for its own backend while it was imported; ask for it in start()")
        self._loading.append(source)
        stage = "import"
        try:
            with report_if_slow(f"{who} is being imported"):
                loaded = source.load()
                stage = "register"
                own = [p for p in self.plugins if p.distribution == source.distribution]
                same = next((p for p in own if p.manager.is_registered(loaded)), None)  # made from the same module
                self._loaded[source] = same or self.registered(*source[:2], loaded)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may call sys.exit() on import
            self._loaded[source] = failure = PluginFailure(*source[:2], stage, error)
            if is_on("POLYARR_STRICT_PLUGINS"):
                del self._loaded[source]
                raise BackendError(str(failure)) from error
            return failure
        finally:
            self._loading.remove(source)
        return None

    def registered(self, distribution: str, entry_point: str, plugin: Any) -> Plugin:
        """Return the plugin with everything that it provides; raise an error and register nothing otherwise."""
        manager = pluggy.PluginManager(GROUP)
        manager.add_hookspecs(Hooks)
        manager.register(plugin, entry_point)
        manager.check_pending()
        if not manager.get_hookcallers(plugin):
            raise BackendError("it has no hook; mark polyarr_backends(register) with @polyarr.plugins.hookimpl")
        offered: list[BackendSpec] = []

        def register(name: str | BackendSpec, start: Any = None, **fields: Any) -> None:
            spec = name if isinstance(name, BackendSpec) else BackendSpec(name, start, **fields)
            _check(spec)
            self._check_owner(spec.name, distribution)
            offered.append(spec)

        manager.hook.polyarr_backends(register=register)
        if manager.hook.polyarr_kernels.get_hookimpls() and distribution != THIS_PROCESS and not offered:
            self._check_purpose(entry_point)
        return Plugin(distribution, entry_point, manager, tuple(offered))

    def _check_owner(self, name: str, distribution: str) -> None:
        """Raise BackendError unless the distribution may use this backend name, by its entry points."""
        owners = [s.distribution for s in self.sources if s.entry_point == name][: 1 if name in BUILT_IN else None]
        if owners and distribution not in owners:
            raise BackendError(f"the backend name {name!r} belongs to {owners[0]}; choose another")

    def _check_purpose(self, entry_point: str) -> None:
        """Raise BackendError if the entry point does not name a backend: the kernels would never be used."""
        if "." not in entry_point and entry_point not in BUILT_IN:
            raise BackendError(
                "it replaces kernels, and its entry point does not say of which backend; call it "
                f"'numpy.{entry_point}' for those of numpy"
            )

    def warn(self, failure: PluginFailure) -> None:
        """Warn about a failure once."""
        text = str(failure)
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, PluginWarning, stacklevel=2)


def _check(spec: BackendSpec) -> None:
    """Raise BackendError for an invalid BackendSpec."""
    if not isinstance(spec.name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", spec.name):
        raise BackendError(f"a backend's name is made of letters, digits, '_' and '-', not {spec.name!r}")
    if spec.api != API:
        todo = "make it so, see 'From API 1 to 2' in docs/write-a-backend.md, and register it with api=2"
        way = todo if spec.api == 1 else "install versions that fit each other"
        raise BackendError(f"backend {spec.name!r} is made for api {spec.api!r}; this polyarr has api {API}: {way}")
    if not callable(spec.start):
        raise BackendError(f"backend {spec.name!r}: start must be callable, got {spec.start!r}")


# ---- slow plugins ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def report_if_slow(what: str) -> Iterator[None]:
    """Print on standard error what is running, if the block takes longer than SLOW_SECONDS seconds."""
    timer = threading.Timer(SLOW_SECONDS, _say, (f"polyarr: {what}, for {SLOW_SECONDS:g} seconds so far",))
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no thread can be started: print nothing
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident:
            timer.join()


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed or missing
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
