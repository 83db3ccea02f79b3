"""Optimizers whose step computes each element of a parameter alone."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from polyarr import ops
from polyarr.core.array import Array
from polyarr.optim.optimizer import Optimizer, Schedule


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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


class _Written(Optimizer):
    """Base of the optimizers whose step of one array is written with operators, in the dtype of its moments."""

    def _step(
        self, params: dict[str, Array], grads: list, moments: list, done: int, scale: Any, decay: tuple
    ) -> Sequence:
        found = []
        for p, g, own_decay, *kept in zip(params.values(), grads, decay, *moments, strict=True):
            dtype = kept[0].dtype
            lr, by = (n.astype(dtype) if type(n) is Array else n for n in (self.learning_rate(done), scale))
            moved, *new = self._moved(p.astype(dtype), g.astype(dtype) * by, *kept, lr=lr, decay=own_decay)
            found.append((moved.astype(p.dtype), *new))
        return [*zip(*found, strict=True)]

    @abstractmethod
    def _moved(self, p: Array, g: Array, kept: Array, *, lr: Any, decay: float) -> tuple[Array, Array]:
        """Return an array and its moment after a step."""


@dataclass(frozen=True, kw_only=True)
class RMSprop(_Written):
    """The optimizer RMSprop: the gradient over the root of the mean of its squares, without momentum.

    Args:
        lr: As in Optimizer (0.01 by default), and so are weight_decay, which is added to the gradient, clip, decays and
            loss_scale.
        alpha: Decay of the mean of the squares.
        eps: Number added to the root.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import optim
        >>> w, optimizer = pa.asarray([1.0, 2.0]), optim.RMSprop(lr=0.1, alpha=0.75)
        >>> w, state = optimizer.update(pa.asarray([1.0, -5.0]), optimizer.init(w), w)
        >>> w
        Array([0.8, 2.2], float32, 'numpy')

    Source: Hinton 2012, Neural Networks for Machine Learning, lecture 6
    """

    lr: float | Array | Schedule = field(default=1e-2, kw_only=False)
    alpha: float = 0.99
    eps: float = 1e-8

    moments = ("v",)

    def _moved(self, p: Array, g: Array, kept: Array, *, lr: Any, decay: float) -> tuple[Array, Array]:
        g = g + p * decay
        v = kept * self.alpha + g * g * (1 - self.alpha)
        return p - lr * g / (ops.sqrt(v) + self.eps), v


@dataclass(frozen=True, kw_only=True)
class Adagrad(_Written):
    """The optimizer Adagrad: the gradient over the root of the sum of its squares.

    Args:
        lr: As in Optimizer (0.01 by default), and so are weight_decay, which is added to the gradient, clip, decays and
            loss_scale.
        eps: Number added to the root.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import optim
        >>> w, optimizer = pa.asarray([1.0, 2.0]), optim.Adagrad(lr=0.1)
        >>> w, state = optimizer.update(pa.asarray([1.0, -5.0]), optimizer.init(w), w)
        >>> w
        Array([0.9, 2.1], float32, 'numpy')

    Source: Duchi, Hazan, Singer 2011, "Adaptive subgradient methods for online learning and stochastic optimization"
    """

    lr: float | Array | Schedule = field(default=1e-2, kw_only=False)
    eps: float = 1e-10

    moments = ("v",)

    def _moved(self, p: Array, g: Array, kept: Array, *, lr: Any, decay: float) -> tuple[Array, Array]:
        g = g + p * decay
        v = kept + g * g
        return p - lr * g / (ops.sqrt(v) + self.eps), v


@dataclass(frozen=True, kw_only=True)
class Lion(_Written):
    """The optimizer Lion: steps of one length, by the sign of a mean of the gradients.

    A step is longer than one of AdamW: use a learning rate 3 to 10 times smaller, and a weight decay as much larger.

    Args:
        lr: As in Optimizer (0.0001 by default), and so are weight_decay, which shrinks parameters as in AdamW, clip,
            decays and loss_scale.
        betas: Share of the momentum in the mean that gives the sign, and decay of the momentum.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import optim
        >>> w, optimizer = pa.asarray([1.0, 2.0]), optim.Lion(lr=0.1)
        >>> w, state = optimizer.update(pa.asarray([1.0, -5.0]), optimizer.init(w), w)
        >>> w
        Array([0.9, 2.1], float32, 'numpy')

    Source: Chen et al. 2023, arXiv:2302.06675
    """

    lr: float | Array | Schedule = field(default=1e-4, kw_only=False)
    betas: tuple[float, float] = (0.9, 0.99)

    moments = ("m",)

    def _moved(self, p: Array, g: Array, kept: Array, *, lr: Any, decay: float) -> tuple[Array, Array]:
        share, beta = self.betas
        step = ops.sign(kept * share + g * (1 - share))
        return p * (1 - lr * decay) - lr * step, kept * beta + g * (1 - beta)
