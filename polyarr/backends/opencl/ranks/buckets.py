"""Buckets: arrays side by side in a device's memory, so that one collective reduces them all.

The results are views of the bucket. It is reused when nobody holds any of them.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.copying.copy import dense, write
from polyarr.backends.opencl.elementwise.elementwise import conversion, launch
from polyarr.backends.opencl.runtime.commands import Commands
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.driver import ERRORS
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, row_major, spec_of, window
from polyarr.core.errors import DeviceMemoryError
from polyarr.core.spec import Spec

ALIGNMENT = 512  # bytes at which a part begins, as in the memory pool
MAX_CHUNK_BYTES = 448 << 20  # largest allocation, unless one part is larger


class Part(NamedTuple):
    """`size` elements of an array, from `start` on."""

    start: int
    size: int


class Place(NamedTuple):
    """The memory of a part, and where it begins in its chunk."""

    chunk: int
    start: int
    nbytes: int


class Span(NamedTuple):
    """The used bytes of a chunk, from its beginning on."""

    memory: Any
    nbytes: int


class Bucket:
    """Memory for parts of these sizes in bytes.

    Attributes:
        since: The number of queue marks when the bucket was given back.
    """

    since = 0

    def __init__(self, device: Device, sizes: Sequence[int]) -> None:
        self.places = places = _places(sizes)
        used = [0] * (places[-1].chunk + 1)
        for place in places:
            used[place.chunk] = place.start + place.nbytes
        try:
            chunks = [device.driver.allocate(nbytes) for nbytes in used]
        except ERRORS as error:
            raise DeviceMemoryError(f"all-reduce: no room for {sum(used):,} bytes on {device.name}") from error
        self.parts = [device.part(chunks[p.chunk], p.start, p.nbytes) for p in places]
        self.spans = [Span(chunk, nbytes) for chunk, nbytes in zip(chunks, used, strict=True)]


def _places(sizes: Sequence[int]) -> list[Place]:
    """Return places for parts one after the other, in chunks that OpenCL accepts."""
    places, chunk, end = [], 0, 0
    for size in sizes:
        nbytes = -(-size // ALIGNMENT) * ALIGNMENT
        if end and end + nbytes > MAX_CHUNK_BYTES:
            chunk, end = chunk + 1, 0
        places.append(Place(chunk, end, nbytes))
        end += nbytes
    return places


class BucketLease:
    """Shared by the arrays on a bucket: when the last one is freed, the bucket goes back."""

    __slots__ = ("_back", "_bucket", "_commands")

    def __init__(self, bucket: Bucket, back: deque, commands: Commands) -> None:
        self._bucket, self._back, self._commands = bucket, back, commands

    def __del__(self) -> None:
        self._bucket.since = self._commands.marks
        self._back.append(self._bucket)


class Placement(NamedTuple):
    """A bucket for arrays, the parts of each array, and their places as Buffers of one axis."""

    bucket: Bucket
    cut: list[list[Part]]
    places: list[list[Buffer]]


class Buckets:
    """The buckets of a device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: defaultdict[tuple[int, ...], deque[Bucket]] = defaultdict(deque)

    def placed(self, bufs: Sequence[Buffer], dtype: np.dtype) -> Placement:
        """Return a bucket with space for these arrays, not all empty, in dtype. The caller holds the device's lock."""
        most = min(MAX_CHUNK_BYTES, self._device.driver.largest) // dtype.itemsize
        cut = [[Part(i, min(most, b.size - i)) for i in range(0, b.size, most)] for b in bufs]
        sizes = tuple(part.size * dtype.itemsize for parts in cut for part in parts)
        free = self._free[sizes]
        bucket = free.popleft() if free else Bucket(self._device, sizes)
        holder = BucketLease(bucket, free, self._device.commands)
        memories = iter([self._device.driver.held(part, holder) for part in bucket.parts])
        return Placement(bucket, cut, [[_view_of(next(memories), part, dtype) for part in parts] for parts in cut])

    def put(self, placed: Placement, bufs: Sequence[Buffer]) -> None:
        """Copy arrays into the bucket, converted to its dtype."""
        for buf, parts, places in zip(bufs, placed.cut, placed.places, strict=True):
            for source, place in zip(part_views(self._device, buf, parts), places, strict=True):
                self.copy(place, source)

    def results(self, placed: Placement, bufs: Sequence[Buffer]) -> tuple[list[Buffer], list[tuple[Buffer, Buffer]]]:
        """Return arrays like bufs on the bucket, and the copies that are still to do.

        An array in one part that needs no conversion is a view of the bucket. The others are new arrays; for each of
        their parts, the list has a pair of target and source.
        """
        found, copies = list[Buffer](), list[tuple[Buffer, Buffer]]()
        for buf, parts, places in zip(bufs, placed.cut, placed.places, strict=True):
            if len(parts) == 1 and places[0].dtype == buf.dtype:
                found.append(reshaped(places[0], buf.shape))
            else:
                found.append(self._device.empty(Spec(buf.shape, buf.dtype)))
                copies += zip(part_views(self._device, found[-1], parts), places, strict=True)
        return found, copies

    def copy(self, target: Buffer, source: Buffer) -> None:
        """Copy, and convert if the dtypes differ."""
        if target.dtype == source.dtype:
            write(self._device, target, source)
        else:
            expression = conversion(source.dtype, target.dtype)
            launch(self._device, spec_of(target), source, expression=expression, target=target)


def _view_of(memory: Any, part: Part, dtype: np.dtype) -> Buffer:
    return Buffer(memory, (part.size,), dtype, row_major((part.size,)))


def part_views(device: Device, buf: Buffer, parts: Sequence[Part]) -> Iterator[Buffer]:
    """Yield the parts of a buffer."""
    flat = reshaped(dense(device, buf), (buf.size,))
    for part in parts:
        yield window(flat, (part.size,), (part.start,), (1,))
