"""Batch norm. The forward pass saves the mean and the scale of each channel."""

from math import prod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.convolution.spatial import channels
from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import launch as elementwise
from polyarr.backends.opencl.rows.rows import alike, dense_or_none, wide
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, Shape, spec_of
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.core.spec import Spec

GROUP, LANES, JOINERS = 256, 32, 64  # work-items of a GPU's group; side by side at most; per join of partial sums
MIN_ROWS, MAX_ROWS = 64, 2048  # rows of a partial sum, per work-item that shares it
PARTS_PER_UNIT = 4
FLAGS = "HAS_WEIGHT", "HAS_BIAS", "WANTS_WEIGHT", "WANTS_BIAS", "GIVEN"


class Launches(NamedTuple):
    """The kernels for one shape: partial sums over rows, their join, and the elementwise pass."""

    sums: LaunchPlan
    join: LaunchPlan
    places: LaunchPlan


def batch_norm(
    device: Device, out: tuple[Spec, Spec, Spec], x: Buffer, weight: Buffer | None, bias: Buffer | None, *, eps: float,
    activation: str | None = None,
) -> Any:  # fmt: skip
    """Normalize each channel to mean 0 and variance 1, scale, shift and activate; return also mean and variance."""
    if not alike(x, weight, bias) or not x.size:
        return NotImplemented
    x, weight, bias = dense(device, x), dense_or_none(device, weight), dense_or_none(device, bias)
    launches = device.plans[_plan](x.dtype, x.shape, "", (weight is not None, bias is not None), activation)
    partials, saved = _partials(device, x, launches), device.empty(Spec((2, x.shape[-1]), wide(x.dtype)))
    y, mean, variance = (device.empty(spec) for spec in out)
    _run(launches.sums, x, partials)
    _run(launches.join, partials, mean, variance, saved, eps)
    _run(launches.places, x, weight, bias, saved, y)
    return (y, mean, variance), saved


def batch_norm_backward(
    device: Device, g: tuple[Buffer | None, ...], saved: Buffer, x: Buffer, weight: Buffer | None, bias: Buffer | None,
    *, wanted: tuple[bool, bool, bool], eps: float, activation: str | None = None,
) -> tuple[Buffer | None, Buffer | None, Buffer | None]:  # fmt: skip
    """Return the gradients of x, weight and bias; that of x is always computed."""
    row, given = Spec((x.shape[-1],), saved.dtype), any(each is not None for each in g[1:])
    specs = spec_of(x), *(row if given else None,) * 2
    gy, gmean, gvariance = (
        None if spec is None else elementwise(device, spec, 0) if each is None else dense(device, each)
        for each, spec in zip(g, specs, strict=True)
    )
    x, weight, bias = dense(device, x), dense_or_none(device, weight), dense_or_none(device, bias)
    flags = weight is not None, bias is not None, *wanted[1:], given
    launches = device.plans[_plan](x.dtype, x.shape, "_gradient", flags, activation)
    partials, factors = _partials(device, x, launches), device.empty(Spec((3, x.shape[-1]), saved.dtype))
    dweight, dbias = (device.empty(Spec(row.shape, x.dtype)) if want else None for want in wanted[1:])
    dx = device.empty(spec_of(x))
    _run(launches.sums, gy, x, weight, bias, saved, partials)
    _run(launches.join, partials, weight, saved, gmean, gvariance, dweight, dbias, factors)
    _run(launches.places, gy, x, weight, bias, saved, factors, dx)
    return dx, dweight, dbias


def _partials(device: Device, x: Buffer, launches: Launches) -> Buffer:
    return device.empty(Spec((launches.join.numbers[-1], 2, x.shape[-1]), wide(x.dtype)))


def _run(launch: LaunchPlan, *args: Buffer | float | None) -> None:
    """Launch a plan with buffers and numbers."""
    given = (each.memory if isinstance(each, Buffer) else each for each in args)
    launch.kernel(launch.work, launch.group, *given, *launch.numbers)


def _plan(
    device: Device, dtype: np.dtype, shape: Shape, which: str, flags: tuple[bool, ...], activation: str | None
) -> Launches:
    """Return the launches of the forward pass (which = "") or of the gradient; flags are the first of FLAGS."""
    rows, count = prod(shape[:-1]), shape[-1]
    wide_, macros = channels(device, dtype, count)
    lanes, slices, joiners = _shared(device, count // wide_)
    side = -(-count // (wide_ * lanes))
    wanted = PARTS_PER_UNIT * device.features.compute_units // (side if slices > 1 else 1)
    each = min(max(-(-rows // max(1, wanted)), MIN_ROWS), MAX_ROWS * slices)
    parts, given = -(-rows // each), (*flags, *(False,) * (len(FLAGS) - len(flags)))
    defines: dict[str, Any] = {name: int(flag) for name, flag in zip(FLAGS, given, strict=True)}
    defines |= {"ACTIVATION": activation or "none", "ACTIVATES": int(activation is not None), "FLOATING": 1}
    defines |= {"LANES": lanes, "SLICES": slices, "JOINERS": joiners}
    kernels = device.build("batch_norm", **macros, **defines).kernels
    work, group = (side * lanes, parts * slices), (lanes, slices)
    sums, places = (
        LaunchPlan(kernels[name], work, group, (rows, count, each))
        for name in (f"batch_norm{which}_sums", "batch_norm_backward" if which else "batch_norm")
    )
    numbers = (rows, count, parts) if which else (rows, count, each, parts)
    join = LaunchPlan(kernels[f"batch_norm{which}_join"], (count * joiners,), (joiners,), numbers)
    return Launches(sums, join, places)


def _shared(device: Device, blocks: int) -> tuple[int, int, int]:
    """Return the work-items of a group side by side, those that share rows, and those that join a channel's parts."""
    if device.geometry.has_vectors:  # each work-item is a work-group of its own
        return 1, 1, 1
    lanes = min(LANES, 1 << (blocks - 1).bit_length())
    return lanes, GROUP // lanes, JOINERS
