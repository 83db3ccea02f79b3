"""Transforms by one or several passes over the array, of lengths that have small prime factors."""

from math import prod
from typing import NamedTuple

import numpy as np

from polyarr.backends.opencl.fft.stages import MAX_LANES, PRIMES, Stages, factors, groups, neighbors, roots_of, stages
from polyarr.backends.opencl.runtime.commands import Kernel
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, spec_of
from polyarr.backends.opencl.runtime.plans import Table
from polyarr.ops.fourier import roots

FINE_BITS = 10
MIN_BYTES = 32  # on GPUs, of neighbors that a group reads at once, where more do not fit


class Pass(NamedTuple):
    """A pass of a transform of rows (rows, n, inner): its kernel, work-groups, tables, and the last arguments."""

    kernel: Kernel
    work: tuple[int, ...]
    group: tuple[int, ...]
    tables: tuple[Table, Table]
    numbers: tuple[int, ...]


def transform(device: Device, x: Buffer, axis: int, *, inverse: bool, scale: float) -> Buffer:
    """Return the transform of a dense complex array along an axis, whose length is smooth."""
    rows, n, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    passes = device.plans[_passes](x.dtype, rows, n, inner)
    for one in passes:
        y = device.empty(spec_of(x))
        factor = scale if one is passes[-1] else 1.0
        tables = [table.buffers()[0].memory for table in one.tables]
        one.kernel(one.work, one.group, x.memory, y.memory, *tables, factor, int(inverse), *one.numbers)
        x = y
    return x


def _passes(device: Device, dtype: np.dtype, rows: int, n: int, inner: int) -> tuple[Pass, ...]:
    """Plan the passes of a transform."""
    found, stride, unit = [], inner, 1
    for length in _lengths(device, dtype, n, rows * inner):
        lanes = n // length * inner
        here = stages(device, dtype, length, rows * lanes, neighbors(device, dtype))
        each = here.lanes
        tiles = -(-lanes // each) if lanes >= each else 0
        count, items = rows * tiles or -(-rows * lanes // each), here.group.items
        numbers = (
            *here.numbers, rows, lanes, tiles, stride, unit,
            int(lanes >= min(each, 8)), int(stride >= min(each, 8)), int(unit * length < n),
        )  # fmt: skip
        own = device.plans[Table](roots_of, length, dtype)
        between = device.plans[Table](_fine_and_coarse, n, dtype) if unit * length < n else own
        found.append(Pass(_kernel(device, dtype, here), (count * items,), (items,), (own, between), numbers))
        stride, unit = stride * length, unit * length
    return tuple(found)


def _lengths(device: Device, dtype: np.dtype, n: int, batch: int) -> list[int]:
    """Return the lengths of the passes: few, and about as long as each other."""
    group = device.plans[groups](dtype)[-1]
    is_wide = batch >= group.vector  # there are lanes enough for one pass
    least = MIN_BYTES // dtype.itemsize if group.vector == 1 else 1
    if group.fits(n * least) and (is_wide or n < 4 * group.vector):
        return [n]
    passes = 2
    while True:
        found = [1] * passes
        for factor in factors(n):
            shortest = min(range(passes), key=found.__getitem__)
            found[shortest] *= factor
        if max(found) <= PRIMES[0] or group.fits(max(found) * least):
            return sorted((length for length in found if length > 1), reverse=True)
        passes += 1


def _fine_and_coarse(device: Device, n: int, dtype: np.dtype) -> tuple[Buffer]:
    """Return the first 2^FINE_BITS roots of n, then every 2^FINE_BITS-th."""
    fine = 1 << FINE_BITS
    powers = np.concatenate([np.arange(fine), np.arange(0, n, fine)])
    return (device.upload(roots(-powers, n).astype(dtype)),)


def _kernel(device: Device, dtype: np.dtype, here: Stages) -> Kernel:
    program = device.build("passes", MAX_LANES=MAX_LANES, FINE_BITS=FINE_BITS, **here.macros(dtype))
    return program.kernels["transform_lanes"]
