"""All-reduce over the devices of one host through memory of the host that all processes share.

Each process copies its arrays slot by slot into its own segment, and the other ranks' slots out of theirs. Each device
adds up in the order of the ranks, so that all get the same bits. Copies overlap with kernels: arrays are sent from the
last to the first, each as soon as it is ready, because the gradients of the last layers come first while the backward
pass computes others. The additions go to the device's main queue, since not all devices run kernels of two queues
concurrently.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import conversion, launch
from polyarr.backends.opencl.ranks.buckets import Buckets, Placement, Span
from polyarr.backends.opencl.runtime.commands import Mark
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, spec_of, window
from polyarr.core.backend import Reduce
from polyarr.core.spec import NARROW, Spec, float32

AHEAD = 2  # slots that are being sent while one is received
SLOTS = 2 * AHEAD  # of a segment: as many again may still be read by other ranks


class Piece(NamedTuple):
    """`nbytes` bytes of an array, from `start` on, that go to byte `at` of a slot."""

    memory: Any
    start: int
    at: int
    nbytes: int


class Share(NamedTuple):
    """The contents of one slot.

    Attributes:
        chunk, start, nbytes: Its place in a bucket.
        pieces: Where it comes from.
        mark: The queue mark after which all of it is ready.
        ends: The parts of the bucket that end with it.
    """

    chunk: int
    start: int
    nbytes: int
    pieces: list[Piece]
    mark: Mark
    ends: list[int]


class SharedMemoryReducer:
    """All-reduce through shared memory.

    Args:
        segments: The ranks' memory, as bytes.
        rank: The own rank.
        barrier: Waits until all ranks have called it.
    """

    def __init__(
        self, device: Device, buckets: Buckets, segments: Sequence[np.ndarray], rank: int, barrier: Callable[[], Any]
    ) -> None:
        self._device, self._buckets, self._rank, self._barrier = device, buckets, rank, barrier
        self._slot = len(segments[0]) // SLOTS // 8 * 8
        self._segments = [[s[i * self._slot : (i + 1) * self._slot] for i in range(SLOTS)] for s in segments]
        self._out = self._in = device.commands.queue
        if device.geometry.copies_beside:
            self._out, self._in = (cl.CommandQueue(device.context, device.cl_device) for _ in range(2))
            device.commands.is_marked = True
        self._last: list[cl.Event] = []
        self._kept = _pin(device, segments)

    def reduce(self, bufs: Sequence[Buffer], wire: np.dtype, reduction: str) -> list[Buffer]:
        """Return buffers of one dtype reduced over all ranks, which call it with the same shapes.

        `wire` is the dtype in which values travel.
        """
        if not any(b.size for b in bufs):
            return list(bufs)
        device = self._device
        device.faults.follow(bufs)
        with device.lock:
            backwards = bufs[::-1]
            others = [self._buckets.placed(backwards, wire) for _ in self._segments[1:]]
            found, copies = self._buckets.results(others[0], backwards)

            def finish() -> None:
                own = [self._converted(reshaped(dense(device, b), (b.size,)), wire) for b in backwards]
                marks = self._marks(own, max(placed.bucket.since for placed in others))
                device.commands.queue.flush()  # other ranks wait for it
                try:
                    self._exchange([*self._shares(own, others[0], marks)], own, others, reduction)
                except BaseException:
                    for queue in (self._out, self._in):
                        queue.finish()  # they access memory that may be freed now
                    raise
                for target, source in copies:
                    self._buckets.copy(target, source)

            device.commands.defer(finish)
        return found[::-1]

    def _converted(self, buf: Buffer, wire: np.dtype) -> Buffer:
        if buf.dtype == wire:
            return buf
        return launch(self._device, Spec(buf.shape, wire), buf, expression=conversion(buf.dtype, wire))

    def _marks(self, own: Sequence[Buffer], since: int) -> list[Mark]:
        """Return the marks after which each array is ready, and a bucket that was freed at mark `since` is unused."""
        found: list[Mark | None] = [getattr(buf.memory, "ready", None) for buf in own]
        ready = [mark for mark in found if mark is not None and mark.number > since]
        if len(ready) == len(found):
            return ready
        now = self._device.commands.mark()
        return [now if mark is None or mark.number <= since else mark for mark in found]

    def _shares(self, own: Sequence[Buffer], placed: Placement, marks: Sequence[Mark]) -> Iterator[Share]:
        """Yield the contents of the slots in order: the arrays as they lie in a bucket."""
        places, n = placed.bucket.places, 0
        share: Share | None = None
        for buf, parts, mark in zip(own, placed.cut, marks, strict=True):
            for part in parts:
                place, nbytes, done = places[n], part.size * buf.dtype.itemsize, 0
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
                if share:
                    share.ends.append(n)
                n += 1
        if share:
            yield share

    def _exchange(
        self, shares: list[Share], own: Sequence[Buffer], others: Sequence[Placement], reduction: str
    ) -> None:
        """Send all shares, receive the other ranks', and add them up in the first bucket."""
        cut = others[0].cut
        parts = [window(b, (p.size,), (p.start,), (1,)) for b, parts in zip(own, cut, strict=True) for p in parts]
        theirs = [[place for places in placed.places for place in places] for placed in others]
        for event in self._last:
            event.wait()
        self._barrier()  # all ranks have read what the previous sum left in the segments
        sent, came = [self._send(share, i) for i, share in enumerate(shares[:AHEAD])], list[list[cl.Event]]()
        for i, share in enumerate(shares):
            sent[i][-1].wait()
            if i >= AHEAD:
                came[i - AHEAD][-1].wait()
            self._barrier()  # all ranks have sent this slot, and read the one that is sent next
            came.append(self._receive(share, i % SLOTS, [placed.bucket.spans[share.chunk] for placed in others]))
            if i + AHEAD < len(shares):
                sent.append(self._send(shares[i + AHEAD], (i + AHEAD) % SLOTS))
            cl.enqueue_barrier(self._device.commands.queue, wait_for=came[i])
            for n in share.ends:
                held = [each[n] for each in theirs]
                self._add([*held[: self._rank], parts[n], *held[self._rank :]], held[0], reduction)
        self._last = [event for events in came[-AHEAD:] for event in events]
        with self._device.commands.beside(self._out):  # that queue is behind the kernels that computed the arrays
            self._device.faults.check()  # not earlier: the other ranks are done, too

    def _send(self, share: Share, slot: int) -> list[cl.Event]:
        """Copy a share to the own segment when it is ready. Dropping a returned event waits for it."""
        target, events = self._segments[self._rank][slot % SLOTS], []
        cl.enqueue_barrier(self._out, wait_for=[share.mark.event])
        for piece in share.pieces:
            bytes_ = target[piece.at : piece.at + piece.nbytes]
            events.append(
                cl.enqueue_copy(self._out, bytes_, piece.memory, src_offset=piece.start, is_blocking=False)
            )
        self._out.flush()
        return events

    def _receive(self, share: Share, slot: int, spans: Sequence[Span]) -> list[cl.Event]:
        """Copy the other ranks' shares to buckets. Dropping a returned event waits for it."""
        segments = [segment[slot][: share.nbytes] for rank, segment in enumerate(self._segments) if rank != self._rank]
        events = [
            cl.enqueue_copy(self._in, span.memory, segment, dst_offset=share.start, is_blocking=False)
            for segment, span in zip(segments, spans, strict=True)
        ]
        self._in.flush()
        return events

    def _add(self, held: Sequence[Buffer], target: Buffer, reduction: str) -> None:
        """Add up in the order of the ranks, at least in float32, and round once."""
        device, spec = self._device, spec_of(target)
        place: Buffer | None = target
        if target.dtype in NARROW and len(held) > 2:
            spec, place = Spec(target.shape, float32), None
            held = [launch(device, spec, buf) for buf in held]
        total, *rest = held
        for buf in rest[:-1]:
            total = launch(device, spec, total, buf, expression="x + y", target=place)
        divided = f"(x + y) / {len(held)}" if reduction == "mean" else "x + y"
        launch(device, spec_of(target), total, rest[-1], expression=divided, target=target)


def _pin(device: Device, segments: Sequence[np.ndarray]) -> list[Any]:
    """Pin the segments; GPU drivers copy them four times as fast while the result is kept."""
    if not device.geometry.pins_host:
        return []
    flags, both = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, cl.map_flags.READ | cl.map_flags.WRITE
    buffers = [cl.Buffer(device.context, flags, hostbuf=s) for s in segments]
    bytes_, access = np.dtype(np.uint8), cast("cl.map_flags", both)
    mapped = [cl.enqueue_map_buffer(device.queue, b, access, 0, (b.size,), bytes_)[0] for b in buffers]
    return [buffers, mapped]


def shared_memory_reduce(
    device: Device, segments: Sequence[np.ndarray], rank: int, barrier: Callable[[], Any]
) -> Reduce:
    """Return the function that all-reduces buffers of a device through shared memory."""
    return SharedMemoryReducer(device, Buckets(device), segments, rank, barrier).reduce
