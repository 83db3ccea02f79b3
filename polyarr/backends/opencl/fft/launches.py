"""A Fourier transform as a list of launches, each of which reads the result of the one before it."""

from typing import NamedTuple

from polyarr.backends.opencl.runtime.commands import Kernel
from polyarr.backends.opencl.runtime.device import Device, allocation_of
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import Table
from polyarr.core.spec import Spec


class Launch(NamedTuple):
    """A launch of a kernel with the arguments (x, y, *tables, scale, *numbers), from dense to dense.

    Attributes:
        tables: Constants of the kernel; None for those that it does not read.
        out: The result.
        room: The bytes and the strides of the result.
    """

    kernel: Kernel
    work: tuple[int, ...]
    group: tuple[int, ...]
    tables: tuple[Table | None, ...]
    numbers: tuple[int, ...]
    out: Spec
    room: tuple[int, tuple[int, ...]]


def launch_of(
    device: Device, kernel: Kernel, count: int, group: int, tables: tuple[Table | None, ...], numbers: tuple[int, ...],
    out: Spec,
) -> Launch:  # fmt: skip
    """Return a launch of so many groups."""
    return Launch(kernel, (count * group,), (group,), tables, numbers, out, device.plans[allocation_of](out))


def run(device: Device, launches: tuple[Launch, ...], x: Buffer, scale: float) -> Buffer:
    """Return the result of launches that begin with a dense x, multiplied by a factor."""
    last = launches[-1]
    for one in launches:
        kernel, work, group, tables, numbers, out, room = one
        y = device.fresh(out, *room)
        memories = [x.memory if table is None else table.buffers()[0].memory for table in tables]
        kernel(work, group, x.memory, y.memory, *memories, scale if one is last else 1.0, *numbers)
        x = y
    return x
