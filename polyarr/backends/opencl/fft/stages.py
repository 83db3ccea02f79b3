"""Short transforms by stages: how many of them a work-group computes at once, and with which radices."""

from functools import lru_cache
from itertools import combinations_with_replacement
from math import prod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.ops.fourier import roots

PRIMES = (13, 11, 7, 5, 3, 2)
MAX_RADIX = 16  # on GPUs
GROUP = 1024  # work-items of the largest group on GPUs
MAX_LANES = 64
LOCAL_BYTES = {"cpu": 2**19, "gpu": 2**15}  # of the largest group: elements read and written; on GPUs one of two parts
PARTS = (4, 2, 1)  # by which smaller groups of CPUs are smaller
SPARED_BYTES = 4096  # of local memory for everything else
VECTOR_BYTES = 32
NEIGHBOR_BYTES = 64  # on GPUs, of neighbors that a group reads at once
USUAL_GROUP = 256  # work-items of a group that needs no more
GROUPS_PER_UNIT = 4  # on GPUs, before a group computes more lanes than it needs


class Stages(NamedTuple):
    """The transforms that a work-group computes at once, of a length with small prime factors.

    Attributes:
        suffix: Of the names of kernel files: "" for CPUs, "_gpu" for GPUs.
        items: Work-items of a group.
        lanes: Transforms of a group.
        macros: See macros_for.
        roots: Arguments for a Table of the roots of the stages.
        numbers: Arguments of kernels for CPUs: the length and the radices.
    """

    suffix: str
    items: int
    lanes: int
    macros: dict[str, Any]
    roots: tuple[Any, ...]
    numbers: tuple[int, ...] = ()

    def macros_for(self, *, read_by_lane: bool, write_by_lane: bool) -> dict[str, Any]:
        """Return the macros of a kernel: whether neighboring lanes, rather than elements, are near in memory."""
        order = {"READ_BY_LANE": int(read_by_lane), "WRITE_BY_LANE": int(write_by_lane)}
        return self.macros | order if self.suffix else self.macros


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


def vector(device: Device, dtype: np.dtype) -> int:
    """Return the lanes that a work-item computes at once."""
    return VECTOR_BYTES // _real_size(dtype) if device.geometry.kind == "cpu" else 1


def neighbors(device: Device, dtype: np.dtype) -> int:
    """Return the lanes next to each other that a group should read at once."""
    return NEIGHBOR_BYTES // dtype.itemsize if device.geometry.kind == "gpu" else 1


def fits(device: Device, dtype: np.dtype, length: int, lanes: int) -> bool:
    """Return whether a work-group can compute so many transforms of a length at once."""
    held = length * lanes * _real_size(dtype)
    if device.geometry.kind == "cpu":
        return 4 * held * vector(device, dtype) <= _local_bytes(device)
    return held <= _local_bytes(device) and lanes * _items(length) <= min(GROUP, device.features.max_work_group)


def stages(device: Device, dtype: np.dtype, length: int, lanes: int, least: int) -> Stages:
    """Return the stages of so many transforms of a length, of which a group takes `least` or more, if they fit."""
    real = {4: "float", 8: "double"}[_real_size(dtype)]
    macros: dict[str, Any] = {"REAL": real, "PAIR": f"{real}2", "K(c)": "c##f" if real == "float" else "c"}
    if device.geometry.kind == "cpu":
        return _by_vectors(device, dtype, length, macros)
    items, each, useful = _items(length), 1, max(least, lanes // (GROUPS_PER_UNIT * device.features.compute_units))
    while 2 * each <= min(useful, MAX_LANES) and fits(device, dtype, length, 2 * each):
        if 2 * each > least and 2 * each * items > USUAL_GROUP:
            break
        each *= 2
    radices = _radices(length)
    macros |= {
        "V": real, "LENGTH": length, "LANES": each, "ITEMS": items, "FIRST": radices[0], "LAST": radices[-1],
        "REGISTERS": max(-(-length // r // items) * r for r in radices), "STAGES": _text(radices),
    }  # fmt: skip
    return Stages("_gpu", each * items, each, macros, (stage_roots, radices, dtype))


def _by_vectors(device: Device, dtype: np.dtype, length: int, macros: dict[str, Any]) -> Stages:
    """Return the stages for a CPU, whose work-items compute a vector of lanes each."""
    lanes, element = vector(device, dtype), 4 * _real_size(dtype)
    budgets = [_local_bytes(device) // (element * part) // lanes * lanes for part in PARTS]
    capacity = next((room for room in budgets if length * lanes <= room), budgets[-1])
    radices = _short_radices(length)
    packed = sum(radix << 4 * i for i, radix in enumerate(radices))
    macros |= {"V": f"{macros['REAL']}{lanes}", "VECTOR": lanes, "CAPACITY": capacity}
    macros["MAX_RADIX"] = 8 if max(radices, default=1) <= 8 else 13
    return Stages("", 1, lanes, macros, (roots_of, length, dtype), (length, packed))


def _real_size(dtype: np.dtype) -> int:
    return dtype.itemsize // 2


def _local_bytes(device: Device) -> int:
    return min(LOCAL_BYTES[device.geometry.kind], device.features.local_memory - SPARED_BYTES)


def _items(length: int) -> int:
    """Return the work-items of a lane on GPUs: one for each butterfly of the largest radix."""
    return length // max(_radices(length))


@lru_cache(maxsize=1024)
def _radices(n: int) -> tuple[int, ...]:
    """Return the radices of the stages on GPUs: as few as possible, and of these the smallest; the largest first."""
    known = [radix for radix in range(2, MAX_RADIX + 1) if n % radix == 0] or [1]
    found: list[tuple[int, ...]] = []
    count = 0
    while not found:
        count += 1
        found = [radices for radices in combinations_with_replacement(known, count) if prod(radices) == n]
    return min(found, key=max)[::-1]


def _text(radices: tuple[int, ...]) -> str:
    """Return the macro STAGES of stages_gpu.cl."""
    text, inner, at = "", 1, 0
    for radix, following in zip(radices, (*radices[1:], None), strict=True):
        text += f"BUTTERFLIES({radix}, {inner}, {at}) "
        if following is not None:
            text += f"EXCHANGE({radix}, {inner}, {following}) "
        at += (radix - 1) * (prod(radices) // (radix * inner))
        inner *= radix
    return text


def _short_radices(n: int) -> tuple[int, ...]:
    """Return the radices of the stages on CPUs: prime factors, those of 2 joined to 8 and 4."""
    found = factors(n)
    others, twos = [f for f in found if f > 2], found.count(2)
    eights, rest = divmod(twos, 3)
    if rest == 1 and eights:
        return (*others, *[8] * (eights - 1), 4, 4)
    return (*others, *[8] * eights, *{0: [], 1: [2], 2: [4]}[rest])


def roots_of(device: Device, length: int, dtype: np.dtype) -> tuple[Buffer]:
    """Return the roots of unity of a length, for a Table."""
    return (device.upload(roots(-np.arange(length), length).astype(dtype)),)


def stage_roots(device: Device, radices: tuple[int, ...], dtype: np.dtype) -> tuple[Buffer]:
    """Return the roots in the order in which stages_gpu.cl reads them, for a Table."""
    length, inner, powers = prod(radices), 1, [np.zeros((1, 1), np.int64)]
    for radix in radices:
        different = np.arange(length // (radix * inner))
        powers.append(np.arange(1, radix)[:, None] * different * inner)
        inner *= radix
    return (device.upload(roots(-np.concatenate([p.ravel() for p in powers[1:] or powers]), length).astype(dtype)),)
