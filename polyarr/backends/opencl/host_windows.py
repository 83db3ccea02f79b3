"""Sums of what several devices of one host hold, through windows: memory of the host that all processes see.

Each process copies a slot of its bucket to its own window, and the others' slots from theirs. Each device adds up, in
the order of the ranks, so that the bits are the same everywhere. While one slot comes in, the next goes out.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.buckets import Buckets, Span
from polyarr.backends.opencl.cuda import Chunk
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.elementwise import launch
from polyarr.backends.opencl.layout import Buffer
from polyarr.core.backend import Reduce
from polyarr.core.errors import DeviceMemoryError
from polyarr.core.spec import NARROW, Spec, float32

SLOTS = 2  # of a window: one for what goes out, one for what comes in


class Windows:
    """The windows of all ranks.

    windows  the ranks' memory, as bytes
    rank     which is our own
    meet     waits until all ranks have called it
    """

    def __init__(self, device: Device, windows: Sequence[np.ndarray], rank: int, meet: Callable[[], Any]) -> None:
        self._device, self._rank, self._meet = device, rank, meet
        self._slot = len(windows[0]) // SLOTS
        self._windows = [[w[i * self._slot : (i + 1) * self._slot] for i in range(SLOTS)] for w in windows]
        others = [r for r in range(len(windows)) if r != rank]
        self._others = dict(zip(others, device.allocate([self._slot] * len(others)), strict=True))
        self._out = cl.CommandQueue(device.context, device.cl_device)
        self._kept = _pinned(device, windows)

    def all_reduce(self, spans: Sequence[Span], dtype: np.dtype, reduction: str) -> None:
        """Reduce memory in its place."""
        self._device.synchronize()
        parts = [
            (chunk.buffer, start, min(self._slot, nbytes - start))
            for chunk, nbytes in spans
            for start in range(0, nbytes, self._slot)
        ]
        out = self._sent(parts[0], 0)
        taken = None
        for i, part in enumerate(parts):
            out.wait()
            if taken is not None:
                taken.wait()
            self._meet()  # all have sent this slot, and read the one before
            taken = self._taken(part, i % SLOTS, dtype, reduction)
            if i + 1 < len(parts):
                out = self._sent(parts[i + 1], (i + 1) % SLOTS)
        self._meet()  # the last slots of all are read: the next sum begins with the first

    def _sent(self, part: tuple[Any, int, int], slot: int) -> Any:
        """Copy a part to our own window."""
        buffer, start, nbytes = part
        target = self._windows[self._rank][slot][:nbytes]
        event = cl.enqueue_copy(self._out, target, buffer, src_offset=start, is_blocking=False)
        self._out.flush()
        return event

    def _taken(self, part: tuple[Any, int, int], slot: int, dtype: np.dtype, reduction: str) -> Any:
        """Copy the others' parts in, and put the sum in the part's place."""
        buffer, start, nbytes = part
        queue, shape = self._device.queue, (nbytes // dtype.itemsize,)
        for rank, memory in self._others.items():
            cl.enqueue_copy(queue, memory, self._windows[rank][slot][:nbytes], is_blocking=False)
        own = Buffer(buffer, shape, dtype, (1,), start // dtype.itemsize)
        held = [
            own if rank == self._rank else Buffer(self._others[rank], shape, dtype, (1,))
            for rank in range(len(self._windows))
        ]
        self._add(held, own, reduction)
        event = cl.enqueue_marker(queue)
        queue.flush()
        return event

    def _add(self, held: Sequence[Buffer], target: Buffer, reduction: str) -> None:
        device, wide = self._device, float32 if target.dtype in NARROW else target.dtype
        spec = Spec(target.shape, wide)
        total, *rest = [launch(device, spec, b) if wide != b.dtype else b for b in held]
        for b in rest:
            total = launch(device, spec, total, b, expression="x + y")
        count = len(held) if reduction == "mean" else 1
        launch(device, Spec(target.shape, target.dtype), total, count, expression="x / y", target=target)


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

    return Buckets(device, allocate, Windows(device, windows, rank, meet).all_reduce).reduce
