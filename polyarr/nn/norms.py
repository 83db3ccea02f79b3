"""Norms of images and sequences, and how the running statistics of batch norms come out of a step.

A BatchNorm in training mode normalises by the batch. What its running statistics then are is a value like the loss:

    def loss_of(model, images, labels):
        with nn.observing(model) as (model, seen):
            loss = pa.cross_entropy(model(images), labels)
        return loss, seen

    (loss, seen), grads = pa.value_and_grad(loss_of, has_aux=True)(model, images, labels)
    model, state = optimizer.update(grads, state, model)
    model = model.with_arrays(seen)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polyarr import ops, tree
from polyarr.autograd import stop_gradient
from polyarr.core.array import Array
from polyarr.core.errors import ShapeError
from polyarr.nn.init import constant
from polyarr.nn.module import Module
from polyarr.ops.nn import ACTIVATIONS
from polyarr.ops.validation import within


class Statistics(Module):
    """The running mean and variance of a BatchNorm: no parameters, and in float32 whatever its Module is cast to."""

    frozen = True
    is_state = True

    def __init__(self, channels: int) -> None:
        self.mean, self.variance = constant(0)((channels,)), constant(1)((channels,))


class _Notes:
    """Where the batch norms of a model that is observed leave their new statistics, until the block is over."""

    def __init__(self) -> None:
        self.seen: dict[str, Array] = {}
        self.is_open = True

    def note(self, path: str, old: Statistics, momentum: float, **batch: Array) -> None:
        """Have the statistics of the batch norm at a path move towards those of a batch."""
        for name, new in batch.items() if self.is_open else ():  # a gradient may compute the layer once more, later
            place = f"{path}.{name}"
            before = self.seen.get(place, getattr(old, name))
            self.seen[place] = before + momentum * (stop_gradient(new).astype(before.dtype) - before)


@contextmanager
def observing(model: Any) -> Iterator[tuple[Any, dict[str, Array]]]:
    """(The model to call in the block, what the running statistics of its batch norms are after it, by dotted name).

    model may be any tree of Modules, such as a tuple of two models. The second is complete at the end of the block;
    model.with_arrays takes it. Over several machines, it may be averaged as gradients are.
    """
    notes = _Notes()
    try:
        yield _observed(model, "", notes), notes.seen
    finally:
        notes.is_open = False


def _observed(node: Any, path: str, notes: _Notes) -> Any:
    """A copy whose batch norms know their path and where to leave their statistics."""
    children = tree.children(node)
    if children is None:
        return node
    new = tree.rebuild(node, {name: _observed(child, f"{path}{name}.", notes) for name, child in children.items()})
    if isinstance(new, BatchNorm):
        new.observer = notes, f"{path}statistics"
    return new


class BatchNorm(Module):
    """Each channel (the last axis) brought to mean 0 and variance 1 over all other axes, scaled, shifted and activated.

    While training, by the batch's mean and variance, and within `observing`, which takes the new running statistics:
    the old ones, moved by the share `momentum` towards the batch's mean and n / (n - 1) times its variance. In
    evaluation, by the running statistics.

    Errors:  RuntimeError while training outside of `observing`; ShapeError while training with one value per channel
    Source:  Ioffe, Szegedy 2015, arXiv:1502.03167
    """

    observer: tuple[_Notes, str] | None = None

    def __init__(
        self, channels: int, eps: float = 1e-5, momentum: float = 0.1, activation: str | None = None
    ) -> None:
        self.weight, self.bias = constant(1)((channels,)), constant(0)((channels,))
        self.statistics = Statistics(channels)
        self.eps, self.activation = within("BatchNorm", "eps", eps, 0), activation
        self.momentum = within("BatchNorm", "momentum", momentum, 0, 1)

    def __call__(self, x: Array) -> Array:
        """(..., channels) -> the same"""
        held = self.statistics
        if not self.training:
            y = ops.batch_norm_inference(x, held.mean, held.variance, self.weight, self.bias, eps=self.eps)
            return ACTIVATIONS[self.activation](y)
        if self.observer is None:
            required = "call what nn.observing(model) gives, which takes its new statistics, or model.eval()"
            raise RuntimeError(f"BatchNorm: it is in training mode, and observed by nothing; {required}")
        count = x.size // max(held.mean.size, 1)
        if count < 2:
            raise ShapeError(f"BatchNorm: x is {x.spec}; in training there must be two values per channel")
        y, mean, variance = ops.batch_norm(x, self.weight, self.bias, eps=self.eps, activation=self.activation)
        notes, path = self.observer
        notes.note(path, held, self.momentum, mean=mean, variance=variance * (count / (count - 1)))
        return y


class GroupNorm(Module):
    """Each of so many groups of channels of each sample brought to mean 0 and variance 1; channels scaled and shifted.

    Source:  Wu, He 2018, arXiv:1803.08494
    """

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        self.weight, self.bias = constant(1)((channels,)), constant(0)((channels,))
        self.groups, self.eps = groups, within("GroupNorm", "eps", eps, 0)

    def __call__(self, x: Array) -> Array:
        """(B, ..., channels) -> the same"""
        return ops.group_norm(x, self.weight, self.bias, groups=self.groups, eps=self.eps)


class InstanceNorm(Module):
    """Each channel of each sample brought to mean 0 and variance 1; scaled and shifted only if `affine`.

    Source:  Ulyanov, Vedaldi, Lempitsky 2016, arXiv:1607.08022
    """

    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = False) -> None:
        self.weight = constant(1)((channels,)) if affine else None
        self.bias = constant(0)((channels,)) if affine else None
        self.eps = within("InstanceNorm", "eps", eps, 0)

    def __call__(self, x: Array) -> Array:
        """(B, ..., channels) -> the same"""
        return ops.instance_norm(x, self.weight, self.bias, eps=self.eps)
