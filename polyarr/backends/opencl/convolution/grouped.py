"""Convolutions in groups of few channels, on CPUs: without im2col, sums of neighboring positions in registers."""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.convolution.conv_params import ConvParams
from polyarr.backends.opencl.convolution.spatial import geometry
from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.reductions.reduce import launcher as reduction
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, Shape, permuted, reshaped, swapped
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import STORED, types
from polyarr.backends.opencl.runtime.source import SCALARS
from polyarr.core.spec import Spec

SUM = reduction("sum")
MAX_CHANNELS = 32  # of a group, for more im2col is faster
BLOCK = 64  # bytes of a block of channels: a cache line
HELD, MAX_POSITIONS = 256, 8  # bytes of sums in registers, and positions per run, at most
SUM_POSITIONS, MAX_TAPS, MAX_HELD = 28, 7, 384  # of gradients of weights: positions per run, filter elements, bytes
CACHE = 1 << 17  # bytes of filters that stay in a core's cache
MIN_PART = 1 << 14  # products that are worth a partial sum


def forward(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, conv: ConvParams, epilogue: Any,
    known: Any,
) -> tuple[Buffer, None] | None:  # fmt: skip
    """Return the convolution of each group."""
    if not _serves(weight.shape, conv.groups):
        return None
    return _computed(device, out, x, weight, x.shape, out.shape, conv, False), None


def input_gradient(
    device: Device, out: Spec, g: Buffer, weight: Buffer, conv: ConvParams, epilogue: Any, known: Any
) -> Buffer | None:
    """Return the gradient of x."""
    if not _serves(weight.shape, conv.groups):
        return None
    return _computed(device, out, g, weight, out.shape, g.shape, conv, True)


def weight_gradient(
    device: Device, out: Spec, g: Buffer, x: Buffer, conv: ConvParams, epilogue: Any, known: Any
) -> Buffer | None:
    """Return the gradient of the weight: partial sums over output positions, added up by the kernel of sum."""
    if not _serves(out.shape, conv.groups):
        return None
    g, x = dense(device, g), dense(device, x)
    launch, parts, wide, packed = device.plans[_sum_plan](x.dtype, x.shape, g.shape, out.shape, conv)
    n, *kernel, sources = out.shape
    shape = (n // wide, prod(kernel), sources, wide) if n % wide == 0 else (prod(kernel), n)
    partials = device.empty(Spec((parts, *shape), SCALARS[STORED[x.dtype][1]]))
    launch.kernel(launch.work, launch.group, g.memory, x.memory, partials.memory, *launch.numbers, packed)
    sums = SUM(device, Spec(shape, out.dtype), partials, axis=(0,))
    sums = permuted(sums, (0, 3, 1, 2)) if n % wide == 0 else swapped(sums)
    return reshaped(dense(device, sums), out.shape)


def _serves(weight: Shape, groups: int) -> bool:
    """Return whether the kernels compute groups of these channels: 1, 2, 4 or a few eights each."""
    sources, results = weight[-1], weight[0] // groups
    same = sources == results and (sources == 1 or (sources in (2, 4) and weight[0] % 8 == 0))
    eights = sources % 8 == results % 8 == 0 and max(sources, results) <= MAX_CHANNELS
    return groups > 1 and (same or eights)


def _width(dtype: np.dtype, channels: int, results: int) -> int:
    """Return the channels of a block, of `channels` in groups of `results`."""
    most = BLOCK // _size(dtype, 1)
    along = results if results > 4 else channels
    if along % most == 0:
        return most
    return 8 if along % 8 == 0 else min(most, 1 << (along.bit_length() - 1))


def _size(dtype: np.dtype, count: int) -> int:
    """Return the bytes of this many sums."""
    return count * SCALARS[STORED[dtype][1]].itemsize


def _macros(dtype: np.dtype, sources: int, results: int, wide: int, channels: int) -> dict[str, Any]:
    of_groups = {"SOURCES": sources, "RESULTS": results, "PACKED": int(channels % wide == 0)}
    plain = int(STORED[dtype][0] == STORED[dtype][1])
    unused = {"TAPS": 1, "HELD": 1}
    return {**types(dtype), "WIDE": wide, "MOVES_WORDS": 0, "IS_PLAIN": plain, **of_groups, **unused}


def _filters(device: Device, weight: Buffer, groups: int, wide: int, gradient: bool) -> Buffer:
    """Return the weight in the order in which the kernel reads it."""
    n, *kernel, c = weight.shape
    weight, elements = dense(device, weight), prod(kernel)
    channels = c * groups if gradient else n
    if channels % wide:
        return dense(device, swapped(reshaped(weight, (n, elements))))
    if not gradient:
        return dense(device, permuted(reshaped(weight, (n // wide, wide, elements, c)), (0, 2, 3, 1)))
    together = max(1, wide // c)  # groups of a block
    shape = groups // together, together, n // groups, elements, c * together // wide, wide // together
    return dense(device, permuted(reshaped(weight, shape), (0, 4, 3, 2, 1, 5)))


def _computed(
    device: Device, out: Spec, source: Buffer, weight: Buffer, x: Shape, y: Shape, conv: ConvParams, gradient: bool
) -> Buffer:
    source, result = dense(device, source), device.empty(out)
    launch, wide, packed = device.plans[_plan](source.dtype, x, y, weight.shape, conv, gradient)
    filters = _filters(device, weight, conv.groups, wide, gradient)
    arrays = source.memory, filters.memory, result.memory
    launch.kernel(launch.work, launch.group, *arrays, *launch.numbers, packed)
    return result


def _plan(
    device: Device, dtype: np.dtype, x: Shape, y: Shape, weight: Shape, conv: ConvParams, gradient: bool
) -> tuple[LaunchPlan, int, bytes]:
    sources, results, to = weight[-1], weight[0] // conv.groups, y
    if gradient:
        sources, results, to = results, sources, x
    wide = _width(dtype, to[-1], results)
    macros = _macros(dtype, sources, results, wide, to[-1])
    positions = min(MAX_POSITIONS, HELD // _size(dtype, wide))
    macros |= {"GRADIENT": int(gradient), "POSITIONS": positions}
    phases = conv.stride[-1] if gradient else 1
    blocks, together = _blocks(dtype, to[-1], wide, prod(weight[1:-1]) * sources)
    along = -(-to[-2] // phases)
    runs = -(-blocks // together) * prod(to[:-2]) * phases * -(-along // positions)
    least = max(1, MIN_PART // (prod(weight[1:-1]) * sources * wide * together * positions))
    work, group, each = device.geometry.items(runs, least)
    packed = geometry(x, y, weight[1:-1], conv, 1)
    return LaunchPlan(device.build("grouped", **macros).grouped, work, group, (each, together)), wide, packed


def _sum_plan(
    device: Device, dtype: np.dtype, x: Shape, y: Shape, weight: Shape, conv: ConvParams
) -> tuple[LaunchPlan, int, int, bytes]:
    sources, results = weight[-1], weight[0] // conv.groups
    wide = _width(dtype, y[-1], results)
    taps, held = min(weight[-2], MAX_TAPS), 1
    while sources % (2 * held) == 0 and 2 * held * taps * _size(dtype, wide) <= MAX_HELD:
        held *= 2
    macros = _macros(dtype, sources, results, wide, y[-1])
    macros |= {"GRADIENT": 2, "POSITIONS": SUM_POSITIONS, "TAPS": taps, "HELD": held}
    blocks, together = _blocks(dtype, y[-1], wide, prod(weight[1:]))
    sets, runs = -(-blocks // together), prod(y[:-2]) * -(-y[-2] // SUM_POSITIONS)
    least = max(1, MIN_PART // (prod(weight[1:]) * wide * together * min(y[-2], SUM_POSITIONS)))
    parts = max(1, device.geometry.items(runs, least).work[0] // sets)
    packed = geometry(x, y, weight[1:-1], conv, 1)
    kernel = device.build("grouped", **macros).grouped_weight_gradient
    return LaunchPlan(kernel, (parts * sets,), (1,), (parts, together)), parts, wide, packed


def _blocks(dtype: np.dtype, channels: int, wide: int, filters: int) -> tuple[int, int]:
    """Return the number of blocks, and that of those whose filters (or sums of them) fit into a cache together."""
    blocks = -(-channels // wide)
    sets = -(-blocks // max(1, CACHE // _size(dtype, filters * wide)))
    return blocks, -(-blocks // sets)


VARIANT = forward, input_gradient, weight_gradient
