"""Shape ops: views wherever strides can express the result, else copies."""

from itertools import pairwise

from polyarr.backends.opencl.copy import dense, duplicate, write
from polyarr.backends.opencl.elementwise import Start, astype
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import (
    Buffer,
    broadcast,
    permuted,
    reshaped_strides,
    row_major,
    spec_of,
    view,
    window,
    with_axis,
)
from polyarr.core.spec import Spec, int32, int64

Starts = tuple[int | Buffer, ...]


def reshape(device: Device, out: Spec, x: Buffer, *, shape: tuple[int, ...]) -> Buffer:
    """x's elements in row-major order under another shape; a copy only if strides cannot say it."""
    strides = reshaped_strides(x.shape, x.strides, out.shape)
    if strides is None:
        x, strides = duplicate(device, x), row_major(out.shape)
    return view(x, out.shape, strides, x.offset)


def permute_dims(device: Device, out: Spec, x: Buffer, *, axes: tuple[int, ...]) -> Buffer:
    """x with its axes in another order; a view."""
    return permuted(x, axes)


def broadcast_to(device: Device, out: Spec, x: Buffer, *, shape: tuple[int, ...]) -> Buffer:
    """x repeated along new axes and axes of length 1; a view."""
    return broadcast(x, out.shape)


def slice(
    device: Device, out: Spec, x: Buffer, starts: Starts, *, steps: tuple[int, ...], shape: tuple[int, ...]
) -> Buffer:
    """Every steps-th element of x from starts on, along each axis; a view, but a copy for each start in memory."""
    axis = _in_memory(starts)
    if axis is None:
        return window(x, out.shape, starts, steps)
    whole = with_axis(shape, axis, x.shape[axis])
    x = slice(
        device, Spec(whole, x.dtype), x, with_axis(starts, axis, 0), steps=with_axis(steps, axis, 1), shape=whole
    )
    return _slid(device, x, axis, starts[axis], steps[axis], shape[axis])


def slice_update(
    device: Device, out: Spec, x: Buffer, value: Buffer, starts: Starts, *, steps: tuple[int, ...]
) -> Buffer:
    """A copy of x in which the window at starts, steps holds value. Of starts in memory, one after the other counts."""
    axis, start = _in_memory(starts), None
    if axis is not None and not value.size:
        slice(device, spec_of(value), x, starts, steps=steps, shape=value.shape)  # which notes a bad start
    elif axis is not None:
        number, step, count, starts = starts[axis], steps[axis], value.shape[axis], with_axis(starts, axis, 0)
        if _in_memory(starts) is not None:
            rows, one = _slid(device, x, axis, number, step, count), with_axis(steps, axis, 1)
            value = slice_update(device, spec_of(rows), rows, value, starts, steps=one)
            starts, steps = (0,) * x.ndim, with_axis((1,) * x.ndim, axis, step)
        start = _start(device, number, x.shape[axis], step, count, (0, row_major(x.shape)[axis]))
    result = duplicate(device, x)
    if value.size:
        write(device, window(result, value.shape, starts, steps), value, start)
    return result


def _in_memory(starts: Starts) -> int | None:
    """The first axis whose start is in memory."""
    return next((axis for axis, start in enumerate(starts) if type(start) is Buffer), None)


def _slid(device: Device, x: Buffer, axis: int, number: Buffer, step: int, count: int) -> Buffer:
    """So many elements along an axis, from a start in memory on; a copy."""
    view = window(x, with_axis(x.shape, axis, count), (0,) * x.ndim, with_axis((1,) * x.ndim, axis, step))
    if count and not view.size:  # nothing moves; a bad start is noted all the same
        _slid(device, broadcast(number, x.shape[axis : axis + 1]), 0, number, step, count)
    return duplicate(device, view, _start(device, number, x.shape[axis], step, count, (x.strides[axis], 0)))


def _start(device: Device, number: Buffer, length: int, step: int, count: int, strides: tuple[int, int]) -> Start:
    """Of a window of so many elements; the op has seen to it that some start is within range."""
    if number.dtype not in (int32, int64):
        number = astype(device, Spec((), int64), number, dtype=int64)
    reach = (count - 1) * step
    return Start(number, max(0, -reach), length - 1 - max(0, reach), length, strides, device.faults.call())


def concat(device: Device, out: Spec, arrays: tuple[Buffer, ...], *, axis: int) -> Buffer:
    """The arrays one after another along an axis; a view where they are parts of one array, such as unstack gives."""
    if len(arrays) == 1:
        return dense(device, arrays[0])
    if (distance := _apart(arrays, axis)) is not None:
        first = arrays[0]
        return view(first, out.shape, with_axis(first.strides, axis, distance), first.offset)
    result, start, none = device.empty(out), 0, (0,) * len(out.shape)
    ones = (1,) * len(out.shape)
    for array in arrays:
        starts = (*none[:axis], start, *none[axis + 1 :])
        write(device, window(result, array.shape, starts, ones), array)
        start += array.shape[axis]
    return result


def _apart(arrays: tuple[Buffer, ...], axis: int) -> int | None:
    """How far each array lies behind the one before it, of length 1 along the axis; None if they do not lie so."""
    first, *rest = arrays
    offsets = [a.offset for a in arrays]
    if first.shape[axis] != 1 or any(type(offset) is not int for offset in offsets):  # a Number must not be looked at
        return None
    if any(a.memory is not first.memory or (a.shape, a.strides) != (first.shape, first.strides) for a in rest):
        return None
    steps = {after - before for before, after in pairwise(offsets)}
    return steps.pop() if len(steps) == 1 and min(steps) > 0 else None
