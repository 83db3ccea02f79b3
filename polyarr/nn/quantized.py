"""Weight-only quantization of models, for text generation, which is bound by reading the weights."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from polyarr import ops
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.op import Op
from polyarr.core.spec import Spec, float32, int64
from polyarr.nn.experts import GroupedLinear
from polyarr.nn.layers import Linear
from polyarr.nn.lora import check_module, linear_layers, merge_lora, replaced
from polyarr.nn.module import Module
from polyarr.nn.quantized_linear import QuantizedLinear, check_kind_of_weights

M = TypeVar("M", bound=Module)


def quantized(model: M, kind: str = "int8") -> M:
    """Return a model with a QuantizedLinear in place of each Linear and GroupedLinear layer.

    Adapters are merged before. The routers of experts, which are small, stay as they are: rounding them would change
    which experts are chosen.

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
        >>> model = nn.quantized(nn.Sequential(nn.Linear(8, 8)))
        >>> list(model.named_parameters())
        ['layers.0.codes', 'layers.0.scale', 'layers.0.bias']
    """
    check_module("quantized", model)
    check_kind_of_weights("quantized", kind)

    def change(path: str, layer: Any) -> Module:
        if type(layer) is QuantizedLinear or path.rpartition(".")[2] == "router":
            return layer
        return QuantizedLinear.of(layer.weight, kind, layer.bias, layer.activation)

    return replaced(merge_lora(model), change)


def quantized_layers(model: Module) -> dict[str, QuantizedLinear]:
    """Return the quantized layers of a model by their paths, those with adapters without the ".base" of theirs."""
    bases = {path: getattr(layer, "base", layer) for path, layer in linear_layers(model).items()}
    return {path: layer for path, layer in bases.items() if type(layer) is QuantizedLinear}


def with_codes(model: M, codes: Mapping[str, tuple[Any, Any]]) -> M:
    """Return a model with quantized layers of these codes and scales in place of Linear and GroupedLinear layers.

    Args:
        model: Module, which does not change; its arrays may be Specs.
        codes: Codes and scales, arrays or Specs, by the paths of such layers. Other paths are ignored.

    Raises:
        ValueError: Codes and scales are of another shape than the layer's weight, or of a wrong dtype.
    """

    def change(path: str, layer: Any) -> Any:
        if path not in codes or type(layer) not in (Linear, GroupedLinear):
            return layer
        found = QuantizedLinear(*codes[path], layer.bias, layer.activation).train(layer.training)
        found.dtype = layer.weight.dtype.name
        _check_shape(path, found, layer)
        return found

    return replaced(model, change)


def _check_shape(path: str, found: QuantizedLinear, layer: Linear | GroupedLinear) -> None:
    """Raise ValueError unless the codes and scales are those of a weight of the shape of a layer."""
    codes, scale = (Spec(a.shape, a.dtype) for a in (found.codes, found.scale))
    *_, rows, columns = layer.shape
    groups = [Spec((1,), int64)] * (len(layer.shape) - 2)
    op = cast("Op", ops.quantized_grouped_linear if groups else ops.quantized_linear)  # the stubs take no Specs
    try:
        made = op(Spec((1, columns), float32), codes, scale, *groups)
        fits = found.shape == layer.shape and made.shape == (1, rows)
    except (ShapeError, DtypeError):
        fits = False
    if not fits:
        due = f"they must be of a weight {[*layer.shape]}"
        raise ValueError(f"{path}: its codes are {codes}, its scales {scale}; {due}")
