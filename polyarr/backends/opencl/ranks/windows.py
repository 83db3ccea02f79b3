"""Sums of what several devices of one host hold, through windows: memory of the host that all processes see.

Each process copies its arrays to its own window, slot by slot, and the others' slots from theirs. Each device adds up,
in the order of the ranks, so that the bits are the same everywhere. Copies go beside what the device computes: arrays
go out from the last to the first, each as soon as it is there. Of gradients those of the last layers come first, while
the backward pass makes others. Kernels of two queues do not run side by side everywhere: sums go to the device's queue.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.elementwise import conversion, launch
from polyarr.backends.opencl.ranks.buckets import Buckets, Laid, Span
from polyarr.backends.opencl.runtime.commands import Mark
from polyarr.backends.opencl.runtime.cuda import Chunk
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, spec_of, window
from polyarr.core.backend import Reduce
from polyarr.core.errors import DeviceMemoryError
from polyarr.core.spec import NARROW, Spec, float32

AHEAD = 2  # slots that are on their way out while one comes in
SLOTS = 2 * AHEAD  # of a window: those, and as many that others still read


class Piece(NamedTuple):
    """Bytes of an array, from `start` on, that go to byte `at` of a slot."""

    memory: Any
    start: int
    at: int
    nbytes: int


class Share(NamedTuple):
    """What goes through a slot at once.

    chunk, start, nbytes  its place in a bucket
    pieces                where it comes from
    mark                  behind which all of it is there
    ends                  which parts of the bucket end with it
    """

    chunk: int
    start: int
    nbytes: int
    pieces: list[Piece]
    mark: Mark
    ends: list[int]


class Windows:
    """The windows of all ranks.

    windows  the ranks' memory, as bytes
    rank     which is our own
    meet     waits until all ranks have called it
    """

    def __init__(
        self, device: Device, buckets: Buckets, windows: Sequence[np.ndarray], rank: int, meet: Callable[[], Any]
    ) -> None:
        self._device, self._buckets, self._rank, self._meet = device, buckets, rank, meet
        self._slot = len(windows[0]) // SLOTS // 8 * 8
        self._windows = [[w[i * self._slot : (i + 1) * self._slot] for i in range(SLOTS)] for w in windows]
        self._out = self._in = device.commands.queue
        if device.geometry.copies_beside:
            self._out, self._in = (cl.CommandQueue(device.context, device.cl_device) for _ in range(2))
            device.commands.is_marked = True
        self._last: list[cl.Event] = []
        self._kept = _pinned(device, windows)

    def reduce(self, bufs: Sequence[Buffer], wire: np.dtype, reduction: str) -> list[Buffer]:
        """Buffers of one dtype reduced over all processes, which are as many arrays of the same shapes there.

        wire is the dtype that travels.
        """
        if not any(b.size for b in bufs):
            return list(bufs)
        device = self._device
        device.faults.follow(bufs)
        with device.lock:
            backwards = bufs[::-1]
            others = [self._buckets.laid(backwards, wire) for _ in self._windows[1:]]
            found, copies = self._buckets.results(others[0], backwards)

            def finish() -> None:
                own = [self._converted(reshaped(dense(device, b), (b.size,)), wire) for b in backwards]
                marks = self._marks(own, max(laid.bucket.since for laid in others))
                device.commands.queue.flush()  # what others wait for must be on its way
                try:
                    self._exchange([*self._shares(own, others[0], marks)], own, others, reduction)
                except BaseException:
                    for queue in (self._out, self._in):
                        queue.finish()  # they read and write what nobody may hold any more
                    raise
                for target, source in copies:
                    self._buckets.copy(target, source)

            device.commands.put_off(finish)
        return found[::-1]

    def _converted(self, buf: Buffer, wire: np.dtype) -> Buffer:
        if buf.dtype == wire:
            return buf
        return launch(self._device, Spec(buf.shape, wire), buf, expression=conversion(buf.dtype, wire))

    def _marks(self, own: Sequence[Buffer], since: int) -> list[Mark]:
        """Behind which each array is there, and nobody computes any more with a bucket that was free since then."""
        found = [getattr(buf.memory, "ready", None) for buf in own]
        if all(mark is not None and mark.number > since for mark in found):
            return found
        now = self._device.commands.mark()
        return [now if mark is None or mark.number <= since else mark for mark in found]

    def _shares(self, own: Sequence[Buffer], laid: Laid, marks: Sequence[Mark]) -> Iterator[Share]:
        """What goes through the slots, one after the other: the arrays as they lie in a bucket."""
        places, n, share = laid.bucket.places, 0, None
        for buf, parts, mark in zip(own, laid.cut, marks, strict=True):
            for part in parts:
                place, nbytes, done = places[n], part.count * buf.dtype.itemsize, 0
                while done < nbytes:
                    start = place.start + done
                    if share and (share.chunk != place.chunk or start - share.start >= self._slot):
                        yield share
                        share = None
                    share = share or Share(place.chunk, start, 0, [], mark, [])
                    at = start - share.start
                    size = min(nbytes - done, self._slot - at)
                    share.pieces.append(Piece(buf.memory, part.start * buf.dtype.itemsize + done, at, size))
                    latest = max(share.mark, mark, key=lambda mark: mark.number)
                    share, done = share._replace(nbytes=at + size, mark=latest), done + size
                share.ends.append(n)
                n += 1
        yield share

    def _exchange(self, shares: list[Share], own: Sequence[Buffer], others: Sequence[Laid], reduction: str) -> None:
        """Send all shares, take the others', and have them added up in the first bucket."""
        cut = others[0].cut
        parts = [window(b, (p.count,), (p.start,), (1,)) for b, parts in zip(own, cut, strict=True) for p in parts]
        theirs = [[place for places in laid.places for place in places] for laid in others]
        for event in self._last:
            event.wait()
        self._meet()  # all have read what the sum before this one left in the windows
        sent, came = [self._sent(share, i) for i, share in enumerate(shares[:AHEAD])], list[list[cl.Event]]()
        for i, share in enumerate(shares):
            sent[i][-1].wait()
            if i >= AHEAD:
                came[i - AHEAD][-1].wait()
            self._meet()  # all have sent this slot, and read that into which the next one goes
            came.append(self._taken(share, i % SLOTS, [laid.bucket.spans[share.chunk] for laid in others]))
            if i + AHEAD < len(shares):
                sent.append(self._sent(shares[i + AHEAD], (i + AHEAD) % SLOTS))
            cl.enqueue_barrier(self._device.commands.queue, wait_for=came[i])
            for n in share.ends:
                held = [each[n] for each in theirs]
                self._add([*held[: self._rank], parts[n], *held[self._rank :]], held[0], reduction)
        self._last = [event for events in came[-AHEAD:] for event in events]
        with self._device.commands.beside(self._out):  # which is behind what the arrays were computed by
            self._device.faults.check()  # only now: the others are through with it, too

    def _sent(self, share: Share, slot: int) -> list[cl.Event]:
        """Copy a share to our own window, when it is there. The events: whoever drops one waits for it."""
        target, events = self._windows[self._rank][slot % SLOTS], []
        cl.enqueue_barrier(self._out, wait_for=[share.mark.event])
        for piece in share.pieces:
            bytes_ = target[piece.at : piece.at + piece.nbytes]
            events.append(
                cl.enqueue_copy(self._out, bytes_, piece.memory, src_offset=piece.start, is_blocking=False)
            )
        self._out.flush()
        return events

    def _taken(self, share: Share, slot: int, spans: Sequence[Span]) -> list[cl.Event]:
        """Copy the others' shares to buckets. The events, as those of _sent."""
        windows = [w[slot][: share.nbytes] for rank, w in enumerate(self._windows) if rank != self._rank]
        events = [
            cl.enqueue_copy(self._in, span.chunk.buffer, w, dst_offset=share.start, is_blocking=False)
            for w, span in zip(windows, spans, strict=True)
        ]
        self._in.flush()
        return events

    def _add(self, held: Sequence[Buffer], target: Buffer, reduction: str) -> None:
        """Add up in the order of the ranks, in float32 at least, and round once."""
        device, spec, place = self._device, spec_of(target), target
        if target.dtype in NARROW and len(held) > 2:
            spec, place = Spec(target.shape, float32), None
            held = [launch(device, spec, buf) for buf in held]
        total, *rest = held
        for buf in rest[:-1]:
            total = launch(device, spec, total, buf, expression="x + y", target=place)
        divided = f"(x + y) / {len(held)}" if reduction == "mean" else "x + y"
        launch(device, spec_of(target), total, rest[-1], expression=divided, target=target)


def _pinned(device: Device, windows: Sequence[np.ndarray]) -> list[Any]:
    """What has drivers of GPUs copy windows at their best, as long as it is kept; otherwise at a quarter of it."""
    if not device.geometry.pins_host:
        return []
    flags, both = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, cl.map_flags.READ | cl.map_flags.WRITE
    buffers = [cl.Buffer(device.context, flags, hostbuf=w) for w in windows]
    mapped = [cl.enqueue_map_buffer(device.queue, b, both, 0, (b.size,), np.uint8)[0] for b in buffers]
    return [buffers, mapped]


def through_windows(device: Device, windows: Sequence[np.ndarray], rank: int, meet: Callable[[], Any]) -> Reduce:
    """The function that reduces buffers of a device and of others, through windows."""

    def allocate(nbytes: int) -> Chunk:
        try:
            return Chunk(cl.Buffer(device.context, cl.mem_flags.READ_WRITE, nbytes), 0, ExitStack())
        except cl.Error as error:
            raise DeviceMemoryError(f"{device.name}: no room for {nbytes:,} bytes of a bucket: {error}") from error

    return Windows(device, Buckets(device, allocate), windows, rank, meet).reduce
