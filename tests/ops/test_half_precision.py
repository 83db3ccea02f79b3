"""float16 and bfloat16: computations run in float32 and round once, on every backend."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.current import use_backend

NARROW = [pa.float16, pa.bfloat16]
BITS = {pa.float16: 11, pa.bfloat16: 8}


def exactly(fn, *arrays):
    """Return fn of the same numbers in float64 on NumPy."""
    with use_backend("numpy"):
        return fn(*(pa.asarray(a.numpy().astype(np.float64)) for a in arrays)).numpy()


def agree(fn, *arrays, ulps: float = 0.51) -> None:
    """Check that fn of narrow arrays is the float64 result rounded once."""
    found, expected = fn(*arrays).numpy(), exactly(fn, *arrays)
    allowed = np.exp2(np.floor(np.log2(np.maximum(np.abs(expected), 1e-30))) + 1 - BITS[arrays[0].dtype]) * ulps
    tiny = 2.0**-24 * ulps if found.dtype == np.float16 else 0  # half's smallest step
    np.testing.assert_array_less(np.abs(found.astype(np.float64) - expected), np.maximum(allowed, tiny) + 1e-30)


def test_means_whose_sum_is_beyond_float16(backend: Backend) -> None:
    x = pa.full(1000, 100.0, dtype=pa.float16)
    assert pa.mean(x).item() == 100 and pa.var(x).item() == 0 and pa.mse(x, -x).item() == 40000
    spread = pa.asarray(np.linspace(-200, 200, 1000), dtype=pa.float16)
    for fn in (pa.var, pa.std, lambda a: pa.mse(a, a * 0), pa.mean, ops.logsumexp, ops.rms_norm, ops.layer_norm):
        agree(fn, spread)


def test_counts_beyond_float16(backend: Backend) -> None:
    n = 70_000
    ones = pa.ones(n, dtype=pa.float16)
    assert pa.mean(ones).item() == 1 and pa.std(ones).item() == 0
    for fn in (pa.mean, pa.max, pa.min):
        np.testing.assert_allclose(pa.grad(fn)(ones).numpy()[[0, -1]].astype(float), 1 / n, rtol=0.01)
    logits, targets = pa.zeros((n, 4), dtype=pa.float16), pa.zeros(n, dtype=pa.int32)
    loss, g = pa.value_and_grad(lambda a: pa.cross_entropy(a, targets))(logits)
    assert loss.item() == pytest.approx(np.log(4), rel=1e-3)
    np.testing.assert_allclose(g.numpy()[0].astype(float), np.array([-0.75, 0.25, 0.25, 0.25]) / n, rtol=0.02)


@pytest.mark.parametrize("dtype", NARROW)
def test_squares_beyond_the_dtype(backend: Backend, dtype) -> None:
    x = pa.asarray([[300, -300, 1, 2]], dtype=dtype)
    for fn in (
        ops.layer_norm,
        ops.rms_norm,
        lambda a: ops.layer_norm(a, pa.full_like(a[0], 1.5), a[0]),
        ops.softmax,
        ops.log_softmax,
        ops.asinh,
    ):
        agree(fn, x)
    for approximate in ("none", "tanh"):
        slope = pa.grad(lambda a, form=approximate: pa.sum(ops.gelu(a, approximate=form)))(x).numpy()
        np.testing.assert_allclose(slope[0, :2].astype(float), [1, 0], atol=1e-6)


@pytest.mark.parametrize("dtype", NARROW)
def test_gradients_by_rule_are_rounded_once(backend: Backend, dtype) -> None:
    x = pa.asarray([[0.3, 2.0, 8.0, 300.0]], dtype=dtype)
    y = pa.asarray([[250.0, 1.0, 0.1, 280.0]], dtype=dtype)
    for fn in (ops.asinh, ops.atan, ops.log2, ops.square, ops.silu, ops.logsumexp, ops.prod):
        agree(pa.grad(lambda a, fn=fn: pa.sum(fn(a))), x, ulps=0.6)
    for fn in (ops.atan2, ops.logaddexp, ops.mse):
        agree(pa.grad(lambda a, b, fn=fn: pa.sum(fn(a, b))), x, y, ulps=0.6)
    agree(pa.grad(lambda a: pa.sum(ops.reciprocal(a))), x, ulps=2.1)  # the square of a result that was rounded


@pytest.mark.parametrize("dtype", NARROW)
def test_the_slope_of_logsumexp_is_softmax_even_where_the_result_is_coarse(backend: Backend, dtype) -> None:
    x = pa.asarray([[900.0, 896.0, 880.0]], dtype=dtype)
    agree(pa.grad(lambda a: pa.sum(ops.logsumexp(a, axis=-1))), x, ulps=0.6)
    nothing = pa.full((2, 2), -np.inf, dtype=dtype)
    assert pa.grad(lambda a: pa.sum(ops.logsumexp(a, axis=-1)))(nothing).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("dtype", NARROW)
def test_attention_rounds_its_result_and_not_its_scores(backend: Backend, dtype) -> None:
    pa.random.seed(0)
    q, k, v = (pa.random.normal((2, 5, 8), std=3).astype(dtype) for _ in range(3))
    for paired in (True, False):
        where = backend if paired else backend.without_fused()
        q_, k_, v_ = (pa.asarray(a.numpy(), device=where) for a in (q, k, v))
        agree(lambda q, k, v: ops.attention(q, k, v, causal=True), q_, k_, v_, ulps=0.75)


def test_a_number_beside_narrow_floats_is_not_rounded_first(backend: Backend) -> None:
    x = pa.asarray([1000.0, 3.0], dtype=pa.float16)
    assert (x / 100_000.0).numpy()[0] == np.float16(0.01)
    np.testing.assert_array_equal((x * 0.1).numpy(), np.float16(x.numpy() * np.float32(0.1)))
    assert (pa.asarray([0.1], dtype=pa.float16) == 0.1).tolist() == [True]  # compared as it is stored
    assert (pa.asarray([0.1], dtype=pa.bfloat16) < 0.1).tolist() == [False]


def test_a_body_that_runs_tracked_rounds_like_the_kernel(backend: Backend) -> None:
    x = pa.random.normal((4, 16), std=20).astype(pa.float16)
    for fn in (ops.softmax, ops.layer_norm, ops.gelu, ops.sigmoid, ops.silu, ops.sinh):
        inside = pa.vjp(fn, x)[0].numpy()
        np.testing.assert_allclose(inside, fn(x).numpy(), rtol=1e-3, atol=1e-7)


def test_running_products_are_rounded_once(backend: Backend) -> None:
    x = pa.asarray(np.linspace(0.9, 1.1, 40), dtype=pa.float16)
    agree(lambda a: pa.cumulative_prod(a, axis=0), x)
