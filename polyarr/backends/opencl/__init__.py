"""The OpenCL backend. Importing it loads no driver: PyOpenCL is imported when the backend starts."""

import os
from functools import partial
from typing import Any

from polyarr.core.backend import Backend
from polyarr.core.spec import DTYPES, bfloat16, complex64, float32, float64, real_of
from polyarr.plugins import hookimpl
from polyarr.plugins.starting import forget

_backends: dict[Any, Backend] = {}  # by Device, for the lifetime of the process


def start(device: str | None = None) -> Backend:
    """Return the backend of one device, started at the first call.

    Args:
        device: Index, or part of the name of a device or platform; None selects the device that POLYARR_DEVICE
            names, or else the best one.

    Raises:
        ImportError: PyOpenCL is not installed.
        BackendError: There is no usable device, or none of that name.
    """
    _choose_caches()
    from polyarr.backends.opencl.devices import select

    found = select(device)
    if found not in _backends:
        _backends[found] = backend_of(found)
    return _backends[found]


def backend_of(device: Any) -> Backend:
    """Return the backend of a Device."""
    from polyarr.backends.opencl import table
    from polyarr.backends.opencl.copying.copy import download, download_later
    from polyarr.backends.opencl.handle import Handle
    from polyarr.backends.opencl.ranks.collectives import collectives_of
    from polyarr.backends.opencl.replay.fusion import fusion_of
    from polyarr.backends.opencl.replay.replay import replay_of
    from polyarr.backends.opencl.runtime.observing import observing
    from polyarr.backends.opencl.tuning.speed import peaks_of
    from polyarr.backends.opencl.tuning.tune import tuning_of

    kernels, device.commands.graphs = table.make_kernels(device), device.vendor.graphs(device)
    dtypes, flushes = _dtypes(device.features)
    return Backend(
        device.name,
        kernels,
        upload=device.upload,
        download=partial(download, device),
        download_later=partial(download_later, device),
        synchronize=device.synchronize,
        dtypes=dtypes,
        flushes=flushes,
        hardware=device.cl_device.name.strip(),
        memory=device.memory,
        unordered=table.unordered(device),
        guarded=device.guarded,
        observing=partial(observing, device, frozenset(map(id, table.kernel_functions(kernels)))),
        peaks=device.plans[peaks_of],
        tuning=tuning_of(device),
        handle=Handle(device),
        home=device,
        reads=table.READS,
        dlpack=device.vendor.dlpack(device),
        precisions=table.precisions(device),
        replay=replay_of(device),
        fusion=fusion_of(device),
        collectives=collectives_of(device),
        rows_at_once=device.vendor.rows_at_once(device.features),
        abstract=table.abstract_kernels(device, kernels),
    )


def _dtypes(features: Any) -> tuple[frozenset[Any], frozenset[Any]]:
    """Return the dtypes that a device supports, and those in which it may flush subnormal numbers to 0."""
    offered = frozenset(d for d in DTYPES if real_of(d) != float64 or features.fp64)
    flushed = frozenset() if features.subnormals else frozenset({float32, complex64, bfloat16})
    return offered, flushed


def _choose_caches() -> None:
    """Import PyOpenCL, and configure its cache and the drivers', which read their settings when they are loaded."""
    from polyarr.backends.opencl.runtime.caches import import_pyopencl, is_off

    import_pyopencl()
    if is_off():
        os.environ["CUDA_CACHE_DISABLE"] = "1"


def _after_fork_in_child() -> None:
    """Forget the backends in a forked child, where drivers do not work; `devices` blocks all calls to them."""
    forget(*_backends.values())
    _backends.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@hookimpl
def polyarr_backends(register: Any) -> None:
    """Register the backend "opencl"."""
    hint = "pip install 'polyarr[opencl]'"
    summary = "OpenCL 1.2 and later: GPUs, and CPUs through PoCL"
    register("opencl", start, summary=summary, install_hint=hint, api=2, shared=_shared)


def _shared(number: int, count: int) -> str:
    """Return the device of process `number` of `count` on this host, and divide the CPU cores among them."""
    _choose_caches()
    from polyarr.backends.opencl.devices import share
    from polyarr.backends.opencl.runtime.caches import share_cores

    share_cores(count)
    return share(number)


@hookimpl
def polyarr_devices() -> list:
    """Return every OpenCL device, also those that do not work, with their problem."""
    _choose_caches()
    from polyarr.backends.opencl.devices import listing

    return listing()


@hookimpl
def polyarr_diagnose() -> list[tuple[str, str]]:
    """Return findings on the OpenCL installation as (level, text) lines."""
    _choose_caches()
    from polyarr.backends.opencl.devices import diagnose

    return diagnose()


@hookimpl
def polyarr_caches() -> list[str]:
    """Return the cache folders that exist: that of polyarr, and that of NVIDIA's driver."""
    from polyarr.backends.opencl.runtime.caches import nvidia_folder, root

    return [str(folder) for folder in (root(), nvidia_folder()) if folder.exists()]
