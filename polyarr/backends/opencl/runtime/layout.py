"""Memory layout: buffers as strided views, and everything that follows from shapes and strides alone.

Strides and offsets count elements. An axis has a *step*: its stride, or 0 if it has one element or is broadcast. Axes
*collapse* where one step walks them all; then they are joined.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.runtime.faults import Origin
from polyarr.core.spec import Spec, complex_of, real_of

Shape = tuple[int, ...]
Strides = tuple[int, ...]
ALIGNMENT = 16  # bytes that GPUs read at once from aligned addresses
Axis = tuple[int, tuple[int, ...]]  # its length, and its step in each of several arrays


class Buffer(NamedTuple):
    """A strided view of device memory.

    Attributes:
        origin: The thread that made it, for faults.
    """

    memory: Any
    shape: Shape
    dtype: np.dtype
    strides: Strides
    offset: int = 0
    origin: Origin | None = None

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Return whether the buffer is row-major, without gaps, and begins where its memory begins."""
        return not self.offset and is_gapless(self.shape, self.strides)


def is_aligned(buf: Buffer) -> bool:
    """Return whether a buffer begins at a multiple of 16 bytes."""
    return not buf.offset % (ALIGNMENT // buf.dtype.itemsize)


def spec_of(buf: Buffer) -> Spec:
    """Return the Spec of a buffer."""
    return Spec(buf.shape, buf.dtype)


def with_axis(numbers: tuple, axis: int, number: Any) -> tuple:
    """Return numbers, one per axis, with another one for this axis."""
    return (*numbers[:axis], number, *numbers[axis + 1 :])


@lru_cache(maxsize=8192)
def row_major(shape: Shape) -> Strides:
    """Return the strides of a contiguous array whose last axis varies fastest."""
    strides, step = [0] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        strides[i] = step
        step *= shape[i]
    return tuple(strides)


@lru_cache(maxsize=8192)
def is_gapless(shape: Shape, strides: Strides) -> bool:
    """Return whether the strides of the axes longer than 1 are those of a row-major array."""
    expected = row_major(shape)
    return 0 in shape or all(n == 1 or s == e for n, s, e in zip(shape, strides, expected, strict=True))


def whole_row(length: int, itemsize: int) -> int:
    """Return a row's length rounded up to 16 bytes."""
    whole = ALIGNMENT // itemsize
    return -(-length // whole) * whole


@lru_cache(maxsize=8192)
def row_pitch(shape: Shape, strides: Strides) -> int:
    """Return the distance between rows of contiguous elements; 0 if it is not uniform."""
    lengths, (steps,) = collapse(shape, (strides,))
    is_rows = len(lengths) == 2 and steps[1] == 1 and lengths[1] == shape[-1] <= steps[0]
    return shape[-1] if is_gapless(shape, strides) else steps[0] if is_rows else 0


def steps_of(shape: Shape, strides: Strides) -> Strides:
    """Return the strides, with 0 for axes of one element."""
    return tuple([0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True)])


def broadcast_strides(shape: Shape, strides: Strides, ndim: int) -> Strides:
    """Return the strides of an array broadcast to ndim axes: 0 where it is repeated."""
    return (0,) * (ndim - len(shape)) + steps_of(shape, strides)


def joined(axes: Iterable[Axis]) -> list[Axis]:
    """Return the axes longer than 1; those that collapse in all arrays are joined."""
    found: list[Axis] = []
    for length, steps in axes:
        if length == 1:
            continue
        if found and all(outer == inner * length for outer, inner in zip(found[-1][1], steps, strict=True)):
            length *= found.pop()[0]
        found.append((length, steps))
    return found


def collapse(shape: Shape, strides: Sequence[Strides]) -> tuple[Shape, tuple[Strides, ...]]:
    """Return the same elements of several arrays, in the same order, with as few axes as possible, at least one."""
    axes = joined(zip(shape, zip(*strides, strict=True), strict=True)) or [(1, (1,) * len(strides))]
    return tuple(length for length, _ in axes), tuple(zip(*(steps for _, steps in axes), strict=True))


def lengthened(lengths: Shape, steps: Sequence[Strides], least: int) -> tuple[Shape, tuple[Strides, ...]]:
    """Return lengths and steps with leading axes of one element, up to `least` axes."""
    more = least - len(lengths)
    return (1,) * more + lengths, tuple((0,) * more + own for own in steps)


@lru_cache(maxsize=8192)
def reshaped_strides(shape: Shape, strides: Strides, wanted: Shape) -> Strides | None:
    """Return the strides that show an array in another shape of the same size; None if there are none.

    Both shapes are cut into the shortest runs of axes with equal products. Within a run the old axes must collapse into
    one, which the new axes then divide among them.
    """
    if 0 in wanted:
        return row_major(wanted)
    old = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length != 1]
    new: list[int] = [0] * len(wanted)
    end_old, end_new = len(old), len(wanted)
    while end_new:
        begin_old, begin_new = end_old, end_new - 1
        have, need = 1, wanted[begin_new]
        while have != need:
            if have < need:
                begin_old -= 1
                have *= old[begin_old][0]
            else:
                begin_new -= 1
                need *= wanted[begin_new]
        run = old[begin_old:end_old]
        if any(outer[1] != inner[0] * inner[1] for outer, inner in pairwise(run)):
            return None
        step = run[-1][1] if run else 1
        for axis in range(end_new - 1, begin_new - 1, -1):
            new[axis] = step
            step *= wanted[axis]
        end_old, end_new = begin_old, begin_new
    return tuple(new)


def view(buf: Buffer, shape: Shape, strides: Strides, offset: int) -> Buffer:
    """Return another view of the memory of a buffer."""
    # as Buffer(...), but twice as fast
    return tuple.__new__(Buffer, (buf.memory, shape, buf.dtype, strides, offset, buf.origin))


def reshaped(buf: Buffer, shape: Shape) -> Buffer:
    """Return a dense buffer in another shape."""
    return view(buf, shape, row_major(shape), buf.offset)


def permuted(buf: Buffer, axes: Iterable[int]) -> Buffer:
    """Return a view with the axes in another order."""
    order = [*axes]
    shape, strides = buf.shape, buf.strides
    return view(buf, tuple([shape[a] for a in order]), tuple([strides[a] for a in order]), buf.offset)


def swapped(buf: Buffer, a: int = -2, b: int = -1) -> Buffer:
    """Return a view with two axes exchanged, by default those of matrices."""
    axes = [*range(buf.ndim)]
    axes[a], axes[b] = axes[b], axes[a]
    return permuted(buf, axes)


def moved(buf: Buffer, source: int, target: int) -> Buffer:
    """Return a view with axis source moved to target."""
    if source == target:
        return buf
    axes = [*range(buf.ndim)]
    axes.insert(target, axes.pop(source))
    return permuted(buf, axes)


def broadcast(buf: Buffer, shape: Shape) -> Buffer:
    """Return a view repeated along axes of one element and along new leading axes."""
    if buf.shape == shape:
        return buf
    return view(buf, shape, broadcast_strides(buf.shape, buf.strides, len(shape)), buf.offset)


def window(buf: Buffer, shape: Shape, starts: tuple[int, ...], steps: tuple[int, ...]) -> Buffer:
    """Return a view of the elements at starts + i * steps, along each axis."""
    offset = buf.offset
    if 0 not in shape:
        offset += sum([start * stride for start, stride in zip(starts, buf.strides, strict=True)])
    strides = tuple([step * stride for step, stride in zip(steps, buf.strides, strict=True)])
    return view(buf, shape, strides, offset)


def part_of(buf: Buffer, part: int) -> Buffer:
    """Return a view of the real parts (0) or the imaginary parts (1) of complex numbers."""
    strides = tuple([2 * stride for stride in buf.strides])
    return view(buf, buf.shape, strides, 2 * buf.offset + part)._replace(dtype=real_of(buf.dtype))


def with_parts(buf: Buffer) -> Buffer:
    """Return a view of complex numbers whose last axis is that of their two parts."""
    real = part_of(buf, 0)
    return view(real, (*buf.shape, 2), (*real.strides, 1), real.offset)


def of_parts(buf: Buffer) -> Buffer:
    """Return complex numbers, given a dense buffer whose last axis is that of their two parts."""
    shape, dtype = buf.shape[:-1], complex_of(buf.dtype)
    return view(buf, shape, row_major(shape), 0)._replace(dtype=dtype)


def pieces(buf: Buffer, axis: int, first: int, count: int, each: int) -> Buffer:
    """Return a view of `count` pieces of an axis, `each` long and from `first` on, along a new leading axis."""
    step, shape = buf.strides[axis], [*buf.shape]
    shape[axis] = each
    return view(buf, (count, *shape), (each * step, *buf.strides), buf.offset + first * step)
