"""Images that are spread over larger ones: with pads around, or at every so manyth place."""

from typing import Any

import numpy as np

from polyarr.backends.opencl.convolutions.spatial import channels, geometry, plan
from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, Shape
from polyarr.core.spec import Spec


def spread(device: Device, out: Spec, x: Buffer, starts: Shape, stride: Shape) -> Buffer:
    """Zeros of out's shape with x's elements at starts + o * stride, along each axis between images and channels."""
    x, result = dense(device, x), device.empty(out)
    _spread(device, "spread", out.shape, x, result, starts, stride)
    return result


def lay(device: Device, target: Buffer, x: Buffer, starts: Shape, stride: Shape) -> None:
    """Write x's elements there, and no others."""
    _spread(device, "lay", x.shape, dense(device, x), target, starts, stride)


def _spread(device: Device, name: str, shape: Shape, x: Buffer, y: Buffer, starts: Shape, stride: Shape) -> None:
    launch, told = device.plans[_plan](name, shape, x.shape, y.shape, x.dtype, starts, stride)
    launch.kernel(launch.work, launch.group, x.memory, y.memory, *launch.numbers, told)


def _plan(
    device: Device, name: str, shape: Shape, x: Shape, y: Shape, dtype: np.dtype, starts: Shape, stride: Shape
) -> Any:
    wide, macros = channels(device, dtype, x[-1])
    ones = (1,) * len(starts)
    told = geometry(y, x, ones, stride, tuple((-start, 0) for start in starts), ones, wide)
    return plan(device, device.build("spread", **macros).kernels[name], shape, wide, 1), told
