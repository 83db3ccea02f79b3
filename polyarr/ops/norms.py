"""Norms of images and sequences: over the batch, over groups of channels, over each channel of each sample.

Channels are the last axis.
"""

import math

from polyarr.core.array import spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import NARROW, float32
from polyarr.ops.elementwise import add, astype, like, multiply, rsqrt, square, subtract
from polyarr.ops.nn import ACTIVATIONS, check_activation, check_norm
from polyarr.ops.reduce import mean
from polyarr.ops.shape import reshape
from polyarr.ops.validation import whole


@composed
def batch_norm(x, weight=None, bias=None, *, eps=1e-5, activation=None):
    """Bring each channel to mean 0 and variance 1 over the batch and all places, then scale, shift and activate.

    y = activation((x - mean) / sqrt(variance + eps) * weight + bias); mean and variance, which divides by n, are
    results as well.

    Shapes:  x (..., c), weight (c,) or None, bias (c,) or None -> x's, (c,), (c,)
    Dtypes:  floating; weight and bias may differ -> x's; mean and variance are float32 for float16 and bfloat16
    Errors:  ShapeError if weight or bias is not (c,), or a channel has no element; ValueError for an unknown
             activation
    Grads:   x, weight, bias
    Source:  Ioffe, Szegedy 2015, arXiv:1502.03167
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
    """batch_norm with a mean and a variance that are given, such as running ones.

    y = (x - mean) / sqrt(variance + eps) * weight + bias.

    Shapes:  x (..., c), mean and variance (c,), weight (c,) or None, bias (c,) or None -> x's
    Dtypes:  floating; the others may differ from x -> x's
    Errors:  ShapeError if one of the others is not (c,)
    Grads:   x, mean, variance, weight, bias
    Source:  Ioffe, Szegedy 2015, arXiv:1502.03167
    """
    named = {"mean": mean, "variance": variance, "weight": weight, "bias": bias}
    _check("batch_norm_inference", x, eps, **named)
    rstd = rsqrt(add(variance, eps))
    scale = rstd if weight is None else multiply(rstd, weight)
    return like(_scaled(subtract(x, mean), scale, bias), x)


@composed
def group_norm(x, weight=None, bias=None, *, groups, eps=1e-5):
    """Bring each group of channels of each sample to mean 0 and variance 1, then scale and shift each channel.

    y = (x - mean) / sqrt(variance + eps) * weight + bias,  variance divides by n.

    Shapes:  x (b, ..., c), weight (c,) or None, bias (c,) or None -> x's
    Dtypes:  floating; weight and bias may differ -> x's
    Errors:  ShapeError if weight or bias is not (c,), or groups does not divide c
    Grads:   x, weight, bias
    Source:  Wu, He 2018, arXiv:1803.08494
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
    """Bring each channel of each sample to mean 0 and variance 1, then scale and shift: group_norm of one channel each.

    Shapes:  x (b, ..., c), weight (c,) or None, bias (c,) or None -> x's
    Dtypes:  floating; weight and bias may differ -> x's
    Errors:  ShapeError if weight or bias is not (c,), or x has no axis of places
    Grads:   x, weight, bias
    Source:  Ulyanov, Vedaldi, Lempitsky 2016, arXiv:1607.08022
    """
    _check("instance_norm", x, eps, weight=weight, bias=bias)
    if len(x.shape) < 3:
        raise ShapeError(f"instance_norm: x is {spec_of(x)}; it must have an axis beside batch and channels")
    return group_norm(x, weight, bias, groups=x.shape[-1], eps=eps) if x.shape[-1] else x


def _check(op: str, x, eps, **named) -> None:
    """x has channels, and what is there of the named arrays a number for each of them; eps is at least 0."""
    if len(x.shape) < 2:
        raise ShapeError(f"{op}: x is {spec_of(x)}; it must have an axis for the batch and one for channels")
    check_norm(op, x, eps, **named)


def _scaled(x, weight, bias):
    y = x if weight is None else multiply(x, weight)
    return y if bias is None else add(y, bias)
