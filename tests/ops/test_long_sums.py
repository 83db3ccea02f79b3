"""Sums of very many numbers in every op with a reduction: no lost digits, no spurious infinity.

Equal numbers are the worst case: every addition rounds in the same direction.
"""

from collections.abc import Callable

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.testing.tolerance import TABLE

EPS = float(np.finfo("float32").eps)
TENTH, THIRD = float(np.float32(0.1)), float(np.float32(0.3))
LENGTH = 300_000


def agree(kind: str, got: pa.Array, expected: np.ndarray | float) -> None:
    """Check agreement within the tolerances of the kit."""
    host, expected = got.numpy().astype("float64"), np.asarray(expected, "float64")
    atol = TABLE[kind][pa.float32] * EPS * np.abs(expected).max()
    np.testing.assert_allclose(host, np.broadcast_to(expected, host.shape), rtol=0, atol=atol)


SHAPES = [((1_000_000,), 0), ((100_000, 7), 0), ((3, 300_000), 1), ((5, 20_000, 2), 1)]


@pytest.mark.parametrize("value", [0.1, 0.64])
@pytest.mark.parametrize(("shape", "axis"), [((1_000_000,), None), *SHAPES, ((2, 40_000, 5), (0, 1))])
def test_sums(backend: Backend, shape: tuple, axis: int | tuple | None, value: float) -> None:
    x = pa.full(shape, value)
    for a in (x, ops.permute_dims(ops.permute_dims(x, axes=tuple(range(x.ndim))[::-1]) + 0, axes=range(x.ndim)[::-1])):
        agree("reduction", ops.sum(a, axis=axis), x.numpy().astype("float64").sum(axis))
    agree("reduction", ops.mean(x, axis=axis), float(np.float32(value)))


@pytest.mark.parametrize(("shape", "axis"), [*SHAPES, ((30_001,), 0), ((300, 100, 1), 0), ((2, 65), 1)])
def test_running_sums(backend: Backend, shape: tuple, axis: int) -> None:
    steps = np.arange(1, shape[axis] + 1) * TENTH
    expected = np.broadcast_to(steps.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)
    x = pa.full(shape, 0.1)
    agree("reduction", ops.cumulative_sum(x, axis=axis), expected)
    agree("reduction", pa.grad(lambda x: ops.sum(ops.cumulative_sum(x, axis=axis) * 0.1))(x), np.flip(expected, axis))
    whole = np.random.default_rng(0).integers(0, 2**40, shape)
    found = ops.cumulative_sum(pa.asarray(whole), axis=axis).numpy()
    np.testing.assert_array_equal(found, whole.cumsum(axis))
    wide = ops.cumulative_sum(pa.asarray(whole / 3.0), axis=axis).numpy()
    np.testing.assert_allclose(wide, whole.cumsum(axis) / 3.0, rtol=32 * 2.0**-52)


def test_long_products(backend: Backend) -> None:
    """Every factor adds a rounding error, in any order."""
    x = 1 + 1e-5 * np.random.default_rng(0).uniform(-1, 1, (200_000, 3)).astype("float32")
    agree("reduction", ops.prod(pa.asarray(x), axis=0), x.astype("float64").prod(0))
    agree("reduction", ops.prod(pa.asarray(x)), x.astype("float64").prod())


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 1), (1, 3), (5, 6)])
def test_matrix_products_of_great_depth(backend: Backend, rows: int, columns: int) -> None:
    depth = 300_000
    for x in (pa.full((rows, depth), 0.1), pa.full((depth, rows), 0.1).mT):
        for y in (pa.full((depth, columns), 0.3), pa.full((columns, depth), 0.3).mT):
            agree("reduction", x @ y, TENTH * THIRD * depth)


def test_a_deep_product_may_be_batched_and_broadcast(backend: Backend) -> None:
    """Depths with and without a remainder, and batches in which one side is broadcast."""
    rng = np.random.default_rng(0)
    for depth in (16_384, 40_001):
        for left, right in (((5,), (6,)), ((2, 1, 5), (3, 6)), ((70,), (33,))):
            x = rng.uniform(0, 1, (*left, depth)).astype("float32")
            y = rng.uniform(0, 1, (*right, depth)).astype("float32")
            expected = x.astype("float64") @ np.swapaxes(y.astype("float64"), -1, -2)
            for dtype in ("float32", "float64"):
                agree("reduction", pa.asarray(x, dtype=dtype) @ pa.asarray(y, dtype=dtype).mT, expected)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (4, 5), (1, 64), (64, 1)])
def test_matrix_products(backend: Backend, rows: int, columns: int) -> None:
    x, y = pa.full((rows, 10_000), 0.64), pa.full((10_000, columns), 0.3)
    exact = float(np.float32(0.64)) * THIRD * 10_000
    np.testing.assert_allclose((x @ y).numpy(), exact, rtol=128 * EPS)


@pytest.mark.parametrize("places", [1, 5000])
def test_many_updates_to_one_place(backend: Backend, places: int) -> None:
    at, updates = pa.zeros((LENGTH,), dtype="int64"), pa.full((LENGTH,), 0.1)
    expected = np.where(np.arange(places) == 0, TENTH * LENGTH, 0)
    agree("composed", ops.scatter_add(pa.zeros((places,)), at, updates), expected)
    weight = pa.zeros((places, 1))
    found = pa.grad(lambda w: ops.sum(ops.embedding(w, at)) * 0.1)(weight)
    agree("composed", found[:, 0], expected)


PARAMETERS: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "layer_norm": lambda x, b: ops.layer_norm(x, pa.ones(4), b),
    "rms_norm": lambda x, w: ops.rms_norm(x * 0 + 1, w + 1),
    "linear": lambda x, b: ops.linear(x, pa.zeros((4, 4)), b),
    "linear relu": lambda x, b: ops.linear(x, pa.zeros((4, 4)), b + 1, activation="relu"),
    "add": lambda x, b: x + b,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_gradients_of_parameters_over_many_rows(backend: Backend, name: str) -> None:
    x = pa.asarray(np.random.default_rng(0).standard_normal((LENGTH, 4)).astype("float32"))
    found = pa.grad(lambda b: ops.sum(PARAMETERS[name](x, b) * pa.full((LENGTH, 4), 0.1)))(pa.zeros(4))
    agree("gradient", found, TENTH * LENGTH)


def test_losses_over_many_rows(backend: Backend) -> None:
    targets = pa.asarray(np.arange(LENGTH) % 3)
    agree("reduction", ops.cross_entropy(pa.full((LENGTH, 3), 0.1), targets), np.log(3))
    agree("reduction", ops.mse(pa.full((LENGTH,), 0.1), pa.zeros((LENGTH,))), TENTH**2)
    agree("reduction", ops.global_norm([pa.full((LENGTH,), 0.1)] * 3), np.sqrt(3 * LENGTH) * TENTH)


@pytest.mark.parametrize("length", [65_537, 3_000_000])
def test_softmaxes_of_long_rows(backend: Backend, length: int) -> None:
    host = np.full((2, length), -0.44, np.float32)
    host[:, -1] = 0
    x, g, wide = pa.asarray(host), pa.full((2, length), 0.1), host.astype("float64")
    total = np.exp(wide).sum(1, keepdims=True)
    shares = np.exp(wide) / total
    for op, due in ((ops.softmax, shares), (ops.log_softmax, wide - np.log(total))):
        found, pull = pa.vjp(lambda x, op=op: op(x, axis=1), x)
        agree("reduction", found, due)
        if op is ops.log_softmax:
            agree("gradient", pull(g)[0], TENTH - shares * TENTH * length)
        else:
            agree("gradient", pull(x)[0], shares * (wide - (wide * shares).sum(1, keepdims=True)))


@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_infinity_among_many_stays_one(backend: Backend, dtype: str, overflow: bool) -> None:
    """Compensated summation must not compute infinity minus infinity, whether an element or a sum is infinite."""
    n, columns = 5000, 3
    host = np.ones((n, columns), dtype)
    host[n // 2, 1] = np.inf
    if overflow:
        host[[n // 4, n // 2], 1] = np.finfo(dtype).max
    updates, at = pa.asarray(host), pa.zeros((n,), dtype="int64")
    expected = np.asarray([n, np.inf, n])
    x, bias = pa.zeros((n, columns), dtype=dtype), pa.ones((columns,), dtype=dtype)
    weight = pa.zeros((columns, columns), dtype=dtype)

    def weighed(layer: Callable[[pa.Array], pa.Array]) -> pa.Array:
        return pa.vjp(layer, bias)[1](updates)[0]

    found = {
        "scatter_add": ops.scatter_add(pa.zeros((n, columns), dtype=dtype), at, updates)[0],
        "linear": weighed(lambda b: ops.linear(x, weight, b, activation="relu")),
        "layer_norm": weighed(lambda b: ops.layer_norm(x, bias, b)),
        "cumulative_sum": ops.cumulative_sum(updates, axis=0)[-1],
        "matrix product": pa.ones((1, n), dtype=dtype) @ updates,
        "linear, few rows": ops.linear(pa.ones((1, n), dtype=dtype), pa.asarray(host.T.copy())),
        "sum": ops.sum(updates, axis=0),
    }
    for name, got in found.items():
        np.testing.assert_array_equal(got.numpy().reshape(-1), expected, err_msg=name)
    reached = ops.cumulative_sum(updates[:, 1]).numpy()
    assert np.isinf(reached[n // 2 :]).all() and np.isfinite(reached[: n // 2]).all()
