"""Correct Fused kernels on NumPy, made of parts: a fault replaces one part."""

import math

import numpy as np

from polyarr import ops
from polyarr.backends.numpy.table import NUMPY
from polyarr.core.backend import Fused
from polyarr.testing import references


def fused(forward, backward):
    """Return Fused kernels made of functions of arrays: narrow floats are widened before and rounded after.

    `forward` maps (*arrays, **params) to the result or results and the saved tree; `backward` maps
    (g, saved, *arrays, **params) to the gradients of all inputs.
    """

    def run(out, *bufs, **params):
        with np.errstate(all="ignore"):
            y, saved = forward(*map(widened, bufs), **params)
            if type(out) is tuple:
                return tuple(a.astype(o.dtype, copy=False) for a, o in zip(y, out, strict=True)), saved
            return np.asarray(y).astype(out.dtype, copy=False), saved

    def pull(g, saved, *bufs, wanted, **params):
        with np.errstate(all="ignore"):
            g = tuple(map(widened, g)) if type(g) is tuple else widened(g)
            grads = backward(g, saved, *map(widened, bufs), **params)
        full = (*grads, *(None,) * (len(bufs) - len(grads)))  # numbers have no gradient
        return tuple(d if d is None else np.asarray(d).astype(b.dtype) for d, b in zip(full, bufs, strict=True))

    return Fused(run, pull)


def widened(a):
    """Return a in the dtype that arithmetic on it uses; numbers and None unchanged."""
    return NUMPY.widened(a) if isinstance(a, np.ndarray) else a


def rows_summed(a):
    """Return the sum over all axes but the last."""
    return a.reshape(math.prod(a.shape[:-1]), a.shape[-1]).sum(0)


def summed_to(a, shape):
    """Return a summed over the axes along which `shape` was broadcast."""
    lead = a.ndim - len(shape)
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and a.shape[lead + i] != 1))
    return a.sum(axes, keepdims=True).reshape(shape)


def mean(a):
    return a.mean(-1, keepdims=True)


# ---- norms ---------------------------------------------------------------------------------------------------


def centred(x, eps):
    """Return x minus its mean, and the reciprocal of its standard deviation."""
    c = x - mean(x)
    return c, 1 / np.sqrt(mean(c * c) + eps)


def layer_norm(moments=centred, again=None, dweight=rows_summed, dbias=rows_summed):
    """Return a Fused layer norm; `again` computes the moments for the gradient (None: those of the forward pass)."""

    def forward(x, weight, bias, *, eps):
        c, rstd = moments(x, eps)
        y = c * rstd * (1 if weight is None else weight) + (0 if bias is None else bias)
        return y, (c * rstd, rstd)

    def backward(g, saved, x, weight, bias, *, eps):
        n, rstd = saved
        if again is not None:
            c, rstd = again(x, eps)
            n = c * rstd
        h = g if weight is None else g * weight
        dx = rstd * (h - mean(h) - n * mean(h * n))
        return dx, weight if weight is None else dweight(g * n), bias if bias is None else dbias(g)

    return fused(forward, backward)


def uncentred(x, eps):
    return x, 1 / np.sqrt(mean(x * x) + eps)


def rms_norm(moments=uncentred, projected=lambda h, n: n * mean(h * n)):
    def forward(x, weight, *, eps):
        x, rstd = moments(x, eps)
        return x * rstd * (1 if weight is None else weight), rstd

    def backward(g, rstd, x, weight, *, eps):
        n, h = x * rstd, g if weight is None else g * weight
        return rstd * (h - projected(h, n)), weight if weight is None else rows_summed(g * n)

    return fused(forward, backward)


def split(x, groups):
    """Return x with its channels in groups: (batch, groups, channels of a group, positions)."""
    return np.moveaxis(x, -1, 1).reshape(len(x), groups, x.shape[-1] // groups, math.prod(x.shape[1:-1]))


def joined(parts, shape):
    """Undo `split`."""
    return np.moveaxis(parts.reshape(shape[0], shape[-1], *shape[1:-1]), 1, -1)


def over_the_batch(parts):
    return 0, 2, 3


def over_the_group(parts):
    return 2, 3


def image_norm(over, moments=False, split=split, joined=joined, spare=0, of_mean=1, of_variance=1):
    """Return a Fused norm over some axes of `split`; with moments, mean and variance are results, too."""

    def forward(x, weight, bias, *, eps, groups=None, activation=None):
        if not x.size:
            return x, None
        parts = split(x, groups or x.shape[-1])
        axes = over(parts)
        count, mean = math.prod(parts.shape[i] for i in axes), parts.mean(axes, keepdims=True)
        c = parts - mean
        variance = (c * c).sum(axes, keepdims=True) / max(count - spare, 1)
        rstd = 1 / np.sqrt(variance + eps)
        y = joined(c * rstd, x.shape) * (1 if weight is None else weight) + (0 if bias is None else bias)
        each = (np.broadcast_to(a[0, :, 0, 0], x.shape[-1:]) for a in (mean, variance))
        activated = references.ACTIVATIONS[activation](y)
        return (activated, *each) if moments else activated, (c, rstd, axes, count, y)

    def backward(g, saved, x, weight, bias, *, eps, groups=None, activation=None):
        g, *slopes = g if moments else (g,)
        if saved is None:
            return [a if a is None else np.zeros_like(a) for a in (x, weight, bias)]
        c, rstd, axes, count, y = saved
        g = g * SLOPES[activation](y)
        h, n = split(g * (1 if weight is None else weight), groups or x.shape[-1]), c * rstd
        dx = rstd * (h - h.mean(axes, keepdims=True) - n * (h * n).mean(axes, keepdims=True))
        for slope, by in zip(slopes, (of_mean, of_variance * 2 * c), strict=False):
            dx = dx + slope.reshape(1, -1, 1, 1) * by / count
        dweight = None if weight is None else rows_summed(g * joined(n, x.shape))
        return joined(dx, x.shape), dweight, None if bias is None else rows_summed(g)

    return fused(forward, backward)


# ---- softmax, and what is made of it -------------------------------------------------------------------------


def exponentials(x, axis):
    return np.exp(x - x.max(axis, keepdims=True)) if x.size else x


def softmax_gradient(g, y, axis):
    return y * (g - (g * y).sum(axis, keepdims=True))


def softmax(exponentials=exponentials, gradient=softmax_gradient):
    def forward(x, *, axis):
        e = exponentials(x, axis)
        y = e / e.sum(axis, keepdims=True)
        return y, y

    return fused(forward, lambda g, y, x, *, axis: (gradient(g, y, axis),))


def counted(targets, ignore_index):
    return targets != ignore_index


def cross_entropy(counted=counted, share=lambda counts: 1 / counts.sum()):
    """Return a Fused cross_entropy; `share` is the weight of each loss in the mean, for the gradient."""

    def forward(logits, targets, *, ignore_index, label_smoothing, reduction):
        counts = counted(targets, ignore_index)
        if (counts & ((targets < 0) | (targets >= logits.shape[-1]))).any():
            raise IndexError("cross_entropy: a target is no class")
        logp = logits - logits.max(-1, keepdims=True)
        logp = logp - np.log(np.exp(logp).sum(-1, keepdims=True))
        chosen = np.take_along_axis(logp, np.where(counts, targets, 0)[..., None], -1)[..., 0]
        loss = np.where(counts, -(1 - label_smoothing) * chosen - label_smoothing * logp.mean(-1), 0)
        total = loss if reduction == "none" else loss.sum()
        return total / counts.sum() if reduction == "mean" else total, (logp, counts)

    def backward(g, saved, logits, targets, *, ignore_index, label_smoothing, reduction):
        logp, counts = saved
        wanted = np.full_like(logp, label_smoothing / logp.shape[-1])
        at = np.where(counts, targets, 0)[..., None]
        np.put_along_axis(wanted, at, np.take_along_axis(wanted, at, -1) + (1 - label_smoothing), -1)
        each = np.where(counts, g * (share(counts) if reduction == "mean" else 1), 0)
        # The gradient of an ignored row is 0, even if the row holds nan.
        return (np.where(counts[..., None], (np.exp(logp) - wanted) * each[..., None], 0), None)

    return fused(forward, backward)


def visible(t, s):
    """Return the causal mask: the last query sees all keys."""
    return np.arange(s) <= np.arange(t)[:, None] + (s - t)


def of_nothing(e, total):
    """Return zeros for queries that see no key."""
    return e / np.where(total == 0, 1, total)


def masked(scores, mask):
    """Return the scores with -inf where the mask hides a key."""
    return np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask


def attention(visible=visible, scaled=lambda scores, scale: scores * scale, divided=of_nothing, masked=masked):
    def weights(q, k, mask, key, counter, causal, scale, rate):
        scores = scaled(q @ k.swapaxes(-1, -2), scale)
        if mask is not None:
            scores = masked(scores, mask)
        if causal:
            scores = np.where(visible(*scores.shape[-2:]), scores, -np.inf)
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        e = np.exp(scores - np.where(np.isfinite(top), top, 0))
        kept = references.dropout(np.ones_like(e), key, counter, rate=rate).astype(e.dtype) if rate else 1
        return divided(e, e.sum(-1, keepdims=True)), kept

    def forward(q, k, v, mask, key, counter, *, causal, scale, dropout_rate):
        saved = weights(q, k, mask, key, counter, causal, scale, dropout_rate)
        return (saved[0] * saved[1]) @ v, saved

    def backward(g, saved, q, k, v, mask, key, counter, *, causal, scale, dropout_rate):
        w, kept = saved
        dw = g @ v.swapaxes(-1, -2) * kept
        ds = w * (dw - (dw * w).sum(-1, keepdims=True))
        dmask = None if mask is None or mask.dtype == bool else summed_to(ds, mask.shape)
        dq, dk = scaled(ds, scale) @ k, scaled(ds, scale).swapaxes(-1, -2) @ q
        dv = (w * kept).swapaxes(-1, -2) @ g
        return summed_to(dq, q.shape), summed_to(dk, k.shape), summed_to(dv, v.shape), dmask

    return fused(forward, backward)


# ---- linear, gelu, dropout -----------------------------------------------------------------------------------

ROOT = math.sqrt(2 / math.pi)


def gelu_slope(x, form):
    """Return the derivative of gelu."""
    if form == "tanh":
        t = np.tanh(ROOT * (x + 0.044715 * x**3))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT * (1 + 3 * 0.044715 * x * x)
    normal = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + references.erf(x * math.sqrt(0.5))) + x * normal if x.size else x


def gelu(slope=gelu_slope):
    def forward(x, *, approximate):
        return references.gelu(x, approximate=approximate) if x.size else x, None

    return fused(forward, lambda g, saved, x, *, approximate: (g * slope(x, approximate),))


SLOPES = {
    None: np.ones_like,
    "relu": lambda y: (y > 0).astype(y.dtype),
    "silu": lambda y: references.sigmoid(y) * (1 + y * (1 - references.sigmoid(y))),
    "gelu": lambda y: gelu_slope(y, "none"),
    "gelu_tanh": lambda y: gelu_slope(y, "tanh"),
}


def linear(dbias=rows_summed, product=np.matmul, slopes=SLOPES):
    def forward(x, weight, bias, *, activation):
        y = product(x, weight.T) + (0 if bias is None else bias)
        return references.ACTIVATIONS[activation](y) if y.size else y, y

    def backward(g, y, x, weight, bias, *, activation):
        h = g * slopes[activation](y)
        rows, k = h.reshape(math.prod(h.shape[:-1]), h.shape[-1]), x.shape[-1]
        dweight = rows.T @ x.reshape(len(rows), k)
        return h @ weight, dweight, bias if bias is None else dbias(h)

    return fused(forward, backward)


def keeps(shape, key, counter, rate):
    """Return where dropout keeps an element: the upper 24 bits decide."""
    return references.random_bits(key, counter, shape=shape) >> 8 >= round(rate * 2**24)


def dropout(keeps=keeps):
    def forward(x, key, counter, *, rate):
        factor = np.where(keeps(x.shape, key, counter, rate), 1 / (1 - rate) if rate < 1 else 0, 0).astype(x.dtype)
        return np.where(factor == 0, 0, x * factor), factor

    return fused(forward, lambda g, factor, x, key, counter, *, rate: (np.where(factor == 0, 0, g * factor),))


FUSED = {
    ops.layer_norm: layer_norm(),
    ops.rms_norm: rms_norm(),
    ops.batch_norm: image_norm(over_the_batch, moments=True),
    ops.group_norm: image_norm(over_the_group),
    ops.instance_norm: image_norm(over_the_group),
    ops.softmax: softmax(),
    ops.cross_entropy: cross_entropy(),
    ops.attention: attention(),
    ops.linear: linear(),
    ops.gelu: gelu(),
    ops.dropout: dropout(),
}
