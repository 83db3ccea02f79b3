"""Weight-only quantization of models, for text generation, which is bound by reading the weights."""

from typing import Any, TypeVar

from polyarr.nn.lora import check_module, merge_lora, replaced
from polyarr.nn.module import Module
from polyarr.nn.quantized_linear import QuantizedLinear, check_kind_of_weights

M = TypeVar("M", bound=Module)


def quantised(model: M, kind: str = "int8") -> M:
    """Return a model with a QuantizedLinear in place of each Linear layer. Adapters are merged before.

    Args:
        model: Module; it does not change. Quantized layers in it stay as they are.
        kind: "int8", "q8_0" or "q4_0", as in QuantizedLinear.of.

    Returns:
        Model of the type of the given one, with results close to those of the given one.

    Raises:
        TypeError: model is not a Module.
        ValueError: There is no such kind.
        ShapeError: The rows of a weight do not consist of whole blocks.

    Examples:
        >>> from polyarr import nn
        >>> model = nn.quantised(nn.Sequential(nn.Linear(8, 8)))
        >>> list(model.named_parameters())
        ['layers.0.codes', 'layers.0.scale', 'layers.0.bias']
    """
    check_module("quantised", model)
    check_kind_of_weights("quantised", kind)

    def change(_: str, layer: Any) -> QuantizedLinear:
        if type(layer) is QuantizedLinear:
            return layer
        return QuantizedLinear.of(layer.weight, kind, layer.bias, layer.activation)

    return replaced(merge_lora(model), change)
