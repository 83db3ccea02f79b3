"""Noting what launchers give a device to do, so that it can be done again without them: see replay.py.

Every command comes through Command.__call__, and all memory from Device._allocate; both tell the recording that is in
force. Python numbers that change from run to run come to launchers as Numbers, and so does where an input begins that
is a window. What a launcher works out from them is noted as a formula; where it asks for a value, to decide by it, the
Number raises a CaptureError.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.runtime.commands import Command
from polyarr.backends.opencl.runtime.layout import ALIGNMENT, Buffer, is_aligned
from polyarr.core.number import FloatNumber, IntNumber, Number


class Place:
    """Memory that commands refer to, whichever it is at the time.

    nbytes  of memory that was allocated within the recording; 0 for what comes from elsewhere
    memory  what lies there: for good, or as long as a run is enqueued
    times   the commands that use it, one bit for each
    """

    __slots__ = ("memory", "nbytes", "times")

    def __init__(self, nbytes: int = 0, memory: Any = None) -> None:
        self.nbytes, self.memory, self.times = nbytes, memory, 0

    @property
    def span(self) -> int:
        """The times from the first use to the last."""
        return (1 << self.times.bit_length()) - (self.times & -self.times)


class Noted(NamedTuple):
    """A command with its arguments: Places, Numbers, and what is the same at every run. step: in which it was."""

    command: Command
    work: tuple[int, ...]
    group: tuple[int, ...] | None
    args: tuple[Any, ...]
    step: int


class Formula(NamedTuple):
    """values[gives] = call(*values[takes]), of numbers; takes may be nested. step: which asks for it."""

    call: Callable[..., Any]
    takes: tuple[Any, ...]
    gives: int | None
    step: int


class Offset(IntNumber):
    """Where an input, or a window on it, begins. What launchers ask of that is the same for a whole layout of inputs.

    of          which input
    whole       elements in 16 bytes
    is_aligned  whether the input itself begins at a multiple of 16 bytes; it does not begin at 0
    further     from there, how many elements more
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
        """Of the elements in 16 bytes what is left, and for a beginning elsewhere that it is not 0."""
        rest = self.further % self.whole
        if other != self.whole or (rest and not self.is_aligned):
            return super().__mod__(other)
        return rest if self.is_aligned else 1


class Recording:
    """What launchers did, while it was a device's recording.

    noted     the commands
    formulas  how the numbers come about
    values    as many as there are numbers and what formulas take besides: the constants among them, else None
    fault     the record of the thread that runs, in which kernels note bad indices, and the time that they write
    reads     True if somebody has read the device's memory: what is done next may depend on it
    step      the one that runs
    """

    def __init__(self, record: Any, size: int) -> None:
        self.noted: list[Noted] = []
        self.formulas: list[Formula] = []
        self.values: list[Any] = [None] * size
        self.fault = Place(), self.number(self._slot(None), 0)
        self.reads, self.step = False, 0
        self._record, self._places = record, dict[int, Place]()  # by handle

    # ---- memory ----------------------------------------------------------------------------------------------

    def allocated(self, memory: Any, nbytes: int) -> None:
        """Memory was allocated, where other memory may have been before."""
        self._places[memory.int_ptr] = Place(nbytes)

    def given(self, memory: Any) -> Place:
        """The place of memory that every run brings."""
        return self._places.setdefault(memory.int_ptr, Place())

    def place(self, memory: Any) -> Place:
        """The place of memory; what was never heard of stays the same for good."""
        found = self._places.get(memory.int_ptr)
        if found is None:
            found = self._places[memory.int_ptr] = Place(0, memory)
        return found

    # ---- numbers ---------------------------------------------------------------------------------------------

    def number(self, slot: int, now: Any) -> Number:
        """What stands for a number in launchers."""
        kind = IntNumber if isinstance(now, (int, np.integer)) else FloatNumber
        return kind(slot, now, self._formulate)

    def offset(self, of: int, buf: Buffer) -> Offset:
        """What stands for where an input begins."""
        return Offset(self.number(self._slot(None), buf.offset), of, ALIGNMENT // buf.dtype.itemsize, is_aligned(buf))

    def _formulate(self, call: Callable[..., Any], numbers: tuple, gives: bool) -> Number | None:
        now = call(*settled(numbers))
        slot = self._slot(None) if gives else None
        self.formulas.append(Formula(call, self._slots(numbers), slot, self.step))
        return None if slot is None else self.number(slot, now)

    def _slots(self, numbers: tuple) -> tuple:
        return tuple([
            n.slot if isinstance(n, Number) else self._slots(n) if type(n) is tuple else self._slot(n) for n in numbers
        ])  # fmt: skip

    def _slot(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1

    # ---- commands --------------------------------------------------------------------------------------------

    def note(self, command: Command, work: tuple[int, ...], group: tuple[int, ...] | None, args: tuple) -> tuple:
        """A command is about to be enqueued. Its arguments, with the numbers as they are now."""
        if command.moves_from_host:
            self._note_transfer(args[0])
            return args
        found: list[Any] = []
        for arg in args:
            if isinstance(arg, cl.MemoryObjectHolder):
                place = self.fault[0] if arg is self._record.memory else self.place(arg)
                place.times |= 1 << len(self.noted)
                found.append(place)
            else:  # kernels get a thread's record and the time as two arguments, one after the other
                found.append(self.fault[1] if found and found[-1] is self.fault[0] else arg)
        self.noted.append(Noted(command, work, group, tuple(found), self.step))
        return settled(args)

    def _note_transfer(self, target: Any) -> None:
        """What comes from the host now stays in its memory for good, however often the rest is done again."""
        if isinstance(target, cl.MemoryObjectHolder):
            self._places[target.int_ptr] = Place(0, target)
        else:
            self.reads = True

    def forget_from(self, count: int) -> None:
        """A launcher failed when so many commands were noted, and another one will do the same."""
        del self.noted[count:]
        before = (1 << count) - 1
        for place in (*self._places.values(), self.fault[0]):
            place.times &= before


def settled(value: Any) -> Any:
    """With numbers as they are now, in a tree of tuples and in Buffers."""
    if type(value) is tuple:
        return tuple([settled(member) for member in value])
    if type(value) is Buffer and isinstance(value.offset, Number):
        return value._replace(offset=value.offset.now)
    return value.now if isinstance(value, Number) else value
