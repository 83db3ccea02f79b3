"""Norms of images and sequences, and the running statistics of batch norms.

A BatchNorm in training mode normalizes by the batch. Its new running statistics are a value of the step, like the loss:

    def loss_of(model, images, labels):
        with nn.observing(model) as (model, statistics):
            loss = pa.cross_entropy(model(images), labels)
        return loss, statistics

    (loss, statistics), grads = pa.value_and_grad(loss_of, has_aux=True)(model, images, labels)
    model, state = optimizer.update(grads, state, model)
    model = model.with_arrays(statistics)
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
from polyarr.ops.validation import whole, within


class Statistics(Module):
    """Running mean and variance of a BatchNorm: not parameters, and float32 even if the Module around it is cast.

    Args:
        channels: Number of channels.
    """

    frozen = True
    is_state = True

    def __init__(self, channels: int) -> None:
        self.mean, self.variance = constant(0)((channels,)), constant(1)((channels,))


class _Collector:
    """Collector of the new statistics of the batch norms of an observed model, until the block ends."""

    def __init__(self) -> None:
        self.seen: dict[str, Array] = {}
        self.is_open = True

    def note(self, path: str, old: Statistics, momentum: float, **batch: Array) -> None:
        """Move the statistics of the batch norm at a path toward those of a batch."""
        for name, new in batch.items() if self.is_open else ():  # a checkpoint may compute the layer again later
            place = f"{path}.{name}"
            before = self.seen[place] if place in self.seen else getattr(old, name)
            self.seen[place] = before + momentum * (stop_gradient(new).astype(before.dtype) - before)


@contextmanager
def observing(model: Any) -> Iterator[tuple[Any, dict[str, Array]]]:
    """Collect the new running statistics of the batch norms of a model inside the block.

    Args:
        model: Tree of Modules, such as a model or a tuple of two.

    Returns:
        Context manager of (model, statistics): the model to call in the block, and a dict from dotted names to arrays
        that is complete at the end of the block, for Module.with_arrays. Across devices it may be averaged like
        gradients.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> norm = nn.BatchNorm(1)
        >>> with nn.observing(norm) as (model, statistics):
        ...     y = model(pa.asarray([[0.0], [2.0]]))
        >>> norm.with_arrays(statistics).statistics.mean
        Array([0.1], float32, 'numpy')
    """
    collector = _Collector()
    try:
        yield _observed(model, "", collector), collector.seen
    finally:
        collector.is_open = False


def _observed(node: Any, path: str, collector: _Collector) -> Any:
    """Return a copy whose batch norms know their path and where to leave their statistics."""
    children = tree.children(node)
    if children is None:
        return node
    new = tree.rebuild(node, {name: _observed(child, f"{path}{name}.", collector) for name, child in children.items()})
    if isinstance(new, BatchNorm):
        new.observer = collector, f"{path}statistics"
    return new


class BatchNorm(Module):
    """Batch norm: normalize each channel, the last axis, over all other axes, then scale, shift and activate it.

    While training, mean and variance are those of the batch, and the layer must be called within `observing`, which
    collects the new running statistics: the old ones moved by the share `momentum` toward the mean of the batch and n /
    (n - 1) times its variance. In evaluation, mean and variance are the running statistics.

    Args:
        channels: Number of channels.
        eps: Number added to the variance.
        momentum: Share of the batch in the new running statistics, from 0 to 1.
        activation: None, "relu", "silu", "gelu" or "gelu_tanh".

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.BatchNorm(2, eps=0.0).eval()(pa.asarray([[3.0, -1.0]]))
        Array([[ 3., -1.]], float32, 'numpy')

    Source: Ioffe, Szegedy 2015, arXiv:1502.03167
    """

    observer: tuple[_Collector, str] | None = None

    def __init__(
        self, channels: int, eps: float = 1e-5, momentum: float = 0.1, *, activation: str | None = None
    ) -> None:
        channels = whole("BatchNorm", "channels", channels)
        self.weight, self.bias = constant(1)((channels,)), constant(0)((channels,))
        self.statistics = Statistics(channels)
        self.eps, self.activation = within("BatchNorm", "eps", eps, 0), activation
        self.momentum = within("BatchNorm", "momentum", momentum, 0, 1)

    def __call__(self, x: Array) -> Array:
        """Return the normalized x (..., channels).

        Raises:
            RuntimeError: The layer is training and not within `observing`.
            ShapeError: The layer is training and a channel has one value.
        """
        held = self.statistics
        if not self.training:
            y = ops.batch_norm_inference(x, held.mean, held.variance, self.weight, self.bias, eps=self.eps)
            return ACTIVATIONS[self.activation](y)
        if self.observer is None:
            required = "call it within `with nn.observing(model) as (model, seen):`, or call model.eval() first"
            raise RuntimeError(f"BatchNorm: in training mode, its new statistics would be lost; {required}")
        count = x.size // max(held.mean.size, 1)
        if count < 2:
            raise ShapeError(f"BatchNorm: x is {x.spec}; in training there must be two values per channel")
        y, mean, variance = ops.batch_norm(x, self.weight, self.bias, eps=self.eps, activation=self.activation)
        collector, path = self.observer
        collector.note(path, held, self.momentum, mean=mean, variance=variance * (count / (count - 1)))
        return y


class GroupNorm(Module):
    """Group norm: normalize each group of channels of each sample, then scale and shift each channel.

    Args:
        groups: Number of groups; it divides channels.
        channels: Number of channels, the last axis.
        eps: Number added to the variance.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.GroupNorm(2, 4, eps=0.0)(pa.asarray([[1.0, 3.0, 0.0, 8.0]]))
        Array([[-1.,  1., -1.,  1.]], float32, 'numpy')

    Source: Wu, He 2018, arXiv:1803.08494
    """

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        channels = whole("GroupNorm", "channels", channels)
        self.weight, self.bias = constant(1)((channels,)), constant(0)((channels,))
        self.groups, self.eps = groups, within("GroupNorm", "eps", eps, 0)

    def __call__(self, x: Array) -> Array:
        """Return the normalized x (B, ..., channels)."""
        return ops.group_norm(x, self.weight, self.bias, groups=self.groups, eps=self.eps)


class InstanceNorm(Module):
    """Instance norm: normalize each channel of each sample.

    Args:
        channels: Number of channels, the last axis.
        eps: Number added to the variance.
        affine: Whether to scale and shift.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.InstanceNorm(1, eps=0.0)(pa.asarray([[[1.0], [3.0]]]))
        Array([[[-1.],
                [ 1.]]], float32, 'numpy')

    Source: Ulyanov, Vedaldi, Lempitsky 2016, arXiv:1607.08022
    """

    def __init__(self, channels: int, eps: float = 1e-5, *, affine: bool = False) -> None:
        channels = whole("InstanceNorm", "channels", channels)
        self.weight = constant(1)((channels,)) if affine else None
        self.bias = constant(0)((channels,)) if affine else None
        self.eps = within("InstanceNorm", "eps", eps, 0)

    def __call__(self, x: Array) -> Array:
        """Return the normalized x (B, ..., channels)."""
        return ops.instance_norm(x, self.weight, self.bias, eps=self.eps)
