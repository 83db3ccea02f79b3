"""How a device reduces buffers together with those of other processes."""

import weakref
from collections.abc import Sequence
from functools import partial

import numpy as np

from polyarr.backends.opencl.buckets import Buckets
from polyarr.backends.opencl.cuda import Cuda, SharedPool
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.windows import through_windows
from polyarr.backends.opencl.layout import Buffer
from polyarr.backends.opencl.nccl import KINDS, Communicator, Nccl, load
from polyarr.core.backend import Meeting, Reduce, Together
from polyarr.core.spec import float16, float32


def together_of(device: Device) -> Together:
    """How a device reduces buffers together with others."""
    meeting = partial(_prepared, device) if device.features.nvidia else None
    return Together(meeting, partial(through_windows, device), device.commands.settle)


def _prepared(device: Device) -> Meeting:
    """Load what is needed.

    Errors:  BackendError if that is not here
    """
    nccl, cuda = Nccl(load()), device.pool.cuda if type(device.pool) is SharedPool else Cuda(device.context)
    join = partial(_join, device, nccl, cuda)
    return Meeting(cuda.place, f"NCCL {nccl.version}", frozenset(KINDS), nccl.ticket, join)


def _join(device: Device, nccl: Nccl, cuda: Cuda, ticket: bytes, rank: int, size: int) -> Reduce:
    communicator = Communicator(nccl, cuda, ticket, rank, size)
    buckets = Buckets(device, cuda.allocate)
    weakref.finalize(buckets, communicator.end)  # when nobody reduces any more, or the process ends
    return partial(_reduce, device, buckets, communicator)


def _reduce(
    device: Device, buckets: Buckets, communicator: Communicator, bufs: Sequence[Buffer], wire: np.dtype, reduction: str
) -> list[Buffer]:
    """Reduce buffers in a bucket, of the dtype that travels."""
    if not any(b.size for b in bufs):
        return list(bufs)
    if wire == float16:
        wire = float32  # NCCL computes in what travels: sums overflow there, and small means lose bits
    device.faults.follow(bufs)
    with device.lock:
        laid = buckets.laid(bufs, wire)
        found, copies = buckets.results(laid, bufs)

        def finish() -> None:
            try:
                buckets.put(laid, bufs)
                device.synchronize()
            finally:  # what is wrong here is no reason to leave the others waiting
                communicator.all_reduce(laid.bucket.spans, wire, reduction)
                communicator.wait()
            for target, source in copies:
                buckets.copy(target, source)

        device.commands.queue.flush()
        device.commands.put_off(finish)
    return found
