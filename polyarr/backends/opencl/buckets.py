"""Buckets: arrays side by side in a device's memory, where they are reduced all at once.

The results are the bucket itself: arrays on parts of it. It is used again when nobody holds any of them.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.copy import dense, write
from polyarr.backends.opencl.cuda import GRAIN, MOST, Chunk
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.elementwise import conversion, launch
from polyarr.backends.opencl.layout import Buffer, reshaped, row_major, spec_of, window
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
    """Memory for parts of so many bytes each."""

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


AllReduce = Callable[[Sequence[Span], np.dtype, str], None]


class Held:
    """What the arrays on a bucket have in common: when the last is gone, the bucket goes back."""

    __slots__ = ("_back", "_bucket")

    def __init__(self, bucket: Bucket, back: deque) -> None:
        self._bucket, self._back = bucket, back

    def __del__(self) -> None:
        self._back.append(self._bucket)


class Buckets:
    """The buckets of a device.

    allocate    bytes -> memory
    all_reduce  (spans, dtype, "sum" or "mean") reduces them in their place: what is enqueued after it finds the sums
    """

    def __init__(self, device: Device, allocate: Callable[[int], Chunk], all_reduce: AllReduce) -> None:
        self._device, self._allocate, self._all_reduce = device, allocate, all_reduce
        self._free: defaultdict[tuple[int, ...], deque[Bucket]] = defaultdict(deque)

    def reduce(self, bufs: Sequence[Buffer], wire: np.dtype, reduction: str) -> list[Buffer]:
        """Buffers of one dtype reduced over all processes, which are as many arrays of the same shapes there.

        wire is the dtype that travels, and in which the bucket is.
        """
        most = MOST // wire.itemsize
        cut = [[Part(i, min(most, b.size - i)) for i in range(0, b.size, most)] for b in bufs]
        sizes = tuple(part.count * wire.itemsize for parts in cut for part in parts)
        if not sizes:
            return list(bufs)
        self._device.faults.follow(bufs)
        with self._device.lock:
            bucket = self._bucket(sizes)
            holder = Held(bucket, self._free[sizes])
            memories = iter([_memory(part, holder) for part in bucket.parts])
            laid = [[_laid(next(memories), part, wire) for part in parts] for parts in cut]
            for buf, parts, places in zip(bufs, cut, laid, strict=True):
                for source, place in zip(_windows(self._device, buf, parts), places, strict=True):
                    self._put(place, source)
            self._all_reduce(bucket.spans, wire, reduction)
            return [self._taken(buf, parts, places) for buf, parts, places in zip(bufs, cut, laid, strict=True)]

    def _bucket(self, sizes: tuple[int, ...]) -> Bucket:
        free = self._free[sizes]
        return free.popleft() if free else Bucket(self._allocate, sizes)

    def _put(self, target: Buffer, source: Buffer) -> None:
        """Copy, and convert where the dtypes differ."""
        if target.dtype == source.dtype:
            write(self._device, target, source)
        else:
            expression = conversion(source.dtype, target.dtype)
            launch(self._device, spec_of(target), source, expression=expression, target=target)

    def _taken(self, buf: Buffer, parts: Sequence[Part], places: Sequence[Buffer]) -> Buffer:
        """The result in buf's place: that in the bucket, if it is whole and needs no conversion."""
        if len(parts) == 1 and places[0].dtype == buf.dtype:
            return reshaped(places[0], buf.shape)
        result = self._device.empty(Spec(buf.shape, buf.dtype))
        for target, place in zip(_windows(self._device, result, parts), places, strict=True):
            self._put(target, place)
        return result


def _memory(part: cl.Buffer, holder: Held) -> Any:
    memory = cl.Buffer.from_int_ptr(part.int_ptr, retain=True)
    memory.bucket = holder
    return memory


def _laid(memory: Any, part: Part, dtype: np.dtype) -> Buffer:
    return Buffer(memory, (part.count,), dtype, row_major((part.count,)))


def _windows(device: Device, buf: Buffer, parts: Sequence[Part]) -> Iterator[Buffer]:
    flat = reshaped(dense(device, buf), (buf.size,))
    for part in parts:
        yield window(flat, (part.count,), (part.start,), (1,))
