"""Indices out of range: equal errors in every op with indices, for every integer dtype."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend

Call = Callable[[int, Any], Any]  # the length of the indexed axis, an index array of shape (1,) -> an array

DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
BEYOND_INT64 = 2**63  # what only uint64 can say


def edges(n: int, dtype: str) -> list[int]:
    """Return the ends of an axis of length n, the ends of dtype, and values that wrap to valid indices."""
    info = np.iinfo(dtype)
    wanted = {-n - 1, -n, -1, 0, n - 1, n, 2**8, 2**32, 2**32 + 1, -(2**32), info.min, info.max}
    return sorted(v for v in wanted if info.min <= v <= min(info.max, BEYOND_INT64 - 1))


def table(n: int, columns: int = 3) -> pa.Array:
    return pa.asarray(np.arange(n * columns, dtype="float32").reshape(n, columns))


def rows(at: pa.Array, columns: int = 3) -> pa.Array:
    """Return the index as a column."""
    return ops.broadcast_to(ops.reshape(at, shape=(1, 1)), shape=(1, columns))


def assigned(x: pa.Array, key: Any) -> pa.Array:
    x[key] = 7.0
    return x


def logits(n: int) -> pa.Array:
    return ops.matrix_transpose(table(n, 1))


def gradient(call: Callable[[pa.Array], pa.Array], x: pa.Array) -> pa.Array:
    return pa.grad(lambda x: ops.sum(call(x)))(x)


ONE = np.zeros(1, "int64")
CALLS: dict[str, Call] = {
    "take": lambda n, at: ops.take(table(n), at),
    "take, last axis": lambda n, at: ops.take(ops.matrix_transpose(table(n)), at, axis=1),
    "take of empty rows": lambda n, at: ops.take(table(n, 0), at),
    "take of no rows": lambda n, at: ops.take(ops.matrix_transpose(table(n, 0)), at, axis=1),
    "take, gradient": lambda n, at: gradient(lambda x: ops.take(x, at), table(n)),
    "take_along_axis": lambda n, at: ops.take_along_axis(table(n), rows(at), axis=0),
    "take_along_axis, gradient": lambda n, at: gradient(
        lambda x: ops.take_along_axis(x, rows(at), axis=0), table(n)
    ),
    "scatter": lambda n, at: ops.scatter(table(n), at, pa.ones((1, 3))),
    "scatter of empty rows": lambda n, at: ops.scatter(table(n, 0), at, pa.ones((1, 0))),
    "scatter, gradient of x": lambda n, at: gradient(lambda x: ops.scatter(x, at, pa.ones((1, 3))), table(n)),
    "scatter, gradient of updates": lambda n, at: gradient(
        lambda updates: ops.scatter(table(n), at, updates), pa.ones((1, 3))
    ),
    "scatter_add": lambda n, at: ops.scatter_add(table(n), at, pa.ones((1, 3))),
    "scatter_add of empty rows": lambda n, at: ops.scatter_add(table(n, 0), at, pa.ones((1, 0))),
    "scatter_add, gradient": lambda n, at: gradient(
        lambda updates: ops.scatter_add(table(n), at, updates), pa.ones((1, 3))
    ),
    "scatter_add_along_axis": lambda n, at: ops.scatter_add_along_axis(
        table(n), rows(at), pa.ones((1, 3)), axis=0
    ),
    "embedding": lambda n, at: ops.embedding(table(n), at),
    "embedding, gradient": lambda n, at: gradient(lambda x: ops.embedding(x, at), table(n)),
    "getitem": lambda n, at: table(n)[at],
    "getitem, two arrays": lambda n, at: ops.matrix_transpose(table(n))[pa.asarray(ONE), at],
    "setitem": lambda n, at: assigned(table(n), at),
    "setitem, two arrays": lambda n, at: assigned(ops.matrix_transpose(table(n)), (pa.asarray(ONE), at)),
}  # fmt: skip
CLASSES: dict[str, Call] = {
    "cross_entropy": lambda n, at: ops.cross_entropy(logits(n), at),
    "cross_entropy, none": lambda n, at: ops.cross_entropy(logits(n), at, reduction="none", label_smoothing=0.1),
    "cross_entropy, gradient": lambda n, at: pa.grad(lambda x: ops.cross_entropy(x, at))(logits(n)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*CALLS, *CLASSES])
def test_every_index_is_an_element_or_an_error(backend: Backend, name: str, dtype: str) -> None:
    """Negative indices count from the end, but classes do not. Empty results raise as well."""
    call, lowest, lengths = (CALLS[name], -1, (5, 0)) if name in CALLS else (CLASSES[name], 0, (5, 1))
    for n in lengths:
        for index in edges(n, dtype):
            at = pa.asarray(np.asarray([index], dtype))
            if lowest * n <= index < n:
                expected = call(n, pa.asarray(np.asarray([index % n]))).numpy()
                np.testing.assert_array_equal(call(n, at).numpy(), expected, err_msg=f"{index} of {n}")
            else:
                with pytest.raises(IndexError, match=f"of length {n}"):
                    call(n, at).numpy()


@pytest.mark.parametrize("name", CALLS)
def test_an_index_beyond_int64_is_an_error(backend: Backend, name: str) -> None:
    for index in (2**63, 2**64 - 5, 2**64 - 1):
        with pytest.raises(IndexError):
            CALLS[name](5, pa.asarray(np.asarray([index], "uint64"))).numpy()


def test_an_ignored_target_may_be_no_class(backend: Backend) -> None:
    """Neither its value nor its row matters: a nan reaches neither loss nor gradient."""
    for ignored in (-100, -1, 3, 2**40):
        x = pa.asarray([[1.0, 2.0, 3.0], [np.nan, np.inf, 0.0]])
        targets = pa.asarray([0, ignored])
        loss, grad = pa.value_and_grad(
            lambda x, at=targets, i=ignored: ops.cross_entropy(x, at, ignore_index=i, label_smoothing=0.1)
        )(x)
        alone = ops.cross_entropy(x[:1], targets[:1], label_smoothing=0.1)
        np.testing.assert_allclose(loss.numpy(), alone.numpy(), rtol=1e-6)
        assert np.isfinite(grad.numpy()[0]).all() and not grad.numpy()[1].any()
