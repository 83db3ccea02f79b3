"""Shape ops: views if strides can express the result, else copies."""

from itertools import pairwise
from typing import cast

from polyarr.backends.opencl.copying.copy import dense, duplicate, write
from polyarr.backends.opencl.elementwise.elementwise import Start, astype
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
    """Reshape x in row-major order; a view if strides can express it, else a copy."""
    strides = reshaped_strides(x.shape, x.strides, out.shape)
    if strides is None:
        x, strides = duplicate(device, x), row_major(out.shape)
    return view(x, out.shape, strides, x.offset)


def permute_dims(device: Device, out: Spec, x: Buffer, *, axes: tuple[int, ...]) -> Buffer:
    """Return x with its axes in another order; a view."""
    return permuted(x, axes)


def broadcast_to(device: Device, out: Spec, x: Buffer, *, shape: tuple[int, ...]) -> Buffer:
    """Repeat x along new axes and axes of length 1; a view."""
    return broadcast(x, out.shape)


def slice(
    device: Device, out: Spec, x: Buffer, starts: Starts, *, steps: tuple[int, ...], shape: tuple[int, ...]
) -> Buffer:
    """Return every steps-th element of x from starts on, along each axis; a view, or a copy if a start is an array."""
    axis = _first_on_device(starts)
    if axis is None:
        return window(x, out.shape, cast("tuple[int, ...]", starts), steps)
    whole = with_axis(shape, axis, x.shape[axis])
    x = slice(
        device, Spec(whole, x.dtype), x, with_axis(starts, axis, 0), steps=with_axis(steps, axis, 1), shape=whole
    )
    return _slice_on_device(device, x, axis, cast("Buffer", starts[axis]), steps[axis], shape[axis])


def slice_update(
    device: Device, out: Spec, x: Buffer, value: Buffer, starts: Starts, *, steps: tuple[int, ...]
) -> Buffer:
    """Return a copy of x in which the slice at starts, steps is value. Starts that are arrays are applied in turn."""
    axis, start = _first_on_device(starts), None
    if axis is not None and not value.size:
        slice(device, spec_of(value), x, starts, steps=steps, shape=value.shape)  # records a fault for a bad start
    elif axis is not None:
        number, starts = cast("Buffer", starts[axis]), with_axis(starts, axis, 0)
        step, count = steps[axis], value.shape[axis]
        if _first_on_device(starts) is not None:
            rows, one = _slice_on_device(device, x, axis, number, step, count), with_axis(steps, axis, 1)
            value = slice_update(device, spec_of(rows), rows, value, starts, steps=one)
            starts, steps = (0,) * x.ndim, with_axis((1,) * x.ndim, axis, step)
        start = _start(device, number, x.shape[axis], step, count, (0, row_major(x.shape)[axis]))
    result = duplicate(device, x)
    if value.size:
        write(device, window(result, value.shape, cast("tuple[int, ...]", starts), steps), value, start)
    return result


def _first_on_device(starts: Starts) -> int | None:
    """Return the first axis whose start is an array on the device, or None."""
    return next((axis for axis, start in enumerate(starts) if type(start) is Buffer), None)


def _slice_on_device(device: Device, x: Buffer, axis: int, number: Buffer, step: int, count: int) -> Buffer:
    """Copy `count` elements along an axis, from a start that is read on the device."""
    view = window(x, with_axis(x.shape, axis, count), (0,) * x.ndim, with_axis((1,) * x.ndim, axis, step))
    if count and not view.size:  # nothing is copied, but a bad start must still be recorded
        _slice_on_device(device, broadcast(number, x.shape[axis : axis + 1]), 0, number, step, count)
    return duplicate(device, view, _start(device, number, x.shape[axis], step, count, (x.strides[axis], 0)))


def _start(device: Device, number: Buffer, length: int, step: int, count: int, strides: tuple[int, int]) -> Start:
    """Return the Start of a slice of `count` elements; the op has checked that some start is in range."""
    if number.dtype not in (int32, int64):
        number = astype(device, Spec((), int64), number, dtype=int64)
    reach = (count - 1) * step
    return Start(number, max(0, -reach), length - 1 - max(0, reach), length, strides, device.faults.call("slice"))


def concat(device: Device, out: Spec, arrays: tuple[Buffer, ...], *, axis: int) -> Buffer:
    """Concatenate arrays along an axis; a view if they are equidistant parts of one array, such as unstack's."""
    if len(arrays) == 1:
        return dense(device, arrays[0])
    if (distance := _distance(arrays, axis)) is not None:
        first = arrays[0]
        return view(first, out.shape, with_axis(first.strides, axis, distance), first.offset)
    result, start, none = device.empty(out), 0, (0,) * len(out.shape)
    ones = (1,) * len(out.shape)
    for array in arrays:
        starts = (*none[:axis], start, *none[axis + 1 :])
        write(device, window(result, array.shape, starts, ones), array)
        start += array.shape[axis]
    return result


def _distance(arrays: tuple[Buffer, ...], axis: int) -> int | None:
    """Return the distance between arrays of length 1 along the axis, if they are equidistant in one memory, or None."""
    first, *rest = arrays
    offsets = [a.offset for a in arrays]
    if first.shape[axis] != 1 or any(type(offset) is not int for offset in offsets):  # a traced Number has no value
        return None
    if any(a.memory is not first.memory or (a.shape, a.strides) != (first.shape, first.strides) for a in rest):
        return None
    steps = {after - before for before, after in pairwise(offsets)}
    return steps.pop() if len(steps) == 1 and min(steps) > 0 else None
