"""Convolutions and their gradients: the ops, and which kernels compute them.

Channels come last: x (images, *lengths, channels), weight (outputs, *kernel, channels / groups).
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

from polyarr.backends.opencl.convolution import conv_im2col, depthwise, grouped
from polyarr.backends.opencl.convolution.conv_layout import rows_of, strides_of_rows, zeros
from polyarr.backends.opencl.convolution.conv_params import ConvParams
from polyarr.backends.opencl.convolution.spatial import Padding
from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.gemm.linear import through_activation
from polyarr.backends.opencl.gemm.product import PLAIN, Epilogue, terms_of
from polyarr.backends.opencl.rows.rows import alike
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, Shape, spec_of, view
from polyarr.backends.opencl.runtime.variants import note_choice
from polyarr.core.spec import Spec


class ConvVariant(NamedTuple):
    """One way to compute convolutions; each function returns None if it is not for a convolution.

    Attributes:
        serves: The convolutions and devices that it is for, as the docs say it.
        forward: (device, out, x, weight, bias, params, epilogue, known) to the result, and what the epilogue saves.
        input_gradient: (device, out, g, weight, params, epilogue, known) to the gradient of x.
        weight_gradient: (device, out, g, x, params, epilogue, known) to the gradient of the weight.
    """

    name: str
    serves: str
    forward: Callable[..., tuple[Buffer, Buffer | None] | None]
    input_gradient: Callable[..., Buffer | None]
    weight_gradient: Callable[..., Buffer | None]


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
    known: dict[str, Any] = {}
    y, saved = convolved(device, out, x, weight, bias, ConvParams(stride, padding, dilation, groups), epilogue, known)
    operands = device.vendor.saved_operands(device, known, terms_of(x.dtype, precision))
    return y, (y if activation == "relu" else saved, operands)


def conv_backward(
    device: Device, g: Buffer, saved: tuple[Buffer | None, Any], x: Buffer, weight: Buffer, bias: Buffer | None, *,
    wanted: tuple[bool, bool, bool], stride: Shape, padding: Padding, dilation: Shape, groups: int,
    activation: str | None, precision: str = "highest",
) -> tuple[Buffer | None, Buffer | None, Buffer | None]:  # fmt: skip
    """Return the gradients of x, weight and bias."""
    before, operands = saved
    params, epilogue = ConvParams(stride, padding, dilation, groups), PLAIN._replace(precision=precision)
    known = dict(operands)
    rows, dbias = through_activation(device, rows_of(device, g), before, bias if wanted[2] else None, activation)
    gz, dx, dweight = view(rows, g.shape, strides_of_rows(g.shape, rows.strides[0]), rows.offset), None, None
    if wanted[1]:
        dweight = gradient_of(device, "weight_gradient", spec_of(weight), gz, x, params, epilogue, known)
    if wanted[0]:
        dx = gradient_of(device, "input_gradient", spec_of(x), gz, weight, params, epilogue, known)
    return dx, dweight, dbias


def windows(device: Device, out: Spec, x: Buffer, *, kernel: Shape, stride: Shape, dilation: Shape) -> Buffer:
    """Return a view of all receptive fields of x."""
    image, *steps, channel = x.strides
    positions = (step * by for step, by in zip(steps, stride, strict=True))
    inside = (step * by for step, by in zip(steps, dilation, strict=True))
    return view(x, out.shape, (image, *positions, *inside, channel), x.offset)


def conv_product(
    device: Device, out: Spec, x: Buffer, weight: Buffer, *, stride: Shape, padding: Padding, dilation: Shape,
    groups: int, precision: str = "highest",
) -> Buffer:  # fmt: skip
    """Return the products of all receptive fields of x and all filters."""
    epilogue = PLAIN._replace(precision=precision)
    return convolved(device, out, x, weight, None, ConvParams(stride, padding, dilation, groups), epilogue, {})[0]


def _gradient(
    part: str, device: Device, out: Spec, g: Buffer, other: Buffer, *, shape: Shape, stride: Shape, padding: Padding,
    dilation: Shape, groups: int, precision: str = "highest",
) -> Buffer:  # fmt: skip
    """Return a gradient, as gradient_of."""
    params, epilogue = ConvParams(stride, padding, dilation, groups), PLAIN._replace(precision=precision)
    return gradient_of(device, part, out, g, other, params, epilogue, {})


conv_input_gradient, conv_weight_gradient = partial(_gradient, "input_gradient"), partial(_gradient, "weight_gradient")


def convolved(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, params: ConvParams, epilogue: Epilogue,
    known: dict[str, Any], variants: tuple[ConvVariant, ...] | None = None,
) -> tuple[Buffer, Buffer | None]:  # fmt: skip
    """Return the convolution with an epilogue (only without groups), and the activation's input if it is saved.

    `known` has operands in the vendor's own form, by their names.
    """
    if not out.size or not prod(weight.shape):
        return zeros(device, out), None
    call = out, x, weight, bias, params, epilogue, known
    return _first(device, "forward", variants or variants_of(device), *call)


def gradient_of(
    device: Device, part: str, out: Spec, g: Buffer, other: Buffer, params: ConvParams, epilogue: Epilogue,
    known: dict[str, Any],
) -> Buffer:  # fmt: skip
    """Return the "input_gradient", from the weight, or the "weight_gradient", from x."""
    if not out.size or not g.size:
        return zeros(device, out)
    return _first(device, part, variants_of(device), out, g, other, params, epilogue, known)


def _first(device: Device, part: str, variants: tuple[ConvVariant, ...], *call: Any) -> Any:
    """Return the result of the first variant that computes a call."""
    for variant in variants:
        found = getattr(variant, part)(device, *call)
        if found is not None:
            note_choice(device, f"conv {part}", variant)
            return found
    raise AssertionError("im2col computes every convolution")


def variants_of(device: Device) -> tuple[ConvVariant, ...]:
    """Return the variants in the order in which they are asked; the last one computes every convolution."""
    own = device.vendor.convolution
    return (*own, GROUPED, IM2COL) if device.geometry.kind == "cpu" else (DEPTHWISE, *own, IM2COL)


GROUPED = ConvVariant("grouped", "groups of 1, 2, 4, 8, 16, 24 or 32 channels, on CPUs", *grouped.VARIANT)
DEPTHWISE = ConvVariant("depthwise", "depthwise convolutions, on GPUs", *depthwise.VARIANT)
IM2COL = ConvVariant("im2col", "all others, as implicit GEMM by the kernels of products", *conv_im2col.VARIANT)
