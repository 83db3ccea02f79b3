"""Norms of images and sequences: over the batch, over groups of channels, over each channel of each sample.

Channels are the last axis.
"""

import math

from polyarr.core.array import spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import NARROW, float32
from polyarr.ops.elementwise import add, astype, like, multiply, square, subtract
from polyarr.ops.functions import rsqrt
from polyarr.ops.nn import ACTIVATIONS, check_activation, check_norm
from polyarr.ops.reduce import mean
from polyarr.ops.shape import reshape
from polyarr.ops.validation import whole


@composed
def batch_norm(x, weight=None, bias=None, *, eps=1e-5, activation=None):
    """Normalize each channel to mean 0 and variance 1 over the batch and all positions, then scale, shift and activate.

    y = activation((x - mean) / sqrt(variance + eps) * weight + bias); the variance divides by the number of elements.

    Args:
        x: Floating-point array (..., c).
        weight: Floating-point array (c,), or None for 1. Its dtype may differ from x.
        bias: Floating-point array (c,), or None for 0. Its dtype may differ from x.
        eps: Number added to the variance.
        activation: None, "relu", "silu", "gelu" or "gelu_tanh".

    Returns:
        Tuple (y, mean, variance): y of the shape and dtype of x; mean and variance (c,), float32 for 16-bit floats.

    Raises:
        ShapeError: weight or bias is not (c,), or a channel has no elements.
        ValueError: There is no such activation.

    Examples:
        >>> import polyarr as pa
        >>> y, mean, variance = pa.batch_norm(pa.asarray([[1.0, 5.0], [3.0, 5.0]]))
        >>> mean
        Array([2., 5.], float32, 'numpy')
        >>> variance
        Array([1., 0.], float32, 'numpy')

    Gradients: x, weight, bias

    Source: Ioffe, Szegedy 2015, arXiv:1502.03167
    """
    check_activation("batch_norm", activation)
    _check("batch_norm", x, eps, weight=weight, bias=bias)
    others = tuple(range(len(x.shape) - 1))
    if 0 in x.shape[:-1]:
        raise ShapeError(f"batch_norm: x is {spec_of(x)}; each channel must have at least one element")
    wide = astype(x, dtype=float32) if x.dtype in NARROW else x
    average = mean(wide, axis=others)
    centred = subtract(wide, average)
    variance = mean(square(centred), axis=others)
    y = _scaled(multiply(centred, rsqrt(add(variance, eps))), weight, bias)
    return like(ACTIVATIONS[activation](y), x), average, variance


@composed
def batch_norm_inference(x, mean, variance, weight=None, bias=None, *, eps=1e-5):
    """Return batch_norm with a given mean and variance, such as running averages.

    y = (x - mean) / sqrt(variance + eps) * weight + bias.

    Args:
        x: Floating-point array (..., c).
        mean: Floating-point array (c,).
        variance: Floating-point array (c,).
        weight: Floating-point array (c,), or None for 1.
        bias: Floating-point array (c,), or None for 0.
        eps: Number added to the variance.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: An input other than x is not (c,).

    Examples:
        >>> import polyarr as pa
        >>> pa.batch_norm_inference(pa.asarray([[4.0]]), pa.asarray([2.0]), pa.asarray([1.0]), eps=0.0)
        Array([[2.]], float32, 'numpy')

    Gradients: x, mean, variance, weight, bias

    Source: Ioffe, Szegedy 2015, arXiv:1502.03167
    """
    named = {"mean": mean, "variance": variance, "weight": weight, "bias": bias}
    _check("batch_norm_inference", x, eps, **named)
    rstd = rsqrt(add(variance, eps))
    scale = rstd if weight is None else multiply(rstd, weight)
    return like(_scaled(subtract(x, mean), scale, bias), x)


@composed
def group_norm(x, weight=None, bias=None, *, groups, eps=1e-5):
    """Normalize each group of channels of each sample to mean 0 and variance 1, then scale and shift each channel.

    y = (x - mean) / sqrt(variance + eps) * weight + bias; the variance divides by the number of elements.

    Args:
        x: Floating-point array (b, ..., c).
        weight: Floating-point array (c,), or None for 1. Its dtype may differ from x.
        bias: Floating-point array (c,), or None for 0. Its dtype may differ from x.
        groups: Number of groups, which divides c.
        eps: Number added to the variance.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: weight or bias is not (c,), or groups does not divide c.

    Examples:
        >>> import polyarr as pa
        >>> pa.group_norm(pa.asarray([[1.0, 3.0, 0.0, 8.0]]), groups=2)
        Array([[-0.999995  ,  0.999995  , -0.99999976,  0.99999976]], float32, 'numpy')

    Gradients: x, weight, bias

    Source: Wu, He 2018, arXiv:1803.08494
    """
    _check("group_norm", x, eps, weight=weight, bias=bias)
    groups, channels = whole("group_norm", "groups", groups), x.shape[-1]
    if groups < 1 or channels % groups:
        raise ShapeError(f"group_norm: x is {spec_of(x)}, groups is {groups}; it must divide the {channels} channels")
    if 0 in x.shape:
        return x
    apart = reshape(x, shape=(x.shape[0], math.prod(x.shape[1:-1]), groups, channels // groups))
    centred = subtract(apart, mean(apart, axis=(1, 3), keepdims=True))
    variance = mean(square(centred), axis=(1, 3), keepdims=True)
    y = reshape(multiply(centred, rsqrt(add(variance, eps))), shape=x.shape)
    return like(_scaled(y, weight, bias), x)


@composed
def instance_norm(x, weight=None, bias=None, *, eps=1e-5):
    """Normalize each channel of each sample to mean 0 and variance 1, then scale and shift it: a group per channel.

    Args:
        x: Floating-point array (b, ..., c) with at least three axes.
        weight: Floating-point array (c,), or None for 1. Its dtype may differ from x.
        bias: Floating-point array (c,), or None for 0. Its dtype may differ from x.
        eps: Number added to the variance.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: weight or bias is not (c,), or x has fewer than three axes.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.asarray([[[1.0, 0.0], [3.0, 8.0]]])
        >>> pa.instance_norm(x)
        Array([[[-0.999995  , -0.99999976],
                [ 0.999995  ,  0.99999976]]], float32, 'numpy')

    Gradients: x, weight, bias

    Source: Ulyanov, Vedaldi, Lempitsky 2016, arXiv:1607.08022
    """
    _check("instance_norm", x, eps, weight=weight, bias=bias)
    if len(x.shape) < 3:
        raise ShapeError(f"instance_norm: x is {spec_of(x)}; it must have an axis beside batch and channels")
    return group_norm(x, weight, bias, groups=x.shape[-1], eps=eps) if x.shape[-1] else x


def _check(op: str, x, eps, **named) -> None:
    """Raise unless x has channels, every named array that is not None is (c,), and eps is a number."""
    if len(x.shape) < 2:
        raise ShapeError(f"{op}: x is {spec_of(x)}; it must have an axis for the batch and one for channels")
    check_norm(op, x, eps, **named)


def _scaled(x, weight, bias):
    y = x if weight is None else multiply(x, weight)
    return y if bias is None else add(y, bias)
