"""How attention lays out its result, so that what follows needs no copy."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.nn import MultiHeadAttention
from tests.helpers.launches import launches

pytestmark = pytest.mark.polyarr_backend("opencl")


def attended(layer, x, cache):
    return layer(x, cache=cache, position=3)


def gradient(layer, x):
    return pa.grad(lambda x: pa.sum(layer(x) ** 2))(x)


@pytest.mark.parametrize(("batch", "kv"), [(1, 4), (1, 2), (1, 1), (2, 4), (2, 2), (3, 1)])
def test_a_prompts_result_is_not_copied_for_the_output_projection(backend, batch, kv):
    """Heads in groups share keys and values, which are copied no more than those of single ones."""
    pa.random.seed(0)
    layer, x = MultiHeadAttention(64, 4, n_kv_heads=kv).eval(), pa.random.normal((batch, 16, 64))
    compiled, caches = pa.compile(attended, donate=("cache",)), [layer.cache(batch, 64) for _ in range(2)]
    expected = attended(layer, x, caches[0]).numpy()
    for _ in range(2):
        found = compiled(layer, x, caches[1])
    np.testing.assert_array_equal(found.numpy(), expected)
    with pa.profile() as profile:
        compiled(layer, x, caches[1])
    names = [launch.name for launch in profile.launches]
    assert [*map(names[names.index("attention_forward") + 1 :].count, ("matmul", "elementwise"))] == [1, 0]


@pytest.mark.parametrize(("batch", "kv"), [(1, 2), (1, 1), (2, 2), (3, 1)])
def test_groups_of_heads_have_the_values_and_gradients_of_numpy(backend, batch, kv):
    pa.random.seed(1)
    with pa.use_backend("numpy"):
        layer, x = MultiHeadAttention(24, 4, n_kv_heads=kv), pa.random.normal((batch, 19, 24))
        expected = [layer(x).numpy(), gradient(layer, x).numpy()]
    layer, x = layer.to("opencl"), x.to("opencl")
    for found, due in zip((layer(x), gradient(layer, x)), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), due, rtol=1e-4, atol=1e-5 * np.abs(due).max())


def test_keys_of_groups_are_read_where_a_projection_has_them(backend):
    """In slices of (B, T, heads, D), of which three axes before the last two do not collapse to two."""
    qkv = pa.permute_dims(pa.astype(pa.random.normal((2, 16, 8, 8)), "float32"), (0, 2, 1, 3))  # (B, heads, T, D)
    q, k, v = ops.reshape(qkv[:, :4], shape=(2, 2, 2, 16, 8)), qkv[:, 4:6, None], qkv[:, 6:, None]
    with launches() as names:
        out, pull = pa.vjp(lambda *x: ops.attention(*x, causal=True), q, k, v)
    assert names == ["attention_forward"]
    with launches() as names:
        pull(out)
    assert not {*names} & {"elementwise", "copy", "copy_rows"}, names
