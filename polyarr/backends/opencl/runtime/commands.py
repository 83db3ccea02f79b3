"""The only way to a device's queue: whatever runs there is a Command, and calling it enqueues it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from polyarr.backends.opencl.runtime.checking import checked_launch, is_checked
from polyarr.backends.opencl.runtime.driver import ERRORS
from polyarr.backends.opencl.runtime.source import Arguments
from polyarr.core.announce import announce, observers
from polyarr.core.errors import BackendError

MAX_UNMARKED = 1024  # commands behind a mark, from which on the host sets the next one, and waits for this one


class Commands:
    """A device's queue, its lock, and the commands that move bytes.

    The host is at most twice MAX_UNMARKED commands ahead of the device, or two runs of a longer recorded program,
    because a driver such as PoCL keeps memory for every command that has not finished.
    """

    def __init__(self, driver: Any) -> None:
        self.driver, self.queue = driver, driver.queue
        self._plain: Any = None  # the main queue, while another one replaces it
        self._apart: Any = None  # the queue of `apart`, once it is needed
        self.lock: Any = threading.RLock()
        self.is_marked, self.marks = False, 0  # whether replays set queue marks; the number of marks so far
        self.awaited: Callable[[], None] | None = None  # to be called before anything else is enqueued
        self.unmarked = 0  # the number of commands behind the mark of keep_pace
        self._pace: Any = None  # the event of that mark
        self.last_kernel = "none"  # the name of the kernel that was enqueued last
        self.recording: Any = None  # the Recording that notes every command
        self.graphs: Any = None  # the CUDA graphs that replays may use
        # Between host and device. upload does not wait; its event keeps the host's bytes alive.
        self.upload = Transfer("upload", self, driver.upload)
        self.transfer = Transfer("transfer", self, driver.transfer)
        self.copy = Command("copy", self, driver.copy)
        self.copy.in_place = (InPlace(1, 0, is_copy=True),)
        self.fill = Command("fill", self, driver.fill)

    def settle(self) -> None:
        """Run what was deferred with defer, such as an all-reduce. Called before anything is enqueued.

        Deferring lets the caller have the results at once, and prepare its next commands meanwhile.
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

    def defer(self, do: Callable[[], None]) -> None:
        """Defer a function until just before something else is enqueued; deferred functions run in order."""
        before = self.awaited

        def both() -> None:
            try:
                if before is not None:
                    before()
            finally:  # others may wait for it
                do()

        self.queue.flush()  # the device goes on meanwhile
        self.awaited = both if before else do

    def finish(self) -> None:
        """Wait until all enqueued commands have finished."""
        with self.lock:
            self.settle()
            try:
                self.queue.finish()
                self.finish_plain()
            except ERRORS as error:
                raise self.lost(error) from error

    def announce(self, step: str) -> None:
        """Announce the driver's next action to observers, after all commands have finished; free if there are none."""
        if observers:
            self.finish()
            announce(step)

    def finish_plain(self) -> None:
        """In a timed block, wait for what was enqueued on the main queue, not by Commands."""
        if self._plain is not None:
            self._plain.finish()

    @property
    def is_timed(self) -> bool:
        """True in timed blocks."""
        return self._plain is not None

    @property
    def usual_queue(self) -> Any:
        """Queue outside of timed blocks."""
        return self._plain or self.queue

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Context in which commands go to a profiling queue, which doubles the time of a launch on NVIDIA.

        Other code uses the main queue, and has to call finish() before and after.
        """
        timing = self.driver.timing_queue()
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
    def beside(self, queue: Any) -> Iterator[None]:
        """Context in which commands go to another queue, concurrent with the main one and synchronized by events.

        No memory may be allocated in it: its previous user may still compute with it in the main queue.
        """
        with self.lock:
            before, self.queue = self.queue, queue
            try:
                yield
            finally:
                self.queue = before

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Context in which transfers wait for nothing in the main queue; their memory must be ready, see `wait`."""
        with self.lock:
            self.settle()
            if self._apart is None:
                self._apart = self.driver.queue_apart()
            with self.beside(self._apart):
                yield

    def wait(self, event: Any) -> None:
        """Wait for the event of a Mark."""
        try:
            event.wait()
        except ERRORS as error:
            raise self.lost(error) from error

    def keep_pace(self) -> None:
        """Wait until the device has passed the last of these calls, and mark this one. The caller holds the lock."""
        before, self._pace, self.unmarked = self._pace, self.driver.mark(self.queue), 0
        if before is not None:
            self.wait(before)

    def mark(self) -> "Mark":
        """Return a mark behind everything that was enqueued so far."""
        with self.lock:
            self.settle()
            self.marks += 1  # before the marker: a concurrent reader then assumes that the mark is set
            return Mark(self.marks, self.driver.mark(self.queue))

    def repeat(self, commands: "CommandList") -> None:
        """Enqueue recorded commands again, as Command.__call__ does once."""
        with self.lock:
            if self.graphs is not None:
                self.settle()
                try:
                    is_done = self.graphs.run(commands)
                except ERRORS as error:
                    raise self.lost(error) from error
                if is_done:
                    self._note_last(commands)
                    return
            self.repeat_by(self._enqueue_again, commands)

    def repeat_by(
        self, enqueue: Callable[["BoundCommand", Any], None], commands: Sequence["BoundCommand"]
    ) -> None:
        """Enqueue commands again by a function; an error names the command it comes from."""
        with self.lock:
            self.settle()
            for each in commands:
                try:
                    enqueue(each, self.queue)
                except ERRORS as error:
                    self._note_last(commands[: commands.index(each)])
                    refused = each.command.refused(each.work, each.group, error)
                    each.note(refused)
                    raise refused from error
            self._note_last(commands)
            self.unmarked += len(commands)
            if self.unmarked >= MAX_UNMARKED:
                self.keep_pace()

    @staticmethod
    def _enqueue_again(each: "BoundCommand", queue: Any) -> None:
        found = each.enqueue()
        if type(found) is int and found:  # this call raises with an explanation
            each.submit_to(queue)

    def _note_last(self, commands: Sequence["BoundCommand"]) -> None:
        self.last_kernel = commands[-1].command.name if commands else self.last_kernel

    def lost(self, error: Exception) -> BackendError:
        """Return the error to raise if waiting fails: a kernel has faulted, most likely one of the last."""
        device = self.queue.device.name.strip()
        return BackendError(
            f"device {device!r} was lost, with kernel {self.last_kernel} the last to be enqueued: {error}"
        )


class Mark(NamedTuple):
    """A position in the queue: its number, in order, and the event that all commands before it have finished."""

    number: int
    event: Any


class BoundCommand(NamedTuple):
    """A recorded command that is enqueued again and again.

    Attributes:
        enqueue: See OpenCL.again.
        arguments: Object whose set_arg changes them.
        note: Adds to an error where the command comes from.
        step: The program and the step that the command belongs to, for observers.
    """

    enqueue: Callable[[], Any]
    arguments: Any
    work: tuple[int, ...] | None
    group: tuple[int, ...] | None
    command: "Command"
    note: Callable[[BaseException], None]
    step: Any = None

    def submit_to(self, queue: Any) -> Any:
        """Enqueue the command in a queue that it is not bound to, and return its event; a mark has none."""
        if self.work is None:
            self.enqueue()
            return None
        return self.command.submit_to(queue, self.work, self.group, self.arguments)


class CommandList(list[BoundCommand]):
    """Recorded commands that are enqueued again and again in this order.

    Attributes:
        plan: How graphs run them; None until they run.
    """

    plan: Any = None


class InPlace(NamedTuple):
    """A result that may overwrite what is read: the work-item that writes an element has read it before.

    Attributes:
        old, new: Indices of the arguments that are read and written.
        begins: Indices of their offsets, which must be 0.
        is_copy: Whether nothing is left to do then.
        others: Other arguments that may be the same memory, with the index of their offset, which must then be 0; None
            if they are read with other strides than the result is written. No further one may be the memory of `old`.
    """

    old: int
    new: int
    begins: tuple[int, ...] = ()
    is_copy: bool = False
    others: tuple[tuple[int, int | None], ...] = ()


class Command:
    """Something that a device does in order. `enqueue` takes the queue and the arguments of the call.

    Attributes:
        uses_early: Indices of arguments that a kernel reads or writes before it waits for the one before it, where it
            waits itself.
    """

    is_kernel = moves_from_host = False
    in_place: tuple[InPlace, ...] = ()
    uses_early: tuple[int, ...] = ()

    def __init__(self, name: str, commands: Commands, enqueue: Callable[..., Any]) -> None:
        self.name, self._commands = name, commands
        self._enqueue = checked_launch(name, commands.driver, enqueue) if is_checked() else enqueue

    def __call__(self, work: tuple[int, ...], group: tuple[int, ...] | None, *args: Any) -> Any:
        """Enqueue the command, and return its event, if it has one. All kernels, copies and fills are enqueued here.

        work is a kernel's global size, or the number of bytes to move; nothing happens if there are none. group is a
        kernel's local size.

        Raises:
            BackendError: The device refuses the command.
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
            except ERRORS as error:
                raise self.refused(work, group, error) from error
            if self.is_kernel:
                commands.last_kernel = self.name
            commands.unmarked += 1
            if commands.unmarked >= MAX_UNMARKED:
                commands.keep_pace()
        return event

    def repeated(self, work: Any, group: Any, args: tuple[Any, ...]) -> tuple[Callable[[], Any], Any]:
        """Return the function that enqueues a Repeated, and its arguments."""
        moved = Moved(args)
        return partial(_moved, self._enqueue, self._commands.usual_queue, moved, work, group), moved

    def submit_to(self, queue: Any, work: Any, group: Any, arguments: Any) -> Any:
        """Enqueue the command with arguments of `repeated` in this queue, without recording or observing it."""
        return self._enqueue(queue, work, group, *arguments.args)

    def refused(self, work: tuple[int, ...] | None, group: tuple[int, ...] | None, error: Exception) -> BackendError:
        """Return the error to raise if the device refuses the command."""
        return self._commands.lost(error)


class Transfer(Command):
    """A copy between host and device."""

    moves_from_host = True


class Moved:
    """The arguments of a command that moves bytes."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = [*args]

    def set_arg(self, i: int, value: Any) -> None:
        """Set an argument, as kernels do."""
        self.args[i] = value


class Kernel(Command):
    """A kernel of a built program. `arguments` are the types of its parameters, by its file or its launcher."""

    is_kernel = True

    def __init__(
        self, program: Any, name: str, kernel: Any, commands: Commands, launched: Callable[[], None],
        arguments: Arguments | None,
    ) -> None:  # fmt: skip
        super().__init__(name, commands, self._first)
        self.program = program  # a kernel object of Intel's does not keep its program alive
        self.cl_kernel, self._launched, self.arguments = kernel, launched, arguments
        self.has_run, self._twins = False, dict[tuple[InPlace, ...], Kernel]()

    def twin(self, in_place: tuple[InPlace, ...]) -> "Kernel":
        """Return a copy of the kernel as another Command, which may write over these arguments; there is one of each.

        Launches of one program may have operands of different strides, and so write over different ones.
        """
        if in_place not in self._twins:
            own = self._commands.driver.kernel(self.program, self.name)
            found = Kernel(self.program, self.name, own, self._commands, self._launched, self.arguments)
            found.in_place = in_place
            self._twins[in_place] = found
        return self._twins[in_place]

    def _first(self, queue: Any, work: Any, group: Any, *args: Any) -> Any:
        """Enqueue the first launch; afterwards the kernel is called directly, where an event costs little."""
        self._commands.announce(f"kernel {self.name}")
        self._launched()
        self.cl_kernel.set_scalar_arg_dtypes(self.arguments)
        self.has_run = True
        enqueue = self.cl_kernel
        self._enqueue = checked_launch(self.name, self._commands.driver, enqueue) if is_checked() else enqueue
        return self._enqueue(queue, work, group, *args)

    def repeated(self, work: Any, group: Any, args: tuple[Any, ...]) -> tuple[Callable[[], Any], Any]:
        """Return the function that enqueues it, and its arguments, which are a kernel object of their own."""
        driver = self._commands.driver
        own = driver.kernel(self.program, self.name)
        for i, (dtype, arg) in enumerate(zip(self.arguments or repeat(None), args, strict=False)):
            driver.set_number(own, i, dtype, arg)
        return driver.again(own, work, group), own

    def submit_to(self, queue: Any, work: Any, group: Any, arguments: Any) -> Any:
        """Launch the kernel with arguments of `repeated` in this queue, without recording or observing it."""
        return self._commands.driver.relaunch(queue, arguments, work, group)

    def setter(self, own: Any, i: int) -> Callable[[Any], None]:
        """Return a function that sets an argument of a kernel of `repeated`, a scalar converted to its type."""
        return partial(self._commands.driver.set_number, own, i, self.arguments[i] if self.arguments else None)

    def refused(self, work: tuple[int, ...] | None, group: tuple[int, ...] | None, error: Exception) -> BackendError:
        """Return the error to raise if the device refuses the kernel."""
        device, before = self._commands.queue.device.name.strip(), self._commands.last_kernel
        return BackendError(
            f"kernel {self.name}: could not enqueue {work} by {group} on {device!r}, after {before}: {error}"
        )


def _moved(enqueue: Callable[..., Any], queue: Any, moved: Moved, work: Any, group: Any) -> None:
    enqueue(queue, work, group, *moved.args)
