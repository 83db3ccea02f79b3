"""The plain layers: what they hold, and the op that they call."""

import math
from collections.abc import Callable
from typing import Any

from polyarr import ops, random
from polyarr.core.array import Array
from polyarr.core.errors import ShapeError
from polyarr.core.spec import described, float32
from polyarr.nn.init import Initialiser, begun, constant, normal, uniform
from polyarr.nn.module import Module
from polyarr.ops.validation import check_array, whole, within


class Linear(Module):
    """act(x @ weight.T + bias). Without init, weight and bias are uniform within 1/sqrt(in_features).

    init draws the weight instead, (out, in) -> array; the bias is then 0.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: str | None = None,
        init: Initialiser | None = None,
    ) -> None:
        in_features = whole("Linear", "in_features", in_features)
        out_features = whole("Linear", "out_features", out_features)
        default = uniform(1 / math.sqrt(max(in_features, 1)))
        self.weight = begun("Linear", init or default, out_features, in_features)
        self.bias = (constant(0) if init else default)((out_features,)) if bias else None
        self.activation = activation

    def __call__(self, x: Array) -> Array:
        """(..., in) -> (..., out)"""
        return ops.linear(x, self.weight, self.bias, activation=self.activation)


class Embedding(Module):
    """A row of weight for each index."""

    def __init__(self, num_embeddings: int, emb_dim: int, init: Initialiser | None = None) -> None:
        self.weight = begun("Embedding", init or normal(), num_embeddings, emb_dim)

    def __call__(self, indices: Array) -> Array:
        """(...) integers -> (..., emb_dim)"""
        return ops.embedding(self.weight, indices)


class LayerNorm(Module):
    """The last axis brought to mean 0 and variance 1, then scaled and shifted."""

    def __init__(self, emb_dim: int, eps: float = 1e-5, bias: bool = True) -> None:
        self.weight = constant(1)((emb_dim,))
        self.bias = constant(0)((emb_dim,)) if bias else None
        self.eps = within("LayerNorm", "eps", eps, 0)

    def __call__(self, x: Array) -> Array:
        """(..., emb_dim) -> the same"""
        return ops.layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(Module):
    """The last axis divided by its root mean square, then scaled."""

    def __init__(self, emb_dim: int, eps: float = 1e-6) -> None:
        self.weight = constant(1)((emb_dim,))
        self.eps = within("RMSNorm", "eps", eps, 0)

    def __call__(self, x: Array) -> Array:
        """(..., emb_dim) -> the same"""
        return ops.rms_norm(x, self.weight, eps=self.eps)


class Dropout(Module):
    """While training, each element is 0 with probability rate, and the others grow by 1 / (1 - rate).

    Errors:  ValueError unless 0 <= rate <= 1
    """

    def __init__(self, rate: float) -> None:
        self.rate = within("Dropout", "the dropout rate", rate, 0, 1)

    def __call__(self, x: Array) -> Array:
        """any -> the same"""
        return ops.dropout(x, *random.draw(), rate=self.rate) if self.training and self.rate else x


class GELU(Module):
    """ops.gelu as a layer."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def __call__(self, x: Array) -> Array:
        """any -> the same"""
        return ops.gelu(x, approximate=self.approximate)


class ReLU(Module):
    """ops.relu as a layer."""

    def __call__(self, x: Array) -> Array:
        """any -> the same"""
        return ops.relu(x)


class SiLU(Module):
    """ops.silu as a layer."""

    def __call__(self, x: Array) -> Array:
        """any -> the same"""
        return ops.silu(x)


class Sequential(Module):
    """Layers, or any functions of one array, one after the other."""

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        for layer in layers:
            if not callable(layer):
                hint = "; write Sequential(*layers)" if isinstance(layer, (list, tuple)) else ""
                raise TypeError(f"Sequential: a layer is {described(layer)}; it must be a layer or a function{hint}")
        self.layers = list(layers)

    def __call__(self, x: Any) -> Any:
        """As the layers have it"""
        for layer in self.layers:
            x = layer(x)
        return x

    def __getitem__(self, i: int) -> Callable[[Any], Any]:
        return self.layers[i]

    def __len__(self) -> int:
        return len(self.layers)


class FeedForward(Module):
    """Two Linear layers with an activation between them; hidden is 4 * emb_dim unless given."""

    def __init__(
        self,
        emb_dim: int,
        hidden: int | None = None,
        *,
        activation: str = "gelu_tanh",
        init: Initialiser | None = None,
        out_init: Initialiser | None = None,
    ) -> None:
        hidden = 4 * emb_dim if hidden is None else hidden
        self.up = Linear(emb_dim, hidden, activation=activation, init=init)
        self.down = Linear(hidden, emb_dim, init=out_init)

    def __call__(self, x: Array) -> Array:
        """(..., emb_dim) -> the same"""
        return self.down(self.up(x))


class GatedFeedForward(Module):
    """Two Linear layers to hidden numbers, one of which gates the other through an activation, and one back.

    Source:  Shazeer 2020, arXiv:2002.05202 (SwiGLU)
    """

    def __init__(
        self,
        emb_dim: int,
        hidden: int,
        *,
        activation: str = "silu",
        init: Initialiser | None = None,
        out_init: Initialiser | None = None,
    ) -> None:
        self.gate = Linear(emb_dim, hidden, bias=False, activation=activation, init=init)
        self.up = Linear(emb_dim, hidden, bias=False, init=init)
        self.down = Linear(hidden, emb_dim, bias=False, init=out_init)

    def __call__(self, x: Array) -> Array:
        """(..., emb_dim) -> the same"""
        return self.down(self.gate(x) * self.up(x))


class PositionalEncoding(Module):
    """Adds sines and cosines of the position, which are not trained.

    Errors:  ShapeError, when called, if x's last axis is not emb_dim
    Source:  Vaswani et al. 2017, arXiv:1706.03762
    """

    def __init__(self, emb_dim: int) -> None:
        self.emb_dim = whole("PositionalEncoding", "emb_dim", emb_dim)

    def __call__(self, x: Array) -> Array:
        """(..., T, emb_dim) -> the same"""
        check_array("PositionalEncoding", "x", x)
        if x.ndim < 2 or x.shape[-1] != self.emb_dim:
            raise ShapeError(f"PositionalEncoding: x is {x.spec}; it must be [..., T, {self.emb_dim}]")
        length, pairs = x.shape[-2], (self.emb_dim + 1) // 2
        position = ops.arange(0, 1, x, size=length, dtype=float32)[:, None]  # (T, 1)
        rate = ops.exp(ops.arange(0, -2 * math.log(10000) / self.emb_dim, x, size=pairs, dtype=float32))
        angle = position * rate  # (T, C / 2)
        both = ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)  # (T, C / 2, 2)
        table = ops.reshape(both, shape=(length, 2 * pairs))[:, : self.emb_dim]  # (T, C)
        return x + ops.astype(table, dtype=x.dtype)
