"""References for ops that NumPy does not have under any name: independent implementations in float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-x)."""
    return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))


def silu(x: np.ndarray) -> np.ndarray:
    """Return x / (1 + e^-x)."""
    return np.where(x < 0, x * np.exp(x) / (1 + np.exp(x)), x / (1 + np.exp(-x)))


def of_truths(function: Callable) -> Callable:
    """Return a function of bools for numbers, also of Python numbers that no dtype of NumPy holds."""
    return lambda *numbers: function(*[np.not_equal(x, 0) for x in numbers])


def complex_of_parts(x: Any, y: Any) -> np.ndarray:
    x, y = np.broadcast_arrays(x, y)
    found = np.empty(x.shape, np.complex128)
    found.real, found.imag = x, y
    return found


def power(x: Any, y: Any) -> np.ndarray:
    """Return x**y; integers keep the array's dtype."""
    dtype = next(a.dtype for a in (x, y) if isinstance(a, np.ndarray))
    x, y = np.asarray(x, dtype), np.asarray(y, dtype)
    found = np.power(x, y)
    # If all exponents are 0.5, NumPy computes a square root, which is nan for -inf.
    return found if dtype.kind in "iu" else np.where((y == 0.5) & (x == -np.inf), np.inf, found)


def clip(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """Return x raised to `low`, then lowered to `high`: with reversed limits, the upper one wins."""
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


# ---- moving --------------------------------------------------------------------------------------------------


def positions(starts: tuple, steps: tuple, shape: tuple) -> tuple[np.ndarray, ...]:
    """Return the slice's indices along each axis."""
    return np.ix_(*(start + step * np.arange(n) for start, step, n in zip(starts, steps, shape, strict=True)))


def window(x: np.ndarray, *, starts: tuple, steps: tuple, shape: tuple) -> np.ndarray:
    """Return the slice of x."""
    return x[positions(starts, steps, shape)] if shape else x


def window_update(x: np.ndarray, value: np.ndarray, *, starts: tuple, steps: tuple) -> np.ndarray:
    """Return x with the slice replaced."""
    new = x.copy()
    new[positions(starts, steps, value.shape) if value.ndim else ()] = value
    return new


def scatter(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int) -> np.ndarray:
    """Return x with updates assigned one after the other."""
    new, flat = np.moveaxis(x.copy(), axis, 0), indices.reshape(-1)
    parts = np.moveaxis(updates.reshape(*x.shape[:axis], flat.size, *x.shape[axis:][1:]), axis, 0)
    for i, part in zip(flat, parts, strict=True):
        new[i] = part
    return np.moveaxis(new, 0, axis)


def scatter_add(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int) -> np.ndarray:
    """Return x with updates added one after the other."""
    new, flat = np.moveaxis(x.copy(), axis, 0), indices.reshape(-1)
    parts = np.moveaxis(updates.reshape(*x.shape[:axis], flat.size, *x.shape[axis:][1:]), axis, 0)
    np.add.at(new, flat, parts)
    return np.moveaxis(new, 0, axis)


def scatter_add_along_axis(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int) -> np.ndarray:
    """Return x with updates added one after the other along an axis, each line on its own."""
    new, places = x.copy(), list[np.ndarray](np.indices(indices.shape))
    places[axis] = indices
    np.add.at(new, tuple(places), updates)
    return new


def argsort(x: np.ndarray, *, axis: int = -1, descending: bool = False, stable: bool = True) -> np.ndarray:
    """Return the indices of a stable sort by rank, where nan ranks above all numbers."""
    _, rank = np.unique(x, return_inverse=True)
    rank = rank.reshape(x.shape)
    return np.argsort(-rank if descending else rank, axis=axis, kind="stable")


def sort(x: np.ndarray, *, axis: int, descending: bool, stable: bool) -> np.ndarray:
    """Return x sorted."""
    return np.take_along_axis(x, argsort(x, axis=axis, descending=descending), axis)


def argtopk(x: np.ndarray, *, k: int, axis: int) -> np.ndarray:
    """Return the indices of the k largest elements in descending order."""
    return np.take(argsort(x, axis=axis, descending=True), range(k), axis=axis)


def topk(x: np.ndarray, *, k: int, axis: int) -> tuple:
    """Return the k largest elements and their indices."""
    order = argtopk(x, k=k, axis=axis)
    return np.take_along_axis(x, order, axis), order


# ---- reducing ------------------------------------------------------------------------------------------------


def reduced(fn: Callable) -> Callable:
    """Return a NumPy reduction that ignores dtype: floats are float64 here, and NumPy's default suits others."""
    return lambda x, *, axis, keepdims, dtype=None: fn(x, axis=axis, keepdims=keepdims)


def deviation(fn: Callable) -> Callable:
    """Return NumPy's var or std with a divisor that is at least 0."""

    def reference(x: np.ndarray, *, axis: Any, correction: float, keepdims: bool) -> np.ndarray:
        n = x.size / max(math.prod(np.sum(x, axis=axis).shape), 1) if x.size else 0
        squares = np.sum((x - np.mean(x, axis=axis, keepdims=True)) ** 2, axis=axis, keepdims=keepdims)
        return fn(squares / max(n - correction, 0.0))

    return reference


def running_sum(x: np.ndarray, *, axis: int, dtype: Any = None) -> np.ndarray:
    """Return the cumulative sum in extended precision: sequential float64 sums of equal numbers drift to one side."""
    if x.dtype.kind != "f":
        return np.cumulative_sum(x, axis=axis)
    return np.cumulative_sum(x, axis=axis, dtype=np.longdouble).astype(x.dtype)


def logsumexp(x: np.ndarray, *, axis: Any, keepdims: bool) -> np.ndarray:
    """Return the logarithm of the sum of the exponentials."""
    if isinstance(axis, int) and keepdims:
        return np.logaddexp.reduce(x, axis=axis, keepdims=True)
    return np.logaddexp.reduce(x, axis=axis) if isinstance(axis, int) else _by_hand(x, axis, keepdims)


def _by_hand(x: np.ndarray, axis: Any, keepdims: bool) -> np.ndarray:
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    found = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return found if keepdims else found.reshape(np.sum(x, axis=axis).shape)


# ---- matrices ------------------------------------------------------------------------------------------------


def vector_norm(x: np.ndarray, *, axis: Any, keepdims: bool, ord: float) -> np.ndarray:
    """Return NumPy's norm of several axes as one."""
    axis = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axis = tuple(a % x.ndim for a in axis)
    kept = [i for i in range(x.ndim) if i not in axis]
    rows = x.transpose(*kept, *axis).reshape([*(x.shape[i] for i in kept), -1])
    shape = [1 if i in axis else n for i, n in enumerate(x.shape)] if keepdims else [x.shape[i] for i in kept]
    return np.linalg.norm(rows, ord, axis=-1).reshape(shape)


def _phases(x: np.ndarray) -> np.ndarray:
    """Return x / |x| for each column's element x of largest magnitude: of a real one the sign."""
    if not x.size:
        return np.ones((*x.shape[:-2], 1, x.shape[-1]))
    return np.sign(np.take_along_axis(x, np.abs(x).argmax(-2, keepdims=True), -2))


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2).conj()


def cholesky(x: np.ndarray) -> np.ndarray:
    """Return NumPy's Cholesky factor of the Hermitian part."""
    return np.linalg.cholesky((x + _adjoint(x)) / 2)


def solve_triangular(x: np.ndarray, b: np.ndarray, *, upper: bool) -> np.ndarray:
    """Return NumPy's solution of equations with a triangle of x."""
    return np.linalg.solve((np.triu if upper else np.tril)(x), b)


def eigh(x: np.ndarray) -> tuple:
    """Return NumPy's eigenvalues and eigenvectors of the Hermitian part, with polyarr's phases."""
    w, v = np.linalg.eigh((x + _adjoint(x)) / 2)
    return w, v / _phases(v)


def eig(x: np.ndarray) -> tuple:
    """Return NumPy's eigenvalues and eigenvectors, with polyarr's order and phases."""
    w, v = np.linalg.eig(x + 0j)
    order = np.lexsort((np.imag(w), np.real(w)))
    w, v = np.take_along_axis(w, order, -1), np.take_along_axis(v, order[..., None, :], -1)
    return w, v / _phases(v)


def qr(x: np.ndarray) -> tuple:
    """Return the QR decomposition by the Cholesky factor of x^H x."""
    r = _adjoint(np.linalg.cholesky(_adjoint(x) @ x))
    return x @ np.linalg.inv(r), r


def svd(x: np.ndarray) -> tuple:
    """Return NumPy's SVD with polyarr's phases."""
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    return u / _phases(u), s, vh * _phases(u).swapaxes(-1, -2)


# ---- Fourier transforms --------------------------------------------------------------------------------------


def dft(x: np.ndarray, *, axis: int | tuple[int, ...], inverse: bool, scale: float) -> np.ndarray:
    """Return the sums of the definition along each axis; of more than 2,000 terms NumPy's result."""
    for a in axis if isinstance(axis, tuple) else (axis,):
        n = x.shape[a]
        if n > 2000:
            x = np.fft.ifft(x, axis=a, norm="forward") if inverse else np.fft.fft(x, axis=a)
            continue
        turns = np.outer(np.arange(n), np.arange(n)) % n
        matrix = np.exp((2j if inverse else -2j) * np.pi * turns / n)
        x = np.moveaxis(np.moveaxis(x, a, -1) @ matrix, -1, a)
    return x * scale


def dft_of_real(x: np.ndarray, *, axis: int, inverse: bool, scale: float) -> np.ndarray:
    """Return the first half of the transform."""
    return np.take(dft(x, axis=axis, inverse=inverse, scale=scale), range(x.shape[axis] // 2 + 1), axis)


def dft_to_real(x: np.ndarray, *, n: int, axis: int, inverse: bool, scale: float) -> np.ndarray:
    """Return the real part of the transform of x and its mirror image."""
    x = np.moveaxis(x, axis, -1)
    whole = np.concatenate([x, x[..., (n - 1) // 2 : 0 : -1].conj()], axis=-1)
    return np.moveaxis(np.real(dft(whole, axis=-1, inverse=inverse, scale=scale)), -1, axis)


# ---- random bits ---------------------------------------------------------------------------------------------


def philox_block(counter: list, key: list[int]) -> list:
    """Return four words of Philox4x32-10, in Python integers or arrays of uint64."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (right >> 32) ^ b ^ k0, right & 0xFFFFFFFF, (left >> 32) ^ d ^ k1, left & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


def random_bits(key: int, counter: int, like: Any = None, *, shape: Any) -> np.ndarray:
    """Return word i % 4 of block i // 4 for each element i; all blocks are computed at once in uint64."""
    size, low = int(np.prod(shape, dtype=np.int64)), 0xFFFFFFFF
    block = np.arange((size + 3) // 4, dtype=np.uint64)
    words = philox_block([block & low, block >> 32, counter & low, counter >> 32 & low], [key & low, key >> 32 & low])
    return np.stack(words, axis=-1).reshape(-1)[:size].astype(np.uint32).reshape(shape)


# ---- neural networks -----------------------------------------------------------------------------------------


def softmax(x: np.ndarray, *, axis: int = -1) -> np.ndarray:
    """Return e^x divided by its sum."""
    e = np.exp(x - np.max(x, axis=axis, keepdims=True)) if x.size else x
    return e / e.sum(axis=axis, keepdims=True)


def log_softmax(x: np.ndarray, *, axis: int = -1) -> np.ndarray:
    """Return x minus the logarithm of the sum of e^x."""
    return x - np.logaddexp.reduce(x, axis=axis, keepdims=True)


def layer_norm(x: np.ndarray, weight: Any, bias: Any, *, eps: float) -> np.ndarray:
    """Return rows with mean 0 and variance 1, times weight, plus bias."""
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def rms_norm(x: np.ndarray, weight: Any, *, eps: float) -> np.ndarray:
    """Return rows with mean square 1, times weight."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (1 if weight is None else weight)


def batch_norm(x: np.ndarray, weight: Any, bias: Any, *, eps: float, activation: str | None = None) -> tuple:
    """Return channels with mean 0 and variance 1, scaled, shifted and activated; the mean and the variance."""
    rows = x.reshape(-1, x.shape[-1])
    mean, variance = rows.mean(0), rows.var(0)
    y = batch_norm_inference(x, mean, variance, weight, bias, eps=eps)
    return ACTIVATIONS[activation](y), mean, variance


def batch_norm_inference(x: np.ndarray, mean: Any, variance: Any, weight: Any, bias: Any, *, eps: float) -> np.ndarray:
    """Return channels normalized with a given mean and variance, scaled and shifted."""
    y = (x - mean) / np.sqrt(variance + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def group_norm(x: np.ndarray, weight: Any, bias: Any, *, groups: int, eps: float) -> np.ndarray:
    """Return each sample's groups of channels with mean 0 and variance 1, scaled and shifted."""
    y = np.empty_like(x)
    for i in range(len(x)):
        for channels in np.split(np.arange(x.shape[-1]), groups):
            part = x[i, ..., channels]
            y[i, ..., channels] = (part - part.mean()) / np.sqrt(part.var() + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def instance_norm(x: np.ndarray, weight: Any, bias: Any, *, eps: float) -> np.ndarray:
    """Return each sample's channels with mean 0 and variance 1, scaled and shifted."""
    return group_norm(x, weight, bias, groups=x.shape[-1], eps=eps)


def gelu(x: np.ndarray, *, approximate: str = "none") -> np.ndarray:
    """Return x times the standard normal distribution function of x."""
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
    """Return x weight^T + bias, after the activation."""
    return ACTIVATIONS[activation](x @ weight.T + (0 if bias is None else bias))


def grouped_linear(x: np.ndarray, weight: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return weight[groups] x for each row."""
    return np.einsum("...k,...nk->...n", x, weight[groups])


def quantized_linear(
    x: np.ndarray, codes: np.ndarray, scale: np.ndarray, bias: Any, *, activation: str | None
) -> np.ndarray:
    """Return x weight^T + bias for weights that are codes times a scale per row or block of 32, after the activation.
    """
    numbers = _numbers(codes, x.dtype)
    y = x @ (numbers * np.repeat(scale, 32, axis=1)).T if scale.ndim == 2 else x @ numbers.T * scale
    return ACTIVATIONS[activation](y + (0 if bias is None else bias))


def quantized_grouped_linear(x: np.ndarray, codes: np.ndarray, scale: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return weight[groups] x for each row, for weights that are codes times a scale per row or block of 32."""
    factors = np.repeat(scale, 32, axis=2) if scale.ndim == 3 else scale[:, :, None]
    return grouped_linear(x, _numbers(codes, x.dtype) * factors, groups)


def _numbers(codes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the numbers (..., k) that codes of 8 or 4 bits stand for."""
    if codes.dtype != np.uint8:
        return codes.astype(dtype)
    numbers = np.zeros((*codes.shape[:-1], 2 * codes.shape[-1]), dtype)
    for j in range(numbers.shape[-1]):
        block, place = divmod(j, 32)
        numbers[..., j] = (codes[..., 16 * block + place % 16] >> (4 if place >= 16 else 0)) % 16 - 8.0
    return numbers


def cache_update(cache: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the cache with the keys and values of its first rows at their positions."""
    found = cache.copy()
    for row, position in enumerate(positions):
        found[:, row, :, position] = k[row, :, 0], v[row, :, 0]
    return found


def dropout(x: np.ndarray, key: int, counter: int, *, rate: float) -> np.ndarray:
    """Return x / (1 - rate) where the upper 24 random bits reach the rate, else 0."""
    kept = random_bits(key, counter, shape=x.shape) >> 8 >= round(rate * 2**24)
    return np.where(kept, x / (1 - rate) if rate < 1 else 0.0, 0.0)


def cross_entropy(
    logits: np.ndarray, targets: np.ndarray, *, ignore_index: int, label_smoothing: float, reduction: str
) -> np.ndarray:
    """Return the cross-entropy of the rows whose target is not ignored."""
    logp, counted = log_softmax(logits), targets != ignore_index
    loss = np.zeros(targets.shape)
    logp, chosen = logp[counted], targets[counted]
    loss[counted] = -(1 - label_smoothing) * logp[np.arange(len(chosen)), chosen] - label_smoothing * logp.mean(-1)
    total = {"none": loss, "sum": loss.sum(), "mean": loss.sum() / np.float64(counted.sum())}
    return total[reduction]


def cross_entropy_and_gradient(
    g: np.ndarray, logits: np.ndarray, targets: np.ndarray, *, ignore_index: int, label_smoothing: float
) -> tuple:
    """Return the losses of rows, and g times the probabilities minus the target distribution."""
    losses = cross_entropy(
        logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )
    classes, counted = logits.shape[-1], (targets != ignore_index)[:, None]
    due = (1 - label_smoothing) * (np.arange(classes) == targets[:, None]) + label_smoothing / classes
    return losses, np.where(counted, (np.exp(log_softmax(logits)) - due) * g[:, None], 0)


def linear_cross_entropy(
    x: np.ndarray, weight: np.ndarray, targets: np.ndarray, *, rows_at_once: int | None, **params: Any
) -> np.ndarray:
    """Return the cross-entropy of x weight^T, with all logits at once."""
    return cross_entropy(x @ weight.T, targets, **params)


def attention(
    q: Any, k: Any, v: Any, mask: Any, key: int, counter: int, *, causal: bool, scale: Any, dropout_rate: float
) -> np.ndarray:
    """Return softmax(q k^T scale) v under the masks."""
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
    """Return the parameters and velocities after one step."""
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
    """Return the parameters and moments after one step."""
    new = []
    for p, g, first, second, decay in zip(params, grads, m, v, weight_decay, strict=True):
        g = g * scale + (0 if decoupled else decay * p)
        first, second = beta1 * first + (1 - beta1) * g, beta2 * second + (1 - beta2) * g * g
        update = first / (1 - beta1**step) / (np.sqrt(second / (1 - beta2**step)) + eps)
        new.append((p - lr * ((decay * p if decoupled else 0) + update), first, second))
    return tuple(a for group in zip(*new, strict=True) for a in group)
