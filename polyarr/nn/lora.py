"""Low-rank adapters: a model whose linear layers stay as they are, each beside a small product that is trained."""

import math
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, TypeVar

from polyarr import ops, tree
from polyarr.core.array import Array, spec_of
from polyarr.core.spec import described, float64, told
from polyarr.nn.init import constant, uniform
from polyarr.nn.layers import Dropout, Linear
from polyarr.nn.module import Module
from polyarr.ops.elementwise import like
from polyarr.ops.nn import ACTIVATIONS

M = TypeVar("M", bound=Module)
_SHOWN = 5  # paths listed in an error


class LoRALinear(Module):
    """act(x @ (weight + scale * b @ a).T + bias): a Linear layer that is frozen, beside a product of low rank.

    a begins uniform within 1/sqrt(in_features), b as 0. While training, what goes into a is dropped with probability
    dropout. Both are float32 beside narrower weights, for small steps would be lost in those.

    Source:  Hu et al. 2021, arXiv:2106.09685
    """

    def __init__(self, base: Linear, rank: int, scale: float, dropout: float = 0.0) -> None:
        if not isinstance(base, Linear):
            raise TypeError(f"LoRALinear: base is {described(base)}; it must be a Linear layer")
        self.base = base.copy().freeze()
        rows, columns = base.weight.shape
        self.a = _beside(base.weight, uniform(max(columns, 1) ** -0.5)((rank, columns)))
        self.b = _beside(base.weight, constant(0)((rows, rank)))
        self.scale, self.drop = scale, Dropout(dropout)
        self.train(base.training)

    def __call__(self, x: Array) -> Array:
        """(..., in) -> (..., out)"""
        base = self.base
        low = ops.linear(ops.linear(self.drop(x), like(self.a, x)), like(self.b, x))  # (..., R), then (..., out)
        return ACTIVATIONS[base.activation](ops.linear(x, base.weight, base.bias) + low * self.scale)

    @property
    def weight(self) -> Array:
        """The one matrix that does the same, (out, in), for whoever computes with a layer's weight."""
        held = self.base.weight
        change = ops.matmul(self.b, self.a) * self.scale
        return like(like(held, change) + change, held)

    @property
    def bias(self) -> Array | None:
        """The frozen layer's."""
        return self.base.bias

    def merged(self) -> Linear:
        """A Linear layer that does the same."""
        layer = self.base.copy()
        layer.weight = self.weight
        return layer


def lora(model: M, rank: int = 8, match: str = "att.*", *, alpha: float | None = None, dropout: float = 0.0) -> M:
    """A model like the given one that trains nothing but adapters beside some of its Linear layers.

    It computes the same at first. The given model stays as it is; the arrays are shared.

    match    which layers: a pattern with * and ? that their paths end with. "att.*" is for blocks.0.att.qkv and its
             kin, "*" for all
    alpha    what the adapters give counts alpha / rank times; None: once
    dropout  the probability with which training drops what goes into an adapter

    Errors:  ValueError if no Linear layer matches, the model has adapters already, or a number is out of range;
             TypeError for what is no Module
    Source:  Hu et al. 2021, arXiv:2106.09685
    """
    check_module("lora", model)
    alpha = rank if alpha is None else alpha
    for name, value, fits, range_ in (
        ("rank", rank, type(rank) is int and rank > 0, "a positive int"),
        ("alpha", alpha, type(alpha) in (int, float) and 0 < alpha < math.inf, "a positive number"),
        ("match", match, isinstance(match, str), "a pattern for paths of layers"),
    ):
        if not fits:
            raise ValueError(f"lora: {name} is {told(value)}; it must be {range_}")
    model = model.copy().freeze()
    chosen = _chosen(model, match)

    def adapted(path: str, layer: Linear) -> Module:
        return LoRALinear(layer, rank, alpha / rank, dropout) if path in chosen else layer

    return replaced(model, adapted)


def merge_lora(model: M) -> M:
    """The model with its adapters added to the weights that they are beside, and nothing frozen.

    Errors:  TypeError for what is no Module
    """
    check_module("merge_lora", model)
    return replaced(model, lambda _, layer: layer.merged() if type(layer) is LoRALinear else layer).unfreeze()


def check_module(name: str, model: Any) -> None:
    """Raise TypeError unless model is a Module."""
    if not isinstance(model, Module):
        raise TypeError(f"{name}: model is {described(model)}; it must be a Module")


def _chosen(model: Module, match: str) -> set[str]:
    """The paths of the layers that a pattern is for."""
    layers: dict[str, Module] = {}
    replaced(model, layers.setdefault)
    if any(type(layer) is LoRALinear for layer in layers.values()):
        raise ValueError("lora: the model has adapters already; merge_lora puts them into its weights")
    pattern = match.replace(".", "/")
    found = {path for path in layers if pattern and PurePosixPath(path.replace(".", "/")).match(pattern)}
    if not found:
        there = f"such as {', '.join([*layers][:_SHOWN])}" if layers else "of which there is none"
        raise ValueError(f"lora: match is {match!r}; it must be a pattern for paths of Linear layers, {there}")
    return found


def replaced(node: Any, change: Callable[[str, Any], Any], path: tuple = ()) -> Any:
    """A copy of a tree with change(path, layer) for each layer that is a Linear, or one with an adapter."""
    if type(node) in (Linear, LoRALinear):
        return change(".".join(map(str, path)), node)
    found = tree.children(node)
    if found is None:
        return node
    return tree.rebuild(node, {name: replaced(child, change, (*path, name)) for name, child in found.items()})


def _beside(weight: Any, made: Any) -> Any:
    """What was drawn, on the backend of a weight, and as wide as that if it is wider; of a Spec a Spec."""
    if type(weight) is not Array:
        return spec_of(made)
    there = made.to(weight.backend)
    return ops.astype(there, dtype=float64) if weight.dtype == float64 else there
