"""What kernels of other packages may build on."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.spec import Spec


class Handle(NamedTuple):
    """The `handle` of an OpenCL backend. All else in this package may change from one version to the next.

    A Buffer, which is what kernels get and give, has memory (for PyOpenCL), shape, dtype, strides and offset (both
    count elements).

    cl_device  PyOpenCL's device
    context    its context: programs are built for it
    queue      the queue on which everything is enqueued, in order; nothing needs to be waited for
    lock       to be held from a kernel's first argument until it is enqueued: threads share the queue
    empty      Spec -> Buffer: row-major, not initialised, freed when it is dropped; DeviceMemoryError without room
    dense      Buffer -> Buffer: the same elements, row-major and from offset 0 on; most kernels want inputs so
    """

    cl_device: Any
    context: Any
    queue: Any
    lock: AbstractContextManager
    empty: Callable[[Spec], Buffer]
    dense: Callable[[Buffer], Buffer]


class Turn:
    """A device's lock, for who enqueues by himself: what was to be waited for before that has been."""

    def __init__(self, device: Device) -> None:
        self._device, self._lock = device, device.lock

    def __enter__(self) -> None:
        with self._lock:
            self._device.commands.settle()
            self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)


def handle_of(device: Device) -> Handle:
    """The handle of a device."""
    return Handle(device.cl_device, device.context, device.queue, Turn(device), device.empty, partial(dense, device))
