"""Rotary embeddings, grouped heads and the gated feed-forward layer, against NumPy."""

import math

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.nn.rotary import positions_of

SCALING = nn.RotaryScaling(8.0, 1.0, 4.0, 64)


def complex_turns(positions, size, theta, scaling=None):
    """Return e^(i * angle) for each position and pair in float64, with Llama 3's cases written out."""
    rates = theta ** (-np.arange(0, size, 2) / size)
    if scaling is not None:
        lengths = 2 * math.pi / rates
        weight = (scaling.original_length / lengths - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        between = (1 - weight) * rates / scaling.factor + weight * rates
        is_long = lengths > scaling.original_length / scaling.low_freq_factor
        is_short = lengths < scaling.original_length / scaling.high_freq_factor
        rates = np.where(is_short, rates, np.where(is_long, rates / scaling.factor, between))
        assert is_short.any() and is_long.any() and not (is_short | is_long).all()
    return np.exp(1j * positions[:, None] * rates)


@pytest.mark.parametrize("scaling", [None, SCALING])
def test_rotary_rotates_pairs_as_complex_numbers(backend, scaling):
    x = pa.random.normal((2, 5, 3, 32))
    turned = nn.turns(x, 32, 5, position=17, theta=1000.0, scaling=scaling)
    host = x.numpy()
    wanted = (host[..., :16] + 1j * host[..., 16:]) * complex_turns(17 + np.arange(5.0), 32, 1000.0, scaling)[:, None]
    found = nn.rotary(x, turned).numpy()
    np.testing.assert_allclose(found, np.concatenate([wanted.real, wanted.imag], -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("context_length", "factors"), [(64, [1, 2, 3, 4]), (65, [4, 5.5, 6, 7])])
def test_longrope_divides_the_rate_of_each_pair(backend, context_length, factors):
    scaling = nn.RotaryScaling(1.0, 1.0, 4.0, 64, "longrope", 1.5, (1, 2, 3, 4), (4, 5.5, 6, 7))
    angles = np.arange(3.0, 8.0)[:, None] * 100.0 ** (-np.arange(4) / 4) / factors
    for like in (pa.zeros(1), pa.zeros(1, dtype=pa.float64)):
        turned = nn.turns(like, 8, 5, 3, 100.0, scaling, context_length=context_length)
        np.testing.assert_allclose(turned.cos.numpy(), 1.5 * np.cos(angles), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(turned.sin.numpy(), 1.5 * np.sin(angles), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("truncate", "ends"), [(True, (1, 6)), (False, (1.1747, 5.5963))])
def test_yarn_interpolates_between_pairs_that_it_may_round(backend, truncate, ends):
    """Pair p of 8 with the base 10 rotates 64 / (2 pi) * 10^(-p / 8) times within 64 positions."""
    rotations = [64 / (2 * math.pi) * 10 ** (-end / 8) for end in (5.5963, 1.1747)]
    scaling = nn.RotaryScaling(4.0, *rotations, 64, "yarn", truncate=truncate)
    kept = np.clip((ends[1] - np.arange(8)) / (ends[1] - ends[0]), 0, 1)
    angles = np.arange(3.0, 8.0)[:, None] * 10.0 ** (-np.arange(8) / 8) * (kept + (1 - kept) / 4)
    turned = nn.turns(pa.zeros(1), 16, 5, 3, 10.0, scaling)
    np.testing.assert_allclose(turned.cos.numpy(), np.cos(angles), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(turned.sin.numpy(), np.sin(angles), rtol=1e-5, atol=1e-5)


def test_narrow_numbers_are_turned_exactly_and_rounded_once(backend):
    x = pa.random.normal((1, 3, 2, 8))
    narrow = x.astype(pa.bfloat16)
    found = nn.rotary(narrow, nn.turns(narrow, 8, 3, position=4000))
    assert found.dtype == pa.bfloat16
    wide = narrow.astype(pa.float32)
    wanted = nn.rotary(wide, nn.turns(wide, 8, 3, position=4000)).astype(pa.bfloat16)
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())


def test_rotary_keeps_the_dtype_and_compiles_with_a_position():
    with pa.use_backend("numpy"):
        x = pa.ones((1, 1, 1, 4), dtype=pa.bfloat16)
        assert nn.rotary(x, nn.turns(x, 4, 1)).dtype == pa.bfloat16
        wide = pa.ones((1, 1, 1, 4), dtype=pa.float64)
        assert nn.rotary(wide, nn.turns(wide, 4, 1)).dtype == pa.float64
        turn = pa.compile(lambda x, position: nn.rotary(x, nn.turns(x, 4, 1, position)))
        for position in range(3):
            plain = nn.rotary(wide, nn.turns(wide, 4, 1, position)).numpy()
            np.testing.assert_array_equal(turn(wide, position).numpy(), plain)
        assert len(turn.programs()) == 1


def test_grouped_heads_are_heads_that_share_keys_and_values(backend):
    pa.random.seed(0)
    grouped = nn.MultiHeadAttention(12, 6, n_kv_heads=2, head_size=4, causal=True, out_bias=False)
    assert grouped.qkv.weight.shape == (40, 12) and grouped.out.weight.shape == (12, 24) and grouped.out.bias is None
    plain = nn.MultiHeadAttention(12, 6, head_size=4, causal=True, out_bias=False)

    def spread(rows):  # each head of keys and values for three of queries
        q, k, v = pa.split(rows, indices_or_sections=(24, 32))
        shared = (pa.repeat(pa.reshape(a, shape=(2, 1, 4, -1)), repeats=3, axis=1) for a in (k, v))
        return pa.concat([q, *(pa.reshape(a, shape=(24, *rows.shape[1:])) for a in shared)])

    bias = spread(grouped.qkv.bias[:, None])[:, 0]
    plain.load_parameters(
        {"qkv.weight": spread(grouped.qkv.weight), "qkv.bias": bias, "out.weight": grouped.out.weight}
    )
    x = pa.random.normal((2, 5, 12))
    turned = nn.turns(x, 4, 5)
    wanted = plain(x, turned=turned).numpy()
    np.testing.assert_allclose(grouped(x, turned=turned).numpy(), wanted, rtol=1e-5, atol=1e-6)
    cache = grouped.cache(2, 5)
    assert cache.k.shape == (2, 2, 5, 4)
    parts = [
        grouped(x[:, i : i + 1], cache=cache, position=i, turned=nn.turns(x, 4, 1, position=i)).numpy()
        for i in range(5)
    ]
    np.testing.assert_allclose(np.concatenate(parts, 1), wanted, rtol=1e-4, atol=1e-6)


def test_attention_refuses_groups_that_do_not_divide():
    with pytest.raises(ValueError, match="n_heads is 6, n_kv_heads is 4; it must divide n_heads"):
        nn.MultiHeadAttention(12, 6, n_kv_heads=4)


def test_gated_feed_forward_matches_numpy():
    with pa.use_backend("numpy"):
        layer, x = nn.GatedFeedForward(4, 7), pa.random.normal((3, 4))
    gate, up, down = (getattr(layer, name).weight.numpy() for name in ("gate", "up", "down"))
    host = x.numpy()
    gated = host @ gate.T
    wanted = (gated / (1 + np.exp(-gated)) * (host @ up.T)) @ down.T
    np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_positions_count_from_the_end_of_the_padding():
    """Those within it are 0: a negative one would be no index of an embedding."""
    found = positions_of(pa.zeros(1), 4, 1, pa.asarray([0, 3], dtype=pa.int32))
    assert found[..., 0].tolist() == [[1, 2, 3, 4], [0, 0, 0, 1]]
