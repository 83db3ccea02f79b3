"""Collectives of a device: which ways it has to all-reduce buffers with other processes."""

from functools import partial

from polyarr.backends.opencl.ranks.shared_memory import shared_memory_reduce
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.driver import OpenCL
from polyarr.core.backend import Collectives


def collectives_of(device: Device) -> Collectives:
    """Return the collectives of a device: its vendor's, if there are any, and shared memory of the host."""
    shared_memory = partial(shared_memory_reduce, device) if type(device.driver) is OpenCL else None
    return Collectives(device.vendor.communicator(device), shared_memory, device.commands.settle)
