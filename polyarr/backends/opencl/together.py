"""How a device reduces buffers together with those of other processes."""

import weakref
from functools import partial
from typing import Any

from polyarr.backends.opencl.buckets import Buckets
from polyarr.backends.opencl.cuda import Cuda, SharedPool
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.host_windows import through_windows
from polyarr.backends.opencl.nccl import KINDS, Communicator, Nccl, load
from polyarr.core.backend import Meeting, Reduce, Together


def together_of(device: Device) -> Together:
    """How a device reduces buffers together with others."""
    return Together(partial(_prepared, device) if device.features.nvidia else None, partial(through_windows, device))


def _prepared(device: Device) -> Meeting:
    """Load what is needed.

    Errors:  BackendError if that is not here
    """
    nccl, cuda = Nccl(load()), device.pool.cuda if type(device.pool) is SharedPool else Cuda(device.context)
    join = partial(_join, device, nccl, cuda)
    return Meeting(cuda.place, f"NCCL {nccl.version}", frozenset(KINDS), nccl.ticket, join)


def _join(device: Device, nccl: Nccl, cuda: Cuda, ticket: bytes, rank: int, size: int) -> Reduce:
    communicator = Communicator(nccl, cuda, ticket, rank, size)

    def all_reduce(*args: Any) -> None:
        device.synchronize()
        communicator.all_reduce(*args)

    buckets = Buckets(device, cuda.allocate, all_reduce)
    weakref.finalize(buckets, communicator.end)  # when nobody reduces any more, or the process ends
    return buckets.reduce
