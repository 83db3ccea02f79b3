"""Transforms in local memory: how many a work-group computes at once, and by which stages."""

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.ops.fourier import roots

PRIMES = (13, 11, 7, 5, 3, 2)
GROUP = 256  # work-items of the largest group on GPUs
MAX_LANES = 64
LOCAL_BYTES = {"cpu": 2**19, "gpu": 5 * 2**13}  # of the elements of the largest group, on CPUs read and written
PARTS = (4, 2, 1)  # by which smaller groups are smaller
SPARED_BYTES = 2048  # of local memory for everything else
VECTOR_BYTES = 32
NEIGHBOR_BYTES = 64  # on GPUs, of neighbors that a group reads at once
GROUPS_PER_UNIT = 4  # on GPUs, before a group computes more lanes than it needs
BANKS = 32


class Group(NamedTuple):
    """A work-group.

    Attributes:
        items: Work-items.
        vector: Lanes that a work-item computes at once.
        capacity: Elements in local memory.
    """

    items: int
    vector: int
    capacity: int

    def fits(self, elements: int) -> bool:
        """Return whether transforms of so many elements in all fit into local memory."""
        padding = elements // BANKS if self.vector == 1 else 0
        return elements * self.vector + padding <= self.capacity


class Stages(NamedTuple):
    """The transforms that a work-group computes at once, of a length with small prime factors.

    Attributes:
        group: The work-group.
        largest: The largest radix.
        numbers: Arguments of kernels: the length, the radices, and the logarithm of the vectors of lanes.
    """

    group: Group
    largest: int
    numbers: tuple[int, int, int]

    @property
    def lanes(self) -> int:
        """Transforms that a group computes."""
        return self.group.vector << self.numbers[2]

    def macros(self, dtype: np.dtype) -> dict[str, Any]:
        """Return the macros of stages.cl."""
        real, v = {4: "float", 8: "double"}[dtype.itemsize // 2], self.group.vector
        return {
            "REAL": real, "PAIR": f"{real}2", "K(c)": "c##f" if real == "float" else "c", "WG": self.group.items,
            "VECTOR": v, "V": real if v == 1 else f"{real}{v}", "MAX_RADIX": 8 if self.largest <= 8 else 13,
            "CAPACITY": self.group.capacity,
        }  # fmt: skip


@lru_cache(maxsize=1024)
def is_smooth(n: int) -> bool:
    """Return whether all prime factors of n are radices."""
    return prod(factors(n)) == n


def factors(n: int) -> list[int]:
    """Return the prime factors of n up to 13, the largest first."""
    found = []
    for prime in PRIMES:
        while n % prime == 0:
            found.append(prime)
            n //= prime
    return found


def groups(device: Device, dtype: np.dtype) -> list[Group]:
    """Return the work-groups of a device, the smallest first."""
    itemsize, kind = dtype.itemsize // 2, device.geometry.kind
    budget = min(LOCAL_BYTES[kind], device.features.local_memory - SPARED_BYTES)
    if kind == "cpu":
        vector = VECTOR_BYTES // itemsize
        return [Group(1, vector, budget // (4 * itemsize * part) // vector * vector) for part in PARTS]
    most = min(GROUP, device.features.max_work_group)
    return [Group(most // part, 1, budget // (2 * itemsize * part)) for part in PARTS]


def neighbors(device: Device, dtype: np.dtype) -> int:
    """Return the lanes next to each other that a group should read at once."""
    return NEIGHBOR_BYTES // dtype.itemsize if device.geometry.kind == "gpu" else 1


def stages(device: Device, dtype: np.dtype, length: int, lanes: int, least: int) -> Stages:
    """Return the stages of so many transforms of a length, of which a group takes `least` or more, if they fit."""
    known = device.plans[groups](dtype)
    group = next((g for g in known if g.fits(length * least)), known[-1])
    columns, useful = 1, max(least, lanes // (GROUPS_PER_UNIT * device.features.compute_units))
    while group.vector == 1 and 2 * columns <= min(useful, MAX_LANES) and group.fits(2 * columns * length):
        columns *= 2
    radices = _radices(length)
    packed = sum(radix << 4 * i for i, radix in enumerate(radices))
    return Stages(group, max(radices, default=1), (length, packed, columns.bit_length() - 1))


def _radices(n: int) -> list[int]:
    """Return the radices of the stages: prime factors, those of 2 joined to 8 and 4."""
    found = factors(n)
    twos = found.count(2)
    eights, rest = divmod(twos, 3)
    if rest == 1 and eights:
        return [f for f in found if f > 2] + [8] * (eights - 1) + [4, 4]
    return [f for f in found if f > 2] + [8] * eights + {0: [], 1: [2], 2: [4]}[rest]


def roots_of(device: Device, length: int, dtype: np.dtype) -> tuple[Buffer]:
    """Return the roots of unity of a length, for a Table."""
    return (device.upload(roots(-np.arange(length), length).astype(dtype)),)
