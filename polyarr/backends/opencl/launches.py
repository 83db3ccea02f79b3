"""How a kernel whose arguments are set gets into a queue.

PyOpenCL asks for an event at each launch. On an H200 that takes 1.7 us between two kernels, in which the device does
nothing, and as long on the host; so NVIDIA's driver is called without one.
"""

import ctypes
from collections.abc import Callable
from ctypes import c_size_t, c_uint, c_void_p
from functools import lru_cache
from typing import Any

import pyopencl as cl

from polyarr.backends.opencl.quirks import NVIDIA

Launch = Callable[[cl.CommandQueue, cl.Kernel, tuple[int, ...], tuple[int, ...] | None], Any]


def launch_of(device: cl.Device) -> Launch:
    """What puts a kernel into a queue of this device: it takes the queue, the kernel, global and local size."""
    return without_events() if NVIDIA in device.platform.name else cl.enqueue_nd_range_kernel


@lru_cache(maxsize=1)
def without_events() -> Launch:
    """Launches of which nobody hears; PyOpenCL's where its library does not show what they need."""
    try:
        enqueue = ctypes.CDLL(cl._cl.__file__).clEnqueueNDRangeKernel  # of the loader that PyOpenCL uses
    except (OSError, AttributeError):
        return cl.enqueue_nd_range_kernel
    sizes, events = (c_void_p,) * 3, (c_uint, c_void_p, c_void_p)
    enqueue.argtypes = (c_void_p, c_void_p, c_uint, *sizes, *events)

    def launch(queue: cl.CommandQueue, kernel: cl.Kernel, work: tuple[int, ...], group: tuple[int, ...] | None) -> Any:
        local = None if group is None else _sizes(group)
        if enqueue(queue.int_ptr, kernel.int_ptr, len(work), None, _sizes(work), local, 0, None, None):
            return cl.enqueue_nd_range_kernel(queue, kernel, work, group)  # whose error says what is wrong
        return None

    return launch


@lru_cache(maxsize=8192)
def _sizes(lengths: tuple[int, ...]) -> Any:
    return (c_size_t * len(lengths))(*lengths)
