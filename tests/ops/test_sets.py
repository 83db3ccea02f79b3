"""Searching, membership and distinct elements against NumPy; and broadcast shapes."""

from collections.abc import Callable

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend
from polyarr.core.errors import DtypeError, ShapeError

NAN, INF = float("nan"), float("inf")
HOSTS = [
    np.float32([3, 1, 2, NAN, 1, NAN, -0.0, 0.0, -INF, INF]),
    np.float32([[2, 2], [1, 2]]),
    np.int8([5, -128, 5, 127, 0]),
    np.uint8([255, 0, 7, 255]),
    np.asarray([True, False, True]),
    np.asarray([2**40, -1, 2**40], np.int64),
    np.float32(7),
    np.zeros((0, 3), np.float32),
    np.asarray([4, 4, 4, 4], np.int16),
]


@pytest.mark.parametrize("host", HOSTS, ids=lambda h: f"{h.dtype}{list(h.shape)}")
def test_distinct_elements(backend: Backend, host: np.ndarray) -> None:
    x = pa.asarray(host)
    found, expected = pa.unique_all(x), np.unique_all(host)
    for name in ("values", "indices", "inverse_indices", "counts"):
        np.testing.assert_array_equal(getattr(found, name).numpy(), getattr(expected, name))
    assert found.values.dtype == x.dtype and found.counts.dtype == found.indices.dtype == pa.int64
    assert pa.unique_values(x).tolist() == pytest.approx(found.values.tolist(), nan_ok=True)
    assert [a.tolist() for a in pa.unique_counts(x)][1:] == [found.counts.tolist()]
    assert pa.unique_inverse(x)._fields == ("values", "inverse_indices")
    assert pa.unique_inverse(x).inverse_indices.shape == x.shape


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 33])
def test_positions_in_sorted_arrays(backend: Backend, n: int, side: str) -> None:
    rng = np.random.default_rng(n)
    ordered = np.sort(np.concatenate([rng.integers(-3, 4, max(n - 2, 0)), [NAN, INF][: min(n, 2)]])).astype("float32")
    values = np.float32([[-INF, -3, -0.5, 0], [1, 3, INF, NAN]])
    found = pa.searchsorted(pa.asarray(ordered), pa.asarray(values), side=side)
    assert found.dtype == pa.int64
    np.testing.assert_array_equal(found.numpy(), np.searchsorted(ordered, values, side=side))
    sorter = rng.permutation(n)
    shuffled = np.empty_like(ordered)
    shuffled[sorter] = ordered
    by = pa.searchsorted(pa.asarray(shuffled), pa.asarray(values), side=side, sorter=pa.asarray(sorter, dtype="int64"))
    np.testing.assert_array_equal(by.numpy(), found.numpy())


def test_positions_of_integers(backend: Backend) -> None:
    ordered = pa.asarray([1, 3, 3, 2**40])
    assert pa.searchsorted(ordered, pa.asarray([3, 2**41], dtype="int64")).tolist() == [1, 4]
    assert pa.searchsorted(ordered, 3, side="right").tolist() == 3
    assert pa.searchsorted(ordered, pa.asarray([3], dtype="int8")).tolist() == [1]


@pytest.mark.parametrize("invert", [False, True])
def test_membership(backend: Backend, invert: bool) -> None:
    for a in HOSTS:
        for b in (a.ravel()[:2], a.ravel()[:0], a):
            found = pa.isin(pa.asarray(a), pa.asarray(b), invert=invert)
            np.testing.assert_array_equal(found.numpy(), np.isin(a, b, invert=invert))
    x = pa.asarray([[1, 2], [3, 4]])
    assert pa.isin(x, 3).tolist() == [[False, False], [True, False]]
    assert pa.isin(3, x).item() is True and pa.isin(5, x, invert=True).item() is True


def test_gradient_of_distinct_elements(backend: Backend) -> None:
    x = pa.asarray([3.0, 1.0, 3.0])
    assert pa.grad(lambda a: pa.sum(pa.unique_values(a) * pa.asarray([10.0, 1.0])))(x).tolist() == [1, 10, 0]


def test_parts_of_real_numbers(on_numpy: Backend) -> None:
    x = pa.asarray([1.5, NAN, -0.0])
    for part in (pa.real(x), pa.conj(x)):
        np.testing.assert_array_equal(part.numpy(), x.numpy())
        assert part is not x
    assert pa.imag(x).tolist() == [0, 0, 0] and pa.imag(pa.asarray([3], dtype="int8")).dtype == pa.int8


def test_broadcast_shapes() -> None:
    for shapes in ((), ((2, 1), (3,)), ((), (4, 1, 2), (5, 1)), ((0,), (1,)), (3, (2, 1))):
        assert pa.broadcast_shapes(*shapes) == np.broadcast_shapes(*shapes)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: pa.unique_values([1, 2]), TypeError, "unique_values: x is a list; it must be a polyarr array"),
        (lambda x: pa.searchsorted(x, [1]), TypeError, "searchsorted: x2 is a list; one input must be an array"),
        (lambda x: pa.searchsorted(pa.ones((2, 2)), x), ShapeError, "; it must have one axis; pa.vmap maps over rows"),
        (lambda x: pa.searchsorted(x, x, side="middle"), ValueError, "side is 'middle'; it must be 'left' or 'right'"),
        (lambda x: pa.searchsorted(x, x, sorter=pa.asarray([0])), ShapeError, r"sorter is int64\[1\], x1 is float32"),
        (lambda x: pa.searchsorted(x > 1, x), DtypeError, r"searchsorted: x1 is bool\[3\]; its dtype must be real"),
        (lambda x: pa.isin(1, 2), TypeError, "isin: x1 is a int; one input must be an array"),
        (lambda x: pa.isin(x.astype("uint64"), pa.asarray([1])), DtypeError, "isin: cannot promote"),
        (lambda x: pa.isin(x.astype("int8"), 300), OverflowError, "^isin: x2 is 300; int8 holds -128 to 127"),
        (
            lambda x: pa.broadcast_shapes((2,), (3,)),
            ShapeError,
            r"^broadcast_shapes: cannot broadcast \(2,\) with \(3,",
        ),
        (lambda x: pa.broadcast_shapes("ab"), TypeError, "shape is 'ab'; it must be an int or a tuple of ints"),
        (lambda x: pa.imag(x > 1), DtypeError, "imag: x is bool"),
    ],
)
def test_errors(on_numpy: Backend, call: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(pa.asarray([1.0, 2.0, 3.0]))
