"""Mixture of experts: feed-forward layers of which a router chooses a few for each token."""

import math
from typing import NamedTuple

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.spec import float32, float64
from polyarr.nn.init import Initializer, constant, initial_value, normal
from polyarr.nn.layers import GatedFeedForward, Linear
from polyarr.nn.module import Module
from polyarr.ops.nn import ACTIVATIONS, check_activation
from polyarr.ops.validation import number, whole

_SLOPE = 1.702  # with which x * sigmoid(slope * x) is close to GELU
_ALIGNED = 4  # probabilities of a row: its bits may depend on its number if rows are no multiple of 16 bytes


class GroupedLinear(Module):
    """Linear layers, of which each row of the input chooses one: weight[groups[i]] x[i] + bias[groups[i]].

    Args:
        groups: Number of layers.
        in_features: Length of the last axis of the input.
        out_features: Length of the last axis of the output.
        init: Initializer of the weight (groups, out, in); None for normal(0.02).
        bias: Whether the layers have a bias, (groups, out), which starts as 0.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> layer = nn.GroupedLinear(4, 3, 2)
        >>> layer(pa.ones((5, 3)), pa.asarray([3, 0, 0, 1, 3])).shape
        (5, 2)
    """

    activation = None

    def __init__(
        self, groups: int, in_features: int, out_features: int, *, init: Initializer | None = None, bias: bool = False
    ) -> None:
        self.weight = initial_value("GroupedLinear", init or normal(0.02), groups, out_features, in_features)
        self.bias = initial_value("GroupedLinear", constant(0), groups, out_features) if bias else None

    def __call__(self, x: Array, groups: Array) -> Array:
        """Return the output (..., out) for an input x (..., in) and the layer of each row, integers (...)."""
        return with_bias_of_groups(ops.grouped_linear(x, self.weight, groups), self.bias, groups)

    def before_activation(self, x: Array, groups: Array) -> Array:
        """Return the output (..., out), as a call does: there is no activation."""
        return self(x, groups)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (groups, out, in) of the weight."""
        return self.weight.shape


def with_bias_of_groups(y: Array, bias: Array | None, groups: Array) -> Array:
    """Return y (..., out) plus the bias of each row's layer, of biases (groups, out); None for none."""
    return y if bias is None else y + ops.take(bias, groups, axis=0)


class _Gate(Module):
    """Sigmoid of a weighted sum of the last axis.

    It is a sum rather than a matrix product, whose bits for one row may depend on the number of the row.
    """

    def __init__(self, emb_dim: int, init: Initializer) -> None:
        self.weight = initial_value("MixtureOfExperts", init, 1, emb_dim)

    def __call__(self, x: Array) -> Array:
        """Return the gate (..., 1) for x (..., C)."""
        wide = [ops.astype(a, dtype=float64 if a.dtype == float64 else float32) for a in (x, self.weight)]
        return ops.astype(ops.sigmoid((wide[0] * wide[1][0]).sum(axis=-1, keepdims=True)), dtype=x.dtype)


class Routed(NamedTuple):
    """Output of a mixture of experts, and how its router used the experts.

    Attributes:
        y: Array (..., C).
        load: Array (2, experts), float32 or float64: for each expert the number of tokens that chose it, and the sum of
            its probabilities over all tokens. `balance_loss` is computed from it.
    """

    y: Array
    load: Array


class MixtureOfExperts(Module):
    """Gated feed-forward layers, the experts, of which a router chooses a few for each token.

    The output is the sum of the chosen experts' outputs times their probabilities: the softmax of the router's logits
    over all experts.

    Args:
        emb_dim: Length of the last axis.
        hidden: Length of gate and up of an expert.
        experts: Number of experts.
        per_token: Number of experts that each token chooses.
        normalize: Whether the chosen experts' probabilities are divided by their sum.
        shared: Length of gate and up of an expert that all tokens have, times the sigmoid of a gate; 0 for none.
        activation: "relu", "silu", "gelu" or "gelu_tanh".
        bias: Whether router, gate, up and down have biases.
        swiglu_limit: Limit of the experts' gate and up, with which an expert computes gate * sigmoid(1.702 * gate) *
            (up + 1) in place of activation(gate) * up: gate is at most the limit, up from -limit to limit. None for no
            limit, and the activation.
        init: Initializer of router, gate and up; None for normal(0.02).
        out_init: Initializer of down; None for normal(0.02).

    Raises:
        ValueError: per_token is not from 1 to experts, there is no such activation, or swiglu_limit is not positive.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.MixtureOfExperts(4, 8, experts=6, per_token=2)(pa.ones((2, 3, 4))).shape
        (2, 3, 4)

    Source: Shazeer et al. 2017, arXiv:1701.06538; Fedus, Zoph, Shazeer 2022, arXiv:2101.03961; for swiglu_limit
    OpenAI 2025, arXiv:2508.10925
    """

    def __init__(
        self,
        emb_dim: int,
        hidden: int,
        *,
        experts: int,
        per_token: int,
        normalize: bool = True,
        shared: int = 0,
        activation: str = "silu",
        bias: bool = False,
        swiglu_limit: float | None = None,
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ) -> None:
        if not 1 <= whole("MixtureOfExperts", "per_token", per_token) <= whole("MixtureOfExperts", "experts", experts):
            raise ValueError(f"MixtureOfExperts: per_token is {per_token}; it must be from 1 to experts, {experts}")
        check_activation("MixtureOfExperts", activation)
        if swiglu_limit is not None and number("MixtureOfExperts", "swiglu_limit", swiglu_limit) <= 0:
            raise ValueError(f"MixtureOfExperts: swiglu_limit is {swiglu_limit}; it must be positive, or None")
        init = init or normal(0.02)
        self.per_token, self.normalize, self.activation = per_token, normalize, activation
        self.swiglu_limit = swiglu_limit
        self.router = Linear(emb_dim, experts, bias=bias, init=init)
        self.expert_gate = GroupedLinear(experts, emb_dim, hidden, init=init, bias=bias)
        self.expert_up = GroupedLinear(experts, emb_dim, hidden, init=init, bias=bias)
        self.expert_down = GroupedLinear(experts, hidden, emb_dim, init=out_init, bias=bias)
        self.shared = None
        if shared:
            self.shared = GatedFeedForward(emb_dim, shared, activation=activation, init=init, out_init=out_init)
        self.shared_gate = _Gate(emb_dim, init) if shared else None

    def __call__(self, x: Array) -> Array:
        """Return the output (..., C) for x (..., C)."""
        return self._mixed(x, *self._chosen(x)[:2])

    def routed(self, x: Array) -> Routed:
        """Return the output (..., C) for x (..., C), and the load of the experts."""
        weights, chosen, probabilities = self._chosen(x)
        experts = probabilities.shape[-1]
        is_chosen = chosen[..., None] == ops.iota(0, 1, chosen, size=experts, dtype=chosen.dtype)  # (..., k, E)
        counts = ops.astype(is_chosen, dtype=probabilities.dtype)
        sums = [ops.reshape(each, shape=(-1, experts)).sum(axis=0) for each in (counts, probabilities)]
        return Routed(self._mixed(x, weights, chosen), ops.stack(sums))

    def _chosen(self, x: Array) -> tuple[Array, Array, Array]:
        """Return weights and numbers of the chosen experts, (..., k), and the probabilities of all, (..., E)."""
        logits = self.router(x)
        logits, experts = ops.astype(logits, dtype=float64 if x.dtype == float64 else float32), logits.shape[-1]
        if more := -experts % _ALIGNED:
            none = ops.fill(-math.inf, logits, shape=(*logits.shape[:-1], more), dtype=logits.dtype)
            logits = ops.concat([logits, none], axis=-1)
        probabilities = ops.softmax(logits)[..., :experts]
        weights, chosen = ops.topk(probabilities, k=self.per_token)
        if self.normalize:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return ops.astype(weights, dtype=x.dtype), chosen, probabilities

    def _mixed(self, x: Array, weights: Array, chosen: Array) -> Array:
        rows = ops.broadcast_to(x[..., None, :], shape=(*chosen.shape, x.shape[-1]))  # (..., k, C)
        hidden = self._gated(self.expert_gate(rows, chosen), self.expert_up(rows, chosen))  # (..., k, H)
        y = (self.expert_down(hidden, chosen) * weights[..., None]).sum(axis=-2)  # (..., C)
        if self.shared is None or self.shared_gate is None:
            return y
        return y + self.shared(x) * self.shared_gate(x)

    def _gated(self, gate: Array, up: Array) -> Array:
        """Return the input of down, for the outputs of gate and up."""
        if self.swiglu_limit is None:
            return ACTIVATIONS[self.activation](gate) * up
        gate, up = ops.minimum(gate, self.swiglu_limit), ops.clip(up, -self.swiglu_limit, self.swiglu_limit)
        return gate * ops.sigmoid(_SLOPE * gate) * (up + 1)


def balance_loss(load: Array, rows: int) -> Array:
    """Return the load-balancing loss of routers, a scalar: experts times the sum of shares times mean probabilities.

    It is the number of experts per token if all are used equally, and more otherwise.

    Args:
        load: Array (2, experts), the sum of the loads of one router or of several.
        rows: Number of tokens that the routers saw, all together.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.balance_loss(pa.asarray([[2.0, 2.0], [2.0, 2.0]]), rows=4)
        Array(1., float32, 'numpy')

    Source: Fedus, Zoph, Shazeer 2022, arXiv:2101.03961
    """
    return load.shape[1] * (load[0] * load[1]).sum() / rows**2
