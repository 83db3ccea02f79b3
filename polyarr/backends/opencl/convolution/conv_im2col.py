"""Convolutions as implicit GEMM: the product kernels read an im2col view of x (im2col.cl), not a copy.

Padding is copied around x first, so that every element of the view exists.
"""

from collections.abc import Iterable
from itertools import product as every
from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.convolution.conv_layout import (
    filters_of,
    groups_to_channels,
    padded,
    rows_of,
    strided,
    zeros,
)
from polyarr.backends.opencl.convolution.conv_params import ConvParams, Phase, phases_of
from polyarr.backends.opencl.convolution.spatial import Padding
from polyarr.backends.opencl.copying.copy import dense, write
from polyarr.backends.opencl.gemm.matmul import MAX_SUM_LENGTH, SUM, plan_of, product, run
from polyarr.backends.opencl.gemm.product import Axes, Epilogue, Im2col, Operand, Plan, Problem
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import (
    Axis,
    Buffer,
    Shape,
    is_aligned,
    joined,
    reshaped,
    reshaped_strides,
    swapped,
    view,
    window,
)
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec

AXES = 4  # axes of im2col.cl, on each side
MAX_COUNT = 2**31  # limit of its counters


def forward(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, params: ConvParams, epilogue: Epilogue,
    known: Any,
) -> tuple[Buffer, Buffer | None]:  # fmt: skip
    """Return the convolution, and the activation's input if the epilogue saves it."""
    filters, groups = filters_of(device, weight), params.groups
    if params.is_pointwise(weight.shape):
        rows = rows_of(device, strided(x, params.stride))
        found = product(device, Spec((rows.shape[0], out.shape[-1]), out.dtype), rows, swapped(filters), bias, epilogue)
    else:
        x = padded(device, x, params.padding)
        kept, deep = _walks(x, out.shape[1:-1], weight.shape[1:-1], params.stride, params.dilation, groups)
        each, depth = weight.shape[0] // groups, filters.shape[1]
        p = Problem(
            groups, groups, prod(out.shape[:-1]), each, depth, Operand(0, 1, 0, x.shape[-1] // groups),
            Operand(depth, 1, 0, each * depth), Im2col(kept, deep),
        )  # fmt: skip
        found = _multiply(device, p, x, filters, bias, epilogue)
    return groups_to_channels(device, out, groups, found[0]), found[1] and reshaped(found[1], out.shape)


def input_gradient(
    device: Device, out: Spec, g: Buffer, weight: Buffer, params: ConvParams, epilogue: Epilogue, known: Any
) -> Buffer:
    """Return the gradient of x: a convolution of g for each phase (position modulo stride)."""
    groups, stride = params.groups, params.stride
    if params.is_pointwise(weight.shape) and set(stride) == {1}:
        return _of_rows(device, out, rows_of(device, g), filters_of(device, weight), epilogue)
    axes = phases_of(out.shape[1:-1], weight.shape[1:-1], params)
    around = tuple(
        (max(0, *(-phase.least for phase in axis), 0), max(0, *(phase.most + 1 - n for phase in axis), 0))
        for axis, n in zip(axes, g.shape[1:-1], strict=True)
    )
    g = padded(device, g, around)
    if all(len(axis) == 1 and axis[0].taps for axis in axes):
        return _phase(device, out, g, weight, tuple(axis[0] for axis in axes), around, groups, epilogue)
    met = [phase for phase in every(*axes) if all(axis.taps for axis in phase)]
    result = device.empty(out) if len(met) == prod(map(len, axes)) else zeros(device, out)
    for phase in met:
        part = _phase(device, _part_of(out, phase), g, weight, phase, around, groups, epilogue)
        write(device, window(result, part.shape, (0, *(axis.first for axis in phase), 0), (1, *stride, 1)), part)
    return result


def weight_gradient(
    device: Device, out: Spec, g: Buffer, x: Buffer, params: ConvParams, epilogue: Epilogue, known: Any
) -> Buffer:
    """Return the gradient of the weight: a sum over all output positions for each element."""
    rows, groups = rows_of(device, g), params.groups
    if params.is_pointwise(out.shape):
        return _of_rows(device, out, swapped(rows), rows_of(device, strided(x, params.stride)), epilogue)
    x = padded(device, x, params.padding)
    deep, kept = _walks(x, g.shape[1:-1], out.shape[1:-1], params.stride, params.dilation, groups)
    parts = _parts(g.shape[0], rows.shape[0])
    each, depth, apart = out.shape[0] // groups, rows.shape[0] // parts, rows.strides[0]
    deep = deep._replace(lengths=_first_parts(deep.lengths, parts))
    p = Problem(
        parts * groups, groups, each, prod(out.shape[1:]), depth, Operand(1, apart, depth * apart, each),
        Operand(1, 0, g.shape[0] // parts * x.strides[0], x.shape[-1] // groups), Im2col(kept, deep), True,
    )  # fmt: skip
    found = reshaped(_multiply(device, p, rows, x, None, epilogue)[0], (parts, *out.shape))
    return SUM(device, out, found, axis=(0,)) if parts > 1 else reshaped(found, out.shape)


def _multiply(
    device: Device, p: Problem, x: Buffer, y: Buffer, bias: Buffer | None, epilogue: Epilogue
) -> tuple[Buffer, Buffer | None]:
    """Return the product (batch, m, n) of a problem with an im2col view."""
    plan = device.plans[_plan](x.dtype, p, (is_aligned(x), is_aligned(y)), epilogue)
    return run(device, Spec((p.batch, p.m, p.n), x.dtype), plan, x, y, bias, epilogue)


def _plan(device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue) -> Plan:
    return plan_of(device, dtype, p, aligned, epilogue)  # type: ignore[return-value]


def _of_rows(device: Device, out: Spec, x: Buffer, y: Buffer, epilogue: Epilogue) -> Buffer:
    """Return the product of two matrices, reshaped to out."""
    found = product(device, Spec((x.shape[0], y.shape[1]), out.dtype), x, y, None, epilogue)[0]
    return reshaped(found, out.shape)


def _walks(
    x: Buffer, positions: Shape, kernel: Shape, stride: Shape, dilation: Shape, groups: int
) -> tuple[Axes, Axes]:
    """Return the walk over the output positions of x, and the walk within a receptive field, which ends contiguously.
    """
    image, *steps, _ = x.strides
    images = [(x.shape[0], (image,)), *((n, (s * by,)) for n, s, by in zip(positions, steps, stride, strict=True))]
    inside = [(n, (s * by,)) for n, s, by in zip(kernel, steps, dilation, strict=True)]
    return _axes(images), _axes([*inside, (x.shape[-1] // groups, (1,))], neighbours=True)


def _axes(axes: Iterable[Axis], neighbours: bool = False) -> Axes:
    found = joined(axes)
    if neighbours and (not found or found[-1][1] != (1,)):
        found.append((1, (1,)))
    if prod(length for length, _ in found) >= MAX_COUNT:
        limit = f"{MAX_COUNT:,} windows or more"
        raise BackendError(f"conv: {limit}; this device's kernels count to less: take fewer at once")
    found = [(1, (0,))] * (AXES - len(found)) + found
    return Axes(tuple(length for length, _ in found), tuple(step for _, (step,) in found))


def _parts(images: int, depth: int) -> int:
    """Return the number of parts, of as many images each, into which a deep sum is split."""
    wanted = depth // MAX_SUM_LENGTH
    return max(n for n in range(1, max(1, wanted) + 1) if images % n == 0)


def _first_parts(lengths: Shape, parts: int) -> Shape:
    """Return the walk's lengths for one part; images are, or begin, the first axis longer than 1."""
    first = next((i for i, n in enumerate(lengths) if n > 1), 0)
    return (*lengths[:first], lengths[first] // parts, *lengths[first + 1 :])


def _part_of(out: Spec, phase: tuple[Phase, ...]) -> Spec:
    return Spec((out.shape[0], *(axis.positions for axis in phase), out.shape[-1]), out.dtype)


def _phase(
    device: Device, out: Spec, g: Buffer, weight: Buffer, phase: tuple[Phase, ...], around: Padding, groups: int,
    epilogue: Epilogue,
) -> Buffer:  # fmt: skip
    """Return one phase of the gradient of x: outputs of g times the kernel elements that meet it."""
    taps = tuple(axis.taps for axis in phase)
    n, c = weight.shape[0], weight.shape[-1]
    met = window(weight, (n, *taps, c), (0, *(a.tap for a in phase), 0), (1, *(a.each for a in phase), 1))
    y = _transposed(device, met, groups)
    starts = [axis.start + before for axis, (before, _) in zip(phase, around, strict=True)]
    kept, deep = _walks(g, out.shape[1:-1], taps, (1,) * len(taps), tuple(-axis.apart for axis in phase), groups)
    g = g._replace(offset=g.offset + sum(s * step for s, step in zip(starts, g.strides[1:-1], strict=True)))
    p = Problem(
        groups, groups, prod(out.shape[:-1]), c, y.shape[1], Operand(0, 1, 0, n // groups),
        Operand(1, y.strides[1], 0, y.strides[0]), Im2col(kept, deep),
    )  # fmt: skip
    return groups_to_channels(device, out, groups, _multiply(device, p, g, y, None, epilogue)[0])


def _transposed(device: Device, weight: Buffer, groups: int) -> Buffer:
    """Return the weight as a matrix per group with rows (kernel element, filter) and columns channels."""
    n, *kernel, c = weight.shape
    each, (step, *steps) = n // groups, weight.strides
    turned = view(weight, (groups, *kernel, each, c), (each * step, *steps[:-1], step, steps[-1]), weight.offset)
    shape = (groups, prod(kernel) * each, c)
    strides = reshaped_strides(turned.shape, turned.strides, shape)
    if strides is None or strides[-1] != 1:
        return reshaped(dense(device, turned), shape)
    return view(turned, shape, strides, turned.offset)


VARIANT = forward, input_gradient, weight_gradient
