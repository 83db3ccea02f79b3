"""Attention that stores the row of its position in a cache, in compiled functions: with the bits of separate steps."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.errors import ShapeError
from polyarr.nn import MultiHeadAttention
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
pytestmark = [pytest.mark.polyarr_backend("opencl"), pytest.mark.usefixtures("compiled_only")]
attention, attention_decode, replay, stored_rows = opencl_modules(
    "attention", "attention_decode", "replay", "stored_rows"
)


@pytest.fixture
def programs(backend, monkeypatch):
    """The programs after the pass, on a device that has kernels for them, which may decline everything."""
    found, real = [], stored_rows.fuse_stored_rows
    monkeypatch.setattr(attention_decode, "can_store", lambda _: True)

    def note(device, program):
        found.append(real(device, program))
        return found[-1]

    monkeypatch.setattr(replay, "fuse_stored_rows", note)
    return found


def stores(program):
    """Return how many steps store rows and attend, and how many update a cache in another way."""
    launchers = [getattr(step.call, "__wrapped__", None) for step in program.steps]
    return launchers.count(attention.forward_storing), sum(step.op is ops.slice_update for step in program.steps)


def step(layer, x, cache, position):
    return layer(x, cache=cache, position=position)


def turned(layer, x, cache, position, tables):
    return layer(x, cache=cache, position=position, turned=tables)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("heads", "kv", "size", "batch"),
                         [(2, 2, 64, 1), (6, 2, 64, 3), (4, 1, 128, 2), (3, 3, 20, 2)])
@pytest.mark.parametrize("donated", [True, False])
def test_results_and_caches_have_the_bits_of_separate_steps(programs, dtype, heads, kv, size, batch, donated):
    pa.random.seed(heads)
    layer = MultiHeadAttention(32, heads, n_kv_heads=kv, head_size=size).eval().astype(dtype)
    compiled = pa.compile(step, donate=("cache",) if donated else ())
    caches = [layer.cache(batch, 150) for _ in range(2)]
    for position in (0, 1, 2, 127, 128, 149):
        x = pa.random.normal((batch, 1, 32)).astype(dtype)
        expected, found = step(layer, x, caches[0], position), compiled(layer, x, caches[1], position)
        for a, b in ((expected, found), (caches[0].both, caches[1].both)):
            np.testing.assert_array_equal(*(c.astype("float32").numpy() for c in (a, b)))
    (program,) = programs
    # One call of slice_update is left, which copies a cache that is not donated.
    assert stores(program) == (1, 1)


def test_rows_that_rotary_tables_turned_are_stored(programs):
    pa.random.seed(1)
    layer = MultiHeadAttention(32, 4, n_kv_heads=2, head_size=64).eval()
    compiled = pa.compile(turned, donate=("cache",))
    caches = [layer.cache(1, 40) for _ in range(2)]
    for position in range(5):
        x, angles = pa.random.normal((1, 1, 32)), pa.random.uniform((1, 32))
        tables = pa.cos(angles), pa.sin(angles)
        expected = turned(layer, x, caches[0], position, tables)
        np.testing.assert_array_equal(compiled(layer, x, caches[1], position, tables).numpy(), expected.numpy())
    np.testing.assert_array_equal(caches[0].both.numpy(), caches[1].both.numpy())
    assert stores(programs[0]) == (1, 1)


def two_layers(layers, x, caches, position):
    for layer, cache in zip(layers, caches, strict=True):
        x = layer(x, cache=cache, position=position)
    return x


def test_a_position_is_written_to_memory_once_for_all_layers(programs, monkeypatch):
    """Kernels for NVIDIA GPUs read it there. The portable ones, which run in this test, read the number."""
    monkeypatch.setattr(attention_decode, "reads_places", lambda _: True)
    pa.random.seed(2)
    layers = [MultiHeadAttention(32, 2, head_size=64).eval() for _ in range(2)]
    compiled = pa.compile(two_layers, donate=("caches",))
    caches = [[layer.cache(1, 8) for layer in layers] for _ in range(2)]
    for position in (0, 1, 2, 7):
        x = pa.random.normal((1, 1, 32))
        expected = two_layers(layers, x, caches[0], position)
        np.testing.assert_array_equal(compiled(layers, x, caches[1], position).numpy(), expected.numpy())
    (program,) = programs
    first, *others = program.steps
    storing = [step for step in others if getattr(step.call, "__wrapped__", None) is attention.forward_storing]
    assert first.op is ops.fill and program.specs[first.outputs].shape == (1,)
    assert [step.inputs[-1] for step in storing] == [first.outputs] * 2


def of_equal_keys_and_values(layer, x, cache, position):
    rows = layer.qkv(x)[..., :64].reshape(1, 1, 1, 64)
    cache.put(rows, rows, position)
    return ops.attention(rows, *cache.read(1), cache.seen(1, position))


def test_keys_may_be_the_values(programs):
    layer = MultiHeadAttention(16, 1, head_size=64).eval()
    compiled = pa.compile(of_equal_keys_and_values, donate=("cache",))
    caches = [layer.cache(1, 8) for _ in range(2)]
    for position in (0, 1, 5):
        x = pa.random.normal((1, 1, 16))
        expected = of_equal_keys_and_values(layer, x, caches[0], position)
        np.testing.assert_array_equal(compiled(layer, x, caches[1], position).numpy(), expected.numpy())
    np.testing.assert_array_equal(caches[0].both.numpy(), caches[1].both.numpy())
    assert stores(programs[0]) == (1, 1)


def of_more_queries(layer, x, cache, position):
    """Let three rows of queries read one row of a cache."""
    qkv = layer.qkv(x).reshape(1, 1, 3, 2, 64)
    q, k, v = (ops.permute_dims(qkv[:, :, i], axes=(0, 2, 1, 3)) for i in range(3))
    cache.put(k, v, position)
    return ops.attention(ops.concat([q, -q, 2 * q]), *cache.read(1), cache.seen(1, position))


def twice(layer, x, cache, position):
    """Read the cache a second time."""
    y = layer(x, cache=cache, position=position)
    return y, cache.k + 0


def loss(layer, x, cache, position):
    return pa.grad(lambda x: step(layer, x, cache, position).sum())(x)


@pytest.mark.parametrize(("function", "rows"), [(of_more_queries, 1), (twice, 1), (step, 2), (loss, 1)])
def test_others_stay_separate(programs, function, rows):
    layer = MultiHeadAttention(16, 2, head_size=64).eval()
    compiled, caches = pa.compile(function), [layer.cache(1, 8) for _ in range(2)]
    for position in (0, 2):
        x = pa.random.normal((1, rows, 16))
        expected, found = function(layer, x, caches[0], position), compiled(layer, x, caches[1], position)
        for a, b in zip(pa.tree.leaves(expected), pa.tree.leaves(found), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert not any(stores(program)[0] for program in programs)


def test_a_position_outside_the_cache_is_an_error(programs):
    layer = MultiHeadAttention(16, 2, head_size=64).eval()
    compiled, cache = pa.compile(step, donate=("cache",)), layer.cache(1, 8)
    compiled(layer, pa.ones((1, 1, 16)), cache, 0)
    with pytest.raises(ShapeError, match="leaves it"):
        compiled(layer, pa.ones((1, 1, 16)), cache, 8)
    assert stores(programs[0]) == (1, 1)
