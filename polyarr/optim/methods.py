"""Optimizers whose step computes each element of a parameter alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyarr import ops
from polyarr.core.array import Array
from polyarr.optim.optimizer import Optimizer


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with optional momentum.

    Args:
        lr: As in Optimizer, and so are weight_decay, clip, decays and loss_scale.
        momentum: Share of the velocity that stays at each step.
        nesterov: Whether to use Nesterov momentum.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import optim
        >>> w, optimizer = pa.asarray([1.0, 2.0]), optim.SGD(lr=0.1)
        >>> w, state = optimizer.update(pa.asarray([1.0, 1.0]), optimizer.init(w), w)
        >>> w
        Array([0.9, 1.9], float32, 'numpy')
    """

    momentum: float = 0.0
    nesterov: bool = False

    moments = ("velocity",)

    def _step(
        self, params: dict[str, Array], grads: list, moments: list, done: int, scale: Any, decay: tuple
    ) -> Sequence:
        return ops.sgd(
            [*params.values()], grads, moments[0], self.learning_rate(done), scale,
            momentum=self.momentum, weight_decay=decay, nesterov=self.nesterov,
        )  # fmt: skip


@dataclass(frozen=True)
class Adam(Optimizer):
    """The optimizer Adam. Weight decay is added to the gradient.

    Args:
        lr: As in Optimizer, and so are weight_decay, clip, decays and loss_scale.
        betas: Decay of the first and second moments.
        eps: Number added to the root of the second moment.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import optim
        >>> w, optimizer = pa.asarray([1.0, 2.0]), optim.Adam(lr=0.1)
        >>> w, state = optimizer.update(pa.asarray([1.0, -5.0]), optimizer.init(w), w)
        >>> w
        Array([0.9, 2.1], float32, 'numpy')

    Source: Kingma, Ba 2014, arXiv:1412.6980
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    moments = ("m", "v")
    decoupled = False

    def _step(
        self, params: dict[str, Array], grads: list, moments: list, done: int, scale: Any, decay: tuple
    ) -> Sequence:
        (m, v), (beta1, beta2) = moments, self.betas
        return ops.adamw(
            [*params.values()], grads, m, v, self.learning_rate(done), done + 1, scale,
            beta1=beta1, beta2=beta2, eps=self.eps, weight_decay=decay, decoupled=self.decoupled,
        )  # fmt: skip


@dataclass(frozen=True)
class AdamW(Adam):
    """The optimizer AdamW: Adam with decoupled weight decay, which shrinks parameters by lr * weight_decay.

    Args:
        lr: As in Optimizer, and so are weight_decay (0.01 by default), clip, decays and loss_scale.
        betas: Decay of the first and second moments.
        eps: Number added to the root of the second moment.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn, optim
        >>> model, optimizer = nn.Linear(2, 1), optim.AdamW(optim.warmup_cosine(1e-3, 100, 1000), clip=1.0)
        >>> state = optimizer.init(model)
        >>> gradient = pa.grad(lambda m: pa.sum(m(pa.ones((4, 2)))))(model)
        >>> model, state = optimizer.update(gradient, state, model)
        >>> state["step"]
        1

    Source: Loshchilov, Hutter 2017, arXiv:1711.05101
    """

    weight_decay: float = 0.01

    decoupled = True
