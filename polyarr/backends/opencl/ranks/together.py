"""How a device reduces buffers together with those of other processes."""

import weakref
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from polyarr.backends.opencl.ranks.buckets import Buckets, Laid
from polyarr.backends.opencl.ranks.nccl import KINDS, Communicator, Nccl, load
from polyarr.backends.opencl.ranks.windows import through_windows
from polyarr.backends.opencl.runtime.cuda import Cuda, SharedPool
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.backend import Meeting, Reduce, Together
from polyarr.core.spec import float16, float32


def together_of(device: Device) -> Together:
    """How a device reduces buffers together with others."""
    windows, settle = partial(through_windows, device), device.commands.settle
    if not device.features.nvidia:
        return Together(windows=windows, settle=settle)
    return Together(partial(_prepared, device), windows, settle)


def _cuda_of(device: Device) -> Cuda:
    return device.pool.cuda if type(device.pool) is SharedPool else Cuda(device.context)


def _prepared(device: Device) -> Meeting:
    """Load what is needed.

    Errors:  BackendError if that is not here
    """
    nccl, cuda = Nccl(load()), _cuda_of(device)
    join = partial(_join, device, nccl, cuda)
    return Meeting(cuda.place, f"NCCL {nccl.version}", frozenset(KINDS), nccl.ticket, join)


def _join(device: Device, nccl: Nccl, cuda: Cuda, ticket: bytes, rank: int, size: int) -> Reduce:
    communicator = Communicator(nccl, cuda, ticket, rank, size)
    buckets = Buckets(device, cuda.allocate)
    weakref.finalize(buckets, communicator.end)  # when nobody reduces any more, or the process ends
    return Reduction(device, buckets, communicator).reduce


class Asked(NamedTuple):
    """What is to be reduced, in a bucket, and what is to be copied from there then."""

    bufs: Sequence[Buffer]
    laid: Laid
    wire: np.dtype
    reduction: str
    copies: list[tuple[Buffer, Buffer]]


class Reduction:
    """Reduces buffers by NCCL, all at once that were asked for since something was enqueued last."""

    def __init__(self, device: Device, buckets: Buckets, communicator: Communicator) -> None:
        self._device, self._buckets, self._communicator = device, buckets, communicator
        self._asked: list[Asked] = []

    def reduce(self, bufs: Sequence[Buffer], wire: np.dtype, reduction: str) -> list[Buffer]:
        """Reduce buffers in a bucket, of the dtype that travels."""
        if not any(b.size for b in bufs):
            return list(bufs)
        if wire == float16:
            wire = float32  # NCCL computes in what travels: sums overflow there, and small means lose bits
        self._device.faults.follow(bufs)
        with self._device.lock:
            laid = self._buckets.laid(bufs, wire)
            found, copies = self._buckets.results(laid, bufs)
            self._asked.append(Asked(bufs, laid, wire, reduction, copies))
            if len(self._asked) == 1:
                self._device.commands.put_off(self._finish)
        return found

    def _finish(self) -> None:
        asked, self._asked = self._asked, []
        try:
            for each in asked:
                self._buckets.put(each.laid, each.bufs)
            self._device.synchronize()
        finally:  # what is wrong here is no reason to leave the others waiting
            for each in asked:
                self._communicator.all_reduce(each.laid.bucket.spans, each.wire, each.reduction)
            self._communicator.wait()
        for each in asked:
            for target, source in each.copies:
                self._buckets.copy(target, source)
