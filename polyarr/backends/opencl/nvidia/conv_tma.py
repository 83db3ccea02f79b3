"""Convolutions on tensor cores: variants by TMA tiles of images, by packed kernel rows, and with padded channels.

Each is asked in turn (`VARIANTS`), and returns None if it is not for a convolution. `known` holds operands that are
split already, by their names; see split.py.
"""

from itertools import product as every
from math import prod

import numpy as np

from polyarr.backends.opencl.convolution.conv import IM2COL, ConvVariant, convolved, gradient_of
from polyarr.backends.opencl.convolution.conv_layout import among_zeros, filters_of, padded, rows_of, zeros
from polyarr.backends.opencl.convolution.conv_params import EACH_POSITION, ConvParams, Phase, phases_of
from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.gemm.product import Epilogue
from polyarr.backends.opencl.nvidia import conv_pieces, conv_wgmma, mma
from polyarr.backends.opencl.nvidia.conv_groups import groups_to_merge, merged_filters, own_channels
from polyarr.backends.opencl.nvidia.mma import PIECE
from polyarr.backends.opencl.nvidia.split import SplitOperands
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, Shape, reshaped, view, window
from polyarr.backends.opencl.runtime.variants import is_sound
from polyarr.core.spec import Spec, float32

POINTWISE = ConvParams((1,), ((0, 0),), (1,), 1)


def _is_product(weight: Shape, params: ConvParams) -> bool:
    """Return whether a convolution is a product of matrices: 1 x 1, with stride 1."""
    return params.is_pointwise(weight) and set(params.stride) == {1}


def _forward(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, params: ConvParams, epilogue: Epilogue,
    known: SplitOperands,
) -> tuple[Buffer, Buffer | None] | None:  # fmt: skip
    filters = filters_of(device, weight)
    if not _is_product(weight.shape, params):
        return _implicit_gemm(device, out, x, filters, bias, weight.shape, params, epilogue, known)
    if out.dtype != float32:
        return None
    # Splitting side by side is faster than in a product, and both gradients reuse the split g.
    rows, (n, c) = rows_of(device, x), filters.shape
    line = Spec((1, rows.shape[0], n), out.dtype)
    found = _implicit_gemm(device, line, _as_line(rows), filters, bias, (n, 1, c), POINTWISE, epilogue, known)
    return found and (reshaped(found[0], out.shape), found[1] and reshaped(found[1], out.shape))


def _input_gradient(
    device: Device, out: Spec, g: Buffer, weight: Buffer, params: ConvParams, epilogue: Epilogue, known: SplitOperands
) -> Buffer | None:
    if not _is_product(weight.shape, params):
        axes = phases_of(out.shape[1:-1], weight.shape[1:-1], params)
        return _implicit_gemm_phases(device, out, g, weight, axes, params, epilogue, known)
    if out.dtype != float32:
        return None
    rows, filters = rows_of(device, g), filters_of(device, weight)
    line, single = Spec((1, rows.shape[0], out.shape[-1]), out.dtype), (filters.shape[0], 1, filters.shape[1])
    given, phases = (_as_line(rows), reshaped(filters, single)), [[EACH_POSITION._replace(positions=rows.shape[0])]]
    found = _implicit_gemm_phases(device, line, *given, phases, POINTWISE, epilogue, known)
    return found and reshaped(found, out.shape)


def _weight_gradient(
    device: Device, out: Spec, g: Buffer, x: Buffer, params: ConvParams, epilogue: Epilogue, known: SplitOperands
) -> Buffer | None:
    if not _is_product(out.shape, params):
        return _implicit_gemm_sums(device, out, g, x, params, epilogue, known)
    if out.dtype != float32:
        return None
    rows, columns = _as_line(rows_of(device, g)), _as_line(rows_of(device, x))
    single = Spec((out.shape[0], 1, out.shape[-1]), out.dtype)
    found = _implicit_gemm_sums(device, single, rows, columns, POINTWISE, epilogue, known)
    return found and reshaped(found, out.shape)


def _implicit_gemm(
    device: Device, out: Spec, x: Buffer, filters: Buffer, bias: Buffer | None, weight: Shape, params: ConvParams,
    epilogue: Epilogue, known: SplitOperands,
) -> tuple[Buffer, Buffer | None] | None:  # fmt: skip
    """Return the convolution by TMA tiles of images; None if there are no kernels for it."""
    joined, positions = groups_to_merge(params.groups, weight), _pair(out.shape[1:-1], 1)
    if not joined or len(params.stride) > 2:
        return None
    layer = conv_wgmma.Layer(
        x.shape[0], joined * weight[-1], weight[0],
        _in_strides(_pair(x.shape[1:-1], 1), _pair(params.stride, 1)), positions, _pair(params.stride, 1),
        _elements(weight[1:-1], params), prod(weight[1:-1]),
        start=(0, positions[1] * out.shape[-1], out.shape[-1]), target=prod(out.shape[1:]),
        groups=params.groups // joined, joined=joined,
    )  # fmt: skip
    if not conv_wgmma.accepts(device, out.dtype, (layer,), epilogue):
        return None
    result, saved = device.empty(out), device.empty(out) if epilogue.save else None
    x = _whole_strides(device, x, params.stride)
    filters = merged_filters(device, filters, weight, params.groups, joined)
    conv_wgmma.run(device, layer, result, saved, x, filters, bias, epilogue, ("x", "weight"), known)
    return result, saved


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
            g.shape[0], g.shape[-1] // groups, c, _pair(g.shape[1:-1], 1), (rows.positions, columns.positions), (1, 1),
            elements, prod(kernel),
            turned=True, start=start, target=prod(out.shape[1:]),
            groups=groups, joined=joined,
        ))  # fmt: skip
    met = tuple(layer for layer in layers if layer.elements)
    if not conv_wgmma.accepts(device, out.dtype, met, epilogue):
        return None
    result = device.empty(out) if len(met) == len(layers) else zeros(device, out)
    g, weight = dense(device, g), merged_filters(device, weight, weight.shape, params.groups, joined)
    for layer in met:
        conv_wgmma.run(device, layer, result, None, g, weight, None, epilogue, ("g", "weight"), known)
    return result


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
    return among_zeros(device, Spec((x.shape[0], *lengths, wider[-1]), x.dtype), x, starts)


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
    return dense(device, padded(device, x, tuple((0, -n % s) for n, s in zip(x.shape[1:-1], stride, strict=True))))


def _packed_forward(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, params: ConvParams, epilogue: Epilogue,
    known: SplitOperands,
) -> tuple[Buffer, Buffer | None] | None:  # fmt: skip
    if params.groups != 1:
        return None
    return conv_pieces.product(device, out, x, weight, bias, epilogue, known, **params.of_axes)


def _packed_weight_gradient(
    device: Device, out: Spec, g: Buffer, x: Buffer, params: ConvParams, epilogue: Epilogue, known: SplitOperands
) -> Buffer | None:
    if params.groups != 1:
        return None
    return conv_pieces.weight_gradient(device, out, g, x, epilogue, known, **params.of_axes)


def _padded_forward(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, params: ConvParams, epilogue: Epilogue,
    known: SplitOperands,
) -> tuple[Buffer, Buffer | None] | None:  # fmt: skip
    wider = _padded_lengths(device, out.dtype, weight.shape, params)
    if wider is None:
        return None
    x = _padded_images(device, x, wider, out.shape[1:-1], params)
    weight = among_zeros(device, Spec((weight.shape[0], *wider), weight.dtype), weight, (0,) * weight.ndim)
    return convolved(device, out, x, weight, bias, params.unpadded, epilogue, known, (TMA, IM2COL))


def _padded_weight_gradient(
    device: Device, out: Spec, g: Buffer, x: Buffer, params: ConvParams, epilogue: Epilogue, known: SplitOperands
) -> Buffer | None:
    wider = _padded_lengths(device, out.dtype, out.shape, params)
    if wider is None:
        return None
    x = _padded_images(device, x, wider, g.shape[1:-1], params)
    spec = Spec((out.shape[0], *wider), out.dtype)
    found = gradient_of(device, "weight_gradient", spec, g, x, params.unpadded, epilogue, {})
    return dense(device, window(found, out.shape, (0,) * out.ndim, (1,) * out.ndim))


def _no_gradient(*_: object) -> None:
    """Return None: another variant computes it."""


PACKED = ConvVariant(
    "packed rows", "few channels, float16, bfloat16 and float32 with precision high, on Hopper", _packed_forward,
    _no_gradient, _packed_weight_gradient,
)  # fmt: skip
PADDED = ConvVariant(
    "padded channels", "few channels, float16 and bfloat16, on NVIDIA GPUs from Ampere on", _padded_forward,
    _no_gradient, _padded_weight_gradient,
)  # fmt: skip
TMA = ConvVariant(
    "tma", "one or two axes, channels in multiples of 64 (of merged groups, too), on Hopper", _forward,
    _input_gradient, _weight_gradient,
)  # fmt: skip
VARIANTS = PACKED, PADDED, TMA
