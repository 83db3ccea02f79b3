"""The stable interface of the OpenCL backend for kernels of other packages."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.driver import OpenCL
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec


class Handle(NamedTuple):
    """The `handle` of an OpenCL backend: what kernels of other packages may use. NVIDIA's takes POLYARR_DRIVER=opencl.

    Everything else in this package may change from one version to the next. Kernels receive and return Buffers,
    which have memory (for PyOpenCL), shape, dtype, strides and offset (both in elements).

    Attributes:
        cl_device: PyOpenCL's device.
        context: Its context, for which programs are built.
        queue: The in-order queue on which everything is enqueued; no waiting is needed.
        lock: Hold it from setting a kernel's first argument until it is enqueued, because threads share the queue.
        empty: Spec -> Buffer: allocate an uninitialized row-major buffer, freed when it is dropped. Raises
            DeviceMemoryError if memory does not suffice.
        dense: Buffer -> Buffer: the same elements in row-major order from offset 0 on, as most kernels require.
    """

    cl_device: Any
    context: Any
    queue: Any
    lock: AbstractContextManager
    empty: Callable[[Spec], Buffer]
    dense: Callable[[Buffer], Buffer]


class QueueLock:
    """The lock of a device for kernels of other packages; entering it first waits for pending commands."""

    def __init__(self, device: Device) -> None:
        self._device, self._lock = device, device.lock

    def __enter__(self) -> None:
        with self._lock:
            self._device.commands.settle()
            self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)


class NoHandle:
    """In place of a Handle, where kernels of OpenCL's cannot use the memory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, field: str) -> Any:
        raise BackendError(
            f"handle.{field}: {self._name} runs on CUDA's driver, whose memory OpenCL's kernels cannot use; set "
            "POLYARR_DRIVER=opencl"
        )


def handle_of(device: Device) -> Handle | NoHandle:
    """Return the handle of a device."""
    if type(device.driver) is not OpenCL:
        return NoHandle(device.name)
    lock = QueueLock(device)
    return Handle(device.cl_device, device.context, device.queue, lock, device.empty, partial(dense, device))
