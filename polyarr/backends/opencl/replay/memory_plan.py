"""Memory planning of a replay: which allocations share memory, and which kernels write over what they have read.

An intermediate value or an output may lie in the memory of a value that the kernel computing it reads for the last
time. An output may also overwrite a donated input, if nothing but the run refers to its memory; each run checks that.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.replay.recording import MemoryRef, RecordedCommand
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.driver import kept

SMALL_BYTES = 512  # bytes up to which memory may serve any smaller allocation
NEVER = 1 << 62  # no command has this number
MAX_BLOCK_BYTES = 256 << 20  # largest block in bytes, unless it is one region
Uses = list[tuple[Any, int]]  # (kernel arguments object, index) of the arguments that are bound to memory


class Region:
    """Memory of one allocation, or of several with disjoint lifetimes, and the arguments bound to it.

    Attributes:
        handle: The memory to which the arguments were bound last; 0 if none.
        kept: Keeps that memory alive, so that its handle is not reused.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.uses = nbytes, Uses()
        self.forget()

    def bind(self, memory: Any) -> None:
        """Bind the arguments to other memory."""
        handle = memory.int_ptr
        self.handle = 0  # in case of an exception in between
        for subject, i in self.uses:
            subject.set_arg(i, memory)
        self.kept, self.handle = kept(memory), handle

    def forget(self) -> None:
        """Keep no memory alive."""
        self.handle, self.kept = 0, None

    def is_suitable(self, memory: Any) -> bool:
        """Return whether memory is large enough, and not much too large."""
        return _fits(self.nbytes, memory.size)


class Block:
    """Regions side by side in one allocation, so that a run needs few.

    Attributes:
        regions: The regions, and where they begin.
        handle: As a region's.
    """

    def __init__(self, device: Device, regions: Sequence[tuple[int, Region]], nbytes: int) -> None:
        self._device, self.regions, self.nbytes, self.handle = device, regions, nbytes, 0

    def bind(self, memory: Any) -> None:
        """Bind the regions to parts of other memory."""
        self.handle, is_whole = 0, len(self.regions) == 1
        for start, region in self.regions:
            region.bind(memory if is_whole else self._device.part(memory, start, region.nbytes))
        self.handle = memory.int_ptr

    def forget(self) -> None:
        """Keep no memory alive."""
        self.handle = 0
        for _, region in self.regions:
            region.forget()


def blocks_of(regions: Sequence[Region], device: Device) -> list[Block]:
    """Pack regions, largest first, into few blocks."""
    found, row, end = list[Block](), list[tuple[int, Region]](), 0
    for region in regions:
        if row and end + region.nbytes > MAX_BLOCK_BYTES:
            found.append(Block(device, row, end))
            row, end = [], 0
        row = [*row, (end, region)]
        end += -(-region.nbytes // device.part_alignment) * device.part_alignment
    return [*found, Block(device, row, end)] if row else found


def _fits(nbytes: int, size: int) -> bool:
    return nbytes <= size <= max(2 * nbytes, SMALL_BYTES)


def regions_for(uses: dict[MemoryRef, Uses]) -> list[Region]:
    """Assign allocations to few regions: largest first, each to the smallest region that is free during its lifetime.

    Among regions of equal size, the one used nearest in time is taken, so that others stay free for longer; a small
    allocation takes the first.
    """
    regions: list[Region] = []
    # Columns: the index of a region, its bytes, and the commands from which and before which it is free.
    gaps, count = np.empty((4, 2 * len(uses)), np.int64), 0
    for ref in sorted(uses, key=lambda ref: (ref.nbytes, ref.times.bit_length()), reverse=True):
        first, end = ref.span
        found = np.flatnonzero((gaps[2, :count] <= first) & (gaps[3, :count] >= end))
        if not found.size:
            gaps[:, count], found = (len(regions), ref.nbytes, -NEVER, NEVER), np.array([count])
            regions.append(Region(ref.nbytes))
            count += 1
        found = _least(found, gaps[1, found])
        if ref.nbytes > SMALL_BYTES:
            before, after = gaps[2:, found]
            found = _least(found, np.minimum(np.minimum(first - before, after - end + 1), first + end))
        at = _least(found, gaps[0, found])[0]
        gaps[:, count], gaps[3, at] = (*gaps[:2, at], end, gaps[3, at]), first
        count += 1
        regions[gaps[0, at]].uses += uses[ref]
    return regions


def _least(found: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the indices with the smallest key."""
    return found if len(found) == 1 else found[keys == keys.min()]


class Overwrite(NamedTuple):
    """An input that may be overwritten: by which output, and which command becomes unnecessary."""

    fresh: int
    skipped: int | None


class MemorySharing:
    """Plan of the allocations that share memory because a command writes one over the other.

    Attributes:
        over: The inputs that may be overwritten, and by what.
        skipped: The commands that would copy data onto itself.
    """

    def __init__(
        self, recorded: Sequence[RecordedCommand], donated: dict[MemoryRef, int], fresh: list[MemoryRef]
    ) -> None:
        """Plan for the donated inputs, with their bytes, and the outputs in new memory."""
        self.over, self.skipped = dict[MemoryRef, Overwrite](), set[int]()
        self._homes = dict[MemoryRef, MemoryRef]()
        self._donated, self._fresh, self._taken = donated, fresh, set[MemoryRef]()
        for n in reversed(range(len(recorded))):  # backwards, so that it is known whether a result leads to an output
            # A donated input lives during the whole run, whether it is needed or not, so it is reused first.
            pairs = sorted(_pairs(recorded[n]), key=lambda pair: pair[0] not in donated)
            for old, new, is_copy in pairs:
                if _is_last(n, old) and not self.home(new).times & ((1 << n) - 1):
                    self._join(n, old, self.home(new), is_copy)

    def home(self, ref: MemoryRef) -> MemoryRef:
        """Return the allocation in whose memory this one lies."""
        while ref in self._homes:
            ref = self._homes[ref]
        return ref

    def _join(self, n: int, old: MemoryRef, new: MemoryRef, is_copy: bool) -> None:
        if old in self._homes or old in self.over or new in self._taken:
            return
        if old in self._donated and new in self._fresh and _fits(new.nbytes, self._donated[old]):
            self.over[old] = Overwrite(self._fresh.index(new), n if is_copy else None)
            self._taken.add(new)
        elif old.nbytes and old.nbytes == new.nbytes and old not in self._fresh:
            self._homes[old] = new
            new.times |= old.times
            self.skipped |= {n} if is_copy else set()


def _is_last(n: int, ref: MemoryRef) -> bool:
    """Return whether command n is the last that uses an allocation."""
    return ref.times >> n == 1


def _pairs(recorded: RecordedCommand) -> Iterator[tuple[MemoryRef, MemoryRef, bool]]:
    """Yield what a command reads, what may overwrite it, and whether the command then copies onto itself."""
    args = recorded.args

    def is_start(i: int | None) -> bool:
        return i is not None and type(args[i]) is int and args[i] == 0

    for pair in recorded.command.in_place:
        others = dict(pair.others)
        alike = [others.get(i) for i, arg in enumerate(args) if arg is args[pair.old] and i != pair.old]
        if all(map(is_start, (*pair.begins, *alike))):
            yield args[pair.old], args[pair.new], pair.is_copy
