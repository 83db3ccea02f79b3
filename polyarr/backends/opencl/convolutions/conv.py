"""Convolutions as implicit GEMM: the product kernels read an im2col view of x (kernels/windows.cl), not a copy.

Channels come last: x (images, *lengths, channels), weight (outputs, *kernel, channels / groups). Padding is copied
around x first, so that every element of the view exists.
"""

from collections.abc import Iterable
from itertools import product as every
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.convolutions import conv_pieces, conv_wgmma, depthwise
from polyarr.backends.opencl.convolutions.conv_groups import groups_to_merge, merged_filters, own_channels
from polyarr.backends.opencl.convolutions.spatial import Padding
from polyarr.backends.opencl.convolutions.spread import lay, spread
from polyarr.backends.opencl.copy import dense, write
from polyarr.backends.opencl.elementwise import launch
from polyarr.backends.opencl.products import mma
from polyarr.backends.opencl.products.linear import through_activation
from polyarr.backends.opencl.products.matmul import MAX_SUM_LENGTH, SUM, plan_of, product, run
from polyarr.backends.opencl.products.mma import PIECE
from polyarr.backends.opencl.products.product import PLAIN, Axes, Epilogue, Im2col, Operand, Plan, Problem
from polyarr.backends.opencl.products.split import SplitOperands, reported_amax, restored_operands, saved_operands
from polyarr.backends.opencl.rows import alike
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import (
    Axis,
    Buffer,
    Shape,
    is_aligned,
    joined,
    permuted,
    reshaped,
    reshaped_strides,
    row_major,
    spec_of,
    swapped,
    view,
    window,
)
from polyarr.backends.opencl.runtime.variants import is_sound
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, float32

AXES = 4  # axes of kernels/windows.cl, on each side
MAX_COUNT = 2**31  # limit of its counters


class ConvParams(NamedTuple):
    """Stride, padding and dilation of a convolution, and its channel groups."""

    stride: Shape
    padding: Padding
    dilation: Shape
    groups: int

    @property
    def of_axes(self) -> dict[str, Any]:
        """The parameters without the groups."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}

    @property
    def unpadded(self) -> "ConvParams":
        """The parameters for an x that is padded already."""
        return self._replace(padding=((0, 0),) * len(self.padding))

    def is_pointwise(self, weight: Shape) -> bool:
        """Return whether the kernel has one element, without padding or groups (1 x 1 convolution)."""
        return self.groups == 1 and all(n == 1 for n in weight[1:-1]) and not any(map(any, self.padding))

    def is_depthwise(self, weight: Shape) -> bool:
        """Return whether every channel has one filter of its own."""
        return weight[0] == self.groups > weight[-1] == 1


class Phase(NamedTuple):
    """The positions first, first + stride, ... of an axis of x, `places` in number, and the outputs that read them.

    Position j is kernel element tap + u * each of output start + j - u * apart, for u < taps.
    """

    first: int
    places: int
    start: int
    tap: int
    each: int
    taps: int
    apart: int

    @property
    def least(self) -> int:
        """The first output position that is read; it need not exist."""
        return self.start - (self.taps - 1) * self.apart if self.taps else 0

    @property
    def most(self) -> int:
        """The last output position that is read; it need not exist."""
        return self.start + self.places - 1 if self.taps else 0


EACH_PLACE = Phase(0, 0, 0, 0, 1, 1, 1)
POINTWISE = ConvParams((1,), ((0, 0),), (1,), 1)


def conv(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, *, stride: Shape, padding: Padding,
    dilation: Shape, groups: int, activation: str | None, precision: str = "highest",
) -> Any:  # fmt: skip
    """Compute the layer with bias and activation in the epilogue. Saves what linear saves, and split operands."""
    extras = bias is not None or activation is not None
    if not alike(x, bias) or (extras and (groups > 1 or not out.size or not prod(weight.shape))):
        return NotImplemented
    bias = None if bias is None else dense(device, bias)
    saves = activation not in (None, "relu")
    epilogue = Epilogue(bias is not None, activation or "none", saves, precision)
    known = reported_amax(x=x)
    y, saved = _convolved(device, out, x, weight, bias, ConvParams(stride, padding, dilation, groups), epilogue, known)
    return y, (y if activation == "relu" else saved, saved_operands(device, known))


def conv_backward(
    device: Device, g: Buffer, saved: tuple[Buffer | None, Any], x: Buffer, weight: Buffer, bias: Buffer | None, *,
    wanted: tuple[bool, bool, bool], stride: Shape, padding: Padding, dilation: Shape, groups: int,
    activation: str | None, precision: str = "highest",
) -> tuple[Buffer | None, Buffer | None, Buffer | None]:  # fmt: skip
    """Return the gradients of x, weight and bias."""
    before, operands = saved
    params = {
        "stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "precision": precision,
        "known": restored_operands(operands) | (reported_amax(g=g) if activation is None else {}),
    }  # fmt: skip
    rows, dbias = through_activation(device, _rows(device, g), before, bias if wanted[2] else None, activation)
    gz, dx, dweight = view(rows, g.shape, _strides_of_rows(g.shape, rows.strides[0]), rows.offset), None, None
    if wanted[1]:
        dweight = conv_weight_gradient(device, spec_of(weight), gz, x, shape=weight.shape[1:-1], **params)
    if wanted[0]:
        dx = conv_input_gradient(device, spec_of(x), gz, weight, shape=x.shape[1:-1], **params)
    return dx, dweight, dbias


def windows(device: Device, out: Spec, x: Buffer, *, kernel: Shape, stride: Shape, dilation: Shape) -> Buffer:
    """Return a view of all receptive fields of x."""
    image, *steps, channel = x.strides
    places = (step * by for step, by in zip(steps, stride, strict=True))
    inside = (step * by for step, by in zip(steps, dilation, strict=True))
    return view(x, out.shape, (image, *places, *inside, channel), x.offset)


def conv_product(
    device: Device, out: Spec, x: Buffer, weight: Buffer, *, stride: Shape, padding: Padding, dilation: Shape,
    groups: int, precision: str = "highest",
) -> Buffer:  # fmt: skip
    """Return the products of all receptive fields of x and all filters."""
    epilogue = PLAIN._replace(precision=precision)
    return _convolved(device, out, x, weight, None, ConvParams(stride, padding, dilation, groups), epilogue, {})[0]


def _convolved(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, params: ConvParams, epilogue: Epilogue,
    known: SplitOperands,
) -> tuple[Buffer, Buffer | None]:  # fmt: skip
    """Return the convolution with an epilogue (only without groups), and the activation's input if it is saved."""
    if not out.size or not prod(weight.shape):
        return _zeros(device, out), None
    if params.is_depthwise(weight.shape):
        return depthwise.product(device, out, x, weight, **params.of_axes), None
    if params.groups == 1:
        in_pieces = conv_pieces.product(device, out, x, weight, bias, epilogue, known, **params.of_axes)
        if in_pieces is not None:
            return in_pieces
    wider = _padded_lengths(device, out.dtype, weight.shape, params)
    if wider:
        x, params = _padded_images(device, x, wider, out.shape[1:-1], params), params.unpadded
        weight = _among_zeros(device, weight, Spec((weight.shape[0], *wider), weight.dtype), (0,) * weight.ndim)
    filters, groups = _filters(device, weight), params.groups
    if params.is_pointwise(weight.shape) and set(params.stride) == {1}:
        rows, (n, c), tiled = _rows(device, x), filters.shape, None
        if out.dtype == float32:  # splitting side by side is faster, and both gradients reuse the split g
            line = Spec((1, rows.shape[0], n), out.dtype)
            tiled = _implicit_gemm(device, line, _as_line(rows), filters, bias, (n, 1, c), POINTWISE, epilogue, known)
        result = Spec((rows.shape[0], n), out.dtype)
        found = tiled or product(device, result, rows, swapped(filters), bias, epilogue)
        return reshaped(found[0], out.shape), found[1] and reshaped(found[1], out.shape)
    tiled = _implicit_gemm(device, out, x, filters, bias, weight.shape, params, epilogue, known)
    if tiled is not None:
        return tiled
    if params.is_pointwise(weight.shape):
        rows = _rows(device, _strided(x, params.stride))
        found = product(device, Spec((rows.shape[0], out.shape[-1]), out.dtype), rows, swapped(filters), bias, epilogue)
    else:
        x = _padded(device, x, params.padding)
        kept, deep = _walks(x, out.shape[1:-1], weight.shape[1:-1], params.stride, params.dilation, groups)
        each, depth = weight.shape[0] // groups, filters.shape[1]
        p = Problem(
            groups, groups, prod(out.shape[:-1]), each, depth, Operand(0, 1, 0, x.shape[-1] // groups),
            Operand(depth, 1, 0, each * depth), Im2col(kept, deep),
        )  # fmt: skip
        found = _multiply(device, p, x, filters, bias, epilogue)
    return _groups_to_channels(device, out, groups, found[0]), found[1] and reshaped(found[1], out.shape)


def _implicit_gemm(
    device: Device, out: Spec, x: Buffer, filters: Buffer, bias: Buffer | None, weight: Shape, params: ConvParams,
    epilogue: Epilogue, known: SplitOperands,
) -> tuple[Buffer, Buffer | None] | None:  # fmt: skip
    """Return the convolution by TMA tiles of images; None if there are no kernels for it."""
    joined, places = groups_to_merge(params.groups, weight), _pair(out.shape[1:-1], 1)
    if not joined or len(params.stride) > 2:
        return None
    layer = conv_wgmma.Layer(
        x.shape[0], joined * weight[-1], weight[0],
        _in_strides(_pair(x.shape[1:-1], 1), _pair(params.stride, 1)), places, _pair(params.stride, 1),
        _elements(weight[1:-1], params), prod(weight[1:-1]),
        start=(0, places[1] * out.shape[-1], out.shape[-1]), target=prod(out.shape[1:]),
        groups=params.groups // joined, joined=joined,
    )  # fmt: skip
    if not conv_wgmma.accepts(device, out.dtype, (layer,), epilogue):
        return None
    result, saved = device.empty(out), device.empty(out) if epilogue.save else None
    x = _whole_strides(device, x, params.stride)
    filters = merged_filters(device, filters, weight, params.groups, joined)
    conv_wgmma.run(device, layer, result, saved, x, filters, bias, epilogue, ("x", "weight"), known)
    return result, saved


def conv_input_gradient(
    device: Device, out: Spec, g: Buffer, weight: Buffer, *, shape: Shape, stride: Shape, padding: Padding,
    dilation: Shape, groups: int, precision: str = "highest", known: SplitOperands | None = None,
) -> Buffer:  # fmt: skip
    """Return the gradient of x: a convolution of g for each phase (position modulo stride)."""
    epilogue, params = PLAIN._replace(precision=precision), ConvParams(stride, padding, dilation, groups)
    if not out.size or not g.size:
        return _zeros(device, out)
    if params.is_depthwise(weight.shape):
        return depthwise.input_gradient(device, out, g, weight, **params.of_axes)
    known = {} if known is None else known
    if params.is_pointwise(weight.shape) and set(stride) == {1}:
        rows, filters = _rows(device, g), _filters(device, weight)
        tiled, every_place = None, [[EACH_PLACE._replace(places=rows.shape[0])]]
        if out.dtype == float32:
            line, single = Spec((1, rows.shape[0], out.shape[-1]), out.dtype), (filters.shape[0], 1, filters.shape[1])
            given = _as_line(rows), reshaped(filters, single)
            tiled = _implicit_gemm_phases(device, line, *given, every_place, POINTWISE, epilogue, known)
        return _of_rows(device, out, rows, filters, epilogue) if tiled is None else reshaped(tiled, out.shape)
    axis_params = zip(shape, weight.shape[1:-1], stride, padding, dilation, strict=True)
    axes = [_phases(length, kernel, step, pads[0], apart) for length, kernel, step, pads, apart in axis_params]
    tiled = _implicit_gemm_phases(device, out, g, weight, axes, params, epilogue, known)
    if tiled is not None:
        return tiled
    around = tuple(
        (max(0, *(-phase.least for phase in axis), 0), max(0, *(phase.most + 1 - n for phase in axis), 0))
        for axis, n in zip(axes, g.shape[1:-1], strict=True)
    )
    g = _padded(device, g, around)
    if all(len(axis) == 1 and axis[0].taps for axis in axes):
        return _phase(device, out, g, weight, tuple(axis[0] for axis in axes), around, groups, epilogue)
    met = [phase for phase in every(*axes) if all(axis.taps for axis in phase)]
    parts = (
        _phase(device, _part_of(out, phase), g, weight, phase, around, groups, epilogue)
        for phase in met
    )
    starts = [tuple(axis.first for axis in phase) for phase in met]
    if len(met) == 1:
        return spread(device, out, next(parts), starts[0], stride)
    result = device.empty(out) if len(met) == prod(map(len, axes)) else _zeros(device, out)
    for part, start in zip(parts, starts, strict=True):
        lay(device, result, part, start, stride)
    return result


def _implicit_gemm_phases(
    device: Device, out: Spec, g: Buffer, weight: Buffer, axes: list[list[Phase]], params: ConvParams,
    epilogue: Epilogue, known: SplitOperands,
) -> Buffer | None:  # fmt: skip
    """Return the gradient of x by TMA tiles of g, phase by phase; None if there are no kernels for it."""
    joined = groups_to_merge(params.groups, weight.shape)
    if not joined or len(params.stride) > 2:
        return None
    groups, c, (_, wide) = params.groups // joined, out.shape[-1], _pair(out.shape[1:-1], 1)
    strides, kernel = _pair(params.stride, 1), _pair(weight.shape[1:-1], 1)
    layers = []
    for phase in every(*axes):
        rows, columns = (Phase(0, 1, 0, 0, 1, 1, 0),) * (2 - len(phase)) + phase
        elements = tuple(
            conv_wgmma.Element(
                (rows.start - u * rows.apart, columns.start - v * columns.apart),
                (rows.tap + u * rows.each) * kernel[1] + columns.tap + v * columns.each,
            )
            for u in range(rows.taps) for v in range(columns.taps)
        )  # fmt: skip
        start = (rows.first * wide + columns.first) * c, strides[0] * wide * c, strides[1] * c
        layers.append(conv_wgmma.Layer(
            g.shape[0], g.shape[-1] // groups, c, _pair(g.shape[1:-1], 1), (rows.places, columns.places), (1, 1),
            elements, prod(kernel),
            turned=True, start=start, target=prod(out.shape[1:]),
            groups=groups, joined=joined,
        ))  # fmt: skip
    met = tuple(layer for layer in layers if layer.elements)
    if not conv_wgmma.accepts(device, out.dtype, met, epilogue):
        return None
    result = device.empty(out) if len(met) == len(layers) else _zeros(device, out)
    g, weight = dense(device, g), merged_filters(device, weight, weight.shape, params.groups, joined)
    for layer in met:
        conv_wgmma.run(device, layer, result, None, g, weight, None, epilogue, ("g", "weight"), known)
    return result


def _part_of(out: Spec, phase: tuple[Phase, ...]) -> Spec:
    return Spec((out.shape[0], *(axis.places for axis in phase), out.shape[-1]), out.dtype)


def conv_weight_gradient(
    device: Device, out: Spec, g: Buffer, x: Buffer, *, shape: Shape, stride: Shape, padding: Padding,
    dilation: Shape, groups: int, precision: str = "highest", known: SplitOperands | None = None,
) -> Buffer:  # fmt: skip
    """Return the gradient of the weight: a sum over all output positions for each element."""
    epilogue, params = PLAIN._replace(precision=precision), ConvParams(stride, padding, dilation, groups)
    if not out.size or not g.size:
        return _zeros(device, out)
    if params.is_depthwise(out.shape):
        return depthwise.weight_gradient(device, out, g, x, **params.of_axes)
    known = {} if known is None else known
    if groups == 1:
        in_pieces = conv_pieces.weight_gradient(device, out, g, x, epilogue, known, **params.of_axes)
        if in_pieces is not None:
            return in_pieces
    wider = _padded_lengths(device, out.dtype, out.shape, params)
    if wider:
        found = conv_weight_gradient(
            device, Spec((out.shape[0], *wider), out.dtype), g, _padded_images(device, x, wider, g.shape[1:-1], params),
            shape=wider[:-1], precision=precision, **params.unpadded._asdict(),
        )  # fmt: skip
        return dense(device, window(found, out.shape, (0,) * out.ndim, (1,) * out.ndim))
    rows = _rows(device, g)
    if params.is_pointwise(out.shape) and set(stride) == {1}:
        columns, tiled = _rows(device, x), None
        if out.dtype == float32:
            single = Spec((out.shape[0], 1, out.shape[-1]), out.dtype)
            tiled = _implicit_gemm_sums(device, single, _as_line(rows), _as_line(columns), POINTWISE, epilogue, known)
        return _of_rows(device, out, swapped(rows), columns, epilogue) if tiled is None else reshaped(tiled, out.shape)
    tiled = _implicit_gemm_sums(device, out, g, x, params, epilogue, known)
    if tiled is not None:
        return tiled
    if params.is_pointwise(out.shape):
        return _of_rows(device, out, swapped(rows), _rows(device, _strided(x, stride)), epilogue)
    x = _padded(device, x, padding)
    deep, kept = _walks(x, g.shape[1:-1], shape, stride, dilation, groups)
    parts = _parts(g.shape[0], rows.shape[0])
    each, depth, apart = out.shape[0] // groups, rows.shape[0] // parts, rows.strides[0]
    deep = deep._replace(lengths=_first_parts(deep.lengths, parts))
    p = Problem(
        parts * groups, groups, each, prod(out.shape[1:]), depth, Operand(1, apart, depth * apart, each),
        Operand(1, 0, g.shape[0] // parts * x.strides[0], x.shape[-1] // groups), Im2col(kept, deep), True,
    )  # fmt: skip
    found = reshaped(_multiply(device, p, rows, x, None, epilogue)[0], (parts, *out.shape))
    return SUM(device, out, found, axis=(0,)) if parts > 1 else reshaped(found, out.shape)


def _implicit_gemm_sums(
    device: Device, out: Spec, g: Buffer, x: Buffer, params: ConvParams, epilogue: Epilogue, known: SplitOperands
) -> Buffer | None:
    """Return the gradient of the weight by TMA tiles of g and x; None if there are no kernels for it."""
    joined, strides = groups_to_merge(params.groups, out.shape, conv_wgmma.ROWS), _pair(params.stride, 1)
    if not joined or len(params.stride) > 2:
        return None
    layer = conv_wgmma.Layer(
        x.shape[0], joined * out.shape[-1], out.shape[0], _in_strides(_pair(x.shape[1:-1], 1), strides),
        _pair(g.shape[1:-1], 1), strides, _elements(out.shape[1:-1], params), prod(out.shape[1:-1]), sums=True,
        groups=params.groups // joined, joined=joined,
    )  # fmt: skip
    if not conv_wgmma.accepts(device, out.dtype, (layer,), epilogue):
        return None
    result = device.empty(Spec((*out.shape[:-1], layer.channels), out.dtype))
    x = _whole_strides(device, x, params.stride)
    conv_wgmma.run(device, layer, result, None, dense(device, g), x, None, epilogue, ("g", "x"), known)
    if joined > 1:
        result = dense(device, own_channels(result, out.shape, params.groups, joined))
    return reshaped(result, out.shape)


# ---- products ----------------------------------------------------------------------------------------------------


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


def _walks(x: Buffer, places: Shape, kernel: Shape, stride: Shape, dilation: Shape, groups: int) -> tuple[Axes, Axes]:
    """Return the walk over the output positions of x, and the walk within a receptive field, which ends contiguously.
    """
    image, *steps, _ = x.strides
    images = [(x.shape[0], (image,)), *((n, (s * by,)) for n, s, by in zip(places, steps, stride, strict=True))]
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


# ---- few channels -----------------------------------------------------------------------------------------------


def _padded_lengths(device: Device, dtype: np.dtype, weight: Shape, params: ConvParams) -> Shape | None:
    """Return kernel and channel lengths padded for matrix units; None if padding does not help."""
    step, *others = params.stride[-1], params.groups, params.dilation[-1]
    if dtype.itemsize != 2 or weight[-1] >= PIECE or others != [1, 1] or not is_sound(device, mma.VARIANT):
        return None
    channels = next(n for n in range(weight[-1], PIECE + 1) if n * step % PIECE == 0)
    length = next(n for n in range(weight[-2], weight[-2] + PIECE) if n * channels % PIECE == 0)
    found = (*weight[1:-2], length, channels)
    return None if found == weight[1:] else found


def _padded_images(device: Device, x: Buffer, wider: Shape, windows: Shape, params: ConvParams) -> Buffer:
    """Return x with its padding, padded channels, and long enough for the padded kernel."""
    lengths = [n + sum(pads) for n, pads in zip(x.shape[1:-1], params.padding, strict=True)]
    least = max(lengths[-1], (windows[-1] - 1) * params.stride[-1] + wider[-2])
    lengths[-1] = next(n for n in range(least, least + PIECE) if n * wider[-1] % PIECE == 0)
    starts = (0, *(before for before, _ in params.padding), 0)
    return _among_zeros(device, x, Spec((x.shape[0], *lengths, wider[-1]), x.dtype), starts)


def _among_zeros(device: Device, x: Buffer, out: Spec, starts: Shape) -> Buffer:
    result = _zeros(device, out)
    write(device, window(result, x.shape, starts, (1,) * x.ndim), x)
    return result


# ---- TMA tiles ---------------------------------------------------------------------------------------------------


def _pair(numbers: Shape, missing: int) -> tuple[int, int]:
    """Return one or two numbers, one per axis, as two."""
    return ((missing,) * (2 - len(numbers)) + tuple(numbers))[-2:]  # type: ignore[return-value]


def _as_line(rows: Buffer) -> Buffer:
    """Return a matrix as an image of one axis."""
    return view(rows, (1, *rows.shape), (0, *rows.strides), rows.offset)


def _elements(kernel: Shape, params: ConvParams) -> tuple[conv_wgmma.Element, ...]:
    """Return the elements of a kernel, relative to the first position of a receptive field."""
    high, wide = (
        [-before + i * step for i in range(n)]
        for n, before, step in zip(
            _pair(kernel, 1), _pair(tuple(p[0] for p in params.padding), 0), _pair(params.dilation, 1), strict=True
        )
    )
    return tuple(conv_wgmma.Element(apart, number) for number, apart in enumerate(every(high, wide)))


def _in_strides(lengths: tuple[int, int], stride: tuple[int, int]) -> tuple[int, int]:
    """Return lengths rounded up to multiples of the stride."""
    return -(-lengths[0] // stride[0]) * stride[0], -(-lengths[1] // stride[1]) * stride[1]


def _whole_strides(device: Device, x: Buffer, stride: Shape) -> Buffer:
    """Return x, dense, with lengths padded by zeros to multiples of the stride."""
    return dense(device, _padded(device, x, tuple((0, -n % s) for n, s in zip(x.shape[1:-1], stride, strict=True))))


# ---- layouts -----------------------------------------------------------------------------------------------------


def _rows(device: Device, x: Buffer) -> Buffer:
    """Return x (..., channels) as a matrix with contiguous rows."""
    shape = prod(x.shape[:-1]), x.shape[-1]
    strides = reshaped_strides(x.shape, x.strides, shape)
    if strides is None or strides[1] != 1:
        return reshaped(dense(device, x), shape)
    return view(x, shape, strides, x.offset)


def _strides_of_rows(shape: Shape, step: int) -> Shape:
    """Return the strides of (..., channels) whose rows are `step` apart."""
    return (*(step * n for n in row_major((*shape[:-1], 1))[:-1]), 1)


def _filters(device: Device, weight: Buffer) -> Buffer:
    """Return the weight as a matrix with a row per filter."""
    return reshaped(dense(device, weight), (weight.shape[0], prod(weight.shape[1:])))


def _strided(x: Buffer, stride: Shape) -> Buffer:
    """Return a view of the positions of x that a strided 1 x 1 convolution reads."""
    shape = (x.shape[0], *(-(-n // step) for n, step in zip(x.shape[1:-1], stride, strict=True)), x.shape[-1])
    return window(x, shape, (0,) * x.ndim, (1, *stride, 1))


def _padded(device: Device, x: Buffer, padding: Padding) -> Buffer:
    """Return x, with contiguous channels, padded by zeros."""
    if not any(map(any, padding)):
        return x if x.strides[-1] == 1 or x.shape[-1] == 1 else dense(device, x)
    lengths = (n + sum(pads) for n, pads in zip(x.shape[1:-1], padding, strict=True))
    out = Spec((x.shape[0], *lengths, x.shape[-1]), x.dtype)
    return spread(device, out, x, tuple(before for before, _ in padding), (1,) * len(padding))


def _zeros(device: Device, out: Spec) -> Buffer:
    return launch(device, out, 0)


def _groups_to_channels(device: Device, out: Spec, groups: int, found: Buffer) -> Buffer:
    """Return the results of groups (groups, rows, channels of a group) in the shape of out."""
    if groups == 1:
        return reshaped(found, out.shape)
    return reshaped(dense(device, permuted(found, (1, 0, 2))), out.shape)


# ---- the gradient of x -------------------------------------------------------------------------------------------


def _phases(length: int, kernel: int, stride: int, before: int, dilation: int) -> list[Phase]:
    """Return the phases of an axis, where output o reads kernel element k at o * stride - before + k * dilation."""
    common = gcd(stride, dilation)
    each, found = stride // common, []
    for first in range(min(stride, length)):
        at, count = first + before, -(-(length - first) // stride)
        tap = next((k for k in range(min(kernel, each)) if (at - k * dilation) % stride == 0), None)
        if tap is None:
            found.append(Phase(first, count, 0, 0, each, 0, dilation // common))
        else:
            start, taps = (at - tap * dilation) // stride, -(-(kernel - tap) // each)
            found.append(Phase(first, count, start, tap, each, taps, dilation // common))
    return found


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
    return _groups_to_channels(device, out, groups, _multiply(device, p, g, y, None, epilogue)[0])


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
