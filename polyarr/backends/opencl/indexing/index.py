"""Gather and scatter along an axis: take, take_along_axis, scatter, scatter_add."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import Any, cast

import numpy as np

from polyarr.backends.opencl.copying.copy import dense, duplicate
from polyarr.backends.opencl.indexing import segments
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.geometry import MAX_ITEMS, CpuGeometry
from polyarr.backends.opencl.runtime.layout import Buffer, broadcast
from polyarr.backends.opencl.runtime.program import Program
from polyarr.core.spec import Spec

WORDS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", 16: "uint4", 32: "uint8", 64: "uint16"}
MAX_TILE = MAX_ITEMS  # words written by one launch; updates and slices of one pass of scatter
INT32 = np.dtype("int32")
FEW = 1024  # updates up to which scatter compares each with all later ones
Place = tuple[int, int, int]


@lru_cache(maxsize=256)
def tiles(shape: Place, most: int) -> tuple[tuple[Place, Place], ...]:
    """Return (begin, shape) of contiguous parts of a row-major array, of at most `most` words each."""
    axis = next(i for i in range(3) if prod(shape[i + 1 :]) <= most)
    inner = shape[axis + 1 :]
    step = most // max(1, prod(inner))
    found = []
    for before in product(*map(range, shape[:axis])):
        for at in range(0, shape[axis], step):
            begin, part = (*before, at, *[0] * len(inner)), (*[1] * axis, min(step, shape[axis] - at), *inner)
            found.append((begin, part))
    return tuple(found)  # type: ignore[arg-type]


def take(device: Device, out: Spec, x: Buffer, indices: Buffer, *, axis: int, op: str = "take") -> Buffer:
    """Return slices of x along axis, in the order of indices; `op` is for errors."""
    fault = device.faults.call(op)
    x, indices, result = dense(device, x), dense(device, indices), device.empty(out)
    row = prod(x.shape[axis + 1 :]) * x.dtype.itemsize
    word, outer, n, count = _word(device, row), prod(x.shape[:axis]), x.shape[axis], indices.size
    if out.size == 0:
        check(device, fault, indices, n)
        return result
    program, words = device.plans[_program](word, indices.dtype), row // word
    args = (x.memory, indices.memory, result.memory, *fault, n)
    if device.geometry.moves_rows:
        geometry = cast("CpuGeometry", device.geometry)
        items, group, span = geometry.items(outer * count, max(1, geometry.span * word // row))
        program.take_rows(items, group, *args, count, words, outer * count, span)
        return result
    for (o, p, w), part in tiles((outer, count, words), MAX_TILE):
        items, group, _ = device.geometry.items(prod(part))
        first = (o * n * words + w, p, (o * count + p) * words + w)
        program.take_words(items, group, *args, words, *part[1:], prod(part), *first)
    return result


def take_along_axis(device: Device, out: Spec, x: Buffer, indices: Buffer, *, axis: int) -> Buffer:
    """Return elements of x whose coordinate on axis comes from indices."""
    fault = device.faults.call("take_along_axis")
    n, count = x.shape[axis], indices.shape[axis]
    x = dense(device, broadcast(x, (*out.shape[:axis], n, *out.shape[axis + 1 :])))
    indices, result = dense(device, broadcast(indices, out.shape)), device.empty(out)
    program, words = device.plans[_program](x.dtype.itemsize, indices.dtype), prod(out.shape[axis + 1 :])
    for (o, p, w), part in tiles((prod(out.shape[:axis]), count, words), MAX_TILE):
        items, group, span = device.geometry.items(prod(part))
        program.take_along_axis(
            items, group, x.memory, indices.memory, result.memory, *fault,
            n, words, *part[1:], prod(part), o * n * words + w, (o * count + p) * words + w, span,
        )  # fmt: skip
    return result


def scatter(device: Device, out: Spec, x: Buffer, indices: Buffer, updates: Buffer, *, axis: int) -> Buffer:
    """Return x with the slices at indices replaced by updates; the last of several for one slice wins."""
    fault = device.faults.call("scatter")
    x, indices, updates = dense(device, x), dense(device, indices), dense(device, updates)
    if out.size == 0:
        check(device, fault, indices, x.shape[axis])
        return device.empty(out)
    if 0 < indices.size <= FEW and updates.size * updates.dtype.itemsize <= MAX_TILE:
        return _scatter_few(device, x, indices, updates, fault, axis)
    for first in range(0, max(1, indices.size), MAX_TILE):
        x = _scatter_pass(device, out, x, indices, updates, fault, axis, first)
    return x


def _scatter_few(device: Device, x: Buffer, indices: Buffer, updates: Buffer, fault: Any, axis: int) -> Buffer:
    """Return a copy of x with few updates; in a replay that may overwrite x, nothing is copied."""
    row = prod(x.shape[axis + 1 :]) * x.dtype.itemsize
    word, total = _word(device, row), updates.size * updates.dtype.itemsize
    result = duplicate(device, x)
    items, group, span = device.geometry.items(total // word)
    program = device.plans[_program](word, indices.dtype)
    program.scatter_few(
        items, group, indices.memory, updates.memory, result.memory, *fault,
        x.shape[axis], indices.size, row // word, total // word, span,
    )  # fmt: skip
    return result


def _scatter_pass(
    device: Device, out: Spec, x: Buffer, indices: Buffer, updates: Buffer, fault: Any, axis: int, first: int
) -> Buffer:
    """Run one pass of scatter: at most MAX_TILE updates from `first` on."""
    outer, n, count = prod(x.shape[:axis]), x.shape[axis], indices.size
    row = prod(x.shape[axis + 1 :]) * x.dtype.itemsize
    word, size = _word(device, row), min(n, MAX_TILE)
    result, winner, words = device.empty(out), device.empty(Spec((size,), INT32)), row // word
    program, marked = device.plans[_program](word, indices.dtype), min(MAX_TILE, count - first)
    for begin in range(0, n, size):
        slices = min(size, n - begin)
        device.fill_zero(winner)
        items, group, span = device.geometry.items(marked)
        program.scatter_mark(
            items, group, indices.memory, winner.memory, *fault, n, begin, slices, marked, first, span
        )  # fmt: skip
        for (o, k, w), part in _tiles_of_slices((outer, n, words), begin, slices):
            items, group, span = device.geometry.items(prod(part))
            program.scatter_gather(
                items, group, x.memory, updates.memory, winner.memory, result.memory, count, words, *part[1:],
                prod(part), (o * count + first) * words + w, k - begin, (o * n + k) * words + w, span,
            )  # fmt: skip
    return result


def _tiles_of_slices(shape: Place, begin: int, slices: int) -> Iterator[tuple[Place, Place]]:
    """Yield tiles of `slices` neighboring slices of an array along the middle axis, from `begin` on."""
    outer, n, words = shape
    if slices == n:
        yield from tiles(shape, MAX_TILE)
        return
    for o, ((_, k, w), part) in product(range(outer), tiles((1, slices, words), MAX_TILE)):
        yield (o, begin + k, w), part


def scatter_add(device: Device, out: Spec, x: Buffer, indices: Buffer, updates: Buffer, *, axis: int) -> Buffer:
    """Return x with updates added to the slices at indices."""
    fault = device.faults.call("scatter_add")
    x, result = dense(device, x), device.empty(out)
    if out.size:
        device.commands.copy((out.size * out.dtype.itemsize,), None, result.memory, x.memory)
        segments.add(device, fault, result, dense(device, updates), dense(device, indices), axis=axis)
    else:
        check(device, fault, dense(device, indices), x.shape[axis])
    return result


def check(device: Device, fault: Any, indices: Buffer, n: int) -> None:
    """Record a fault for indices out of range of an axis of length n, for ops whose result has no elements."""
    items, group, span = device.geometry.items(indices.size)
    program = device.plans[_program](1, indices.dtype)
    program.check_indices(items, group, indices.memory, *fault, n, indices.size, span)


def _word(device: Device, row: int) -> int:
    """Return the largest word, in bytes, that divides a row of `row` bytes."""
    return gcd(row, device.geometry.word)


def _program(device: Device, word: int, dtype: np.dtype) -> Program:
    """Return the program for words of `word` bytes, and indices of this dtype."""
    return device.build("index", WORD=WORDS[word], INDEX="int" if dtype == INT32 else "long")
