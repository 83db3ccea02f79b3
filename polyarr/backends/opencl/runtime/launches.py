"""Launches of a kernel whose arguments are set.

PyOpenCL asks for an event at each launch. On an H200 that idles the device for 1.7 us between two kernels, and costs
the host as much, so NVIDIA's driver is called without an event.
"""

import ctypes
from collections.abc import Callable
from ctypes import c_size_t, c_void_p
from functools import lru_cache, partial
from typing import Any

import pyopencl as cl
from pyopencl import _cl

from polyarr.backends.opencl.runtime.quirks import NVIDIA

Launch = Callable[[cl.CommandQueue, cl.Kernel, tuple[int, ...], tuple[int, ...] | None], Any]


def launch_of(device: cl.Device) -> Launch:
    """Return the function that enqueues a kernel on this device, from queue, kernel, global and local size."""
    return without_events() if NVIDIA in device.platform.name else cl.enqueue_nd_range_kernel


@lru_cache(maxsize=1)
def without_events() -> Launch:
    """Return a launch without events; PyOpenCL's if its library does not expose clEnqueueNDRangeKernel."""
    enqueue = _enqueue()
    if enqueue is None:
        return cl.enqueue_nd_range_kernel

    def launch(queue: cl.CommandQueue, kernel: cl.Kernel, work: tuple[int, ...], group: tuple[int, ...] | None) -> Any:
        # Passed as C types, because conversion by argtypes at each call would take longer than everything else here.
        if enqueue(_pointer(queue.int_ptr), _pointer(kernel.int_ptr), *_range(work, group), 0, None, None):
            return cl.enqueue_nd_range_kernel(queue, kernel, work, group)  # raises with an explanation
        return None

    return launch


def again(
    launch: Launch, queue: cl.CommandQueue, kernel: cl.Kernel, work: tuple[int, ...], group: tuple[int, ...] | None
) -> Callable[[], Any]:
    """Return a function that repeats a launch; it returns an event, 0, or an error code."""
    if launch is cl.enqueue_nd_range_kernel:
        return partial(launch, queue, kernel, work, group)
    handles = _pointer(queue.int_ptr), c_void_p(kernel.int_ptr)
    return partial(_enqueue(), *handles, *_range(work, group), 0, None, None)


@lru_cache(maxsize=1)
def _enqueue() -> Any:
    """Return clEnqueueNDRangeKernel of the loader that PyOpenCL uses; None if its library does not expose it."""
    try:
        return ctypes.CDLL(_cl.__file__).clEnqueueNDRangeKernel
    except (OSError, AttributeError):
        return None


_pointer = lru_cache(maxsize=8192)(c_void_p)


@lru_cache(maxsize=8192)
def _range(work: tuple[int, ...], group: tuple[int, ...] | None) -> tuple[Any, ...]:
    """Return the number of axes, the offset (None), and the global and local sizes, as C types."""
    return len(work), None, _sizes(work), group and _sizes(group)


def _sizes(lengths: tuple[int, ...]) -> Any:
    return (c_size_t * len(lengths))(*lengths)
