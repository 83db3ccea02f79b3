"""The one way to a device's queue: what runs there is a Command, and whoever wants it to run calls it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.runtime.launches import again, launch_of
from polyarr.backends.opencl.runtime.source import STRUCTURE, Arguments
from polyarr.core.errors import BackendError

ZERO = np.int32(0)


class Commands:
    """A device's queue, who may add to it, and the commands that move bytes."""

    def __init__(self, context: cl.Context, cl_device: cl.Device) -> None:
        self.queue = cl.CommandQueue(context, cl_device)
        self._plain: cl.CommandQueue | None = None  # while another one serves
        self.lock: Any = threading.RLock()
        self.launch = launch_of(cl_device)
        self.is_marked, self.marks = False, 0  # whether captured functions mark their way, and how many marks there are
        self.awaited: Callable[[], None] | None = None  # what is to be waited for before anything else is enqueued
        self.last_kernel = "none"  # the name of the kernel that was enqueued last
        self.recording: Any = None  # what is told of every command
        self.graphs: Any = None  # what runs commands that are enqueued again in another way, where there is one
        # Between host and device; upload does not wait: the event keeps the host's bytes alive.
        self.upload, self.transfer = Transfer("upload", self, _upload), Transfer("transfer", self, _transfer)
        self.copy = Command("copy", self, _copy)
        self.copy.in_place = (InPlace(1, 0, is_copy=True),)
        self.fill = Command("fill", self, _fill)

    def settle(self) -> None:
        """Wait for what others have been given to do with memory of the queue's. Whoever enqueues calls it before.

        So a caller gets the results at once, and prepares what is next to be enqueued meanwhile.
        """
        if self.awaited is None:
            return
        with self.lock:
            awaited, self.awaited, recording, self.recording = self.awaited, None, self.recording, None
            try:
                if awaited is not None:
                    awaited()
            finally:
                self.recording = recording

    def put_off(self, do: Callable[[], None]) -> None:
        """Have something done before anything else is enqueued, after what was put off before."""
        before = self.awaited

        def both() -> None:
            try:
                before()
            finally:  # others may wait for it
                do()

        self.queue.flush()  # the device goes on meanwhile
        self.awaited = both if before else do

    def finish(self) -> None:
        """Wait until everything that was enqueued has finished."""
        with self.lock:
            self.settle()
            try:
                self.queue.finish()
                self.finish_plain()
            except cl.Error as error:
                raise self.lost(error) from error

    def finish_plain(self) -> None:
        """In a timed block, wait for what others than Commands have enqueued."""
        if self._plain is not None:
            self._plain.finish()

    @property
    def is_timed(self) -> bool:
        """True in a timed block."""
        return self._plain is not None

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

    @contextmanager
    def beside(self, queue: cl.CommandQueue) -> Iterator[None]:
        """In this block commands go to another queue, which goes on beside this one: events say what waits for what.

        No memory may be allocated: who had it before may still compute with it, in this queue.
        """
        with self.lock:
            before, self.queue = self.queue, queue
            try:
                yield
            finally:
                self.queue = before

    def mark(self) -> "Mark":
        """A mark behind what was enqueued so far."""
        with self.lock:
            self.settle()
            self.marks += 1  # first: whoever reads it meanwhile takes this mark for one that is there
            return Mark(self.marks, cl.enqueue_marker(self.queue))

    def repeat(self, commands: Sequence["Repeated"]) -> None:
        """Enqueue commands again, as Command.__call__ does once."""
        with self.lock:
            if self.graphs is not None and self.graphs.run(commands):
                self._note_last(commands)
                return
            self.settle()
            try:
                for each in commands:
                    found = each.enqueue()
                    if type(found) is int and found:  # PyOpenCL's call says what is wrong
                        own = each.arguments if self.graphs is None else each.arguments.own
                        cl.enqueue_nd_range_kernel(self.queue, own, each.work, each.group)
            except cl.Error as error:
                self._note_last(commands[: commands.index(each)])
                refused = each.command.refused(each.work, each.group, error)
                each.note(refused)
                raise refused from error
            self._note_last(commands)
            if self.graphs is not None:
                self.graphs.expect(commands)

    def _note_last(self, commands: Sequence["Repeated"]) -> None:
        self.last_kernel = commands[-1].command.name if commands else self.last_kernel

    def lost(self, error: cl.Error) -> BackendError:
        """What to raise where waiting fails: by then a kernel has gone wrong, most likely the last ones."""
        device = self.queue.device.name.strip()
        return BackendError(
            f"device {device!r} was lost, with kernel {self.last_kernel} the last to be enqueued: {error}"
        )


class Mark(NamedTuple):
    """A place in the queue. number: of marks, in their order; event: that all before it has finished."""

    number: int
    event: cl.Event


class Repeated(NamedTuple):
    """A command that is enqueued again and again.

    enqueue    see launches.again
    arguments  whose set_arg changes them
    note       says on an error where it comes from
    """

    enqueue: Callable[[], Any]
    arguments: Any
    work: tuple[int, ...]
    group: tuple[int, ...] | None
    command: "Command"
    note: Callable[[BaseException], None]


class InPlace(NamedTuple):
    """A result that may be written over what is read: each element is read before it is written, by who writes it.

    old, new  arguments: the memory that is read, and the result's
    begins    further arguments, where both begin: that must be 0
    is_copy   True if nothing is left to do then
    others    what else may be the same memory: the argument, and where it begins, which must be 0 then; None if it is
              read in other steps than the result is written. The memory of `old` may be no further argument
    """

    old: int
    new: int
    begins: tuple[int, ...] = ()
    is_copy: bool = False
    others: tuple[tuple[int, int | None], ...] = ()


class Command:
    """Something that a device does in its turn. `enqueue` takes the queue and what the command is called with."""

    is_kernel = moves_from_host = False
    in_place: tuple[InPlace, ...] = ()

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
            if commands.awaited is not None:
                commands.settle()
            if commands.recording is not None:
                args = commands.recording.note(self, work, group, args)
            try:
                event = self._enqueue(commands.queue, work, group, *args)
            except cl.Error as error:
                raise self.refused(work, group, error) from error
            if self.is_kernel:
                commands.last_kernel = self.name
        return event

    def repeated(self, work: Any, group: Any, args: tuple[Any, ...]) -> tuple[Callable[[], Any], Any]:
        """For a Repeated: what enqueues it, and its arguments."""
        moved = Moved(args)
        return partial(_moved, self._enqueue, self._commands.queue, moved, work, group), moved

    def refused(self, work: tuple[int, ...], group: tuple[int, ...] | None, error: cl.Error) -> BackendError:
        """What to raise where the device does not take it."""
        return self._commands.lost(error)


class Transfer(Command):
    """One between host and device. Commands that come again after it may still be a graph."""

    moves_from_host = True

    def __call__(self, work: tuple[int, ...], group: tuple[int, ...] | None, *args: Any) -> cl.Event | None:
        """As any command, or by whoever runs graphs."""
        commands, graphs = self._commands, self._commands.graphs
        if graphs is None or commands.recording is not None or 0 in work:
            return super().__call__(work, group, *args)
        with commands.lock:
            if graphs.move(*args):
                return None
            with graphs.kept():
                return super().__call__(work, group, *args)


class Moved:
    """The arguments of a command that moves bytes."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = [*args]

    def set_arg(self, i: int, value: Any) -> None:
        """As a kernel does."""
        self.args[i] = value


class Kernel(Command):
    """One kernel of a built program. arguments are the types of what it takes, as its file or its launcher says."""

    is_kernel = True

    def __init__(
        self, program: cl.Program, kernel: cl.Kernel, commands: Commands, launched: Callable[[], None],
        arguments: Arguments | None,
    ) -> None:  # fmt: skip
        super().__init__(kernel.function_name, commands, self._first)
        self.program = program  # a kernel of Intel's does not keep it, and names another then
        self.cl_kernel, self._launched, self.arguments = kernel, launched, arguments
        self.has_run = False

    @cached_property
    def twin(self) -> "Kernel":
        """The same kernel as another Command, of which more may be known than of every launch."""
        own = cl.Kernel(self.program, self.name)
        return Kernel(self.program, own, self._commands, self._launched, self.arguments)

    def _first(self, queue: cl.CommandQueue, work: Any, group: Any, *args: Any) -> cl.Event | None:
        """The first launch. After it the kernel is called at once, where an event costs little."""
        self._launched()
        self.cl_kernel.set_scalar_arg_dtypes(self.arguments)
        self.has_run = True
        self._enqueue = self.cl_kernel if self._commands.launch is cl.enqueue_nd_range_kernel else self._unheard
        return self._enqueue(queue, work, group, *args)

    def _unheard(self, queue: cl.CommandQueue, work: Any, group: Any, *args: Any) -> cl.Event | None:
        """Without an event, unless times are noted."""
        if self._commands.is_timed:
            return self.cl_kernel(queue, work, group, *args)
        self.cl_kernel.set_args(*args)
        return self._commands.launch(queue, self.cl_kernel, work, group)

    def repeated(self, work: Any, group: Any, args: tuple[Any, ...]) -> tuple[Callable[[], Any], Any]:
        """As a Command does it. The arguments are a kernel object of their own, so that nobody else changes them."""
        own, graphs = cl.Kernel(self.program, self.name), self._commands.graphs
        arguments = own if graphs is None else graphs.arguments(own, self, work, group)
        for i, arg in enumerate(args):
            self.set_number(arguments, i, arg)
        return again(self._commands.launch, self._commands.queue, own, work, group), arguments

    def set_number(self, own: cl.Kernel, i: int, value: Any) -> None:
        """Set an argument that is no memory: to what PyOpenCL makes of it where it is called with the types."""
        dtype = self.arguments[i] if self.arguments else None
        if dtype is None:
            own.set_arg(i, value)
        elif dtype == STRUCTURE:
            own._set_arg_buf(i, value)
        else:
            own._set_arg_buf_pack_multi((i, dtype.char.encode(), value))

    def refused(self, work: tuple[int, ...], group: tuple[int, ...] | None, error: cl.Error) -> BackendError:
        """What to raise where the device does not take it."""
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


def _moved(enqueue: Callable[..., cl.Event], queue: cl.CommandQueue, moved: Moved, work: Any, group: Any) -> None:
    enqueue(queue, work, group, *moved.args)
