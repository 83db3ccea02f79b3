"""The memory of a replay: what lies where other things lay before, and what a kernel writes over what it has read.

A place that only the program needs, or an output, may lie where that lay which a kernel made it of, if that was needed
for the last time. So may an output in an input's memory; whether an input may be written over is seen at every run.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyopencl as cl

from polyarr.backends.opencl.replay.recording import Noted, Place
from polyarr.backends.opencl.runtime.device import Device

LITTLE = 512  # bytes of memory that may serve whatever fits
BLOCK = 256 << 20  # bytes that a block has at most, unless it is one slot
Uses = list[tuple[Any, int]]  # where memory is an argument: whose, and which


class Slot:
    """Where memory is an argument, for one place or for several of which no two are needed at the same time.

    handle  to which the arguments were bound last; 0: none
    kept    keeps that memory alive, lest the handle come again for another
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.times, self.uses = nbytes, 0, Uses()
        self.forget()

    def lies_in(self, memory: Any) -> None:
        """Bind the arguments to other memory than they are bound to."""
        handle = memory.int_ptr
        self.handle = 0  # in case that something comes in between
        for subject, i in self.uses:
            subject.set_arg(i, memory)
        self.kept, self.handle = cl.MemoryObject.from_int_ptr(handle, retain=True), handle

    def forget(self) -> None:
        """Keep no memory alive."""
        self.handle, self.kept = 0, None

    def may_be(self, memory: Any) -> bool:
        """True for memory that is as large, or not much larger."""
        return _fits(self.nbytes, memory.size)


class Block:
    """Slots side by side in one memory, so that a run asks for few.

    slots   with where they begin
    handle  as a slot's
    """

    def __init__(self, device: Device, slots: Sequence[tuple[int, Slot]], nbytes: int) -> None:
        self._device, self.slots, self.nbytes, self.handle = device, slots, nbytes, 0

    def lies_in(self, memory: Any) -> None:
        """As a slot does."""
        self.handle, is_whole = 0, len(self.slots) == 1
        for start, slot in self.slots:
            slot.lies_in(memory if is_whole else self._device.part(memory, start, slot.nbytes))
        self.handle = memory.int_ptr

    def forget(self) -> None:
        """As a slot does."""
        self.handle = 0
        for _, slot in self.slots:
            slot.forget()


def blocks_of(slots: Sequence[Slot], device: Device) -> list[Block]:
    """Slots, large ones first, in few blocks."""
    found, row, end = list[Block](), list[tuple[int, Slot]](), 0
    for slot in slots:
        if row and end + slot.nbytes > BLOCK:
            found.append(Block(device, row, end))
            row, end = [], 0
        row = [*row, (end, slot)]
        end += -(-slot.nbytes // device.part_alignment) * device.part_alignment
    return [*found, Block(device, row, end)] if row else found


def _fits(nbytes: int, size: int) -> bool:
    return nbytes <= size <= max(2 * nbytes, LITTLE)


def slots_for(uses: dict[Place, Uses]) -> list[Slot]:
    """Few slots for many places. Large ones first: each goes into the smallest slot where it is in nobody's way.

    Of equal slots it takes the one that is needed again soonest, or was last: then others stay free for longer.
    """
    slots: list[Slot] = []
    for place in sorted(uses, key=lambda place: (place.nbytes, place.times.bit_length()), reverse=True):
        free = [slot for slot in slots if not slot.times & place.span]
        slot = min(free, key=lambda slot: (slot.nbytes, _gap(slot.times, place.times)), default=None)
        if slot is None:
            slots.append(slot := Slot(place.nbytes))
        slot.times |= place.span
        slot.uses += uses[place]
    return slots


def _gap(busy: int, times: int) -> int:
    """How far some times are from the nearest that are busy."""
    first, end = (times & -times).bit_length() - 1, times.bit_length()
    before, after = busy & ((1 << first) - 1), busy >> end
    return min(first - before.bit_length() if before else first + end, (after & -after).bit_length() or first + end)


class Over(NamedTuple):
    """Of an input that may be written over: by which of the outputs, and which command there is no need of then."""

    fresh: int
    spared: int | None


class Sharing:
    """Which places lie in the same memory, because a command writes one of them over the other.

    over    of inputs, what may be written over them
    spared  the commands that would copy what is there already
    """

    def __init__(
        self, noted: Sequence[Noted], inputs: dict[Place, int], given: set[Place], fresh: list[Place]
    ) -> None:
        """fresh are the outputs' places; inputs have sizes; those in `given` were given away when this was recorded."""
        self.over, self.spared = dict[Place, Over](), set[int]()
        self._homes = dict[Place, Place]()
        self._inputs, self._fresh, self._taken = inputs, fresh, set[Place]()
        for n in reversed(range(len(noted))):  # so that it is known of each result whether it leads to an output
            # What a caller gives away is there during the whole run, needed or not. So that comes first.
            pairs = sorted(_pairs(noted[n]), key=lambda pair: (pair[0] not in given, not pair[0].nbytes))
            for old, new, is_copy in pairs:
                if _is_last(n, old) and not self.home(new).times & ((1 << n) - 1):
                    self._join(n, old, self.home(new), is_copy)

    def home(self, place: Place) -> Place:
        """The place in whose memory this one lies."""
        while place in self._homes:
            place = self._homes[place]
        return place

    def _join(self, n: int, old: Place, new: Place, is_copy: bool) -> None:
        if old in self._homes or old in self.over or new in self._taken:
            return
        if old in self._inputs and new in self._fresh and _fits(new.nbytes, self._inputs[old]):
            self.over[old] = Over(self._fresh.index(new), n if is_copy else None)
            self._taken.add(new)
        elif old.nbytes and old.nbytes == new.nbytes and old not in self._fresh:
            self._homes[old] = new
            new.times |= old.times
            self.spared |= {n} if is_copy else set()


def _is_last(n: int, place: Place) -> bool:
    """True if command n is the last that uses a place."""
    return place.times >> n == 1


def _pairs(noted: Noted) -> Iterator[tuple[Place, Place, bool]]:
    """What a command reads, what it may write over that, and whether it is then a copy onto itself."""
    args = noted.args

    def is_start(i: int | None) -> bool:
        return i is not None and type(args[i]) is int and args[i] == 0

    for pair in noted.command.in_place:
        others = dict(pair.others)
        alike = [others.get(i) for i, arg in enumerate(args) if arg is args[pair.old] and i != pair.old]
        if all(map(is_start, (*pair.begins, *alike))):
            yield args[pair.old], args[pair.new], pair.is_copy
