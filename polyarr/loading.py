"""Loading plugins: each when it is asked for, and so that none can break or delay what works without it.

A plugin is what an entry point of the group "polyarr" names. The entry point's own name says, before anything is
imported, which backend it is for:

    mine = "polyarr_mine"                   the backend mine; loaded when mine is asked for
    "numpy.gelu" = "polyarr_fast_gelu"      kernels for numpy, whatever comes after the dot; loaded before numpy starts

All plugins are loaded where a backend is asked for that no entry point is named after, and where everything is to be
shown: by `polyarr backends`, `polyarr doctor` and the like.
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
from polyarr.hooks import API, GROUP, BackendSpec, Hooks

BUILT_IN = {"numpy": "polyarr.backends.numpy", "opencl": "polyarr.backends.opencl"}
THIS_PROCESS = "this process"  # stands for the distribution of a plugin that was registered by hand
PATIENCE = 10.0  # seconds, after which a plugin that is still at work is named on standard error


class PluginWarning(RuntimeWarning):
    """A plugin that failed; everything else works."""


class PluginFailure(NamedTuple):
    """What failed, and in doing what: to load, import, register, start, list devices or diagnose."""

    distribution: str
    entry_point: str
    stage: str
    exception: BaseException
    backend: str = ""

    def __str__(self) -> str:
        who = called(self.distribution, self.entry_point, self.backend)
        return f"{who} could not {self.stage}: {reason_of(self.exception)}"


def called(distribution: str, entry_point: str, backend: str = "") -> str:
    """How messages call a plugin, or a backend of it."""
    what = f"backend {backend!r} of plugin" if backend else "plugin"
    return f"{what} {entry_point!r} ({distribution})"


def reason_of(error: BaseException) -> str:
    """An exception in one line. A BackendError is written for users and needs no type's name."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a stranger's exception may fail at that, too
        text = ""
    if isinstance(error, BackendError):
        return text
    return f"{type(error).__name__}{': ' * bool(text)}{text}"


class Source(NamedTuple):
    """Where a plugin comes from, before it is imported.

    backend  the backend that it is for; "" where that cannot be told
    """

    distribution: str
    entry_point: str
    load: Callable[[], Any]
    backend: str


class Plugin(NamedTuple):
    """A loaded plugin. Its manager is its own, so that a hook call reaches this plugin and no other."""

    distribution: str
    entry_point: str
    manager: pluggy.PluginManager
    backends: tuple[BackendSpec, ...]


# ---- what is installed -----------------------------------------------------------------------------------


def _sources() -> Iterator[Source]:
    """The entry points that may be loaded: those of polyarr, and of the others those that POLYARR_PLUGINS names."""
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
    """The entry points of every distribution, the first of each name, as an import would find it."""
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:  # one damaged distribution, which may have nothing to do with polyarr, must not hide the others
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
    """The plugins that are installed, those that were loaded, and those that failed. Not for two threads at once."""

    def __init__(self) -> None:
        self.added: list[Plugin] = []  # by hand
        self._known: list[Source] | None = None
        self._loaded: dict[Source, Plugin | PluginFailure] = {}
        self._loading: list[Source] = []
        self._warned: set[str] = set()

    @property
    def sources(self) -> list[Source]:
        """What is installed. Nothing is imported for it."""
        if self._known is None:
            self._known = list(_sources())
        return self._known

    @property
    def plugins(self) -> list[Plugin]:
        """What was loaded so far, or added by hand. A module that two entry points name is one plugin."""
        found = [p for s in self.sources if isinstance(p := self._loaded.get(s), Plugin)]
        return [*{id(p.manager): p for p in found}.values(), *self.added]

    @property
    def failed(self) -> list[PluginFailure]:
        """What could not be loaded."""
        return [f for s in self.sources if isinstance(f := self._loaded.get(s), PluginFailure)]

    @property
    def names(self) -> list[str]:
        """The backends that there are, as far as is known without loading more. Those that failed are left out."""
        offered = {spec.name for plugin in self.plugins for spec in plugin.backends}
        return sorted(offered | {s.entry_point for s in self.sources if s not in self._loaded and _offers_backend(s)})

    def load(self, backend: str | None = None) -> None:
        """Load the plugins that are for a backend; without a name, all."""
        new = [
            self._load(source)
            for source in self.sources
            if source not in self._loaded and (backend in (None, source.backend) or _is_lost(source))
        ]
        for failure in filter(None, new):
            self.warn(failure)

    def replacing(self, backend: str) -> list[Plugin]:
        """The plugins that may replace kernels of a backend: those that are for it, and those added by hand."""
        found = [(s, self._loaded.get(s)) for s in self.sources if s.backend == backend]
        named = {id(p.manager): p._replace(entry_point=s.entry_point) for s, p in found if isinstance(p, Plugin)}
        return [*named.values(), *self.added]

    def _load(self, source: Source) -> PluginFailure | None:
        """Import and register one plugin. Whatever it does, the others come to their turn."""
        who = called(source.distribution, source.entry_point)
        if source in self._loading:
            raise BackendError(f"{who} asked for its own backend while it was imported; ask for it in start()")
        self._loading.append(source)
        stage = "import"
        try:
            with patience(f"{who} is being imported"):
                loaded = source.load()
                stage = "register"
                same = [p for p in self.plugins if p.distribution == source.distribution and has(p, loaded)]
                self._loaded[source] = same[0] if same else self.registered(*source[:2], loaded)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may call sys.exit() on import
            self._loaded[source] = failure = PluginFailure(*source[:2], stage, error)
            if is_strict():
                del self._loaded[source]
                raise BackendError(str(failure)) from error
            return failure
        finally:
            self._loading.remove(source)
        return None

    def registered(self, distribution: str, entry_point: str, plugin: Any) -> Plugin:
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
            _check(spec)
            self._check_owner(spec.name, distribution)
            offered.append(spec)

        manager.hook.polyarr_backends(register=register)
        if manager.hook.polyarr_kernels.get_hookimpls() and distribution != THIS_PROCESS and not offered:
            self._check_purpose(entry_point)
        return Plugin(distribution, entry_point, manager, tuple(offered))

    def _check_owner(self, name: str, distribution: str) -> None:
        """A backend's name belongs to those who named an entry point so, and polyarr's own to polyarr alone."""
        owners = [s.distribution for s in self.sources if s.entry_point == name][: 1 if name in BUILT_IN else None]
        if owners and distribution not in owners:
            raise BackendError(f"the backend name {name!r} belongs to {owners[0]}; choose another")

    def _check_purpose(self, entry_point: str) -> None:
        """Kernels for a backend that there is not would never be asked for, and nobody would know."""
        if "." not in entry_point and entry_point not in BUILT_IN:
            raise BackendError(
                "it replaces kernels, and its entry point does not say of which backend; call it "
                f"'numpy.{entry_point}' for those of numpy"
            )

    def warn(self, failure: PluginFailure) -> None:
        """Warn of a failure, once."""
        text = str(failure)
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, PluginWarning, stacklevel=2)


def _is_lost(source: Source) -> bool:
    """True for what nobody will ask for by name, such as a misspelt name in POLYARR_PLUGINS: it is told at once."""
    return not source.backend


def _offers_backend(source: Source) -> bool:
    return source.entry_point == source.backend


def has(plugin: Plugin, loaded: Any) -> bool:
    """True if the plugin was made of this module or object."""
    return plugin.manager.is_registered(loaded)


def is_strict() -> bool:
    """True if what would only be recorded is to be raised."""
    return os.environ.get("POLYARR_STRICT_PLUGINS", "") not in ("", "0")


def _check(spec: BackendSpec) -> None:
    """Raise BackendError for a BackendSpec that could not work."""
    if not isinstance(spec.name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", spec.name):
        raise BackendError(f"a backend's name is made of letters, digits, '_' and '-', not {spec.name!r}")
    if spec.api != API:
        todo = "make it so, see 'From API 1 to 2' in docs/write-a-backend.md, and register it with api=2"
        way = todo if spec.api == 1 else "install versions that fit each other"
        raise BackendError(f"backend {spec.name!r} is made for api {spec.api!r}; this polyarr has api {API}: {way}")
    if not callable(spec.start):
        raise BackendError(f"backend {spec.name!r}: start must be callable, got {spec.start!r}")


# ---- those who take their time ---------------------------------------------------------------------------


@contextlib.contextmanager
def patience(what: str) -> Iterator[None]:
    """Say on standard error what is going on, if the block has not ended after PATIENCE seconds."""
    timer = threading.Timer(PATIENCE, _say, (f"polyarr: {what}, for {PATIENCE:g} seconds so far",))
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no more threads: then nobody is told
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident:
            timer.join()


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
