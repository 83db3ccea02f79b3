"""Shape ops: views wherever strides can express the result, else copies."""

from polyarr.backends.opencl.copy import dense, duplicate, write
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, broadcast, permuted, reshaped_strides, row_major, window
from polyarr.core.spec import Spec


def reshape(device: Device, out: Spec, x: Buffer, *, shape: tuple[int, ...]) -> Buffer:
    """x's elements in row-major order under another shape; a copy only if strides cannot say it."""
    strides = reshaped_strides(x.shape, x.strides, out.shape)
    if strides is None:
        x, strides = duplicate(device, x), row_major(out.shape)
    return x._replace(shape=out.shape, strides=strides)


def permute_dims(device: Device, out: Spec, x: Buffer, *, axes: tuple[int, ...]) -> Buffer:
    """x with its axes in another order; a view."""
    return permuted(x, axes)


def broadcast_to(device: Device, out: Spec, x: Buffer, *, shape: tuple[int, ...]) -> Buffer:
    """x repeated along new axes and axes of length 1; a view."""
    return broadcast(x, out.shape)


def slice(
    device: Device, out: Spec, x: Buffer, starts: tuple[int, ...], *, steps: tuple[int, ...], shape: tuple[int, ...]
) -> Buffer:
    """Every steps-th element of x from starts on, along each axis; a view."""
    return window(x, out.shape, starts, steps)


def slice_update(
    device: Device, out: Spec, x: Buffer, value: Buffer, starts: tuple[int, ...], *, steps: tuple[int, ...]
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
