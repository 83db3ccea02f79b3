"""Zero padding and dilation of images: copies into larger images, at strided positions."""

from typing import Any

import numpy as np

from polyarr.backends.opencl.convolution.conv_params import ConvParams
from polyarr.backends.opencl.convolution.spatial import channels, geometry, plan
from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, Shape
from polyarr.core.spec import Spec


def spread(device: Device, out: Spec, x: Buffer, starts: Shape, stride: Shape) -> Buffer:
    """Return zeros of the shape of out with the elements of x at starts + o * stride along each image axis."""
    x, result = dense(device, x), device.empty(out)
    _spread(device, "spread", out.shape, x, result, starts, stride)
    return result


def lay(device: Device, target: Buffer, x: Buffer, starts: Shape, stride: Shape) -> None:
    """Write the elements of x at starts + o * stride, and no others."""
    _spread(device, "lay", x.shape, dense(device, x), target, starts, stride)


def _spread(device: Device, name: str, shape: Shape, x: Buffer, y: Buffer, starts: Shape, stride: Shape) -> None:
    launch, packed = device.plans[_plan](name, shape, x.shape, y.shape, x.dtype, starts, stride)
    launch.kernel(launch.work, launch.group, x.memory, y.memory, *launch.numbers, packed)


def _plan(
    device: Device, name: str, shape: Shape, x: Shape, y: Shape, dtype: np.dtype, starts: Shape, stride: Shape
) -> Any:
    wide, macros = channels(device, dtype, x[-1])
    ones = (1,) * len(starts)
    packed = geometry(y, x, ones, ConvParams(stride, tuple((-start, 0) for start in starts), ones, 1), wide)
    return plan(device, device.build("spread", **macros).kernels[name], shape, wide, 1), packed
