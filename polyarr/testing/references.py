"""What ops compute, once more and independently: plain NumPy in float64, for ops that NumPy has under no name."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + e^-x)."""
    return np.where(x < 0, x * np.exp(x) / (1 + np.exp(x)), x / (1 + np.exp(-x)))


def power(x: Any, y: Any) -> np.ndarray:
    """x**y; whole numbers in the array's own dtype."""
    dtype = next(a.dtype for a in (x, y) if isinstance(a, np.ndarray))
    x, y = np.asarray(x, dtype), np.asarray(y, dtype)
    found = np.power(x, y)
    # Where all exponents are 0.5, NumPy takes a square root, which is nan.
    return found if dtype.kind in "iu" else np.where((y == 0.5) & (x == -np.inf), np.inf, found)


def clip(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """First raised, then lowered: where the limits are the wrong way round, the upper one counts."""
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


# ---- moving --------------------------------------------------------------------------------------------------


def positions(starts: tuple, steps: tuple, shape: tuple) -> tuple[np.ndarray, ...]:
    """The window's indices along each axis."""
    return np.ix_(*(start + step * np.arange(n) for start, step, n in zip(starts, steps, shape, strict=True)))


def window(x: np.ndarray, *, starts: tuple, steps: tuple, shape: tuple) -> np.ndarray:
    """x at the window."""
    return x[positions(starts, steps, shape)] if shape else x


def window_update(x: np.ndarray, value: np.ndarray, *, starts: tuple, steps: tuple) -> np.ndarray:
    """x with the window replaced."""
    new = x.copy()
    new[positions(starts, steps, value.shape) if value.ndim else ()] = value
    return new


def scatter(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int) -> np.ndarray:
    """One assignment after the other."""
    new, flat = np.moveaxis(x.copy(), axis, 0), indices.reshape(-1)
    parts = np.moveaxis(updates.reshape(*x.shape[:axis], flat.size, *x.shape[axis:][1:]), axis, 0)
    for i, part in zip(flat, parts, strict=True):
        new[i] = part
    return np.moveaxis(new, 0, axis)


def scatter_add(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int) -> np.ndarray:
    """One addition after the other."""
    new, flat = np.moveaxis(x.copy(), axis, 0), indices.reshape(-1)
    parts = np.moveaxis(updates.reshape(*x.shape[:axis], flat.size, *x.shape[axis:][1:]), axis, 0)
    np.add.at(new, flat, parts)
    return np.moveaxis(new, 0, axis)


def scatter_add_along_axis(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int) -> np.ndarray:
    """One addition after the other, each line of its own."""
    new, places = x.copy(), list(np.indices(indices.shape))
    places[axis] = indices
    np.add.at(new, tuple(places), updates)
    return new


def argsort(x: np.ndarray, *, axis: int = -1, descending: bool = False, stable: bool = True) -> np.ndarray:
    """Python's stable sort by rank, where nan ranks above all numbers."""
    _, rank = np.unique(x, return_inverse=True)
    rank = rank.reshape(x.shape)
    return np.argsort(-rank if descending else rank, axis=axis, kind="stable")


def sort(x: np.ndarray, *, axis: int, descending: bool, stable: bool) -> np.ndarray:
    """x in that order."""
    return np.take_along_axis(x, argsort(x, axis=axis, descending=descending), axis)


def argtopk(x: np.ndarray, *, k: int, axis: int) -> np.ndarray:
    """The first k of the descending order."""
    return np.take(argsort(x, axis=axis, descending=True), range(k), axis=axis)


def topk(x: np.ndarray, *, k: int, axis: int) -> tuple:
    """The elements there, and where they are."""
    order = argtopk(x, k=k, axis=axis)
    return np.take_along_axis(x, order, axis), order


# ---- reducing ------------------------------------------------------------------------------------------------


def reduced(fn: Callable) -> Callable:
    """A NumPy reduction, without the dtype (floats are float64 here, and NumPy's own choice is right for others)."""
    return lambda x, *, axis, keepdims, dtype=None: fn(x, axis=axis, keepdims=keepdims)


def deviation(fn: Callable) -> Callable:
    """NumPy's var or std, whose divisor does not fall below 0."""

    def reference(x: np.ndarray, *, axis: Any, correction: float, keepdims: bool) -> np.ndarray:
        n = x.size / max(math.prod(np.sum(x, axis=axis).shape), 1) if x.size else 0
        squares = np.sum((x - np.mean(x, axis=axis, keepdims=True)) ** 2, axis=axis, keepdims=keepdims)
        return fn(squares / max(n - correction, 0.0))

    return reference


def running_sum(x: np.ndarray, *, axis: int, dtype: Any = None) -> np.ndarray:
    """NumPy's, which adds one by one, in a wider float: equal numbers lose digits on the same side every time."""
    if x.dtype.kind != "f":
        return np.cumulative_sum(x, axis=axis)
    return np.cumulative_sum(x, axis=axis, dtype=np.longdouble).astype(x.dtype)


def logsumexp(x: np.ndarray, *, axis: Any, keepdims: bool) -> np.ndarray:
    """The logarithm of the sum of the exponentials."""
    return (
        np.logaddexp.reduce(x, axis=axis, keepdims=keepdims) if isinstance(axis, int) else _by_hand(x, axis, keepdims)
    )


def _by_hand(x: np.ndarray, axis: Any, keepdims: bool) -> np.ndarray:
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    found = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return found if keepdims else found.reshape(np.sum(x, axis=axis).shape)


# ---- matrices ------------------------------------------------------------------------------------------------


def vector_norm(x: np.ndarray, *, axis: Any, keepdims: bool, ord: float) -> np.ndarray:
    """NumPy's, of the axes as one."""
    axis = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axis = tuple(a % x.ndim for a in axis)
    kept = [i for i in range(x.ndim) if i not in axis]
    rows = x.transpose(*kept, *axis).reshape([*(x.shape[i] for i in kept), -1])
    shape = [1 if i in axis else n for i, n in enumerate(x.shape)] if keepdims else [x.shape[i] for i in kept]
    return np.linalg.norm(rows, ord, axis=-1).reshape(shape)


def _signs(x: np.ndarray) -> np.ndarray:
    """The sign of each column's element of the largest magnitude."""
    if not x.size:
        return np.ones((*x.shape[:-2], 1, x.shape[-1]))
    return np.sign(np.take_along_axis(x, np.abs(x).argmax(-2, keepdims=True), -2))


def cholesky(x: np.ndarray) -> np.ndarray:
    """NumPy's, of the symmetric part."""
    return np.linalg.cholesky((x + x.swapaxes(-1, -2)) / 2)


def eigh(x: np.ndarray) -> tuple:
    """NumPy's, of the symmetric part."""
    w, v = np.linalg.eigh((x + x.swapaxes(-1, -2)) / 2)
    return w, v * _signs(v)


def qr(x: np.ndarray) -> tuple:
    """By the triangle whose square is x^T x."""
    r = np.linalg.cholesky(x.swapaxes(-1, -2) @ x).swapaxes(-1, -2)
    return x @ np.linalg.inv(r), r


def svd(x: np.ndarray) -> tuple:
    """NumPy's, with the signs that are due."""
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    return u * _signs(u), s, vh * _signs(u).swapaxes(-1, -2)


# ---- random bits ---------------------------------------------------------------------------------------------


def philox_block(counter: list, key: list[int]) -> list:
    """Four words of Philox4x32-10, in Python's integers or in arrays of uint64."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (right >> 32) ^ b ^ k0, right & 0xFFFFFFFF, (left >> 32) ^ d ^ k1, left & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


def random_bits(key: int, counter: int, like: Any = None, *, shape: Any) -> np.ndarray:
    """Word i % 4 of block i // 4: all blocks at once, their numbers in uint64."""
    size, low = int(np.prod(shape, dtype=np.int64)), 0xFFFFFFFF
    block = np.arange((size + 3) // 4, dtype=np.uint64)
    words = philox_block([block & low, block >> 32, counter & low, counter >> 32 & low], [key & low, key >> 32 & low])
    return np.stack(words, axis=-1).reshape(-1)[:size].astype(np.uint32).reshape(shape)


# ---- neural networks -----------------------------------------------------------------------------------------


def softmax(x: np.ndarray, *, axis: int = -1) -> np.ndarray:
    """e^x over its sum."""
    e = np.exp(x - np.max(x, axis=axis, keepdims=True)) if x.size else x
    return e / e.sum(axis=axis, keepdims=True)


def log_softmax(x: np.ndarray, *, axis: int = -1) -> np.ndarray:
    """x minus the logarithm of the sum of e^x."""
    return x - np.logaddexp.reduce(x, axis=axis, keepdims=True)


def layer_norm(x: np.ndarray, weight: Any, bias: Any, *, eps: float) -> np.ndarray:
    """Mean 0, variance 1, then weight and bias."""
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def rms_norm(x: np.ndarray, weight: Any, *, eps: float) -> np.ndarray:
    """Mean square 1, then weight."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (1 if weight is None else weight)


def batch_norm(x: np.ndarray, weight: Any, bias: Any, *, eps: float, activation: str | None = None) -> tuple:
    """Each channel with mean 0 and variance 1, then weight, bias and activation; the mean and the variance."""
    rows = x.reshape(-1, x.shape[-1])
    mean, variance = rows.mean(0), rows.var(0)
    y = batch_norm_inference(x, mean, variance, weight, bias, eps=eps)
    return ACTIVATIONS[activation](y), mean, variance


def batch_norm_inference(x: np.ndarray, mean: Any, variance: Any, weight: Any, bias: Any, *, eps: float) -> np.ndarray:
    """The same with a mean and a variance that are given."""
    y = (x - mean) / np.sqrt(variance + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def group_norm(x: np.ndarray, weight: Any, bias: Any, *, groups: int, eps: float) -> np.ndarray:
    """Each group of channels of each sample with mean 0 and variance 1, then weight and bias."""
    y = np.empty_like(x)
    for i in range(len(x)):
        for channels in np.split(np.arange(x.shape[-1]), groups):
            part = x[i, ..., channels]
            y[i, ..., channels] = (part - part.mean()) / np.sqrt(part.var() + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def instance_norm(x: np.ndarray, weight: Any, bias: Any, *, eps: float) -> np.ndarray:
    """Each channel of each sample with mean 0 and variance 1, then weight and bias."""
    return group_norm(x, weight, bias, groups=x.shape[-1], eps=eps)


def gelu(x: np.ndarray, *, approximate: str = "none") -> np.ndarray:
    """x times the probability that a normal number is below it."""
    if approximate == "tanh":
        return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return x * np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)), otypes=[np.float64])(x)


ACTIVATIONS: dict = {
    None: lambda y: y,
    "relu": lambda y: np.maximum(y, 0),
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda y: gelu(y, approximate="tanh"),
}


def linear(x: np.ndarray, weight: np.ndarray, bias: Any, *, activation: str | None) -> np.ndarray:
    """x weight^T + bias, through an activation."""
    return ACTIVATIONS[activation](x @ weight.T + (0 if bias is None else bias))


def int8_linear(
    x: np.ndarray, weight: np.ndarray, scale: np.ndarray, bias: Any, *, activation: str | None
) -> np.ndarray:
    """The same of a weight of bytes, whose rows are multiplied by scale."""
    return ACTIVATIONS[activation](x @ weight.astype(x.dtype).T * scale + (0 if bias is None else bias))


def dropout(x: np.ndarray, key: int, counter: int, *, rate: float) -> np.ndarray:
    """x where the upper 24 bits reach the rate, over 1 - rate."""
    kept = random_bits(key, counter, shape=x.shape) >> 8 >= round(rate * 2**24)
    return np.where(kept, x / (1 - rate) if rate < 1 else 0.0, 0.0)


def cross_entropy(
    logits: np.ndarray, targets: np.ndarray, *, ignore_index: int, label_smoothing: float, reduction: str
) -> np.ndarray:
    """The rows that count, each at its target."""
    logp, counted = log_softmax(logits), targets != ignore_index
    loss = np.zeros(targets.shape)
    logp, chosen = logp[counted], targets[counted]
    loss[counted] = -(1 - label_smoothing) * logp[np.arange(len(chosen)), chosen] - label_smoothing * logp.mean(-1)
    total = {"none": loss, "sum": loss.sum(), "mean": loss.sum() / np.float64(counted.sum())}
    return total[reduction]


def cross_entropy_and_gradient(
    g: np.ndarray, logits: np.ndarray, targets: np.ndarray, *, ignore_index: int, label_smoothing: float
) -> tuple:
    """The probabilities, less what they should be, where a row counts."""
    losses = cross_entropy(
        logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )
    classes, counted = logits.shape[-1], (targets != ignore_index)[:, None]
    due = (1 - label_smoothing) * (np.arange(classes) == targets[:, None]) + label_smoothing / classes
    return losses, np.where(counted, (np.exp(log_softmax(logits)) - due) * g[:, None], 0)


def linear_cross_entropy(
    x: np.ndarray, weight: np.ndarray, targets: np.ndarray, *, rows_at_once: int | None, **params: Any
) -> np.ndarray:
    """All logits at once."""
    return cross_entropy(x @ weight.T, targets, **params)


def attention(
    q: Any, k: Any, v: Any, mask: Any, key: int, counter: int, *, causal: bool, scale: Any, dropout_rate: float
) -> np.ndarray:
    """Softmax of the scores where a query may see, times v."""
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1] or 1) if scale is None else scale)
    t, s = scores.shape[-2:]
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.arange(s) <= np.arange(t)[:, None] + (s - t), scores, -np.inf)
    e = np.exp(scores - np.nan_to_num(np.max(scores, -1, keepdims=True, initial=-np.inf), neginf=0.0))
    total = e.sum(-1, keepdims=True)
    weights = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return (dropout(weights, key, counter, rate=dropout_rate) if dropout_rate else weights) @ v


def sgd(
    params: tuple,
    grads: tuple,
    velocity: tuple,
    lr: float,
    scale: Any,
    *,
    momentum: float,
    weight_decay: tuple,
    nesterov: bool,
) -> tuple:
    """One step for each array."""
    new = []
    for p, g, v, decay in zip(params, grads, velocity, weight_decay, strict=True):
        g = g * scale + decay * p
        v = momentum * v + g
        new.append((p - lr * (g + momentum * v if nesterov else v), v))
    return tuple(a for group in zip(*new, strict=True) for a in group)


def adamw(
    params: tuple, grads: tuple, m: tuple, v: tuple, lr: float, step: int, scale: Any,
    *, beta1: float, beta2: float, eps: float, weight_decay: tuple, decoupled: bool,
) -> tuple:  # fmt: skip
    """One step for each array."""
    new = []
    for p, g, first, second, decay in zip(params, grads, m, v, weight_decay, strict=True):
        g = g * scale + (0 if decoupled else decay * p)
        first, second = beta1 * first + (1 - beta1) * g, beta2 * second + (1 - beta2) * g * g
        update = first / (1 - beta1**step) / (np.sqrt(second / (1 - beta2**step)) + eps)
        new.append((p - lr * ((decay * p if decoupled else 0) + update), first, second))
    return tuple(a for group in zip(*new, strict=True) for a in group)
