"""On OpenCL, adjacent slices of an array are concatenated without a copy."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops

pytestmark = pytest.mark.polyarr_backend("opencl")
X = np.arange(180, dtype=np.float32).reshape(3, 5, 3, 4)


def both(fn, *hosts):
    """Return fn's result, whether it shares memory with its first argument, and NumPy's result."""
    x, *rest = map(pa.asarray, hosts)
    found = fn(x, *rest)
    with pa.use_backend("numpy"):
        due = fn(*map(pa.asarray, hosts)).numpy()
    return found, found.buf.memory is x.buf.memory, due


@pytest.mark.parametrize("axis", range(4))
def test_parts_that_are_joined_again_are_a_view(backend, axis):
    for fn in (
        lambda x: ops.stack(ops.unstack(x, axis=axis), axis=0),
        lambda x: ops.stack(ops.unstack(x, axis=axis)[1:], axis=-1),
        lambda x: ops.stack([x[:, :, 0, 1], x[:, :, 1, 3]]),
        lambda x: ops.concat(ops.split(x[:, 1:], 4, axis=1), axis=1),
    ):
        found, is_view, due = both(fn, X)
        assert is_view
        np.testing.assert_array_equal(found.numpy(), due)


def test_what_does_not_lie_at_equal_distances_is_copied(backend):
    for fn in (
        lambda x: ops.stack(ops.unstack(x, axis=1)[::-1]),
        lambda x: ops.stack([x[:, 0], x[:, 1], x[:, 3]]),
        lambda x: ops.stack([x[:, 0], x[:, 0]]),
        lambda x: ops.concat([x[:, :2], x[:, 2:]], axis=1),
        lambda x: ops.stack([x[:, 0], x[:, 1] + 1]),
        lambda x: ops.stack([x[0, :3], ops.permute_dims(x[0, :, :3], axes=(1, 0, 2))[:, :3]]),
    ):
        found, is_view, due = both(fn, X)
        assert not is_view
        np.testing.assert_array_equal(found.numpy(), due)


def test_an_argument_may_begin_anywhere(backend):
    fn, x = pa.compile(lambda x, y: ops.stack([x, y]) * 2.0), pa.asarray(X)
    for i, j in ((0, 1), (1, 0), (0, 1), (1, 1), (0, 0)):
        np.testing.assert_array_equal(fn(x[i], x[j]).numpy(), np.stack([X[i], X[j]]) * 2)


def test_the_gradients_of_what_was_one_product_are_joined_without_a_copy(backend):
    host = np.random.default_rng(0).standard_normal((2, 9, 3, 4, 8), np.float32)

    def gradients(few=None):
        parts = [ops.permute_dims(part, axes=(0, 2, 1, 3)) for part in ops.unstack(pa.asarray(host), axis=2)]
        parts = [parts[0], *(part[:, :few] for part in parts[1:])]
        return pa.grad(lambda parts: pa.sum(ops.attention(*parts, causal=True) ** 2))(parts)

    found = gradients()
    joined = ops.stack([ops.permute_dims(g, axes=(0, 2, 1, 3)) for g in found], axis=2)
    assert joined.buf.memory is found[0].buf.memory and joined.buf.is_dense
    shared = gradients(few=1)  # keys and values of one head, shared by all queries
    with pa.use_backend("numpy"):
        due = [*gradients(), *gradients(few=1)]
    for ours, theirs in zip((*found, *shared), due, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
