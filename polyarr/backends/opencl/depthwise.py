"""Convolutions in which every channel has a filter of its own."""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, Shape, reshaped, swapped
from polyarr.backends.opencl.program import STORED
from polyarr.backends.opencl.reduce import launcher as reduction
from polyarr.backends.opencl.source import SCALARS
from polyarr.backends.opencl.spatial import Padding, channels, geometry, plan
from polyarr.core.spec import Spec

SUM = reduction("sum")
LEAST_ROWS = 4  # rows of windows that are worth a part of a sum
ITEMS = {"cpu": 8, "gpu": 1024}  # work-items of a sum that a unit should have


def product(device: Device, out: Spec, x: Buffer, weight: Buffer, **where: Any) -> Buffer:
    """Every window of each channel with the filter of that channel."""
    return _each_place(device, "depthwise", out, x, weight, x.shape, out.shape, where)


def input_gradient(device: Device, out: Spec, g: Buffer, weight: Buffer, **where: Any) -> Buffer:
    """The gradient of x."""
    return _each_place(device, "depthwise_input_gradient", out, g, weight, out.shape, g.shape, where)


def weight_gradient(device: Device, out: Spec, g: Buffer, x: Buffer, **where: Any) -> Buffer:
    """The gradient of the weight: sums over parts of the windows, and then of these."""
    g, x = dense(device, g), dense(device, x)
    kernel, work, parts, told = device.plans[_sum_plan](x.dtype, x.shape, g.shape, out.shape[1:-1], **where)
    partials = device.empty(Spec((parts, prod(out.shape[1:-1]), out.shape[0]), SCALARS[STORED[x.dtype][1]]))
    kernel(work, None, g.memory, x.memory, partials.memory, parts, told)
    sums = SUM(device, Spec(partials.shape[1:], out.dtype), partials, axis=(0,))
    return reshaped(dense(device, swapped(sums)), out.shape)


def _each_place(
    device: Device, name: str, out: Spec, windowed: Buffer, weight: Buffer, x: Shape, places: Shape, where: dict
) -> Buffer:
    n, *kernel, _ = weight.shape
    filters = dense(device, swapped(reshaped(dense(device, weight), (n, prod(kernel)))))
    windowed, result = dense(device, windowed), device.empty(out)
    launch, told = device.plans[_plan](name, out.shape, windowed.dtype, x, places, tuple(kernel), **where)
    arrays = windowed.memory, filters.memory, result.memory
    launch.kernel(launch.work, launch.group, *arrays, *launch.numbers, told)
    return result


def _plan(
    device: Device, name: str, shape: Shape, dtype: np.dtype, x: Shape, out: Shape, kernel: Shape, *, stride: Shape,
    padding: Padding, dilation: Shape,
) -> Any:  # fmt: skip
    wide, macros = channels(device, dtype, x[-1])
    told = geometry(x, out, kernel, stride, padding, dilation, wide)
    return plan(device, device.build("depthwise", **macros).kernels[name], shape, wide, prod(kernel)), told


def _sum_plan(
    device: Device, dtype: np.dtype, x: Shape, out: Shape, kernel: Shape, *, stride: Shape, padding: Padding,
    dilation: Shape,
) -> Any:  # fmt: skip
    wide, macros = channels(device, dtype, x[-1])
    each, rows = x[-1] // wide * prod(kernel), prod(out[:-2])
    wanted = ITEMS[device.geometry.kind] * device.features.compute_units // each
    parts = max(1, min(wanted, rows // LEAST_ROWS))
    told = geometry(x, out, kernel, stride, padding, dilation, wide)
    return device.build("depthwise", **macros).depthwise_weight_gradient, (each * parts,), parts, told
