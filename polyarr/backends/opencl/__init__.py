"""The OpenCL backend. Importing this starts no driver: PyOpenCL is imported when the backend starts."""

import os
from functools import partial
from typing import Any

from polyarr.core.backend import Backend
from polyarr.core.spec import DTYPES, float64
from polyarr.plugins import forget, hookimpl

_backends: dict[Any, Backend] = {}  # one for the life of the process per device


def start(device: str | None = None) -> Backend:
    """The backend on one device: an index, or None for the one that POLYARR_DEVICE names or that is best.

    Errors:  ImportError without PyOpenCL; BackendError if there is no usable device or none of that name
    """
    _choose_caches()
    from polyarr.backends.opencl.copy import download
    from polyarr.backends.opencl.devices import select
    from polyarr.backends.opencl.handle import handle_of
    from polyarr.backends.opencl.ranks.together import together_of
    from polyarr.backends.opencl.replay.fusion import fusion_of
    from polyarr.backends.opencl.replay.graphs import graphs_of
    from polyarr.backends.opencl.replay.replay import Replay
    from polyarr.backends.opencl.runtime.noting import noting
    from polyarr.backends.opencl.sharing import dlpack_of
    from polyarr.backends.opencl.table import READS, halves, make_kernels, precisions, unordered
    from polyarr.backends.opencl.tuning.speed import peaks_of
    from polyarr.backends.opencl.tuning.tune import tuning_of

    found = select(device)
    if found not in _backends:
        kernels, found.commands.graphs = make_kernels(found), graphs_of(found)
        _backends[found] = Backend(
            found.name,
            kernels,
            upload=found.upload,
            download=partial(download, found),
            synchronize=found.synchronize,
            dtypes=frozenset(d for d in DTYPES if d != float64 or found.features.fp64),
            hardware=found.cl_device.name.strip(),
            memory=found.memory,
            unordered=unordered(found),
            guarded=found.guarded,
            noting=partial(noting, found, frozenset(map(id, halves(kernels)))),
            peaks=found.plans[peaks_of],
            tuning=tuning_of(found),
            handle=handle_of(found),
            home=found,
            reads=READS,
            dlpack=dlpack_of(found),
            precisions=precisions(found),
            replay=partial(Replay, found),
            fusion=fusion_of(found),
            together=together_of(found),
        )
    return _backends[found]


def _choose_caches() -> None:
    """Load PyOpenCL, and say how it and the drivers may cache. They read this when they are loaded."""
    from polyarr.backends.opencl.runtime.caches import import_pyopencl, is_off

    import_pyopencl()
    if is_off():
        os.environ["CUDA_CACHE_DISABLE"] = "1"


def _after_fork_in_child() -> None:
    """Backends that were started are of no use here; `devices` sees to it that nothing reaches a driver."""
    forget(*_backends.values())
    _backends.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@hookimpl
def polyarr_backends(register: Any) -> None:
    """Offer the backend opencl."""
    hint = "pip install 'polyarr[opencl]'"
    summary = "OpenCL 1.2 and later: GPUs, and CPUs through PoCL"
    register("opencl", start, summary=summary, install_hint=hint, api=2, shared=_shared)


def _shared(number: int, count: int) -> str:
    """The device of one of so many processes of this host, which share the cores where they compute on these."""
    _choose_caches()
    from polyarr.backends.opencl.devices import share
    from polyarr.backends.opencl.runtime.caches import share_cores

    share_cores(count)
    return share(number)


@hookimpl
def polyarr_devices() -> list:
    """Every OpenCL device, broken ones with their problem."""
    _choose_caches()
    from polyarr.backends.opencl.devices import listing

    return listing()


@hookimpl
def polyarr_diagnose() -> list[tuple[str, str]]:
    """What is right and wrong with the OpenCL installation."""
    _choose_caches()
    from polyarr.backends.opencl.devices import diagnose

    return diagnose()


@hookimpl
def polyarr_caches() -> list[str]:
    """The folder of polyarr's entries, and that of NVIDIA's driver."""
    from polyarr.backends.opencl.runtime.caches import nvidia_folder, root

    return [str(folder) for folder in (root(), nvidia_folder()) if folder.exists()]
