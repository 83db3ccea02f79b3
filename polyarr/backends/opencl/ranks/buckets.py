"""Buckets: arrays side by side in a device's memory, where they are reduced all at once.

The results are the bucket itself: arrays on parts of it. It is used again when nobody holds any of them.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.copy import dense, write
from polyarr.backends.opencl.elementwise import conversion, launch
from polyarr.backends.opencl.runtime.commands import Commands
from polyarr.backends.opencl.runtime.cuda import GRAIN, MOST, Chunk
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, row_major, spec_of, window
from polyarr.core.spec import Spec

ALIGNMENT = 512  # bytes at which a part begins, as those of the pool do


class Part(NamedTuple):
    """So many elements of an array, from `start` on."""

    start: int
    count: int


class Place(NamedTuple):
    """A part's memory, and where it begins in its chunk."""

    chunk: int
    start: int
    nbytes: int


class Span(NamedTuple):
    """What is used of a chunk."""

    chunk: Chunk
    nbytes: int


class Bucket:
    """Memory for parts of so many bytes each. since: how many marks there were when it was given back."""

    since = 0

    def __init__(self, allocate: Callable[[int], Chunk], sizes: Sequence[int]) -> None:
        places = _laid_out(sizes)
        used = [0] * (places[-1].chunk + 1)
        for place in places:
            used[place.chunk] = place.start + place.nbytes
        self._chunks: list[Chunk] = []
        try:
            for nbytes in used:
                self._chunks.append(allocate(-(-nbytes // GRAIN) * GRAIN))
        except BaseException:
            self.close()
            raise
        self.places = places
        self.parts = [self._chunks[p.chunk].buffer.get_sub_region(p.start, p.nbytes) for p in places]
        self.spans = [Span(chunk, nbytes) for chunk, nbytes in zip(self._chunks, used, strict=True)]

    def close(self) -> None:
        """Give the memory back."""
        for chunk in self._chunks:
            chunk.close()


def _laid_out(sizes: Sequence[int]) -> list[Place]:
    """One after the other, in chunks that OpenCL takes."""
    places, chunk, end = [], 0, 0
    for size in sizes:
        nbytes = -(-size // ALIGNMENT) * ALIGNMENT
        if end + nbytes > MOST:
            chunk, end = chunk + 1, 0
        places.append(Place(chunk, end, nbytes))
        end += nbytes
    return places


class Held:
    """What the arrays on a bucket have in common: when the last is gone, the bucket goes back."""

    __slots__ = ("_back", "_bucket", "_commands")

    def __init__(self, bucket: Bucket, back: deque, commands: Commands) -> None:
        self._bucket, self._back, self._commands = bucket, back, commands

    def __del__(self) -> None:
        self._bucket.since = self._commands.marks
        self._back.append(self._bucket)


class Laid(NamedTuple):
    """A bucket for arrays. cut: the parts of each; places: where these lie, as Buffers of one axis."""

    bucket: Bucket
    cut: list[list[Part]]
    places: list[list[Buffer]]


class Buckets:
    """The buckets of a device. allocate: bytes -> memory."""

    def __init__(self, device: Device, allocate: Callable[[int], Chunk]) -> None:
        self._device, self._allocate = device, allocate
        self._free: defaultdict[tuple[int, ...], deque[Bucket]] = defaultdict(deque)

    def laid(self, bufs: Sequence[Buffer], dtype: np.dtype) -> Laid:
        """A bucket with room for as many numbers, not all of them none, in dtype. Call it with the device's lock."""
        most = MOST // dtype.itemsize
        cut = [[Part(i, min(most, b.size - i)) for i in range(0, b.size, most)] for b in bufs]
        sizes = tuple(part.count * dtype.itemsize for parts in cut for part in parts)
        free = self._free[sizes]
        bucket = free.popleft() if free else Bucket(self._allocate, sizes)
        holder = Held(bucket, free, self._device.commands)
        memories = iter([_memory(part, holder) for part in bucket.parts])
        return Laid(bucket, cut, [[_laid(next(memories), part, dtype) for part in parts] for parts in cut])

    def put(self, laid: Laid, bufs: Sequence[Buffer]) -> None:
        """Copy arrays there, and convert where the dtypes differ."""
        for buf, parts, places in zip(bufs, laid.cut, laid.places, strict=True):
            for source, place in zip(windows(self._device, buf, parts), places, strict=True):
                self.copy(place, source)

    def results(self, laid: Laid, bufs: Sequence[Buffer]) -> tuple[list[Buffer], list[tuple[Buffer, Buffer]]]:
        """The arrays in these arrays' places: parts of the bucket, where they are whole and need no conversion.

        And for the others what is to be copied: where to, and from where.
        """
        found, copies = list[Buffer](), list[tuple[Buffer, Buffer]]()
        for buf, parts, places in zip(bufs, laid.cut, laid.places, strict=True):
            if len(parts) == 1 and places[0].dtype == buf.dtype:
                found.append(reshaped(places[0], buf.shape))
            else:
                found.append(self._device.empty(Spec(buf.shape, buf.dtype)))
                copies += zip(windows(self._device, found[-1], parts), places, strict=True)
        return found, copies

    def copy(self, target: Buffer, source: Buffer) -> None:
        """Copy, and convert where the dtypes differ."""
        if target.dtype == source.dtype:
            write(self._device, target, source)
        else:
            expression = conversion(source.dtype, target.dtype)
            launch(self._device, spec_of(target), source, expression=expression, target=target)


def _memory(part: cl.Buffer, holder: Held) -> Any:
    memory = cl.Buffer.from_int_ptr(part.int_ptr, retain=True)
    memory.bucket = holder
    return memory


def _laid(memory: Any, part: Part, dtype: np.dtype) -> Buffer:
    return Buffer(memory, (part.count,), dtype, row_major((part.count,)))


def windows(device: Device, buf: Buffer, parts: Sequence[Part]) -> Iterator[Buffer]:
    """The parts of a buffer."""
    flat = reshaped(dense(device, buf), (buf.size,))
    for part in parts:
        yield window(flat, (part.count,), (part.start,), (1,))
