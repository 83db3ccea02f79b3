"""Transforms by one or several passes over the array, of lengths that have small prime factors."""

from math import prod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.fft.launches import Launch, launch_of
from polyarr.backends.opencl.fft.stages import PRIMES, factors, fits, neighbors, stages, vector
from polyarr.backends.opencl.fft.whole_rows import COMPLEX, length_in
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import Table
from polyarr.core.spec import Spec
from polyarr.ops.fourier import roots

FINE_BITS = 10
ON_READ, ON_WRITE, AFTER_WEIGHTS = 1, 2, 4  # when to exchange real and imaginary parts, see factors.cl
BOTH = ON_READ | ON_WRITE  # for inverse transforms
MIN_BYTES = 32  # on GPUs, of neighbors that a group reads at once, where more do not fit


class End(NamedTuple):
    """The form and the numbers of a row that the first pass reads, or the last one writes.

    Attributes:
        form: A form of whole_rows.py but HALF_OF_PAIRS; others than COMPLEX only along the last axis.
        numbers: How many numbers of a row there are; the others are 0, or left out.
        weights: Arguments for a Table of factors of these; () for none.
    """

    form: int
    numbers: int
    weights: tuple[Any, ...] = ()


def passes(
    device: Device, out: Spec, axis: int, swaps: int, before: End | None = None, after: End | None = None
) -> list[Launch]:
    """Plan the transform of a dense complex array along an axis, whose length is smooth.

    swaps: bits of ON_READ, of x; ON_WRITE, of the result; and AFTER_WEIGHTS. An inverse transform has the first two.
    The last launch has the Spec `out`, too, whatever the form of its result.
    """
    dtype, n = out.dtype, out.shape[axis]
    rows, inner = prod(out.shape[:axis]), prod(out.shape[axis + 1 :])
    found, stride, unit = list[Launch](), inner, 1
    for length in _lengths(device, dtype, n, rows * inner):
        lanes = n // length * inner
        here = stages(device, dtype, length, rows * lanes, neighbors(device, dtype))
        each = here.lanes
        tiles = -(-lanes // each) if lanes >= each else 0
        count = rows * tiles or -(-rows * lanes // each)
        is_first, is_last = not found, unit * length == n
        plain = End(COMPLEX, n)
        read, written = before if before and is_first else plain, after if after and is_last else plain
        swaps_here = swaps & (is_first * ON_READ | is_last * (ON_WRITE | AFTER_WEIGHTS))
        macros = here.macros_for(read_by_lane=lanes >= min(each, 8), write_by_lane=stride >= min(each, 8))
        macros |= {"SOURCE": read.form, "RESULT": written.form}
        macros |= {"BEFORE": int(bool(read.weights)), "AFTER": int(bool(written.weights))}
        program = device.build(f"passes{here.suffix}", FINE_BITS=FINE_BITS, **macros)
        tables = (
            device.plans[Table](*here.roots),
            None if is_last else device.plans[Table](_fine_and_coarse, n, dtype),
            *(device.plans[Table](*end.weights) if end.weights else None for end in (read, written)),
        )
        lengths = (length_in(end.form, end.numbers) * inner for end in (read, written))
        numbers = *here.numbers, swaps_here, rows, lanes, tiles, stride, unit, int(not is_last), read.numbers, *lengths
        found.append(launch_of(device, program.kernels["transform_lanes"], count, here.items, tables, numbers, out))
        stride, unit = stride * length, unit * length
    return found


def _lengths(device: Device, dtype: np.dtype, n: int, batch: int) -> list[int]:
    """Return the lengths of the passes: few, and about as long as each other."""
    each = vector(device, dtype)
    is_wide = batch >= each  # there are lanes enough for one pass
    least = MIN_BYTES // dtype.itemsize if device.geometry.kind == "gpu" else 1
    if fits(device, dtype, n, least) and (is_wide or n < 4 * each):
        return [n]
    count = 2
    while True:
        found = [1] * count
        for factor in factors(n):
            shortest = min(range(count), key=found.__getitem__)
            found[shortest] *= factor
        if max(found) <= PRIMES[0] or fits(device, dtype, max(found), least):
            return sorted((length for length in found if length > 1), reverse=True)
        count += 1


def _fine_and_coarse(device: Device, n: int, dtype: np.dtype) -> tuple[Buffer]:
    """Return the first 2^FINE_BITS roots of n, then every 2^FINE_BITS-th."""
    fine = 1 << FINE_BITS
    powers = np.concatenate([np.arange(fine), np.arange(0, n, fine)])
    return (device.upload(roots(-powers, n).astype(dtype)),)
