"""Gated linear layers, activation(x @ gate.T + b) * (x @ up.T + c), where a vendor has one kernel for both products."""

from typing import Any, NamedTuple

from polyarr import ops
from polyarr.backends.opencl.elementwise import elementwise
from polyarr.backends.opencl.gemm import linear
from polyarr.backends.opencl.gemm.quantized_linear import quantized_linear
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.backends.opencl.runtime.vendor import vendor
from polyarr.core.spec import Spec


class Layer(NamedTuple):
    """The arrays of a linear layer: a weight (n, k), or its codes and scales, and a bias (n) or None."""

    weight: Buffer
    scale: Buffer | None
    bias: Buffer | None


def gated_linear(
    device: Device, out: Spec, x: Buffer, gate: tuple[Any, ...], up: tuple[Any, ...], *, activation: str | None
) -> Buffer:
    """Return the product (..., n), with both factors rounded to their dtype first."""
    layers = (Layer(a[0], a[1] if len(a) == 3 else None, a[-1]) for a in (gate, up))
    return choose(device, "gated linear", (*vendor().gated, *VARIANTS), out, x, *layers, activation)


def _separately(device: Device, out: Spec, x: Buffer, gate: Layer, up: Layer, activation: str | None) -> Buffer:
    """Compute the factors one after the other, and multiply them."""
    return MULTIPLY(device, out, factor(device, out, x, gate, activation), factor(device, out, x, up, None))


def factor(device: Device, out: Spec, x: Buffer, layer: Layer, activation: str | None) -> Buffer:
    """Return one factor, activation(x @ weight.T + bias), of the Spec of the product."""
    if layer.scale is None:
        return linear.forward(device, out, x, layer.weight, layer.bias, activation=activation)[0]
    return quantized_linear(device, out, x, layer.weight, layer.scale, layer.bias, activation=activation)


MULTIPLY = elementwise.launcher(ops.multiply.name)
VARIANTS = (Variant("separately", "all others: two products, whose results are multiplied", _separately),)
