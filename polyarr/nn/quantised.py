"""Linear layers whose weights take a byte each: a model that writes text waits for its weights, not for arithmetic."""

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
    """act(x @ weight.T + bias), where weight (out, in) is rounded to 255 steps, from -127 to 127 times its row's scale.

    codes  (out, in) int8, the steps; scale (out,), the largest magnitude of a row over 127

    Source:  Dettmers, Lewis, Belkada, Zettlemoyer 2022, arXiv:2208.07339, of which this is the quantised weight
    """

    def __init__(self, weight: Array, bias: Array | None = None, activation: str | None = None) -> None:
        check_array("Int8Linear", "weight", weight)
        wide = ops.astype(weight, dtype=float32) if weight.dtype in NARROW else weight
        scale = ops.max(ops.abs(wide), axis=1) / _LARGEST  # (out,); of a row with a nan it is one
        self.scale = ops.where(scale == 0, 1.0, scale)
        self.codes = ops.astype(ops.round(wide / self.scale[:, None]), dtype=int8)
        self.bias, self.activation = bias, activation

    def __call__(self, x: Array) -> Array:
        """(..., in) -> (..., out)"""
        return ops.int8_linear(x, self.codes, self.scale, self.bias, activation=self.activation)

    @property
    def weight(self) -> Array:
        """What the codes stand for, (out, in), for whoever computes with a layer's weight."""
        return ops.astype(self.codes, dtype=self.scale.dtype) * self.scale[:, None]


def quantised(model: M) -> M:
    """A model like the given one with an Int8Linear for each Linear layer; adapters are merged before.

    What it computes is close to what the model does, and it is not to be trained.
    """

    check_module("quantised", model)

    def change(_: str, layer: Any) -> Int8Linear:
        return Int8Linear(layer.weight, layer.bias, layer.activation)

    return replaced(merge_lora(model), change)
