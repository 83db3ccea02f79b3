"""How a kernel whose arguments are set gets into a queue.

PyOpenCL asks for an event at each launch. On an H200 that takes 1.7 us between two kernels, in which the device does
nothing, and as long on the host; so NVIDIA's driver is called without one.
"""

import ctypes
from collections.abc import Callable
from ctypes import c_size_t, c_void_p
from functools import lru_cache, partial
from typing import Any

import pyopencl as cl

from polyarr.backends.opencl.runtime.quirks import NVIDIA

Launch = Callable[[cl.CommandQueue, cl.Kernel, tuple[int, ...], tuple[int, ...] | None], Any]


def launch_of(device: cl.Device) -> Launch:
    """What puts a kernel into a queue of this device: it takes the queue, the kernel, global and local size."""
    return without_events() if NVIDIA in device.platform.name else cl.enqueue_nd_range_kernel


@lru_cache(maxsize=1)
def without_events() -> Launch:
    """Launches of which nobody hears; PyOpenCL's where its library does not show what they need."""
    enqueue = _enqueue()
    if enqueue is None:
        return cl.enqueue_nd_range_kernel

    def launch(queue: cl.CommandQueue, kernel: cl.Kernel, work: tuple[int, ...], group: tuple[int, ...] | None) -> Any:
        # Of C's types already: to convert them at each call, as argtypes has it, takes longer than all else here.
        if enqueue(_pointer(queue.int_ptr), _pointer(kernel.int_ptr), *_range(work, group), 0, None, None):
            return cl.enqueue_nd_range_kernel(queue, kernel, work, group)  # whose error says what is wrong
        return None

    return launch


def again(
    launch: Launch, queue: cl.CommandQueue, kernel: cl.Kernel, work: tuple[int, ...], group: tuple[int, ...] | None
) -> Callable[[], Any]:
    """The same launch, to be done many times. It gives an event or 0; another int is an error's number."""
    if launch is cl.enqueue_nd_range_kernel:
        return partial(launch, queue, kernel, work, group)
    handles = _pointer(queue.int_ptr), c_void_p(kernel.int_ptr)
    return partial(_enqueue(), *handles, *_range(work, group), 0, None, None)


@lru_cache(maxsize=1)
def _enqueue() -> Any:
    """The function of the loader that PyOpenCL uses; None if its library does not show it."""
    try:
        return ctypes.CDLL(cl._cl.__file__).clEnqueueNDRangeKernel
    except (OSError, AttributeError):
        return None


_pointer = lru_cache(maxsize=8192)(c_void_p)


@lru_cache(maxsize=8192)
def _range(work: tuple[int, ...], group: tuple[int, ...] | None) -> tuple[Any, ...]:
    """How many axes there are, where they begin, their global and their local sizes."""
    return len(work), None, _sizes(work), group and _sizes(group)


def _sizes(lengths: tuple[int, ...]) -> Any:
    return (c_size_t * len(lengths))(*lengths)
