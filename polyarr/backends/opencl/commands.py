"""The one way to a device's queue: what runs there is a Command, and whoever wants it to run calls it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.source import Arguments
from polyarr.core.errors import BackendError

ZERO = np.int32(0)


class Commands:
    """A device's queue, who may add to it, and the commands that move bytes."""

    def __init__(self, context: cl.Context, cl_device: cl.Device) -> None:
        self.queue = cl.CommandQueue(context, cl_device)
        self._plain: cl.CommandQueue | None = None  # while another one serves
        self.lock: Any = threading.RLock()
        self.last_kernel = "none"  # the name of the kernel that was enqueued last
        self.upload = Command("upload", self, _upload)  # does not wait: the event keeps the host's bytes alive
        self.transfer = Command("transfer", self, _transfer)  # between host and device; waits
        self.copy = Command("copy", self, _copy)
        self.fill = Command("fill", self, _fill)

    def finish(self) -> None:
        """Wait until everything that was enqueued has finished."""
        with self.lock:
            try:
                self.queue.finish()
                self.finish_plain()
            except cl.Error as error:
                raise self.lost(error) from error

    def finish_plain(self) -> None:
        """In a timed block, wait for what others than Commands have enqueued."""
        if self._plain is not None:
            self._plain.finish()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """In this block commands go to a queue that notes their times, which costs: on NVIDIA twice a launch's time.

        Nobody else knows of that queue: whoever uses the plain one has to finish() before and after.
        """
        timing = cl.CommandQueue(
            self.queue.context, self.queue.device, properties=cl.command_queue_properties.PROFILING_ENABLE
        )
        with self.lock:
            self.finish()
            self._plain, self.queue = self.queue, timing
        try:
            yield
        finally:
            with self.lock:
                try:
                    self.finish()
                finally:
                    self.queue, self._plain = self._plain, None

    def lost(self, error: cl.Error) -> BackendError:
        """What to raise where waiting fails: by then a kernel has gone wrong, most likely the last ones."""
        device = self.queue.device.name.strip()
        return BackendError(
            f"device {device!r} was lost, with kernel {self.last_kernel} the last to be enqueued: {error}"
        )


class Command:
    """Something that a device does in its turn. `enqueue` takes the queue and what the command is called with."""

    is_kernel = False

    def __init__(self, name: str, commands: Commands, enqueue: Callable[..., cl.Event]) -> None:
        self.name, self._commands, self._enqueue = name, commands, enqueue

    def __call__(self, work: tuple[int, ...], group: tuple[int, ...] | None, *args: Any) -> cl.Event | None:
        """Enqueue everything, kernels, copies and fills: this is the only place that does.

        work is a kernel's global size, or how many bytes are moved: nothing happens if there are none. group is a
        kernel's local size.

        Errors:  BackendError if the device does not take it
        """
        if 0 in work:
            return None
        commands = self._commands
        with commands.lock:
            try:
                event = self._enqueue(commands.queue, work, group, *args)
            except cl.Error as error:
                raise self._refused(work, group, error) from error
            if self.is_kernel:
                commands.last_kernel = self.name
        return event

    def _refused(self, work: tuple[int, ...], group: tuple[int, ...] | None, error: cl.Error) -> BackendError:
        return self._commands.lost(error)


class Kernel(Command):
    """One kernel of a built program. arguments are the types of what it takes, as its file or its launcher says."""

    is_kernel = True

    def __init__(
        self, kernel: cl.Kernel, commands: Commands, launched: Callable[[], None], arguments: Arguments | None
    ) -> None:
        super().__init__(kernel.function_name, commands, self._first)
        self.cl_kernel, self._launched, self.arguments = kernel, launched, arguments

    def _first(self, queue: cl.CommandQueue, work: Any, group: Any, *args: Any) -> cl.Event:
        """The first launch, after which PyOpenCL's kernel is called at once."""
        self._launched()
        self.cl_kernel.set_scalar_arg_dtypes(self.arguments)
        self._enqueue = self.cl_kernel
        return self.cl_kernel(queue, work, group, *args)

    @property
    def has_run(self) -> bool:
        """True after the first launch."""
        return self._enqueue is self.cl_kernel

    def _refused(self, work: tuple[int, ...], group: tuple[int, ...] | None, error: cl.Error) -> BackendError:
        device, before = self._commands.queue.device.name.strip(), self._commands.last_kernel
        return BackendError(
            f"kernel {self.name}: could not enqueue {work} by {group} on {device!r}, after {before}: {error}"
        )


def _upload(queue: cl.CommandQueue, work: Any, group: Any, target: Any, source: np.ndarray) -> cl.Event:
    return cl.enqueue_copy(queue, target, source, is_blocking=False)


def _transfer(queue: cl.CommandQueue, work: Any, group: Any, target: Any, source: Any) -> cl.Event:
    return cl.enqueue_copy(queue, target, source)


def _copy(queue: cl.CommandQueue, work: Any, group: Any, target: Any, source: Any) -> cl.Event:
    return cl.enqueue_copy(queue, target, source, byte_count=work[0])


def _fill(queue: cl.CommandQueue, work: Any, group: Any, target: Any) -> cl.Event:
    return cl.enqueue_fill_buffer(queue, target, ZERO, 0, work[0])
