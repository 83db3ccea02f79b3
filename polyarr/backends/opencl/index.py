"""take, take_along_axis, scatter, scatter_add: reading and writing where an array of integers points."""

from math import gcd, prod
from typing import Any

import numpy as np

from polyarr.backends.opencl import segments
from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, broadcast
from polyarr.backends.opencl.runtime.program import Program
from polyarr.core.spec import Spec

WORDS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", 16: "uint4", 32: "uint8", 64: "uint16"}
FAR = 2**31  # words that 32 bits do not count
INT32 = np.dtype("int32")


def take(device: Device, out: Spec, x: Buffer, indices: Buffer, *, axis: int) -> Buffer:
    """Slices of x along axis, in the order of indices."""
    fault = device.faults.call()
    x, indices, result = dense(device, x), dense(device, indices), device.empty(out)
    row = prod(x.shape[axis + 1 :]) * x.dtype.itemsize
    word, rows, total = _word(device, row), prod(x.shape[:axis]) * indices.size, out.size * x.dtype.itemsize
    if total == 0:
        check(device, fault, indices, x.shape[axis])
        return result
    program = device.plans[_program](word, indices.dtype, total // word < FAR)
    args = (x.memory, indices.memory, result.memory, *fault, x.shape[axis], indices.size, row // word)
    if device.geometry.moves_rows:
        items, group, span = device.geometry.items(rows, max(1, device.geometry.span * word // row))
        program.take_rows(items, group, *args, rows, span)
    else:
        items, group, _ = device.geometry.items(total // word)
        program.take_words(items, group, *args, total // word)
    return result


def take_along_axis(device: Device, out: Spec, x: Buffer, indices: Buffer, *, axis: int) -> Buffer:
    """Elements of x whose coordinate on axis comes from indices."""
    fault = device.faults.call()
    n, count = x.shape[axis], indices.shape[axis]
    x = dense(device, broadcast(x, (*out.shape[:axis], n, *out.shape[axis + 1 :])))
    indices, result = dense(device, broadcast(indices, out.shape)), device.empty(out)
    items, group, span = device.geometry.items(out.size)
    device.plans[_program](x.dtype.itemsize, indices.dtype, out.size < FAR).take_along_axis(
        items, group, x.memory, indices.memory, result.memory, *fault,
        n, count, prod(out.shape[axis + 1 :]), out.size, span,
    )  # fmt: skip
    return result


def scatter(device: Device, out: Spec, x: Buffer, indices: Buffer, updates: Buffer, *, axis: int) -> Buffer:
    """x with the slices that indices name replaced by updates; the last of several for one slice wins."""
    fault = device.faults.call()
    x, indices, updates = dense(device, x), dense(device, indices), dense(device, updates)
    result, winner = device.empty(out), device.empty(Spec((x.shape[axis],), INT32))
    row = prod(x.shape[axis + 1 :]) * x.dtype.itemsize
    word, total = _word(device, row), out.size * x.dtype.itemsize
    if total == 0:
        check(device, fault, indices, x.shape[axis])
        return result
    device.fill_zero(winner)
    program = device.plans[_program](word, indices.dtype, total // word < FAR)
    items, group, span = device.geometry.items(indices.size)
    program.scatter_mark(items, group, indices.memory, winner.memory, *fault, x.shape[axis], indices.size, span)
    items, group, span = device.geometry.items(total // word)
    program.scatter_gather(
        items, group, x.memory, updates.memory, winner.memory, result.memory,
        x.shape[axis], indices.size, row // word, total // word, span,
    )  # fmt: skip
    return result


def scatter_add(device: Device, out: Spec, x: Buffer, indices: Buffer, updates: Buffer, *, axis: int) -> Buffer:
    """x with updates added to the slices that indices name."""
    fault = device.faults.call()
    x, result = dense(device, x), device.empty(out)
    if out.size:
        device.commands.copy((out.size * out.dtype.itemsize,), None, result.memory, x.memory)
        segments.add(device, fault, result, dense(device, updates), dense(device, indices), axis=axis)
    else:
        check(device, fault, dense(device, indices), x.shape[axis])
    return result


def check(device: Device, fault: Any, indices: Buffer, n: int) -> None:
    """Note an index out of range for an axis of length n, where an op has nothing to move."""
    items, group, span = device.geometry.items(indices.size)
    program = device.plans[_program](1, indices.dtype, indices.size < FAR)
    program.check_indices(items, group, indices.memory, *fault, n, indices.size, span)


def _word(device: Device, row: int) -> int:
    """The bytes that are moved at once, so that a row is whole words."""
    return gcd(row, device.geometry.word)


def _program(device: Device, word: int, dtype: np.dtype, near: bool) -> Program:
    """For words of so many bytes, indices of this dtype, and positions that are near enough for 32 bits."""
    index = "int" if dtype == INT32 else "long"
    return device.build("index", WORD=WORDS[word], INDEX=index, POSITION="uint" if near else "ulong")
