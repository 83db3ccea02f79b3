"""The plugin interface: hooks, and the records that they return."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pluggy

from polyarr.core.backend import Backend

GROUP = "polyarr"
API = 2  # version of the contract; incremented by incompatible changes
LEVELS = ("ok", "note", "warning", "error")

hookspec, hookimpl = pluggy.HookspecMarker(GROUP), pluggy.HookimplMarker(GROUP)
# register(name, start, *, api, summary="", install_hint="") or register(BackendSpec(...))
Register = Callable[..., None]


class BackendSpec(NamedTuple):
    """A backend that a plugin provides.

    Attributes:
        name: Name that users write, such as "opencl"; a device follows a colon: "opencl:1".
        start: () -> Backend, or (device=...) if "name:device" is supported. Imports heavy libraries.
        api: Version of the contract that the plugin was written for; must be given. See API.
        summary: One line for `polyarr backends`.
        install_hint: Command that installs what `start` imports.
        shared: (number, count) -> device, as written after the colon, for process `number` of `count` that compute side
            by side on this host. Called before anything starts. None: all start the same device.
    """

    name: str
    start: Callable[..., Backend]
    api: int = 1
    summary: str = ""
    install_hint: str = ""
    shared: Callable[[int, int], str] | None = None


class DeviceInfo(NamedTuple):
    """A device that a backend can compute on, as a row of `polyarr devices`.

    Attributes:
        backend: Name of the backend.
        index: Number of the device.
        name: Name of the device.
        platform: Platform of the device, such as an OpenCL platform.
        version: Version of the interface that the device supports.
        driver: Version of the driver.
        features: Further properties by name.
        chosen: Whether the backend starts this device by default.
        problem: Why the device is unusable; "" if it is usable.
    """

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
    """One line of `polyarr doctor`.

    Attributes:
        level: "ok", "warning", "error", or "note" for a line shown with --verbose only.
        text: The line.
    """

    level: str
    text: str


class Override(NamedTuple):
    """A kernel that a plugin added to a backend, or that replaced one of the backend.

    Attributes:
        backend: Name of the backend.
        op: Name of the op.
        distribution: Distribution of the plugin.
        entry_point: Entry point of the plugin.
    """

    backend: str
    op: str
    distribution: str
    entry_point: str


class Hooks:
    """The hooks that a plugin can implement. One of them is enough."""

    @hookspec
    def polyarr_backends(self, register: Register) -> None:
        """Call register(name, start, api=2, ...) once per backend. Must not import a driver; `start` does."""

    @hookspec
    def polyarr_kernels(self, backend: Backend) -> Mapping[Any, Any]:
        """Return kernels to add to or replace in a backend that has just started; {} for any other backend.

        The entry point of the plugin must be called "<family>.<anything>", so that it is loaded before the backend
        starts.

        Args:
            backend: The started backend. `backend.family` is its name without the device, `backend.kernels` its own
                kernels (read-only), and `backend.handle` what new kernels may use.

        Returns:
            Op -> kernel or Fused.
        """
        return {}

    @hookspec
    def polyarr_devices(self) -> list[DeviceInfo]:
        """Return the devices that the plugin's backends can use, and unusable ones with their problem."""
        return []

    @hookspec
    def polyarr_diagnose(self) -> list[tuple[str, str]]:
        """Return (level, text) lines that say what works, what is wrong, and how to fix it. See LEVELS."""
        return []

    @hookspec
    def polyarr_caches(self) -> list[str]:
        """Return the folders of compiled kernels, all of which may be deleted. Must not import a driver."""
        return []
