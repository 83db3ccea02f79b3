"""Depthwise convolutions on GPUs: every channel has a filter of its own."""

from math import prod
from typing import Any, cast

import numpy as np

from polyarr.backends.opencl.convolution.conv_params import ConvParams
from polyarr.backends.opencl.convolution.spatial import AXES, channels, geometry, plan
from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.reductions.reduce import launcher as reduction
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.geometry import GpuGeometry
from polyarr.backends.opencl.runtime.layout import Buffer, Shape, reshaped, swapped
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import STORED
from polyarr.backends.opencl.runtime.source import SCALARS
from polyarr.core.spec import Spec

SUM = reduction("sum")
MIN_ROWS = 4  # rows of output positions that are worth a partial sum
ITEMS = 1024  # work-items per unit for a sum
# Work-items of a group, those side by side at most, groups per unit for a sum; kernel elements along the last
# axis, positions per work-item, and the numbers that it holds of them, of filters, and of their sums, all at most.
GROUP, LANES, GROUPS = 128, 32, 32
MAX_TAPS, MAX_POSITIONS, MAX_HELD, MAX_HELD_FILTERS, MAX_HELD_SUMS = 7, 4, 32, 80, 40


def forward(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, conv: ConvParams, epilogue: Any,
    known: Any,
) -> tuple[Buffer, None] | None:  # fmt: skip
    """Return the convolution of each channel with its filter."""
    if not conv.is_depthwise(weight.shape):
        return None
    if _takes_runs(device, x.shape, out.shape, weight.shape[1:-1]):
        return _in_runs(device, out, x, weight, False, conv), None
    return _each_position(device, "depthwise", out, x, weight, x.shape, out.shape, conv), None


def input_gradient(
    device: Device, out: Spec, g: Buffer, weight: Buffer, conv: ConvParams, epilogue: Any, known: Any
) -> Buffer | None:
    """Return the gradient of x; with stride 1, it is the convolution of g with the flipped filters."""
    if not conv.is_depthwise(weight.shape):
        return None
    if _takes_runs(device, g.shape, out.shape, kernel := weight.shape[1:-1]) and set(conv.stride) == {1}:
        reach = zip(kernel, conv.dilation, conv.padding, strict=True)
        around = tuple(((k - 1) * step - before, 0) for k, step, (before, _) in reach)
        return _in_runs(device, out, g, weight, True, conv._replace(padding=around))
    return _each_position(device, "depthwise_input_gradient", out, g, weight, out.shape, g.shape, conv)


def weight_gradient(
    device: Device, out: Spec, g: Buffer, x: Buffer, conv: ConvParams, epilogue: Any, known: Any
) -> Buffer | None:
    """Return the gradient of the weight: partial sums over output positions, added up by the kernel of sum."""
    if not conv.is_depthwise(out.shape):
        return None
    g, x = dense(device, g), dense(device, x)
    kernel, n, dtype = out.shape[1:-1], out.shape[0], SCALARS[STORED[x.dtype][1]]
    in_runs = _takes_runs(device, x.shape, g.shape, kernel)
    shape = (n, prod(kernel)) if in_runs else (prod(kernel), n)
    plan_of = device.plans[_run_sum_plan if in_runs else _sum_plan]
    launch, parts, packed = plan_of(x.dtype, x.shape, g.shape, kernel, conv)
    partials = device.empty(Spec((parts, *shape), dtype))
    launch.kernel(launch.work, launch.group, g.memory, x.memory, partials.memory, *launch.numbers, packed)
    sums = SUM(device, Spec(shape, out.dtype), partials, axis=(0,))
    return reshaped(sums if in_runs else dense(device, swapped(sums)), out.shape)


def _each_position(
    device: Device, name: str, out: Spec, windowed: Buffer, weight: Buffer, x: Shape, positions: Shape, conv: ConvParams
) -> Buffer:
    n, kernel = weight.shape[0], weight.shape[1:-1]
    filters = dense(device, swapped(reshaped(dense(device, weight), (n, prod(kernel)))))
    windowed, result = dense(device, windowed), device.empty(out)
    launch, geometry = device.plans[_plan](name, out.shape, windowed.dtype, x, positions, kernel, conv)
    arrays = windowed.memory, filters.memory, result.memory
    launch.kernel(launch.work, launch.group, *arrays, *launch.numbers, geometry)
    return result


def _plan(
    device: Device, name: str, shape: Shape, dtype: np.dtype, x: Shape, out: Shape, kernel: Shape, conv: ConvParams
) -> Any:
    wide, macros = channels(device, dtype, x[-1])
    packed = geometry(x, out, kernel, conv, wide)
    return plan(device, device.build("depthwise", **macros).kernels[name], shape, wide, prod(kernel)), packed


def _sum_plan(
    device: Device, dtype: np.dtype, x: Shape, out: Shape, kernel: Shape, conv: ConvParams
) -> tuple[LaunchPlan, int, bytes]:
    wide, macros = channels(device, dtype, x[-1])
    each, rows = x[-1] // wide * prod(kernel), prod(out[:-2])
    wanted = ITEMS * device.features.compute_units // each
    parts = max(1, min(wanted, rows // MIN_ROWS))
    packed = geometry(x, out, kernel, conv, wide)
    program = device.build("depthwise", **macros)
    return LaunchPlan(program.depthwise_weight_gradient, (each * parts,), None, (parts,)), parts, packed


def _in_runs(device: Device, out: Spec, windowed: Buffer, weight: Buffer, turned: bool, conv: ConvParams) -> Buffer:
    windowed, weight, result = dense(device, windowed), dense(device, weight), device.empty(out)
    plan_of = device.plans[_run_plan]
    launch, geometry = plan_of(windowed.dtype, windowed.shape, out.shape, turned, weight.shape[1:-1], conv)
    launch.kernel(launch.work, launch.group, windowed.memory, weight.memory, result.memory, geometry)
    return result


def _run_plan(
    device: Device, dtype: np.dtype, x: Shape, out: Shape, turned: bool, kernel: Shape, conv: ConvParams
) -> tuple[LaunchPlan, bytes]:
    wide, macros = channels(device, dtype, x[-1])
    runs = _run_macros(x[-1] // wide, wide, kernel, conv, MAX_HELD_FILTERS)
    group, items = cast("GpuGeometry", device.geometry).items_group, x[-1] // wide * -(-out[-2] // runs["POSITIONS"])
    work = -(-items // group) * group, prod(out[1:-2]), out[0]
    program = device.build("depthwise_gpu", **macros, **runs | {"TURNED": int(turned)})
    packed = geometry(x, out, kernel, conv, wide)
    return LaunchPlan(program.depthwise_positions, work, (group, 1, 1), ()), packed


def _run_sum_plan(
    device: Device, dtype: np.dtype, x: Shape, out: Shape, kernel: Shape, conv: ConvParams
) -> tuple[LaunchPlan, int, bytes]:
    wide, macros = channels(device, dtype, x[-1])
    blocks, rows = x[-1] // wide, prod(out[:-2])
    runs = _run_macros(blocks, wide, kernel, conv, MAX_HELD_SUMS)
    lanes, slices, others = runs["LANES"], runs["SLICES"], 1 if runs["HOLDS"] else prod(kernel[:-1])
    sides = -(-blocks // lanes)
    wanted = max(1, GROUPS * device.features.compute_units // (sides * others))
    each = max(-(-rows // wanted), slices)
    parts = -(-rows // each)
    work = sides * lanes, parts * slices, others
    packed = geometry(x, out, kernel, conv, wide)
    program = device.build("depthwise_gpu", **macros, **runs)
    return LaunchPlan(program.depthwise_sums, work, (lanes, slices, 1), (each,)), parts, packed


def _takes_runs(device: Device, windowed: Shape, positions: Shape, kernel: Shape) -> bool:
    """Return whether work-items compute runs of neighbors: few kernel elements along the last axis."""
    most = cast("GpuGeometry", device.geometry).most_batches
    counts = positions[0], prod(positions[1:-2]), prod(kernel[:-1])
    return windowed[-2] > 0 and kernel[-1] <= MAX_TAPS and max(counts) <= most


def _run_macros(blocks: int, wide: int, kernel: Shape, conv: ConvParams, most_held: int) -> dict[str, int]:
    """Return the macros of depthwise_gpu.cl."""
    lanes, slides = min(LANES, 1 << (blocks - 1).bit_length()), int(conv.stride[-1] == conv.dilation[-1] == 1)
    taps = dict(zip(("TAPS_0", "TAPS_1", "TAPS"), (1,) * (AXES - len(kernel)) + kernel, strict=True))
    holds = int(prod(kernel) * wide <= most_held)
    runs = {"POSITIONS": min(MAX_POSITIONS, MAX_HELD // wide), "HOLDS": holds, "SLIDES": slides, "TURNED": 0}
    return {**taps, **runs, "LANES": lanes, "SLICES": GROUP // lanes}


VARIANT = forward, input_gradient, weight_gradient
