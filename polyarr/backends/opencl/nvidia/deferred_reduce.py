"""All-reduce by NCCL over the devices of several processes, deferred until something else is enqueued."""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import numpy as np

from polyarr.backends.opencl.nvidia.driver import CudaDriver
from polyarr.backends.opencl.nvidia.nccl import KINDS, Communicator, Nccl, load
from polyarr.backends.opencl.ranks.buckets import Buckets, Placement
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.backend import Reduce, Rendezvous
from polyarr.core.spec import float16, float32


def communicator_of(device: Device) -> Callable[[], Rendezvous] | None:
    """Return how processes meet to reduce on their devices; None on devices that do not use CUDA's driver."""
    return partial(_prepared, device) if type(device.driver) is CudaDriver else None


def _prepared(device: Device) -> Rendezvous:
    """Load the library and the driver.

    Raises:
        BackendError: One of them is missing.
    """
    nccl, cuda = Nccl(load()), cast("CudaDriver", device.driver).cuda
    join = partial(_join, device, nccl)
    return Rendezvous(cuda.place, f"NCCL {nccl.version}", frozenset(KINDS), nccl.unique_id, join)


def _join(device: Device, nccl: Nccl, unique_id: bytes, rank: int, size: int) -> Reduce:
    communicator = Communicator(nccl, cast("CudaDriver", device.driver).cuda, unique_id, rank, size)
    buckets = Buckets(device)
    weakref.finalize(buckets, communicator.end)  # when no reduction is possible any more, or the process ends
    return Reduction(device, buckets, communicator).reduce


class DeferredReduce(NamedTuple):
    """A deferred all-reduce: its inputs, their bucket, and the copies to make from it afterwards."""

    bufs: Sequence[Buffer]
    placed: Placement
    wire: np.dtype
    reduction: str
    copies: list[tuple[Buffer, Buffer]]


class Reduction:
    """All-reduces buffers by NCCL. Calls are deferred and run together, before anything else is enqueued."""

    def __init__(self, device: Device, buckets: Buckets, communicator: Communicator) -> None:
        self._device, self._buckets, self._communicator = device, buckets, communicator
        self._deferred: list[DeferredReduce] = []

    def reduce(self, bufs: Sequence[Buffer], wire: np.dtype, reduction: str) -> list[Buffer]:
        """Return buffers that hold the reduction; `wire` is the dtype in which values travel."""
        if not any(b.size for b in bufs):
            return list(bufs)
        if wire == float16:
            wire = float32  # NCCL adds in the dtype that travels: float16 sums overflow, and small means lose bits
        self._device.faults.follow(bufs)
        with self._device.lock:
            placed = self._buckets.placed(bufs, wire)
            found, copies = self._buckets.results(placed, bufs)
            self._deferred.append(DeferredReduce(bufs, placed, wire, reduction, copies))
            if len(self._deferred) == 1:
                self._device.commands.defer(self._finish)
        return found

    def _finish(self) -> None:
        deferred, self._deferred = self._deferred, []
        try:
            for each in deferred:
                self._buckets.put(each.placed, each.bufs)
            self._device.synchronize()
        finally:  # an error here must not leave the other ranks waiting
            for each in deferred:
                self._communicator.all_reduce(each.placed.bucket.spans, each.wire, each.reduction)
            self._communicator.wait()
        for each in deferred:
            for target, source in each.copies:
                self._buckets.copy(target, source)
