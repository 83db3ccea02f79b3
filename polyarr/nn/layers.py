"""Basic layers: the parameters that they hold, and the op that they call."""

import math
from collections.abc import Callable
from typing import Any

from polyarr import ops, random
from polyarr.core.array import Array
from polyarr.core.errors import ShapeError
from polyarr.core.spec import described, float32, float64
from polyarr.nn.init import Initializer, constant, initial_value, normal, uniform
from polyarr.nn.module import Module
from polyarr.ops.validation import check_array, whole, within


class Linear(Module):
    """Linear layer: act(x @ weight.T + bias).

    Args:
        in_features: Length of the last axis of the input.
        out_features: Length of the last axis of the output.
        bias: Whether to add a bias.
        activation: None, "relu", "silu", "gelu" or "gelu_tanh".
        init: Initializer of the weight (out, in), with a bias of 0. None: both are uniform within 1 /
            sqrt(in_features).

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> layer = nn.Linear(3, 2)
        >>> layer(pa.ones((4, 3))).shape
        (4, 2)
        >>> layer.weight.shape
        (2, 3)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        activation: str | None = None,
        init: Initializer | None = None,
    ) -> None:
        in_features = whole("Linear", "in_features", in_features)
        out_features = whole("Linear", "out_features", out_features)
        default = uniform(1 / math.sqrt(max(in_features, 1)))
        self.weight = initial_value("Linear", init or default, out_features, in_features)
        self.bias = (constant(0) if init else default)((out_features,)) if bias else None
        self.activation = activation

    def __call__(self, x: Array) -> Array:
        """Return the output (..., out) for an input x (..., in)."""
        return ops.linear(x, self.weight, self.bias, activation=self.activation)

    def before_activation(self, x: Array) -> Array:
        """Return the output (..., out) for an input x (..., in), without the activation."""
        return ops.linear(x, self.weight, self.bias)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (out, in) of the weight."""
        return self.weight.shape


class Embedding(Module):
    """Table with a trained vector for each index.

    Args:
        num_embeddings: Number of indices.
        emb_dim: Length of a vector.
        init: Initializer of the weight (num_embeddings, emb_dim); None for normal(1).

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.Embedding(10, 4)(pa.asarray([[1, 2, 3]])).shape
        (1, 3, 4)
    """

    def __init__(self, num_embeddings: int, emb_dim: int, *, init: Initializer | None = None) -> None:
        shape = whole("Embedding", "num_embeddings", num_embeddings), whole("Embedding", "emb_dim", emb_dim)
        self.weight = initial_value("Embedding", init or normal(), *shape)

    def __call__(self, indices: Array) -> Array:
        """Return the vectors (..., emb_dim) of integer indices (...)."""
        return ops.embedding(self.weight, indices)


class LayerNorm(Module):
    """Layer norm: normalize the last axis to mean 0 and variance 1, then scale and shift it.

    Args:
        emb_dim: Length of the last axis.
        eps: Number added to the variance.
        bias: Whether to shift.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.LayerNorm(2, eps=0.0)(pa.asarray([[1.0, 3.0]]))
        Array([[-1.,  1.]], float32, 'numpy')
    """

    def __init__(self, emb_dim: int, eps: float = 1e-5, *, bias: bool = True) -> None:
        emb_dim = whole("LayerNorm", "emb_dim", emb_dim)
        self.weight = constant(1)((emb_dim,))
        self.bias = constant(0)((emb_dim,)) if bias else None
        self.eps = within("LayerNorm", "eps", eps, 0)

    def __call__(self, x: Array) -> Array:
        """Return the normalized x (..., emb_dim)."""
        return ops.layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(Module):
    """RMS norm: divide the last axis by its root mean square, then scale it.

    Args:
        emb_dim: Length of the last axis.
        eps: Number added to the mean square.
        offset: Number added to the weights; with 1, as Gemma has it, 16-bit weights close to 0 are precise.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.RMSNorm(2)(pa.asarray([[3.0, 4.0]]))
        Array([[0.8485281, 1.1313708]], float32, 'numpy')
    """

    def __init__(self, emb_dim: int, eps: float = 1e-6, *, offset: float = 0.0) -> None:
        self.weight = constant(1 - offset)((whole("RMSNorm", "emb_dim", emb_dim),))
        self.eps, self.offset = within("RMSNorm", "eps", eps, 0), offset

    def __call__(self, x: Array) -> Array:
        """Return the normalized x (..., emb_dim)."""
        weight = self.weight
        if self.offset:  # in float32, since 1 + a small number in 16 bits loses the number
            weight = ops.astype(weight, dtype=weight.dtype if weight.dtype == float64 else float32) + self.offset
        return ops.rms_norm(x, weight, eps=self.eps)


class Dropout(Module):
    """Dropout: while training, set each element to 0 with probability rate, and divide the others by 1 - rate.

    Args:
        rate: Probability from 0 to 1.

    Raises:
        ValueError: rate is not from 0 to 1.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.Dropout(0.5).eval()(pa.ones(3))
        Array([1., 1., 1.], float32, 'numpy')
    """

    def __init__(self, rate: float) -> None:
        self.rate = within("Dropout", "the dropout rate", rate, 0, 1)

    def __call__(self, x: Array) -> Array:
        """Return x, with dropout while training."""
        return ops.dropout(x, *random.draw(), rate=self.rate) if self.training and self.rate else x


class GELU(Module):
    """The activation polyarr.gelu as a layer.

    Args:
        approximate: "none" or "tanh".

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.GELU()(pa.asarray([-1.0, 1.0]))
        Array([-0.15865526,  0.8413447 ], float32, 'numpy')
    """

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def __call__(self, x: Array) -> Array:
        """Return gelu(x), of the shape of x."""
        return ops.gelu(x, approximate=self.approximate)


class ReLU(Module):
    """The activation polyarr.relu as a layer.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.ReLU()(pa.asarray([-1.0, 1.0]))
        Array([0., 1.], float32, 'numpy')
    """

    def __call__(self, x: Array) -> Array:
        """Return relu(x), of the shape of x."""
        return ops.relu(x)


class SiLU(Module):
    """The activation polyarr.silu as a layer.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.SiLU()(pa.asarray([0.0, 1.0]))
        Array([0.       , 0.7310586], float32, 'numpy')
    """

    def __call__(self, x: Array) -> Array:
        """Return silu(x), of the shape of x."""
        return ops.silu(x)


class Sequential(Module):
    """Layers, or any functions of one array, called one after the other.

    Args:
        *layers: Layers or functions.

    Raises:
        TypeError: A layer is not callable.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> model = nn.Sequential(nn.Linear(3, 8, activation="relu"), nn.Linear(8, 2))
        >>> model(pa.ones((4, 3))).shape
        (4, 2)
    """

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        for layer in layers:
            if not callable(layer):
                hint = "; write Sequential(*layers)" if isinstance(layer, (list, tuple)) else ""
                raise TypeError(f"Sequential: a layer is {described(layer)}; it must be a layer or a function{hint}")
        self.layers = list(layers)

    def __call__(self, x: Any) -> Any:
        """Return the output of the last layer."""
        for layer in self.layers:
            x = layer(x)
        return x

    def __getitem__(self, i: int) -> Callable[[Any], Any]:
        return self.layers[i]

    def __len__(self) -> int:
        return len(self.layers)


class FeedForward(Module):
    """Feed-forward block: two Linear layers with an activation between them.

    Args:
        emb_dim: Length of the last axis.
        hidden: Length between the layers; None for 4 * emb_dim.
        activation: "relu", "silu", "gelu" or "gelu_tanh".
        init: Initializer of the first layer, as in Linear.
        out_init: Initializer of the second layer.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.FeedForward(4)(pa.ones((2, 3, 4))).shape
        (2, 3, 4)
    """

    def __init__(
        self,
        emb_dim: int,
        hidden: int | None = None,
        *,
        activation: str = "gelu_tanh",
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ) -> None:
        hidden = 4 * emb_dim if hidden is None else hidden
        self.up = Linear(emb_dim, hidden, activation=activation, init=init)
        self.down = Linear(hidden, emb_dim, init=out_init)

    def __call__(self, x: Array) -> Array:
        """Return the output (..., emb_dim) for x (..., emb_dim)."""
        return self.down(self.up(x))


class GatedFeedForward(Module):
    """Gated feed-forward block: down(act(gate(x)) * up(x)), as SwiGLU.

    Args:
        emb_dim: Length of the last axis.
        hidden: Length of gate and up.
        activation: "relu", "silu", "gelu" or "gelu_tanh".
        bias: Whether the three Linear layers have biases.
        init: Initializer of gate and up, as in Linear.
        out_init: Initializer of down.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.GatedFeedForward(4, 8)(pa.ones((2, 3, 4))).shape
        (2, 3, 4)

    Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU)
    """

    def __init__(
        self,
        emb_dim: int,
        hidden: int,
        *,
        activation: str = "silu",
        bias: bool = False,
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ) -> None:
        self.gate = Linear(emb_dim, hidden, bias=bias, activation=activation, init=init)
        self.up = Linear(emb_dim, hidden, bias=bias, init=init)
        self.down = Linear(hidden, emb_dim, bias=bias, init=out_init)

    def __call__(self, x: Array) -> Array:
        """Return the output (..., emb_dim) for x (..., emb_dim)."""
        return self.down(self.gate(x) * self.up(x))


class PositionalEncoding(Module):
    """Sinusoidal positional encoding: add sines and cosines of the position, which are not trained.

    Args:
        emb_dim: Length of the last axis.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.PositionalEncoding(4)(pa.zeros((1, 4)))
        Array([[0., 1., 0., 1.]], float32, 'numpy')

    Source: Vaswani et al. 2017, arXiv:1706.03762
    """

    def __init__(self, emb_dim: int) -> None:
        self.emb_dim = whole("PositionalEncoding", "emb_dim", emb_dim)

    def __call__(self, x: Array) -> Array:
        """Return x (..., T, emb_dim) with the encoding of positions 0 to T - 1 added.

        Raises:
            ShapeError: The last axis of x is not emb_dim.
        """
        check_array("PositionalEncoding", "x", x)
        if x.ndim < 2 or x.shape[-1] != self.emb_dim:
            raise ShapeError(f"PositionalEncoding: x is {x.spec}; it must be [..., T, {self.emb_dim}]")
        length, pairs = x.shape[-2], (self.emb_dim + 1) // 2
        position = ops.iota(0, 1, x, size=length, dtype=float32)[:, None]  # (T, 1)
        rate = ops.exp(ops.iota(0, -2 * math.log(10000) / self.emb_dim, x, size=pairs, dtype=float32))
        angle = position * rate  # (T, C / 2)
        both = ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)  # (T, C / 2, 2)
        table = ops.reshape(both, shape=(length, 2 * pairs))[:, : self.emb_dim]  # (T, C)
        return x + ops.astype(table, dtype=x.dtype)
