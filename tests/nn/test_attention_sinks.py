"""Attention with a learned sink for each head, beside NumPy: values, gradients, masks, caches and groups of heads."""

from functools import partial

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, tree
from polyarr.core import watch
from polyarr.nn.attention import MAX_STORED_QUERIES

LENGTHS = (1, 5, MAX_STORED_QUERIES + 5)  # of few queries the scores are stored, of more none


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def layer_of(**settings):
    """Return a layer with 4 heads in groups of 2, and random weights, biases and sinks."""
    pa.random.seed(0)
    settings = {"n_kv_heads": 2, "head_size": 6, "causal": True, "sinks": True, **settings}
    made = nn.MultiHeadAttention(8, 4, **settings, init=nn.normal(0.7), out_init=nn.normal(0.7))
    held = made.named_parameters()
    return made.with_arrays({n: pa.asarray(normal(*p.shape, seed=1)) for n, p in held.items() if p.ndim == 1})


def expected(layer, x, mask=None):
    """Return the output for x (B, T, C), one query of one head at a time, in float64; mask (B, H, T, T) is added."""
    weights = {name: p.numpy().astype(np.float64) for name, p in layer.named_parameters().items()}
    (batch, t, _), heads, size = x.shape, layer.n_heads, layer.head_size
    qkv = x.astype(np.float64) @ weights["qkv.weight"].T + weights["qkv.bias"]
    qkv = qkv.reshape(batch, t, heads + 2 * layer.n_kv_heads, size)
    y = np.zeros((batch, t, heads, size))
    for b, i, h in np.ndindex(batch, t, heads):
        group = heads + h * layer.n_kv_heads // heads
        scores = qkv[b, : i + 1, group] @ qkv[b, i, h] / np.sqrt(size)
        if layer.softcap:
            scores = layer.softcap * np.tanh(scores / layer.softcap)
        if mask is not None:
            scores = scores + np.broadcast_to(mask, (batch, heads, t, t))[b, h, i, : i + 1]
        exps = np.exp(scores)
        y[b, i, h] = exps @ qkv[b, : i + 1, group + layer.n_kv_heads] / (exps.sum() + np.exp(weights["sinks"][h]))
    return y.reshape(batch, t, -1) @ weights["out.weight"].T + weights["out.bias"]


@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("settings", [{}, {"n_kv_heads": 4}, {"n_kv_heads": 1}, {"softcap": 0.8}])
def test_attention_with_sinks_is_numpys(settings, t, backend):
    layer, x = layer_of(**settings), normal(2, t, 8)
    np.testing.assert_allclose(layer(pa.asarray(x)).numpy(), expected(layer, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("t", LENGTHS[1:])
def test_masks_hide_keys_but_no_sink(t, backend):
    """Masks of booleans and of numbers, of all heads or of each; a query without keys gives the bias alone."""
    layer, x = layer_of(), normal(2, t, 8)
    seen = np.random.default_rng(0).random((2, 1, t, t)) < 0.6
    seen[1, :, 2:4] = False
    found = layer(pa.asarray(x), pa.asarray(seen)).numpy()
    np.testing.assert_allclose(found, expected(layer, x, np.where(seen, 0, -np.inf)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1, 2:4], np.tile(layer.out.bias.numpy(), (2, 1)), rtol=1e-5)
    as_numbers = layer(pa.asarray(x), pa.asarray(np.where(seen, 0, -np.inf).astype(np.float32))).numpy()
    np.testing.assert_allclose(as_numbers, found, rtol=1e-5, atol=1e-5)
    for shape in ((2, 4, t, t), (t, t), (1, 1, t, 1)):
        added = normal(*shape)
        found = layer(pa.asarray(x), pa.asarray(added)).numpy()
        np.testing.assert_allclose(found, expected(layer, x, added), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("kv", [1, 2, 4])
def test_gradients_match_finite_differences(kv, t, backend):
    """In float64, along a random direction of each array."""
    layer = layer_of(n_kv_heads=kv).astype("float64")
    x, slope = (pa.asarray(normal(2, t, 8, seed=seed).astype(np.float64)) for seed in (1, 2))
    held, grads = layer.named_parameters(), pa.grad(lambda m: (m(x) * slope).sum())(layer).named_parameters()
    for name, p in held.items():
        direction = pa.asarray(normal(*p.shape, seed=3).astype(np.float64))
        ends = [float((layer.with_arrays({name: p + h * direction})(x) * slope).sum()) for h in (1e-6, -1e-6)]
        found = float((grads[name] * direction).sum())
        assert abs(found) > 1e-4 and found == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("kv", [1, 2, 4])
def test_a_cache_changes_nothing(kv, backend):
    """Compare a text in one piece, one token at a time, in pieces of many tokens, and in a compiled function."""
    layer, t = layer_of(n_kv_heads=kv), 3 * MAX_STORED_QUERIES
    x = pa.asarray(normal(2, t, 8))
    wanted = layer(x).numpy()
    for call in (layer, partial(pa.compile(lambda layer, *inputs: layer(*inputs)), layer)):
        cache = layer.cache(2, t + 3)
        parts = [call(x[:, :4], None, cache, 0)] + [call(x[:, i : i + 1], None, cache, i) for i in range(4, 9)]
        parts.append(call(x[:, 9:], None, cache, 9))
        assert x[:, 9:].shape[1] > MAX_STORED_QUERIES
        np.testing.assert_allclose(np.concatenate([p.numpy() for p in parts], 1), wanted, rtol=1e-4, atol=1e-4)


class Copied(watch.Observer):
    """The number of elements of the largest array that is copied into another one."""

    def __init__(self):
        self.largest = 0

    def begun(self, call):
        if call.op.name in ("concat", "pad"):
            self.largest = max(self.largest, *(spec.size for spec in tree.leaves(call.specs)))


def test_one_token_copies_no_keys():
    with pa.use_backend("numpy"):
        layer = layer_of(n_kv_heads=1)
        cache, copied = layer.cache(1, 500), Copied()
        with watch.observing(copied):
            layer(pa.asarray(normal(1, 1, 8)), None, cache, 400)
        assert copied.largest < 500
        with watch.observing(copied):
            layer(pa.asarray(normal(1, 40, 8)), None, cache, 0)
        assert copied.largest >= 500


def test_sinks_start_as_0_and_a_low_one_changes_nothing(backend):
    layer, x = layer_of(), pa.asarray(normal(2, 20, 8))
    assert nn.MultiHeadAttention(8, 4, sinks=True).sinks.numpy().tolist() == [0] * 4
    assert nn.MultiHeadAttention(8, 4).sinks is None
    low, plain = layer.with_arrays({"sinks": pa.full((4,), -90.0)}), layer.copy()
    plain.sinks = None
    for part in (x, x[:, :5]):
        np.testing.assert_allclose(low(part).numpy(), plain(part).numpy(), rtol=1e-4, atol=1e-5)
        assert np.abs(layer(part).numpy() - plain(part).numpy()).max() > 0.1
