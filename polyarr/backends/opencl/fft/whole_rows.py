"""Transforms of whole rows in one launch, from and to complex or real numbers."""

from typing import NamedTuple

import numpy as np

from polyarr.backends.opencl.fft.stages import groups, is_smooth, roots_of, stages
from polyarr.backends.opencl.runtime.commands import Kernel
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import Table
from polyarr.ops.fourier import roots

COMPLEX, REAL, HALF, HALF_OF_PAIRS = range(4)  # forms of rows: see whole_rows.cl
MULTIPLES = (8, 5, 6, 7)  # lengths of convolutions are these times a power of two


class Rows(NamedTuple):
    """A launch for rows: its kernel, work-groups, tables, and the last arguments."""

    kernel: Kernel
    work: tuple[int, ...]
    group: tuple[int, ...]
    tables: tuple[Table, ...]
    numbers: tuple[int, ...]

    def run(self, x: Buffer, y: Buffer, inverse: bool, scale: float) -> None:
        """Transform the rows of x into y."""
        tables = [buf.memory for table in self.tables for buf in table.buffers()]
        self.kernel(self.work, self.group, x.memory, y.memory, *tables, scale, int(inverse), *self.numbers)


def rows_at_once(device: Device, dtype: np.dtype, rows: int, n: int, source: int, result: int) -> Rows | None:
    """Plan transforms of n complex numbers, or return None if they do not fit into local memory."""
    length = n if is_smooth(n) else length_of(2 * n - 1)
    largest = device.plans[groups](dtype)[-1]
    if not largest.fits(length) or not (rows >= largest.vector or length < 4 * largest.vector):
        return None
    here = stages(device, dtype, length, rows, 1)
    program = device.build("whole_rows", SOURCE=source, RESULT=result, CONVOLVED=int(length != n), **here.macros(dtype))
    own = device.plans[Table](roots_of, length, dtype)
    has_halves = HALF_OF_PAIRS in (source, result)
    halves = device.plans[Table](halves_of, 2 * n, dtype) if has_halves else own
    weights = (device.plans[Table](chirp_of, n, length, dtype),) if length != n else (own, own)
    items, lengths = here.group.items, {COMPLEX: n, REAL: n, HALF: n // 2 + 1, HALF_OF_PAIRS: n + 1}
    numbers = *here.numbers, n, lengths[source], lengths[result], rows
    work = (-(-rows // here.lanes) * items,), (items,)
    return Rows(program.kernels["transform_rows"], *work, (own, halves, *weights), numbers)


def length_of(least: int) -> int:
    """Return a length with small factors that is at least this large, and less than 5/4 of it."""
    power = max(least.bit_length() - 4, 0)
    return min(m << k for m in MULTIPLES for k in range(power, power + 3) if m << k >= least)


def halves_of(device: Device, n: int, dtype: np.dtype) -> tuple[Buffer]:
    """Return the first half of the roots of n and the one after it, for a Table."""
    return (device.upload(roots(-np.arange(n // 2 + 1), n).astype(dtype)),)


def chirp_of(device: Device, n: int, size: int, dtype: np.dtype) -> tuple[Buffer, Buffer]:
    """Return factors of x and of the result, and the spectrum to multiply by between two transforms of this size.

    As 2 j k = j^2 + k^2 - (k - j)^2, a transform is a convolution with the conjugates of the factors.
    """
    factors, around = roots(-(np.arange(n) ** 2), 2 * n), np.zeros(size, np.complex128)
    around[:n] = factors.conj()
    around[size - n + 1 :] = factors[:0:-1].conj()
    return device.upload(factors.astype(dtype)), device.upload((np.fft.fft(around) / size).astype(dtype))
