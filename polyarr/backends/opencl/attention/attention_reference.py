"""Attention in float64 by NumPy, with which kernels are compared before they are used."""

from typing import NamedTuple

import numpy as np


class Attention(NamedTuple):
    """The result, the log-sum-exp of each row, and the gradients of q, k and v."""

    out: np.ndarray
    lse: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, mask: np.ndarray | None, causal: bool, scale: float
) -> Attention:
    """Compute attention of arrays (batch, rows, length) without dropout; every query must see at least one key."""
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
    dweights = dout @ v.swapaxes(1, 2)
    dscores = weights * (dweights - (weights * dweights).sum(-1, keepdims=True)) * scale
    return Attention(
        weights @ v, (top + np.log(total))[..., 0],
        dscores @ k, dscores.swapaxes(1, 2) @ q, weights.swapaxes(1, 2) @ dout,
    )  # fmt: skip
