"""Products, losses and attention with axes of length 0 and 1, and with masks of every shape that broadcasts."""

import itertools

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.errors import ShapeError
from polyarr.core.op import Op

LEADS = (((), ()), ((0,), (0,)), ((2,), ()), ((), (0,)), ((3, 1), (0,)), ((1,), (0, 2)), ((2, 1, 3), (1, 2, 1)))


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(0.5, 2.0, shape).astype("float32")


@pytest.mark.parametrize(("left", "right"), LEADS)
def test_products_of_nothing(backend: Backend, left: tuple, right: tuple) -> None:
    for m, k, n in itertools.product((0, 1, 5), repeat=3):
        x, y = numbers(*left, m, k), numbers(*right, k, n)
        for turned in (False, True):
            pair = [pa.asarray(a) for a in (x, y)]
            if turned:
                pair = [ops.matrix_transpose(pa.asarray(np.swapaxes(a, -1, -2))) for a in (x, y)]
            out, pull = pa.vjp(ops.matmul, *pair)
            np.testing.assert_allclose(out.numpy(), x @ y, rtol=1e-5)
            dx, dy = pull(pa.ones(out.shape))
            ones = np.ones((x @ y).shape, "float32")
            np.testing.assert_allclose(dx.numpy(), summed(ones @ np.swapaxes(y, -1, -2), x.shape), rtol=1e-5)
            np.testing.assert_allclose(dy.numpy(), summed(np.swapaxes(x, -1, -2) @ ones, y.shape), rtol=1e-5)


def summed(g: np.ndarray, shape: tuple) -> np.ndarray:
    """Return g summed to a shape that broadcasts to its own."""
    g = g.sum(tuple(range(g.ndim - len(shape))))
    return g.sum(tuple(i for i, n in enumerate(shape) if n == 1 != g.shape[i]), keepdims=True)


def test_linear_of_nothing(backend: Backend) -> None:
    for rows, k, n in itertools.product((0, 1, 5), repeat=3):
        x, weight, bias = numbers(2, rows, k), numbers(n, k), numbers(n)
        y, pull = pa.vjp(lambda *a: ops.linear(*a, activation="relu"), *map(pa.asarray, (x, weight, bias)))
        np.testing.assert_allclose(y.numpy(), x @ weight.T + bias, rtol=1e-5)
        dx, dweight, dbias = pull(pa.ones(y.shape))
        assert dx.shape == x.shape and dweight.shape == weight.shape
        np.testing.assert_allclose(dbias.numpy(), np.full(n, 2.0 * rows))


@pytest.mark.parametrize("op", [ops.max, ops.min, ops.argmax, ops.argmin, ops.logsumexp])
@pytest.mark.parametrize("shape", [(0,), (0, 0), (0, 3), (2, 0, 3)])
def test_there_is_no_largest_of_nothing(backend: Backend, op: Op, shape: tuple) -> None:
    """Also if the result has no elements: an axis of length 0 has no maximum."""
    x = pa.zeros(shape)
    for axis in (None, *(i for i, n in enumerate(shape) if n == 0)):
        with pytest.raises(ShapeError, match="no element"):
            op(x, axis=axis)


def test_cross_entropy_needs_a_class(backend: Backend) -> None:
    for rows in (0, 2):
        with pytest.raises(ShapeError, match="at least one class"):
            ops.cross_entropy(pa.zeros((rows, 0)), pa.full((rows,), -100))
    assert np.isnan(ops.cross_entropy(pa.zeros((0, 3)), pa.zeros((0,), dtype="int64")).numpy())


def masks(shape: tuple) -> list[tuple]:
    """Return every shape that broadcasts to this one."""
    tails = [shape[i:] for i in range(len(shape) + 1)]
    return [s for tail in tails for s in itertools.product(*({1, n} for n in tail))]


@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 3, 2)])
def test_masks_of_every_shape(backend: Backend, lead: tuple, floating: bool) -> None:
    """Results equal those with the mask broadcast beforehand."""
    rng = np.random.default_rng(0)
    scores = (*lead, 3, 4)
    q, k, v = (pa.asarray(rng.standard_normal((*lead, n, 2)).astype("float32")) for n in (3, 4, 4))
    for shape in masks(scores):
        mask = rng.uniform(-1, 1, shape).astype("float32") if floating else rng.uniform(size=shape) > 0.3
        found = [
            pa.vjp(lambda q, k, v, m=m: ops.attention(q, k, v, m), q, k, v)
            for m in map(pa.asarray, (mask, np.ascontiguousarray(np.broadcast_to(mask, scores))))
        ]
        (out, pull), (expected, other) = found
        for ours, theirs in zip((out, *pull(out)), (expected, *other(out)), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6, err_msg=f"mask {shape}")
