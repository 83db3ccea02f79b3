"""Shape ops: views wherever strides can express the result, else copies."""

from itertools import pairwise

from polyarr.backends.opencl.copy import dense, duplicate, write
from polyarr.backends.opencl.device import Buffer, Device, row_major
from polyarr.core.spec import Spec


def reshape(device: Device, out: Spec, x: Buffer, *, shape: tuple[int, ...]) -> Buffer:
    """x's elements in row-major order under another shape; a copy only if strides cannot say it."""
    strides = reshaped_strides(x.shape, x.strides, out.shape)
    if strides is None:
        x, strides = duplicate(device, x), row_major(out.shape)
    return x._replace(shape=out.shape, strides=strides)


def reshaped_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides that show an array under another shape of the same size, or None if there are none.

    Both shapes are cut into the shortest runs of axes with equal products. Within a run the old axes must step as
    one, and the new axes then divide that one among them.
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


def permute_dims(device: Device, out: Spec, x: Buffer, *, axes: tuple[int, ...]) -> Buffer:
    """x with its axes in another order; a view."""
    return x._replace(shape=out.shape, strides=tuple([x.strides[axis] for axis in axes]))


def broadcast_to(device: Device, out: Spec, x: Buffer, *, shape: tuple[int, ...]) -> Buffer:
    """x repeated along new axes and axes of length 1; a view."""
    lead = len(out.shape) - len(x.shape)
    strides = tuple([0 if had == 1 else stride for had, stride in zip(x.shape, x.strides, strict=True)])
    return x._replace(shape=out.shape, strides=(0,) * lead + strides)


def slice(
    device: Device,
    out: Spec,
    x: Buffer,
    *,
    starts: tuple[int, ...],
    steps: tuple[int, ...],
    shape: tuple[int, ...],
) -> Buffer:
    """Every steps-th element of x from starts on, along each axis; a view."""
    return window(x, out.shape, starts, steps)


def window(x: Buffer, shape: tuple[int, ...], starts: tuple[int, ...], steps: tuple[int, ...]) -> Buffer:
    """The elements of x at starts + i * steps, along each axis."""
    offset = x.offset
    if 0 not in shape:
        offset += sum([start * stride for start, stride in zip(starts, x.strides, strict=True)])
    strides = tuple([step * stride for step, stride in zip(steps, x.strides, strict=True)])
    return x._replace(shape=shape, strides=strides, offset=offset)


def slice_update(
    device: Device, out: Spec, x: Buffer, value: Buffer, *, starts: tuple[int, ...], steps: tuple[int, ...]
) -> Buffer:
    """A copy of x in which the window at starts, steps holds value."""
    result = duplicate(device, x)
    write(device, window(result, value.shape, starts, steps), value)
    return result


def concat(device: Device, out: Spec, arrays: tuple[Buffer, ...], *, axis: int) -> Buffer:
    """The arrays one after another along an axis."""
    if len(arrays) == 1:
        return dense(device, arrays[0])
    result, start, none = device.empty(out), 0, (0,) * len(out.shape)
    ones = (1,) * len(out.shape)
    for array in arrays:
        starts = (*none[:axis], start, *none[axis + 1 :])
        write(device, window(result, array.shape, starts, ones), array)
        start += array.shape[axis]
    return result
