"""The driver of a device: it allocates memory, compiles, copies, and launches kernels. This one is OpenCL's.

A vendor may have another driver, with the same methods; see nvidia/driver.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pyopencl as cl
from pyopencl.tools import ImmediateAllocator, MemoryPool

from polyarr.backends.opencl.runtime.compiled import Compiler, compiler_of
from polyarr.backends.opencl.runtime.source import STRUCTURE

CONTEXT = cl.mem_info.CONTEXT
ZERO = np.zeros((), np.int32)


class DriverError(Exception):
    """A driver other than OpenCL's reported an error."""


ERRORS = (cl.Error, DriverError)


def kept(memory: Any) -> Any:
    """Return another object for the same memory of OpenCL's. It keeps the handle valid, but nothing out of the pool.

    None for a plain address, which stays valid for the arguments of kernels, whoever uses it next.
    """
    is_opencl = isinstance(memory, cl.MemoryObjectHolder)
    return cl.Buffer.from_int_ptr(memory.int_ptr, retain=True) if is_opencl else None


class OpenCL:
    """OpenCL's driver.

    Attributes:
        queue: The queue in which everything is enqueued in order.
        pool: The memory pool.
        allocate: Allocates bytes outside of the pool.
        memory: The class of memory.
        largest: Bytes of the largest allocation.
        keeps_host: Whether an upload needs the host's bytes until it has finished.
    """

    memory, keeps_host = cl.MemoryObjectHolder, True

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        self._context, self._device = context, device
        self.queue = cl.CommandQueue(context, device)
        self.allocate = ImmediateAllocator(self.queue)
        self.pool = MemoryPool(self.allocate)
        self.largest = device.max_mem_alloc_size

    def timing_queue(self) -> cl.CommandQueue:
        """Return a new queue whose commands have times."""
        return cl.CommandQueue(self._context, self._device, properties=cl.command_queue_properties.PROFILING_ENABLE)

    def queue_apart(self) -> cl.CommandQueue:
        """Return a new queue, which waits for no other."""
        return cl.CommandQueue(self._context, self._device)

    def mark(self, queue: cl.CommandQueue) -> cl.Event:
        """Return the event that everything enqueued so far has finished."""
        return cl.enqueue_marker(queue)

    def part(self, memory: Any, start: int, nbytes: int) -> Any:
        """Return a part of memory, from byte start on."""
        return cast("cl.Buffer", cl.Buffer.from_int_ptr(memory.int_ptr, retain=True)).get_sub_region(start, nbytes)

    def held(self, memory: Any, owner: Any) -> Any:
        """Return the same memory as another object, which keeps an object alive."""
        found = kept(memory)
        found.owner = owner
        return found

    def is_lent(self, memory: Any) -> bool:
        """Return whether another library may still use memory, though no array here refers to it."""
        return False

    def is_foreign(self, memory: Any) -> bool:
        """Return whether memory is another device's."""
        return memory.get_info(CONTEXT) != self._context

    @staticmethod
    def upload(queue: cl.CommandQueue, work: Any, group: Any, target: Any, source: np.ndarray) -> cl.Event:
        """Enqueue a copy from the host, which must keep the source until it has finished."""
        return cl.enqueue_copy(queue, target, source, is_blocking=False)

    @staticmethod
    def transfer(queue: cl.CommandQueue, work: Any, group: Any, target: Any, source: Any) -> cl.Event:
        """Copy from or to the host, and wait."""
        return cl.enqueue_copy(queue, target, source)

    @staticmethod
    def copy(queue: cl.CommandQueue, work: Any, group: Any, target: Any, source: Any) -> cl.Event:
        """Enqueue a copy within the device."""
        return cl.enqueue_copy(queue, target, source, byte_count=work[0])

    @staticmethod
    def fill(queue: cl.CommandQueue, work: Any, group: Any, target: Any) -> cl.Event:
        """Enqueue a fill with zeros."""
        return cl.enqueue_fill_buffer(queue, target, ZERO, 0, work[0])

    def compiler(self) -> Compiler:
        """Return the compiler."""
        return compiler_of(self._context, self._device)

    def kernels(self, program: cl.Program) -> dict[str, Any]:
        """Return the kernels of a program by name. Each is called with queue, global and local size, and arguments."""
        return {kernel.function_name: kernel for kernel in program.all_kernels()}

    def kernel(self, program: cl.Program, name: str) -> Any:
        """Return a kernel of a program as a new object with arguments of its own."""
        return cl.Kernel(program, name)

    def again(self, kernel: Any, work: Any, group: Any) -> Callable[[], Any]:
        """Return a function that launches a kernel with its current arguments; it returns an event."""
        return partial(cl.enqueue_nd_range_kernel, self.queue, kernel, work, group)

    def relaunch(self, queue: cl.CommandQueue, kernel: Any, work: Any, group: Any) -> cl.Event:
        """Launch a kernel with its current arguments, with an event."""
        return cl.enqueue_nd_range_kernel(queue, kernel, work, group)

    @staticmethod
    def set_number(kernel: Any, i: int, dtype: np.dtype | None, value: Any) -> None:
        """Set an argument; a scalar is converted to its type as PyOpenCL would."""
        if value is None:
            kernel._set_arg_null(i)  # PyOpenCL 2025 refuses None in set_arg
        elif dtype is None:
            kernel.set_arg(i, value)
        elif dtype == STRUCTURE:
            kernel._set_arg_buf(i, value)
        else:
            kernel._set_arg_buf_pack_multi((i, dtype.char.encode(), value))
