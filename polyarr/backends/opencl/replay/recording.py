"""Recording of the commands that launchers enqueue, for replay without the launchers: see replay.py.

Every command passes through Command.__call__, and every allocation through Device._allocate; both report to the active
recording. Dynamic scalars reach launchers as Numbers, as does the offset of an input that is a view. Whatever a
launcher computes from them is recorded as a scalar step; if it branches on a value, the Number raises a CaptureError.
"""

import operator
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from polyarr.backends.opencl.runtime.commands import Command
from polyarr.backends.opencl.runtime.layout import ALIGNMENT, Buffer, is_aligned
from polyarr.core.number import IntNumber, Number, tracer
from polyarr.core.program import Program, Step


class MemoryRef:
    """Memory that commands refer to, whichever it is during a run.

    Attributes:
        nbytes: Size of memory allocated within the recording; 0 for other memory.
        memory: The memory, if it stays the same; else that of the current run.
        times: The commands that use it, one bit each.
    """

    __slots__ = ("memory", "nbytes", "times")

    def __init__(self, nbytes: int = 0, memory: Any = None) -> None:
        self.nbytes, self.memory, self.times = nbytes, memory, 0

    @property
    def span(self) -> tuple[int, int]:
        """The command that uses it first, and the one after that which uses it last."""
        return (self.times & -self.times).bit_length() - 1, self.times.bit_length()


class RecordedCommand(NamedTuple):
    """A recorded command with its arguments: MemoryRefs, Numbers, and constants; and the step that enqueued it."""

    command: Command
    work: tuple[int, ...]
    group: tuple[int, ...] | None
    args: tuple[Any, ...]
    step: Step


class Offset(IntNumber):
    """The offset of an input or of a view of it. Answers about alignment are the same for a whole layout of inputs.

    Attributes:
        of: Index of the input.
        whole: Elements in 16 bytes.
        is_aligned: Whether the input begins at a multiple of 16 bytes; it does not begin at 0.
        further: Elements from the input's offset to this one.
    """

    __slots__ = ("further", "is_aligned", "of", "whole")

    def __init__(self, number: Number, of: int, whole: int, is_aligned: bool, further: int = 0) -> None:
        super().__init__(number.slot, number.now, number.record)
        self.of, self.whole, self.is_aligned, self.further = of, whole, is_aligned, further

    def __bool__(self) -> bool:
        return self.further >= 0 or self._refuse()

    def __add__(self, other: Any) -> Number:
        if type(other) is not int:
            return super().__add__(other)
        found = self.record(operator.add, (self, other), True)
        return Offset(found, self.of, self.whole, self.is_aligned, self.further + other)

    def __mod__(self, other: Any) -> Any:
        """Return the remainder modulo the elements in 16 bytes; of an unaligned input, only that it is not 0."""
        rest = self.further % self.whole
        if other != self.whole or (rest and not self.is_aligned):
            return super().__mod__(other)
        return rest if self.is_aligned else 1


class Recording:
    """The commands that launchers enqueued while this was the device's recording.

    Attributes:
        recorded: The commands.
        scalar_steps: The scalar steps of the program and of launchers, each with the step of the program that needs it.
        values: By slot, the program's and further ones of launchers: the value of a constant, else None.
        fault: The running thread's record, in which kernels note bad indices, and the time that they write.
        reads: Whether device memory was read, so that what is enqueued next may depend on it.
        program: The program that runs.
        step: Its step that runs.
    """

    def __init__(self, record: Any, memory: type, program: Program) -> None:
        this = weakref.ref(self)  # what is recorded has numbers: a cycle would hold memory until a collection
        self._evaluated = lambda *call: this()._evaluate(*call)  # type: ignore[union-attr]
        self.program = program
        self.recorded: list[RecordedCommand] = []
        self.scalar_steps: list[tuple[Step, Step]] = []
        self.values: list[Any] = [None] * program.size
        self.fault = MemoryRef(), self.number(self._new(None), 0)
        self.reads = False
        self.step: Step
        self._record, self._memory, self._refs = record, memory, dict[int, MemoryRef]()  # by handle

    def allocated(self, memory: Any, nbytes: int) -> None:
        """Note an allocation, possibly where other memory was before."""
        self._refs[memory.int_ptr] = MemoryRef(nbytes)

    def input_ref(self, memory: Any) -> MemoryRef:
        """Return the reference to memory of an input."""
        return self._refs.setdefault(memory.int_ptr, MemoryRef())

    def ref(self, memory: Any) -> MemoryRef:
        """Return the reference to memory; memory that was never seen before is constant."""
        found = self._refs.get(memory.int_ptr)
        if found is None:
            found = self._refs[memory.int_ptr] = MemoryRef(0, memory)
        return found

    def number(self, slot: int, now: Any) -> Number:
        """Return the tracer of a scalar."""
        return tracer(slot, now, self._evaluated)

    def offset(self, of: int, buf: Buffer) -> Offset:
        """Return the tracer of an input's offset."""
        return Offset(self.number(self._new(None), buf.offset), of, ALIGNMENT // buf.dtype.itemsize, is_aligned(buf))

    def _evaluate(self, fn: Callable[..., Any], numbers: tuple, has_output: bool) -> Number | None:
        now, slot = fn(*settled(numbers)), self._new(None) if has_output else None
        self.scalar_steps.append((Step(None, "number", fn, self._slot(numbers), {}, slot, self.step.line), self.step))
        return None if slot is None else self.number(slot, now)

    def _slot(self, value: Any) -> Any:
        """Return the slot of a scalar or of a new constant; of a tuple, those of its members."""
        if type(value) is tuple:
            return tuple(map(self._slot, value))
        return value.slot if isinstance(value, Number) else self._new(value)

    def _new(self, constant: Any) -> int:
        self.values.append(constant)
        return len(self.values) - 1

    def note(self, command: Command, work: tuple[int, ...], group: tuple[int, ...] | None, args: tuple) -> tuple:
        """Record a command that is about to be enqueued; return its arguments with current scalars."""
        if command.moves_from_host:
            self._note_transfer(args[0])
            return args
        found: list[Any] = []
        for arg in args:
            if isinstance(arg, self._memory):
                ref = self.fault[0] if arg is self._record.memory else self.ref(arg)
                ref.times |= 1 << len(self.recorded)
                found.append(ref)
            else:  # kernels take the thread's record and the time as two consecutive arguments
                found.append(self.fault[1] if found and found[-1] is self.fault[0] else arg)
        self.recorded.append(RecordedCommand(command, work, group, tuple(found), self.step))
        return settled(args)

    def _note_transfer(self, target: Any) -> None:
        """Note that memory copied from the host now stays constant, however often the rest is replayed."""
        is_memory = isinstance(target, self._memory)
        if is_memory:
            self._refs[target.int_ptr] = MemoryRef(0, target)
        else:
            self.reads = True

    def forget_from(self, count: int) -> None:
        """Forget the commands from `count` on: a launcher failed, and another one will do its work."""
        del self.recorded[count:]
        before = (1 << count) - 1
        for ref in (*self._refs.values(), self.fault[0]):
            ref.times &= before


def settled(value: Any) -> Any:
    """Return a value with Numbers replaced by their current values, in tuples and in Buffers."""
    if type(value) is tuple:
        return tuple([settled(member) for member in value])
    if type(value) is Buffer and isinstance(value.offset, Number):
        return value._replace(offset=value.offset.now)
    return value.now if isinstance(value, Number) else value
