"""How attention lays out its result, so that what follows needs no copy."""

import numpy as np
import pytest

import polyarr as pa
from polyarr.nn import MultiHeadAttention

pytestmark = pytest.mark.polyarr_backend("opencl")


def attended(layer, x, cache):
    return layer(x, cache=cache, position=3)


def gradient(layer, x):
    return pa.grad(lambda x: pa.sum(layer(x) ** 2))(x)


@pytest.mark.parametrize(("batch", "kv"), [(1, 4), (1, 2), (1, 1), (2, 4)])
def test_a_prompts_result_is_not_copied_for_the_output_projection(backend, batch, kv):
    """Heads in groups share keys and values; for one text they are copied no more than single ones."""
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
