"""Transforms whose lengths have small prime factors, by one or several passes over the array."""

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, spec_of
from polyarr.backends.opencl.runtime.plans import Table
from polyarr.backends.opencl.runtime.program import Program
from polyarr.ops.fourier import roots

PRIMES = (13, 11, 7, 5, 3, 2)
GROUP = 256  # work-items of a group on GPUs
FINE_BITS = 10
MAX_LANES = 64
MIN_LANES = 4  # on GPUs, so that several neighbors are read at once
LOCAL_BYTES = {"cpu": 2**17, "gpu": 5 * 2**13}  # of the elements of a group, read and written
SPARED_BYTES = 2048  # of local memory for everything else
VECTOR_BYTES = 32


class Pass(NamedTuple):
    """A pass of a transform of rows (rows, n, inner): its kernel, work-groups, and what follows them as arguments."""

    program: Program
    groups: int
    group: int
    table: Table
    numbers: tuple[int, ...]


@lru_cache(maxsize=1024)
def is_smooth(n: int) -> bool:
    """Return whether all prime factors of n are radices."""
    return prod(_factors(n)) == n


def transform(device: Device, x: Buffer, axis: int, *, inverse: bool, scale: float) -> Buffer:
    """Return the transform of a dense complex array along an axis, whose length is smooth."""
    rows, n, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    passes = device.plans[_passes](x.dtype, rows, n, inner)
    for one in passes:
        y = device.empty(spec_of(x))
        factor = scale if one is passes[-1] else 1.0
        tables = (buf.memory for buf in one.table.buffers())
        work = (one.groups * one.group,), (one.group,)
        one.program.transform_lanes(*work, x.memory, y.memory, *tables, factor, int(inverse), *one.numbers)
        x = y
    return x


# ---- plans -------------------------------------------------------------------------------------------------------


class Limits(NamedTuple):
    """Limits of a work-group on a device.

    Attributes:
        vector: Lanes that a work-item computes at once.
        group: Work-items.
        capacity: Elements in local memory.
        least: Lanes that a group has at least, if they are neighbors.
        units: Compute units of the device.
    """

    vector: int
    group: int
    capacity: int
    least: int
    units: int

    def columns(self, length: int, lanes: int) -> int:
        """Return the vectors of lanes, a power of two, that a group transforms at once, of so many lanes in all."""
        if self.vector > 1:
            return 1
        found, useful = 1, max(self.least, lanes // self.units)  # so that all units have work
        while 2 * found <= min(useful, MAX_LANES) and length * (2 * found + 1) <= self.capacity:
            found *= 2
        return found

    def longest(self, is_alone: bool) -> int:
        """Return the longest transform of a pass; if it is alone, its elements may be neighbors instead of lanes."""
        if self.vector > 1:
            return self.capacity // self.vector
        return self.capacity if is_alone else max(self.capacity // (self.least + 1), PRIMES[0])


def _limits(device: Device, dtype: np.dtype) -> Limits:
    itemsize, is_cpu = dtype.itemsize // 2, device.geometry.kind == "cpu"
    budget = min(LOCAL_BYTES[device.geometry.kind], device.features.local_memory - SPARED_BYTES)
    vector = VECTOR_BYTES // itemsize if is_cpu else 1
    capacity = budget // (4 * itemsize) // vector * vector
    group = 1 if is_cpu else min(GROUP, device.features.max_work_group)
    return Limits(vector, group, capacity, MIN_LANES, device.features.compute_units)


def _passes(device: Device, dtype: np.dtype, rows: int, n: int, inner: int) -> tuple[Pass, ...]:
    """Plan the passes of a transform."""
    limits, found, stride, unit = _limits(device, dtype), [], inner, 1
    for length in _lengths(n, rows * inner, inner, limits):
        lanes = n // length * inner
        columns = limits.columns(length, rows * lanes)
        each = columns * limits.vector
        tiles = -(-lanes // each) if lanes >= each else 0
        groups = rows * tiles or -(-rows * lanes // each)
        radices = _radices(length)
        numbers = (
            length, _packed(radices), columns.bit_length() - 1, rows, lanes, tiles, stride, unit,
            int(lanes >= min(each, 8)), int(stride >= min(each, 8)), int(unit * length < n),
        )  # fmt: skip
        program = device.plans[_program](dtype, 8 if max(radices, default=1) <= 8 else 13)
        found.append(Pass(program, groups, limits.group, device.plans[Table](_roots, length, n, dtype), numbers))
        stride, unit = stride * length, unit * length
    return tuple(found)


def _lengths(n: int, batch: int, inner: int, limits: Limits) -> list[int]:
    """Return the lengths of the passes: few, and about as long as each other."""
    is_wide = batch >= limits.vector  # there are lanes enough for one pass
    if n <= limits.longest(is_alone=inner == 1) and (is_wide or n < 4 * limits.vector):
        return [n]
    passes, most = 2, limits.longest(is_alone=False)
    while True:
        found = [1] * passes
        for factor in _factors(n):
            least = min(range(passes), key=found.__getitem__)
            found[least] *= factor
        if max(found) <= most:
            return sorted((length for length in found if length > 1), reverse=True)
        passes += 1


def _factors(n: int) -> list[int]:
    """Return the prime factors of n up to 13, the largest first."""
    found = []
    for prime in PRIMES:
        while n % prime == 0:
            found.append(prime)
            n //= prime
    return found


def _radices(n: int) -> list[int]:
    """Return the radices of the stages of a pass: prime factors, those of 2 joined to 8 and 4."""
    factors = _factors(n)
    twos = factors.count(2)
    eights, rest = divmod(twos, 3)
    if rest == 1 and eights:
        return [f for f in factors if f > 2] + [8] * (eights - 1) + [4, 4]
    return [f for f in factors if f > 2] + [8] * eights + {0: [], 1: [2], 2: [4]}[rest]


def _packed(radices: list[int]) -> int:
    """Return radices as one number, 4 bits each."""
    return sum(radix << 4 * i for i, radix in enumerate(radices))


def _roots(device: Device, length: int, n: int, dtype: np.dtype) -> tuple[Buffer, Buffer]:
    """Return the roots of a pass; and of the whole the first 2^FINE_BITS, then every 2^FINE_BITS-th."""
    fine = 1 << FINE_BITS
    powers = ((np.arange(length), length), (np.concatenate([np.arange(fine), np.arange(0, n, fine)]), n))
    own, whole = (device.upload(roots(-power, of).astype(dtype)) for power, of in powers)
    return own, whole


def _program(device: Device, dtype: np.dtype, largest: int) -> Program:
    """Return the program with radices up to the largest."""
    limits, real = _limits(device, dtype), {4: "float", 8: "double"}[dtype.itemsize // 2]
    v = limits.vector
    return device.build(
        "passes", REAL=real, PAIR=f"{real}2", **{"K(c)": "c##f" if real == "float" else "c"},
        WG=limits.group, VECTOR=v, V=real if v == 1 else f"{real}{v}", MAX_RADIX=largest,
        CAPACITY=limits.capacity, MAX_LANES=MAX_LANES, FINE_BITS=FINE_BITS,
    )  # fmt: skip
