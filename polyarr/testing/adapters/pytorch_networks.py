"""polyarr's ops of networks and images as functions of PyTorch, whose channels are the second axis."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  the customary name

from polyarr.testing.adapters import Absent
from polyarr.testing.adapters.pytorch_arrays import of_tensors, places, wide

# ---- networks ----------------------------------------------------------------------------------------------

ACTIVATIONS: dict[Any, Callable] = {
    None: lambda y: y, "relu": F.relu, "silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"),
}  # fmt: skip


def like_x(x: Tensor, *others: Tensor | None) -> list[Tensor | None]:
    """Return tensors in the dtype of x: PyTorch's layers take one dtype."""
    return [o if o is None else o.to(x.dtype) for o in others]


def linear(x: Tensor, weight: Tensor, bias: Any, *, activation: Any) -> Tensor:
    return ACTIVATIONS[activation](F.linear(x, weight, *like_x(x, bias)))


def layer_norm(x: Tensor, weight: Any, bias: Any, *, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], *like_x(x, weight, bias), eps)


def rms_norm(x: Tensor, weight: Any, *, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], *like_x(x, weight), eps)


def batch_norm(x: Tensor, weight: Any, bias: Any, *, eps: float, activation: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.reshape(-1, x.shape[-1])
    y = torch.batch_norm(rows, *like_x(x, weight, bias), None, None, True, 0.0, eps, False)
    variance, mean = torch.var_mean(wide(rows), 0, correction=0)
    return ACTIVATIONS[activation](y).reshape(x.shape), mean, variance


def channels_first(x: Tensor) -> Tensor:
    """Return x with the channels as its second axis, as PyTorch has them."""
    return x.movedim(-1, 1)


def channels_last(x: Tensor) -> Tensor:
    """Return x with the channels as its last axis, as polyarr has them."""
    return x.movedim(1, -1)


def batch_norm_inference(x: Tensor, mean: Tensor, variance: Tensor, weight: Any, bias: Any, *, eps: float) -> Tensor:
    if mean.requires_grad or variance.requires_grad:  # which have no gradient in PyTorch
        raise Absent
    rows = x.reshape(-1, x.shape[-1])
    return F.batch_norm(rows, *like_x(x, mean, variance, weight, bias), eps=eps).reshape(x.shape)


def group_norm(x: Tensor, weight: Any, bias: Any, *, groups: int, eps: float) -> Tensor:
    return channels_last(F.group_norm(channels_first(x), groups, *like_x(x, weight, bias), eps))


def instance_norm(x: Tensor, weight: Any, bias: Any, *, eps: float) -> Tensor:
    y = torch.instance_norm(channels_first(x), *like_x(x, weight, bias), None, None, True, 0.0, eps, False)
    return channels_last(y)


def mse(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean of the squares, in float32 for 16-bit floats; PyTorch warns of a broadcast."""
    return F.mse_loss(*torch.broadcast_tensors(wide(x), wide(y)))


def embedding(weight: Tensor, indices: Tensor) -> Tensor:
    return F.embedding(places(indices, weight.shape[0]), weight)


def cross_entropy(logits: Tensor, targets: Tensor, *, reduction: str, **params: Any) -> Tensor:
    """Return the loss, float32 for 16-bit logits; the classes are the last axis, where PyTorch's are the second."""
    rows = wide(logits).reshape(-1, logits.shape[-1])
    found = F.cross_entropy(rows, targets.reshape(-1).long(), reduction=reduction, **params)
    return found.reshape(targets.shape) if reduction == "none" else found


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, key: Any, counter: Any, *, causal: bool, scale: Any, dropout_rate: float
) -> Tensor:
    """Return attention; a causal mask ends with the last key, where PyTorch's begins with the first."""
    if dropout_rate:  # other random bits
        raise Absent
    if causal and mask is None and q.shape[-2] == k.shape[-2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    if causal:
        t, s = q.shape[-2], k.shape[-2]
        seen = torch.ones(t, s, dtype=torch.bool, device=q.device).tril(s - t)
        mask = seen if mask is None else mask & seen if mask.dtype == torch.bool else mask.where(seen, -math.inf)
    mask = mask if mask is None or mask.dtype == torch.bool else mask.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)


# ---- images ------------------------------------------------------------------------------------------------


def by_rank(*functions: Callable) -> Callable[[Tensor], Callable]:
    """Return the choice among a function's forms for 1, 2 and 3 spatial axes."""
    return lambda x: functions[x.ndim - 3]


CONV = by_rank(F.conv1d, F.conv2d, F.conv3d)
CONV_TRANSPOSE = by_rank(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
MAX_POOL = by_rank(F.max_pool1d, F.max_pool2d, F.max_pool3d)
MEAN_POOL = by_rank(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
ADAPTIVE = by_rank(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)


def nonempty(x: Tensor) -> Tensor:
    """Return x; raise Absent if it is empty, which PyTorch's pools refuse."""
    if not x.numel():
        raise Absent
    return x


def symmetric(padding: tuple) -> tuple[int, ...]:
    """Return the padding as one number per axis; PyTorch has no others."""
    if any(before != after for before, after in padding):
        raise Absent
    return tuple(before for before, _ in padding)


def conv(
    x: Tensor, weight: Tensor, bias: Any, *, stride: Any, padding: Any, dilation: Any, groups: int, activation: Any
) -> Tensor:
    x = channels_first(x)
    if any(before != after for before, after in padding):
        x, padding = F.pad(x, [n for pair in reversed(padding) for n in pair]), ((0, 0),) * len(padding)
    y = CONV(x)(x, channels_first(weight), *like_x(x, bias), stride, symmetric(padding), dilation, groups)
    return channels_last(ACTIVATIONS[activation](y))


def conv_transpose(
    x: Tensor, weight: Tensor, bias: Any, *, stride: Any, padding: Any, output_padding: Any, dilation: Any, groups: int
) -> Tensor:
    if any(n >= max(s, d) for n, s, d in zip(output_padding, stride, dilation, strict=True)):
        raise Absent  # PyTorch requires less
    if not weight.numel():
        raise Absent  # PyTorch refuses filters without channels
    y = CONV_TRANSPOSE(x)(
        channels_first(x), channels_first(weight), *like_x(x, bias), stride, symmetric(padding), output_padding, groups,
        dilation,
    )
    return channels_last(y)


def max_pool(x: Tensor, *, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Tensor:
    around = symmetric(padding)
    if any(2 * n > k for n, k in zip(around, kernel, strict=True)):
        raise Absent  # PyTorch pads by half a window at most
    return channels_last(MAX_POOL(x)(channels_first(nonempty(x)), kernel, stride, around, dilation, ceil_mode))


def mean_pool(
    x: Tensor, *, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool, divisor: Any
) -> Tensor:
    around = symmetric(padding)
    if any(2 * n > k for n, k in zip(around, kernel, strict=True)) or (divisor is not None and x.ndim == 3):
        raise Absent
    more = () if x.ndim == 3 else (divisor,)
    y = MEAN_POOL(x)(channels_first(nonempty(x)), kernel, stride, around, ceil_mode, count_include_pad, *more)
    return channels_last(y)


def adaptive_mean_pool(x: Tensor, *, shape: tuple) -> Tensor:
    return channels_last(ADAPTIVE(x)(channels_first(nonempty(x)), shape))


def interpolate(x: Tensor, *, shape: Any, scale: Any, mode: str, align_corners: bool) -> Tensor:
    images = channels_first(nonempty(x))
    if mode == "nearest":
        return channels_last(F.interpolate(images, None if scale else shape, scale))
    if mode == "cubic" and x.ndim != 4:
        raise Absent
    named = "bicubic" if mode == "cubic" else ("linear", "bilinear", "trilinear")[x.ndim - 3]
    return channels_last(F.interpolate(images, None if scale else shape, scale, named, align_corners))


# ---- the table ---------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "linear": linear, "softmax": lambda x, *, axis: torch.softmax(x, axis),
    "log_softmax": lambda x, *, axis: torch.log_softmax(x, axis), "layer_norm": layer_norm,
    "rms_norm": rms_norm, "gelu": F.gelu, "batch_norm": batch_norm, "group_norm": group_norm,
    "batch_norm_inference": batch_norm_inference, "instance_norm": instance_norm, "embedding": embedding,
    "cross_entropy": cross_entropy, "mse": of_tensors(mse), "attention": attention, "conv": conv,
    "conv_transpose": conv_transpose, "max_pool": max_pool, "mean_pool": mean_pool,
    "adaptive_mean_pool": adaptive_mean_pool, "interpolate": interpolate,
}  # fmt: skip
