"""What a plugin may give: the hooks, and the records that they return."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pluggy

from polyarr.core.backend import Backend

GROUP = "polyarr"
API = 2  # grows when a plugin written for the old contract would no longer work
LEVELS = ("ok", "warning", "error")

hookspec, hookimpl = pluggy.HookspecMarker(GROUP), pluggy.HookimplMarker(GROUP)
# register(name, start, *, api, summary="", install_hint="") or register(BackendSpec(...))
Register = Callable[..., None]


class BackendSpec(NamedTuple):
    """A backend that can be started.

    name          what the user writes: "opencl"; a device follows a colon, "opencl:1"
    start         () -> Backend, or (device=...) where "name:device" has a meaning; imports heavy libraries
    api           the version of this contract that the plugin was written for, to be stated: see API
    summary       one line for `polyarr backends`
    install_hint  the command that brings what start() imports
    shared        (number, count) -> the device, as it stands after the colon, of one of so many processes of this host
                  that compute side by side; asked before anything starts. None: they all start the same one
    """

    name: str
    start: Callable[..., Backend]
    api: int = 1
    summary: str = ""
    install_hint: str = ""
    shared: Callable[[int, int], str] | None = None


class DeviceInfo(NamedTuple):
    """A device that a backend can compute on, for `polyarr devices`."""

    backend: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    name: str
    platform: str = ""
    version: str = ""
    driver: str = ""
    features: Mapping[str, Any] = MappingProxyType({})
    chosen: bool = False
    problem: str = ""


class Diagnosis(NamedTuple):
    """One line for `polyarr doctor`; the level is "ok", "warning" or "error"."""

    level: str
    text: str


class Override(NamedTuple):
    """A kernel that a plugin put in place of a backend's own, or where there was none."""

    backend: str
    op: str
    distribution: str
    entry_point: str


class Hooks:
    """Everything that a plugin may implement. One of them is enough."""

    @hookspec
    def polyarr_backends(self, register: Register) -> None:
        """Call register(name, start) once per backend. Must not import a driver: start() does."""

    @hookspec
    def polyarr_kernels(self, backend: Backend) -> Mapping[Any, Any]:
        """Give op -> kernel (or Fused pair) to replace in a backend that has just started; {} for any other.

        backend.family is its name without the device, backend.kernels are its own kernels, to look up and not to
        change, and backend.handle is what new ones may build on. The plugin's entry point must be called
        "<family>.<anything>", so that it is loaded in time.
        """
        return {}

    @hookspec
    def polyarr_devices(self) -> list[DeviceInfo]:
        """List the devices that the plugin's backends can use, broken ones with their problem."""
        return []

    @hookspec
    def polyarr_diagnose(self) -> list[tuple[str, str]]:
        """Say what is right and wrong, and how to mend it: (level, text) per line. See LEVELS."""
        return []

    @hookspec
    def polyarr_caches(self) -> list[str]:
        """List the folders of compiled kernels, any of which may be deleted. Must not import a driver."""
        return []
