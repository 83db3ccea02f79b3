"""Plugins: starting backends by name, and replacing kernels. core/current.py selects the current backend.

A backend plugin is a module with one hook, named by an entry point of the group "polyarr":

    from polyarr.plugins import hookimpl

    @hookimpl
    def polyarr_backends(register):
        register("mirror", start, install_hint="pip install polyarr-mirror", api=2)

    def start():                # or start(device="0"), which also serves "mirror:1"
        return Backend("mirror", kernels, upload=..., download=...)

A plugin may also replace kernels of any backend by a second hook, `polyarr_kernels(backend) -> {op: kernel}`. The name
of its entry point determines when a plugin is loaded: see polyarr/plugins/loading.py.

Hooks run when a plugin is loaded and when a backend starts, never per operation. Failures are recorded with
distribution, entry point and exception (`polyarr.plugins.diagnosis`), cause one warning, and affect nothing else.

Environment variables:

    POLYARR_BACKEND         name of the initial backend, instead of numpy
    POLYARR_PLUGINS         entry points of the plugins to load, separated by commas; empty for none
    POLYARR_STRICT_PLUGINS  1: raise errors of plugins instead of recording them
"""

from polyarr.plugins.hooks import BackendSpec, DeviceInfo, hookimpl
from polyarr.plugins.loading import PluginWarning
from polyarr.plugins.starting import fresh, register_plugin, unregister_plugin

__all__ = ["BackendSpec", "DeviceInfo", "PluginWarning", "fresh", "hookimpl", "register_plugin", "unregister_plugin"]
