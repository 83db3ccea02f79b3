"""Sums over ranks in the memory of the host.

Each rank adds up one share of what all have, in the order of the ranks and in float32 at least; then all give each
other what they have added up. So the result is the same on every rank and every time, whichever MPI it is, and as
little goes over the wire as in a ring. In bfloat16 on the wire a number is rounded twice: before the sum, and after it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from polyarr.core.array import Array, from_numpy
from polyarr.core.spec import NARROW, float32
from polyarr.distributed.link import Link

CHUNK = 1 << 22  # bytes that are on the wire at a time
COMBINE: dict[str, Callable] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}


class HostTransport:
    """All reductions through NumPy memory and MPI: what works everywhere."""

    name = "host memory, MPI"

    def __init__(self, link: Link, chunk: int = CHUNK) -> None:
        self.link, self.chunk = link, chunk

    def all_reduce(self, leaves: Sequence[Array], op: str, wire: np.dtype) -> list[Array]:
        """The leaves, of one dtype and one backend, as all ranks' together, sent as dtype `wire`."""
        dtype, sizes = leaves[0].dtype, [a.size for a in leaves]
        bucket = np.empty(sum(sizes), dtype)
        copied = self._filled(leaves, bucket)
        step = max(1, self.chunk // dtype.itemsize)
        starts = range(0, len(bucket), step)
        done = next(copied, 0)
        for start in starts:
            stop = min(start + step, len(bucket))
            while done < stop:
                done = next(copied)
            pending = _Exchange(self.link, bucket[start:stop], op, wire)
            while done < min(stop + step, len(bucket)):  # the next chunk, under the way of this one
                done = next(copied)
            pending.finish()
        ends = np.cumsum(sizes)
        return [
            from_numpy(bucket[end - a.size : end].reshape(a.shape), a.backend)
            for a, end in zip(leaves, ends, strict=True)
        ]

    def _filled(self, leaves: Sequence[Array], bucket: np.ndarray) -> Iterator[int]:
        """Copy leaf after leaf into the bucket, and say each time how much of it is there."""
        done = 0
        for a in leaves:
            bucket[done : done + a.size] = a.numpy().reshape(-1)
            done += a.size
            yield done

    def broadcast(self, leaves: Sequence[Array], root: int) -> list[Array]:
        """The leaves as root has them."""
        return [self._broadcast(a, root) for a in leaves]

    def _broadcast(self, a: Array, root: int) -> Array:
        host = a.numpy() if self.link.rank == root else np.empty(a.shape, a.dtype)
        self.link.spread(host.reshape(-1), root)
        return a if self.link.rank == root else from_numpy(host, a.backend)


class _Exchange:
    """A chunk on its way: the shares of all are sent when it begins, added up and given back when it finishes."""

    def __init__(self, link: Link, chunk: np.ndarray, op: str, wire: np.dtype) -> None:
        self.link, self.chunk, self.op = link, chunk, op
        share = -(-len(chunk) // link.size)
        self.sent = np.zeros((link.size, share), wire)
        self.sent.reshape(-1)[: len(chunk)] = chunk
        self.received = np.empty_like(self.sent)
        self.request = link.comm.Ialltoall(_bytes(self.sent), _bytes(self.received))

    def finish(self) -> None:
        self.link.wait(self.request)
        wide = self.received.astype(float32) if self.received.dtype in NARROW else self.received
        total = wide[0].copy()
        for part in wide[1:]:
            COMBINE[self.op](total, part, out=total)
        if self.op == "mean":
            total /= self.link.size
        self.link.wait(self.link.comm.Iallgather(_bytes(total.astype(self.sent.dtype)), _bytes(self.sent)))
        self.chunk[:] = self.sent.reshape(-1)[: len(self.chunk)]


def _bytes(memory: np.ndarray) -> Any:
    return memory.view(np.uint8).reshape(-1)
