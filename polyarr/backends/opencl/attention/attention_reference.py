"""Attention in float64 by NumPy, with which kernels are compared before they are used."""

from typing import NamedTuple

import numpy as np

from polyarr.backends.kernels import philox


class Attention(NamedTuple):
    """The result, the log-sum-exp of each row, and the gradients of q, k and v."""

    out: np.ndarray
    lse: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, mask: np.ndarray | None, causal: bool, scale: float,
    kept: np.ndarray | float = 1.0,
) -> Attention:  # fmt: skip
    """Compute attention of arrays (batch, rows, length); every query must see at least one key.

    Weights are multiplied by `kept`, which dropout determines.
    """
    q, k, v, dout = (x.astype(np.float64) for x in (q, k, v, dout))
    scores = q @ k.swapaxes(1, 2) * scale  # (B, T, S)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        t, s = scores.shape[1:]
        scores = np.where(np.tri(t, s, s - t, dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    weights /= total
    dropped, dweights = weights * kept, dout @ v.swapaxes(1, 2) * kept
    dscores = weights * (dweights - (weights * dweights).sum(-1, keepdims=True)) * scale
    return Attention(
        dropped @ v, (top + np.log(total))[..., 0],
        dscores @ k, dscores.swapaxes(1, 2) @ q, dropped.swapaxes(1, 2) @ dout,
    )  # fmt: skip


def survivors(shape: tuple[int, ...], key: int, counter: int, rate: float) -> np.ndarray:
    """Return which weights dropout keeps, as kernels draw it: 4 weights per block of random words."""
    count = int(np.prod(shape))
    block = np.arange(-(-count // 4))
    words = philox([block, 0 * block, np.full_like(block, counter), 0 * block], (key, 0))
    return (np.stack(words, axis=-1).reshape(-1)[:count] >> 8 >= round(rate * 2**24)).reshape(shape)
