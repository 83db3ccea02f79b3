"""Images and filters as matrices, padded or strided."""

from math import prod

from polyarr.backends.opencl.convolution.spatial import Padding
from polyarr.backends.opencl.copying.copy import dense, write
from polyarr.backends.opencl.elementwise.elementwise import launch
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import (
    Buffer,
    Shape,
    permuted,
    reshaped,
    reshaped_strides,
    row_major,
    view,
    window,
)
from polyarr.core.spec import Spec


def rows_of(device: Device, x: Buffer) -> Buffer:
    """Return x (..., channels) as a matrix with contiguous rows."""
    shape = prod(x.shape[:-1]), x.shape[-1]
    strides = reshaped_strides(x.shape, x.strides, shape)
    if strides is None or strides[1] != 1:
        return reshaped(dense(device, x), shape)
    return view(x, shape, strides, x.offset)


def strides_of_rows(shape: Shape, step: int) -> Shape:
    """Return the strides of (..., channels) whose rows are `step` apart."""
    return (*(step * n for n in row_major((*shape[:-1], 1))[:-1]), 1)


def filters_of(device: Device, weight: Buffer) -> Buffer:
    """Return the weight as a matrix with a row per filter."""
    return reshaped(dense(device, weight), (weight.shape[0], prod(weight.shape[1:])))


def strided(x: Buffer, stride: Shape) -> Buffer:
    """Return a view of the positions of x that a strided 1 x 1 convolution reads."""
    shape = (x.shape[0], *(-(-n // step) for n, step in zip(x.shape[1:-1], stride, strict=True)), x.shape[-1])
    return window(x, shape, (0,) * x.ndim, (1, *stride, 1))


def padded(device: Device, x: Buffer, padding: Padding) -> Buffer:
    """Return x, with contiguous channels, padded by zeros."""
    if not any(map(any, padding)):
        return x if x.strides[-1] == 1 or x.shape[-1] == 1 else dense(device, x)
    lengths = (n + sum(pads) for n, pads in zip(x.shape[1:-1], padding, strict=True))
    out = Spec((x.shape[0], *lengths, x.shape[-1]), x.dtype)
    return among_zeros(device, out, x, (0, *(before for before, _ in padding), 0))


def among_zeros(device: Device, out: Spec, x: Buffer, starts: Shape) -> Buffer:
    """Return zeros of the shape of out, with x from starts on."""
    result = zeros(device, out)
    write(device, window(result, x.shape, starts, (1,) * x.ndim), x)
    return result


def zeros(device: Device, out: Spec) -> Buffer:
    return launch(device, out, 0)


def groups_to_channels(device: Device, out: Spec, groups: int, found: Buffer) -> Buffer:
    """Return the results of groups (groups, rows, channels of a group) in the shape of out."""
    if groups == 1:
        return reshaped(found, out.shape)
    return reshaped(dense(device, permuted(found, (1, 0, 2))), out.shape)
