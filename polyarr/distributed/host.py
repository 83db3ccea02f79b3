"""Collectives through host memory and MPI.

Each rank sums one share of the numbers of all ranks, in the order of the ranks and at least in float32; then all ranks
exchange the sums. The result is identical on every rank and in every run, with any MPI, and the traffic is that of a
ring all-reduce. With bfloat16 on the wire a number is rounded twice: before the sum and after it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from polyarr import ops
from polyarr.core.array import Array, from_numpy
from polyarr.core.spec import NARROW, float32
from polyarr.distributed.link import Link

CHUNK_BYTES = 1 << 22  # in flight at a time
COMBINE: dict[str, Callable] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}


class HostTransport:
    """Collectives on arrays of one dtype and one backend, through NumPy memory and MPI; works everywhere."""

    name = "MPI, through host memory"

    def __init__(self, link: Link, chunk: int = CHUNK_BYTES) -> None:
        self.link, self.chunk = link, chunk
        self._kept: dict[Any, np.ndarray] = {}  # buffers reused by every step

    def all_reduce(self, leaves: Sequence[Array], op: str, wire: np.dtype) -> list[Array]:
        """Return the leaves, of one dtype and one backend, reduced over all ranks; sent as dtype `wire`."""
        dtype, total = leaves[0].dtype, sum(a.size for a in leaves)
        bucket = self._memory("bucket", total, dtype)
        step = max(1, self.chunk // dtype.itemsize)
        copied, copied_count = _copied(leaves, bucket, step), 0
        for start in range(0, total, step):
            stop = min(start + step, total)
            while copied_count < stop:
                copied_count = next(copied)
            exchange = _Exchange(self, bucket[start:stop], op, wire)
            while copied_count < min(stop + step, total):  # copy the next chunk while this one is in flight
                copied_count = next(copied)
            exchange.finish()
        return _uploaded(bucket, leaves, [a.shape for a in leaves])

    def broadcast(self, leaves: Sequence[Array], root: int) -> list[Array]:
        """Return the leaves of rank `root`."""
        bucket = self._memory("bucket", sum(a.size for a in leaves), leaves[0].dtype)
        if self.link.rank == root:
            _copy(leaves, bucket)
        self.link.spread(raw(bucket), root)
        return list(leaves) if self.link.rank == root else _uploaded(bucket, leaves, [a.shape for a in leaves])

    def all_gather(self, leaves: Sequence[Array]) -> list[Array]:
        """Return the leaves of all ranks, concatenated along the first axis in the order of the ranks."""
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
        """Return memory for `count` numbers, reused from call to call: allocation costs as much as a copy."""
        kept = self._kept.get((use, dtype))
        if kept is None or len(kept) < count:
            kept = self._kept[use, dtype] = np.empty(count, dtype)
        return kept[:count]


class _Exchange:
    """All-reduce of one chunk in flight: each share goes to the rank that sums it, then the sums go to all ranks."""

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
        """Wait for the exchange; the chunk then holds the reduced numbers."""
        self.link.wait(self.request)
        narrow = self.received.dtype in NARROW
        parts = self.received.astype(float32) if narrow else self.received
        total = parts[0]
        with np.errstate(all="ignore"):  # overflow gives infinity without a warning
            for part in parts[1:]:
                COMBINE[self.op](total, part, out=total)
            if self.op == "mean":
                total /= self.link.size
            own = total.astype(self.sent.dtype) if narrow else total
        self.link.wait(self.link.comm.Iallgatherv((raw(own), BYTE), (*self._shares(), BYTE)))
        if self.sent is not self.chunk:
            self.chunk[:] = self.sent


BYTE = "B"  # MPI datatype


def raw(memory: np.ndarray) -> np.ndarray:
    """Return contiguous memory as bytes."""
    return memory.reshape(-1).view(np.uint8)


def _copied(leaves: Sequence[Array], bucket: np.ndarray, most: int) -> Iterator[int]:
    """Copy the leaves into the bucket, at most `most` numbers at a time; yield the number copied so far."""
    copied_count = 0
    for a in leaves:
        flat = ops.reshape(a, shape=(a.size,))
        for start in range(0, a.size, most):
            piece = (flat if a.size <= most else flat[start : start + most]).numpy()
            bucket[copied_count : copied_count + piece.size] = piece
            copied_count += piece.size
            yield copied_count


def _copy(leaves: Sequence[Array], bucket: np.ndarray) -> None:
    for _ in _copied(leaves, bucket, max(1, len(bucket))):
        pass


def _uploaded(bucket: np.ndarray, leaves: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return the bucket's numbers as arrays of these shapes on the backends of the leaves."""
    ends = np.cumsum([a.size for a in leaves])
    return [
        from_numpy(bucket[end - a.size : end].reshape(shape), a.backend)
        for a, end, shape in zip(leaves, ends, shapes, strict=True)
    ]
