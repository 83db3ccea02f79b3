"""Low-rank adapters (LoRA): linear layers stay frozen, each beside a product of low rank that is trained."""

import math
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast

from polyarr import ops, tree
from polyarr.core.array import Array, spec_of
from polyarr.core.op import Op
from polyarr.core.spec import described, float64, shown
from polyarr.nn.attention import MultiHeadAttention
from polyarr.nn.experts import GroupedLinear
from polyarr.nn.init import constant, shapes_only, uniform
from polyarr.nn.layers import Dropout, Linear
from polyarr.nn.module import Module, named_modules
from polyarr.nn.quantized_linear import QuantizedLinear
from polyarr.ops.elementwise import like
from polyarr.ops.nn import ACTIVATIONS

M = TypeVar("M", bound=Module)
_SHOWN = 5  # paths listed in an error


class LoRALinear(Module):
    """Linear layer with a low-rank adapter: act(x @ (weight + scale * b @ a).T + bias). Only a and b are trained.

    a (rank, in) starts uniform within 1 / sqrt(in_features), b (out, rank) as 0. Both are float32 beside 16-bit
    weights, which would lose small steps. Layers with groups, such as experts, have an adapter each: a (groups, rank,
    in) and b (groups, out, rank).

    Args:
        base: Linear, GroupedLinear or QuantizedLinear layer, which is copied and frozen.
        rank: Rank of the adapter.
        scale: Factor of the adapter.
        dropout: Probability with which training drops an input of the adapter.
        parts: Rows (start, stop) of the weight, in order, each with an adapter of its own; other rows have none. a is
            then (parts * rank, in) and b (all these rows, rank). Empty for one adapter for all rows.

    Raises:
        TypeError: base is not such a layer.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> layer = nn.LoRALinear(nn.Linear(8, 8), rank=2, scale=1.0)
        >>> list(layer.named_parameters(only_trainable=True))
        ['a', 'b']

    Source: Hu et al. 2021, arXiv:2106.09685
    """

    def __init__(
        self, base: Linear | GroupedLinear | QuantizedLinear, rank: int, scale: float, dropout: float = 0.0,
        parts: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        if not isinstance(base, (Linear, GroupedLinear, QuantizedLinear)):
            due = "it must be a Linear, GroupedLinear or QuantizedLinear layer"
            raise TypeError(f"LoRALinear: base is {described(base)}; {due}")
        self.base = base.copy().freeze()
        *groups, rows, columns = base.shape
        self.parts = tuple(parts)
        rows = sum(stop - start for start, stop in self.parts) if parts else rows
        held = base.scale if isinstance(base, QuantizedLinear) else base.weight
        self.a = _beside(held, uniform(max(columns, 1) ** -0.5)((*groups, max(len(self.parts), 1) * rank, columns)))
        self.b = _beside(held, constant(0)((*groups, rows, rank)))
        self.scale, self.drop = scale, Dropout(dropout)
        self.train(base.training)

    def __call__(self, x: Array, *groups: Array) -> Array:
        """Return the output (..., out) for an input x (..., in), and for the group of each row, integers (...)."""
        base = self.base
        product = cast("Op", ops.grouped_linear if groups else ops.linear)
        low = product(self.drop(x), like(self.a, x), *groups)  # (..., rank)
        low = product(low, like(self.whole_b(), x), *groups)  # (..., out)
        return ACTIVATIONS[base.activation](base.before_activation(x, *groups) + low * self.scale)

    @property
    def weight(self) -> Array:
        """The weight, of the shape of the frozen layer's, of a layer without adapters that computes the same."""
        held = self.base.weight
        change = ops.matmul(self.whole_b(), self.a) * self.scale
        return like(like(held, change) + change, held)

    def whole_b(self) -> Array:
        """Return b for all rows: b itself, or for several parts (out, parts * rank) with zeros outside of them."""
        if not self.parts:
            return self.b
        rank, at, done, blocks = self.b.shape[1], 0, 0, list[Array]()
        width = len(self.parts) * rank
        for number, (start, stop) in enumerate(self.parts):
            rows = self.b[done : done + stop - start]
            sides = self._zeros(stop - start, number * rank), self._zeros(stop - start, width - (number + 1) * rank)
            blocks += [self._zeros(start - at, width), ops.concat([sides[0], rows, sides[1]], axis=1)]
            at, done = stop, done + stop - start
        return ops.concat([*blocks, self._zeros(self.base.shape[0] - at, width)], axis=0)

    def _zeros(self, *shape: int) -> Array:
        return ops.fill(0, self.b, shape=shape, dtype=self.b.dtype)

    @property
    def bias(self) -> Array | None:
        """The bias of the frozen layer."""
        return self.base.bias

    def merged(self) -> Linear | GroupedLinear:
        """Return a layer without adapters that computes the same; a quantized weight is dequantized."""
        with shapes_only():
            layer: Linear | GroupedLinear = (
                GroupedLinear(0, 0, 0) if len(self.base.shape) > 2 else Linear(0, 0, activation=self.base.activation)
            )
        layer.weight, layer.bias = self.weight, self.bias
        return layer.train(self.training)


def lora(model: M, rank: int = 8, match: str = "att.*", *, alpha: float | None = None, dropout: float = 0.0) -> M:
    """Return a model like the given one that trains only low-rank adapters beside some of its Linear layers.

    At first it computes the same. The given model does not change; the arrays are shared.

    Args:
        model: Module with Linear layers.
        rank: Rank of the adapters.
        match: Pattern with *, ? and [] that the paths of the layers end with. "att.*" matches blocks.0.att.qkv and
            its like, "*" every layer, "expert_*" the experts of a mixture, each of which has an adapter of its own.
            "att.q", "att.k" and "att.v" are the parts of att.qkv that make queries, keys and values: "att.[qv]" gives
            two of them an adapter each.
        alpha: The factor of the adapters is alpha / rank; None for 1.
        dropout: Probability with which training drops an input of an adapter.

    Returns:
        Model of the type of the given one.

    Raises:
        ValueError: No Linear layer matches, the model has adapters already, or a number is out of range.
        TypeError: model is not a Module.

    Examples:
        >>> from polyarr import nn
        >>> model = nn.lora(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), rank=2, match="*")
        >>> model.num_parameters(only_trainable=True)
        32

    Source: Hu et al. 2021, arXiv:2106.09685
    """
    check_module("lora", model)
    alpha = rank if alpha is None else alpha
    for name, value, fits, range_ in (
        ("rank", rank, type(rank) is int and rank > 0, "a positive int"),
        ("alpha", alpha, type(alpha) in (int, float) and 0 < alpha < math.inf, "a positive number"),
        ("match", match, isinstance(match, str), "a pattern for paths of layers"),
    ):
        if not fits:
            raise ValueError(f"lora: {name} is {shown(value)}; it must be {range_}")
    model = model.copy().freeze()
    chosen = _chosen(model, match)

    def adapted(path: str, layer: Any) -> Module:
        return LoRALinear(layer, rank, alpha / rank, dropout, chosen[path]) if path in chosen else layer

    return replaced(model, adapted)


def merge_lora(model: M) -> M:
    """Return the model with its adapters added to the weights beside them, and nothing frozen.

    Args:
        model: Module.

    Returns:
        Model of the type of the given one.

    Raises:
        TypeError: model is not a Module.

    Examples:
        >>> from polyarr import nn
        >>> model = nn.lora(nn.Sequential(nn.Linear(8, 8)), match="*")
        >>> list(nn.merge_lora(model).named_parameters())
        ['layers.0.weight', 'layers.0.bias']
    """
    check_module("merge_lora", model)
    return replaced(model, lambda _, layer: layer.merged() if type(layer) is LoRALinear else layer).unfreeze()


def check_module(name: str, model: Any) -> None:
    """Raise TypeError unless model is a Module."""
    if not isinstance(model, Module):
        raise TypeError(f"{name}: model is {described(model)}; it must be a Module")


def _chosen(model: Module, match: str) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return the paths of the layers that match a pattern, and the matching parts of each; () for a whole layer."""
    layers = linear_layers(model)
    if any(type(layer) is LoRALinear for layer in layers.values()):
        raise ValueError("lora: the model has adapters already; merge_lora puts them into its weights")
    pattern = match.replace(".", "/")

    def fits(path: str) -> bool:
        return bool(pattern) and PurePosixPath(path.replace(".", "/")).match(pattern)

    found: dict[str, tuple[tuple[int, int], ...]] = {path: () for path in layers if fits(path)}
    attentions = [(path, layer) for path, layer in named_modules(model) if isinstance(layer, MultiHeadAttention)]
    for path, attention in attentions:
        parts = tuple(rows for name, rows in attention.parts().items() if fits(f"{path}.{name}"))
        if parts and f"{path}.qkv" in layers:
            found.setdefault(f"{path}.qkv", parts)
    if not found:
        inner = [f"{path}.{name}" for path, attention in attentions for name in attention.parts()]
        one = f", or of one part, such as {inner[0]}" if inner else ""
        there = f"such as {', '.join([*layers][:_SHOWN])}{one}" if layers else "of which there is none"
        raise ValueError(f"lora: match is {match!r}; it must be a pattern for paths of Linear layers, {there}")
    return found


def linear_layers(model: Module) -> dict[str, Any]:
    """Return the linear layers of a model, with or without adapters, by path."""
    layers: dict[str, Any] = {}
    replaced(model, layers.setdefault)
    return layers


def replaced(node: Any, change: Callable[[str, Any], Any], path: tuple = ()) -> Any:
    """Return a copy of a tree with change(path, layer) in place of each linear layer, with or without adapters."""
    if type(node) in (Linear, GroupedLinear, QuantizedLinear, LoRALinear):
        return change(".".join(map(str, path)), node)
    found = tree.children(node)
    if found is None:
        return node
    return tree.rebuild(node, {name: replaced(child, change, (*path, name)) for name, child in found.items()})


def _beside(weight: Any, made: Any) -> Any:
    """Return an array on the backend of a weight, in float64 beside float64; for a Spec a Spec."""
    if type(weight) is not Array:
        return spec_of(made)
    there = made.to(weight.backend)
    return ops.astype(there, dtype=float64) if weight.dtype == float64 else there
