"""Weight-only quantization: Linear layers with int8 weights. Text generation is bound by reading the weights."""

from typing import Any, TypeVar

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.spec import NARROW, float32, int8
from polyarr.nn.lora import check_module, merge_lora, replaced
from polyarr.nn.module import Module
from polyarr.ops.validation import check_array

M = TypeVar("M", bound=Module)
_LARGEST = 127


class Int8Linear(Module):
    """Linear layer with int8 weights: act(x @ weight.T + bias), each row of weight rounded to 255 steps.

    Args:
        weight: Floating-point array (out, in).
        bias: Floating-point array (out,), or None.
        activation: None, "relu", "silu", "gelu" or "gelu_tanh".

    Attributes:
        codes: int8 array (out, in): the steps, from -127 to 127.
        scale: Array (out,): the size of a step, the largest magnitude of the row divided by 127.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> layer = nn.Int8Linear(pa.asarray([[127.0, -50.0]]))
        >>> layer(pa.asarray([[1.0, 1.0]]))
        Array([[77.]], float32, 'numpy')

    Source: Dettmers, Lewis, Belkada, Zettlemoyer 2022, arXiv:2208.07339 (only the quantized weights)
    """

    def __init__(self, weight: Array, bias: Array | None = None, activation: str | None = None) -> None:
        check_array("Int8Linear", "weight", weight)
        wide = ops.astype(weight, dtype=float32) if weight.dtype in NARROW else weight
        scale = ops.max(ops.abs(wide), axis=1) / _LARGEST  # (out,); nan for a row with a nan
        self.scale = ops.where(scale == 0, 1.0, scale)
        self.codes = ops.astype(ops.round(wide / self.scale[:, None]), dtype=int8)
        self.bias, self.activation = bias, activation

    def __call__(self, x: Array) -> Array:
        """Return the output (..., out) for an input x (..., in)."""
        return ops.quantized_linear(x, self.codes, self.scale, self.bias, activation=self.activation)

    @property
    def weight(self) -> Array:
        """The weight (out, in) that the codes stand for."""
        return ops.astype(self.codes, dtype=self.scale.dtype) * self.scale[:, None]


def quantised(model: M) -> M:
    """Return a model with an Int8Linear in place of each Linear layer, for inference. Adapters are merged before.

    Args:
        model: Module; it does not change.

    Returns:
        Model of the type of the given one, with results close to those of the given one.

    Raises:
        TypeError: model is not a Module.

    Examples:
        >>> from polyarr import nn
        >>> model = nn.quantised(nn.Sequential(nn.Linear(8, 8)))
        >>> list(model.named_parameters())
        ['layers.0.scale', 'layers.0.codes', 'layers.0.bias']
    """

    check_module("quantised", model)

    def change(_: str, layer: Any) -> Int8Linear:
        return Int8Linear(layer.weight, layer.bias, layer.activation)

    return replaced(merge_lora(model), change)
