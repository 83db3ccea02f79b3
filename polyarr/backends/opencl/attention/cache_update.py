"""Update of a key-value cache at one position of each row."""

import numpy as np

from polyarr.backends.opencl.copying.copy import WORDS, dense, duplicate
from polyarr.backends.opencl.indexing.index import check
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program
from polyarr.core.spec import Spec


def cache_update(device: Device, out: Spec, cache: Buffer, k: Buffer, v: Buffer, positions: Buffer) -> Buffer:
    """Return a copy of the cache with k and v at the positions; a replay that may overwrite it copies nothing."""
    fault, positions = device.faults.call("cache_update"), dense(device, positions)
    result = duplicate(device, cache)
    _, cache_rows, heads, size, width = out.shape
    if not k.size:
        check(device, fault, positions, size)
        return result
    items, group, span = device.geometry.items(2 * k.size)
    device.plans[_program](out.dtype.itemsize, positions.dtype).cache_update(
        items, group, k.memory, *_layout(k), v.memory, *_layout(v), positions.memory, result.memory, *fault,
        k.shape[0], heads, width, cache_rows, size, 2 * k.size, span,
    )  # fmt: skip
    return result


def _layout(x: Buffer) -> tuple[int, int, int, int]:
    """Return the offset, and the strides of the rows, heads and elements of x (b, H, 1, D)."""
    rows, heads, _, elements = x.strides
    return x.offset, rows, heads, elements


def _program(device: Device, size: int, index: np.dtype) -> Program:
    return device.build("cache_update", WORD=WORDS[size], INDEX="int" if index.itemsize == 4 else "long")
