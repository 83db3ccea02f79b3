"""Arrays of all ranks brought together in the memory of the host.

Each rank adds up one share of what all have, in the order of the ranks and in float32 at least; then all give each
other what they have added up. So the result is the same on every rank and every time, whichever MPI it is, and as
little goes over the wire as in a ring. In bfloat16 on the wire a number is rounded twice: before the sum, and after it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from polyarr import ops
from polyarr.core.array import Array, from_numpy
from polyarr.core.spec import NARROW, float32
from polyarr.distributed.link import Link

CHUNK = 1 << 22  # bytes that are on the wire at a time
COMBINE: dict[str, Callable] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}


class HostTransport:
    """All through NumPy memory and MPI: what works everywhere."""

    name = "MPI, through host memory"

    def __init__(self, link: Link, chunk: int = CHUNK) -> None:
        self.link, self.chunk = link, chunk
        self._kept: dict[Any, np.ndarray] = {}  # memory that a step uses as the one before did

    def all_reduce(self, leaves: Sequence[Array], op: str, wire: np.dtype) -> list[Array]:
        """The leaves, of one dtype and one backend, as all ranks' together, sent as dtype `wire`."""
        dtype, total = leaves[0].dtype, sum(a.size for a in leaves)
        bucket = self._memory("bucket", total, dtype)
        step = max(1, self.chunk // dtype.itemsize)
        copied, there = _copied(leaves, bucket, step), 0
        for start in range(0, total, step):
            stop = min(start + step, total)
            while there < stop:
                there = next(copied)
            exchange = _Exchange(self, bucket[start:stop], op, wire)
            while there < min(stop + step, total):  # the next chunk's copy, while this one is on its way
                there = next(copied)
            exchange.finish()
        return _uploaded(bucket, leaves, [a.shape for a in leaves])

    def broadcast(self, leaves: Sequence[Array], root: int) -> list[Array]:
        """The leaves as rank root has them."""
        bucket = self._memory("bucket", sum(a.size for a in leaves), leaves[0].dtype)
        if self.link.rank == root:
            _copy(leaves, bucket)
        self.link.spread(raw(bucket), root)
        return list(leaves) if self.link.rank == root else _uploaded(bucket, leaves, [a.shape for a in leaves])

    def all_gather(self, leaves: Sequence[Array]) -> list[Array]:
        """The leaves of all ranks, those of each one after the other along the first axis."""
        total, size = sum(a.size for a in leaves), self.link.size
        own = self._memory("bucket", total, leaves[0].dtype)
        _copy(leaves, own)
        parts = self._memory("parts", size * total, own.dtype).reshape(size, total)
        self.link.wait(self.link.comm.Iallgather(raw(own), raw(parts)))
        ends = np.cumsum([a.size for a in leaves])
        return [
            from_numpy(parts[:, end - a.size : end].reshape(size * a.shape[0], *a.shape[1:]), a.backend)
            for a, end in zip(leaves, ends, strict=True)
        ]

    def _memory(self, use: str, count: int, dtype: np.dtype) -> np.ndarray:
        """Memory for so many numbers, kept from call to call: new memory costs as much as a copy."""
        kept = self._kept.get((use, dtype))
        if kept is None or len(kept) < count:
            kept = self._kept[use, dtype] = np.empty(count, dtype)
        return kept[:count]


class _Exchange:
    """A chunk on its way: its shares are sent to who adds them up; then all give back what they have added up."""

    def __init__(self, host: HostTransport, chunk: np.ndarray, op: str, wire: np.dtype) -> None:
        self.link, self.chunk, self.op = host.link, chunk, op
        size, rank = self.link.size, self.link.rank
        ends = [len(chunk) * r // size for r in range(size + 1)]
        self.starts, self.counts = ends[:-1], [ends[r + 1] - ends[r] for r in range(size)]
        self.sent = chunk
        if wire != chunk.dtype:
            self.sent = host._memory("sent", len(chunk), wire)
            self.sent[:] = chunk
        own = self.counts[rank]
        self.received = host._memory("received", own * size, wire).reshape(size, own)
        nbytes = own * wire.itemsize
        into = (raw(self.received), [nbytes] * size, [nbytes * r for r in range(size)])
        self.request = self.link.comm.Ialltoallv((*self._shares(), BYTE), (*into, BYTE))

    def _shares(self) -> tuple:
        itemsize = self.sent.dtype.itemsize
        return raw(self.sent), [n * itemsize for n in self.counts], [s * itemsize for s in self.starts]

    def finish(self) -> None:
        """Wait for it; the chunk is all ranks' together then."""
        self.link.wait(self.request)
        narrow = self.received.dtype in NARROW
        parts = self.received.astype(float32) if narrow else self.received
        total = parts[0]
        with np.errstate(all="ignore"):  # infinity is a result
            for part in parts[1:]:
                COMBINE[self.op](total, part, out=total)
            if self.op == "mean":
                total /= self.link.size
            own = total.astype(self.sent.dtype) if narrow else total
        self.link.wait(self.link.comm.Iallgatherv((raw(own), BYTE), (*self._shares(), BYTE)))
        if self.sent is not self.chunk:
            self.chunk[:] = self.sent


BYTE = "B"  # as MPI calls it


def raw(memory: np.ndarray) -> np.ndarray:
    """The bytes of contiguous memory."""
    return memory.reshape(-1).view(np.uint8)


def _copied(leaves: Sequence[Array], bucket: np.ndarray, most: int) -> Iterator[int]:
    """Copy the leaves into the bucket, at most so many numbers at once, and say each time how much of it is there."""
    there = 0
    for a in leaves:
        flat = ops.reshape(a, shape=(a.size,))
        for start in range(0, a.size, most):
            piece = (flat if a.size <= most else flat[start : start + most]).numpy()
            bucket[there : there + piece.size] = piece
            there += piece.size
            yield there


def _copy(leaves: Sequence[Array], bucket: np.ndarray) -> None:
    for _ in _copied(leaves, bucket, max(1, len(bucket))):
        pass


def _uploaded(bucket: np.ndarray, leaves: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The bucket's numbers as arrays of these shapes, where the leaves are."""
    ends = np.cumsum([a.size for a in leaves])
    return [
        from_numpy(bucket[end - a.size : end].reshape(shape), a.backend)
        for a, end, shape in zip(leaves, ends, shapes, strict=True)
    ]
