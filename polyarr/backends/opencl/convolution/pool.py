"""Pooling. max_pool saves the index of the largest element of each receptive field."""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.convolution.conv_params import ConvParams
from polyarr.backends.opencl.convolution.spatial import Padding, channels, geometry, plan
from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, Shape, spec_of
from polyarr.core.spec import Spec

INDICES = tuple((2**bits, name, np.dtype(f"uint{bits}")) for bits, name in ((8, "uchar"), (16, "ushort"), (32, "uint")))


def max_pool(
    device: Device, out: Spec, x: Buffer, *, kernel: Shape, stride: Shape, padding: Padding, dilation: Shape,
    ceil_mode: bool,
) -> tuple[Buffer, Buffer]:  # fmt: skip
    """Return the largest element of every receptive field, and its index."""
    x, y, which = dense(device, x), device.empty(out), device.empty(Spec(out.shape, _index(kernel)[1]))
    args = x.shape, out.shape, x.dtype, kernel, ConvParams(stride, padding, dilation, 1), None
    _run(device, "max_pool", out.shape, args, x, y, which)
    return y, which


def max_pool_backward(
    device: Device, g: Buffer, which: Buffer, x: Buffer, *, wanted: tuple[bool], kernel: Shape, stride: Shape,
    padding: Padding, dilation: Shape, ceil_mode: bool,
) -> tuple[Buffer]:  # fmt: skip
    """Return the gradient of max_pool."""
    g, dx = dense(device, g), device.empty(spec_of(x))
    args = x.shape, g.shape, x.dtype, kernel, ConvParams(stride, padding, dilation, 1), None
    _run(device, "max_pool_backward", x.shape, args, g, which, dx)
    return (dx,)


def mean_pool(
    device: Device, out: Spec, x: Buffer, *, kernel: Shape, stride: Shape, padding: Padding, ceil_mode: bool,
    count_include_pad: bool, divisor: float | None,
) -> tuple[Buffer, None]:  # fmt: skip
    """Return the mean of every receptive field."""
    x, y = dense(device, x), device.empty(out)
    args = x.shape, out.shape, x.dtype, kernel, ConvParams(stride, padding, (1,) * len(kernel), 1), count_include_pad
    _run(device, "mean_pool", out.shape, args, x, y, divisor=divisor)
    return y, None


def mean_pool_backward(
    device: Device, g: Buffer, saved: None, x: Buffer, *, wanted: tuple[bool], kernel: Shape, stride: Shape,
    padding: Padding, ceil_mode: bool, count_include_pad: bool, divisor: float | None,
) -> tuple[Buffer]:  # fmt: skip
    """Return the gradient of mean_pool."""
    g, dx = dense(device, g), device.empty(spec_of(x))
    args = x.shape, g.shape, x.dtype, kernel, ConvParams(stride, padding, (1,) * len(kernel), 1), count_include_pad
    _run(device, "mean_pool_backward", x.shape, args, g, dx, divisor=divisor)
    return (dx,)


def _index(kernel: Shape) -> tuple[str, np.dtype]:
    """Return the C type and the dtype of an index into a receptive field."""
    return next((name, dtype) for most, name, dtype in INDICES if prod(kernel) <= most)


def _run(device: Device, name: str, shape: Shape, args: tuple[Any, ...], *arrays: Buffer, **numbers: Any) -> None:
    """Launch a kernel with one work-item per position of shape."""
    if not prod(shape):
        return
    launch, packed = device.plans[_plan](name, shape, *args)
    given = (0 if number is None else float(number) for number in numbers.values())
    launch.kernel(launch.work, launch.group, *(a.memory for a in arrays), *given, *launch.numbers, packed)


def _plan(
    device: Device, name: str, shape: Shape, x: Shape, out: Shape, dtype: np.dtype, kernel: Shape, conv: ConvParams,
    counts_padding: bool | None,
) -> Any:  # fmt: skip
    wide, macros = channels(device, dtype, x[-1])
    program = device.build("pool", **macros, INDEX=_index(kernel)[0])
    packed = geometry(x, out, kernel, conv, wide, conv.padding if counts_padding else ((0, 0),) * len(kernel))
    return plan(device, program.kernels[name], shape, wide, prod(kernel)), packed
