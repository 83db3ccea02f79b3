"""x[key] and x[key] = value against NumPy, on every backend."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.errors import ShapeError

SHAPES = ((), (3,), (1,), (0,), (33,), (4, 5), (3, 1), (2, 3, 4), (2, 0, 3), (2, 1, 3, 2))


@st.composite
def keys(draw, shape: tuple, arrays: bool) -> tuple:
    """Draw a key for an array of this shape: ints, slices, None, one ellipsis, and index arrays that broadcast."""
    named = draw(st.integers(0, len(shape)))
    where = draw(st.integers(0, named + (named == len(shape))))  # of an ellipsis, which may stand for no axis
    joint = draw(st.sampled_from(((), (3,), (2, 2), (1,))))
    key, axis = [], 0
    for i in range(named):
        if draw(st.integers(0, 5)) == 0:
            key.append(None)
        if i == where:
            key.append(Ellipsis)
            axis += len(shape) - named
        key.append(draw(one_key(shape[axis], joint, arrays)))
        axis += 1
    if named == where:
        key.append(Ellipsis)
    return tuple(key)


def one_key(n: int, joint: tuple, arrays: bool) -> st.SearchStrategy:
    ends = st.one_of(st.none(), st.integers(-n - 2, n + 2))
    slices = st.builds(slice, ends, ends, st.sampled_from((None, 1, 2, 3, -1, -2)))
    if not n:
        return slices
    options = [slices, st.integers(-n, n - 1)]
    if arrays:
        shape = st.sampled_from((joint, joint[-1:], ()))
        options.append(
            st.tuples(shape, st.integers(0, 99)).map(lambda p: np.random.default_rng(p[1]).integers(-n, n, p[0]))
        )
    return st.one_of(options)


def ours(key: tuple) -> tuple:
    """Return the key with polyarr arrays instead of NumPy's."""
    return tuple(pa.asarray(k) if isinstance(k, np.ndarray) else k for k in key)


def test_an_ellipsis_of_no_axis_separates_index_arrays(backend: Backend) -> None:
    x, i = np.arange(24, dtype="float32").reshape(2, 3, 4), np.asarray([0, 1, 1, 0])
    for key in ((slice(None), i, ..., i), (slice(None), 1, ..., i), (None, 1, i, ..., i)):
        np.testing.assert_array_equal(pa.asarray(x)[ours(key)].numpy(), x[key])


@given(data=st.data())
@pytest.mark.parametrize("arrays", [False, True])
def test_getitem(backend: Backend, arrays: bool, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    key = data.draw(keys(shape, arrays))
    x = np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape)
    got = pa.asarray(x)[ours(key)]
    assert isinstance(got, pa.Array)
    np.testing.assert_array_equal(got.numpy(), x[key])
    assert got.shape == x[key].shape


@given(data=st.data())
@pytest.mark.parametrize("arrays", [False, True])
def test_setitem(backend: Backend, arrays: bool, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    key = data.draw(keys(shape, arrays))
    x = np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape)
    window = x[key].shape
    value = data.draw(st.sampled_from((-1.0, window, window[1:], tuple(1 for _ in window))))
    value = (
        value if isinstance(value, float) else -1 - np.arange(np.prod(value, dtype=int), dtype="float32").reshape(value)
    )
    got = pa.asarray(x)
    other = got.snapshot()
    got[ours(key)] = value if isinstance(value, float) else pa.asarray(value)
    np.testing.assert_array_equal(other.numpy(), x)
    x[key] = value
    np.testing.assert_array_equal(got.numpy(), x)


@pytest.mark.parametrize("shape", [(7,), (4, 5), (2, 3, 4), (0, 3), (33,)])
def test_masks(backend: Backend, shape: tuple) -> None:
    host = np.random.default_rng(0).standard_normal(shape).astype("float32")
    x = pa.asarray(host)
    for mask in (host > 0, host[..., 0] > 0, host > 9, host == host):
        if mask.ndim:
            np.testing.assert_array_equal(x[pa.asarray(mask)].numpy(), host[mask])
            for value in (3.0, np.arange(1, host[mask].size + 1, dtype="float32").reshape(host[mask].shape)):
                y, expected = x.snapshot(), host.copy()
                y[pa.asarray(mask)] = value if isinstance(value, float) else pa.asarray(value)
                expected[mask] = value
                np.testing.assert_array_equal(y.numpy(), expected)
    np.testing.assert_array_equal(x.numpy(), host)


def test_masks_of_numpy_and_lists(on_numpy: Backend) -> None:
    x = pa.asarray([1.0, 2.0, 3.0])
    assert x[[2, 0]].tolist() == [3, 1]
    assert x[np.asarray([True, False, True])].tolist() == [1, 3]
    assert x[[True, False, True]].tolist() == [1, 3]


def test_nonzero(backend: Backend) -> None:
    host = np.asarray([[0, 1, 0], [2, 0, 3]])
    for got, expected in zip(ops.nonzero(pa.asarray(host)), np.nonzero(host), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected)


def test_of_several_values_for_one_place_the_last_one_counts(backend: Backend) -> None:
    x = pa.zeros(5)
    x[pa.asarray([1, 3, 1, 1])] = pa.asarray([1.0, 2.0, 3.0, 4.0])
    assert x.tolist() == [0, 4, 0, 2, 0]


def test_a_basic_index_makes_a_handle_of_its_own(backend: Backend) -> None:
    x = pa.asarray([[1.0, 2.0], [3.0, 4.0]])
    for y in (x[...], x[:], x[:, :], x[()]):
        y += 10
        y[0] = 0.0
        assert x.tolist() == [[1, 2], [3, 4]]


def test_assignment_keeps_the_dtype(backend: Backend) -> None:
    x = pa.asarray([1, 2, 3], dtype="int32")
    x[0] = 7
    x[1:] = pa.asarray([8, 9], dtype="int64")
    assert x.tolist() == [7, 8, 9] and x.dtype == pa.int32
    x += 1
    assert x.tolist() == [8, 9, 10]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_index_arrays_of_every_integer_dtype(backend: Backend, dtype: str) -> None:
    at = pa.asarray([2, 0, 1], dtype=dtype)
    assert pa.asarray([10, 20, 30])[at].tolist() == [30, 10, 20]
    x = pa.zeros(3)
    x[at] = pa.asarray([1.0, 2.0, 3.0])
    assert x.tolist() == [2, 3, 1]


def test_an_index_out_of_range_is_an_error_by_the_next_read(backend: Backend) -> None:
    x = pa.asarray([1.0, 2.0, 3.0])
    for at in (3, -4):
        with pytest.raises(IndexError):
            x[pa.asarray([0, at])].numpy()
        with pytest.raises(IndexError):
            ops.scatter_add(x, pa.asarray([at]), pa.ones(1)).numpy()
        with pytest.raises(IndexError):
            ops.take_along_axis(x, pa.asarray([at])).numpy()
    assert x[pa.asarray([-1, 2])].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (3, r"x is float32\[3\]; index 3 is out of range for axis 0"),
        (-4, "index -4 is out of range"),
        ((0, 0), "the key names 2 axes"),
        ((Ellipsis, Ellipsis), "indexing"),
        ("a", "an index is str; it must be an int"),
        (1.0, "an index is float"),
        ([0.5], r"an index is float64\[1\]; it must be an integer array"),
    ],
)
def test_errors(on_numpy: Backend, key: object, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        pa.asarray([1.0, 2.0, 3.0])[key]


def test_a_mask_must_fit(on_numpy: Backend) -> None:
    x = pa.ones((2, 3))
    with pytest.raises(IndexError, match="the mask must have x's leading axes"):
        x[pa.asarray([True, False, True])]
    with pytest.raises(IndexError):
        x[0, pa.asarray([True, False, True])]


@pytest.mark.parametrize(
    ("shape", "key", "message"),
    [
        ((3,), np.zeros(0, np.float32), r"^indexing: an index is float32\[0\]; it must be an integer array"),
        ((3,), np.zeros((0, 2), np.complex64), r"^indexing: an index is complex64\[0, 2\]; it must be an integer"),
        ((3,), np.zeros(0, object), r"^indexing: an index is object\[0\]; it must be an integer"),
        ((2, 0, 1), (slice(None), np.zeros((0, 1), bool)), r"^indexing: an index is bool\[0, 1\]; it must be an int"),
        ((2, 3), ([True, False], 0), r"^indexing: .* bool\[2\]; .*; beside other indices write pa.nonzero\(mask"),
        ((3,), ["a"], r"^indexing: an index is str\d+\[1\]; it must be an integer"),
        ((3, 3), ([0, 1], [0, 1, 2]), r"^indexing: cannot broadcast int64\[2\] with int64\[3\]$"),
    ],
)
def test_an_index_must_be_integers_that_fit(on_numpy: Backend, shape: tuple, key: object, message: str) -> None:
    """Also if it has no elements, as in NumPy."""
    x = pa.zeros(shape)
    with pytest.raises(IndexError, match=message):
        x[key]
    with pytest.raises(IndexError, match=message):
        x[key] = 1.0


def test_an_index_without_elements(on_numpy: Backend) -> None:
    """An empty list has no dtype; NumPy treats it as integers."""
    x = pa.asarray(np.arange(6.0).reshape(2, 3))
    for key in ([], [[]], (slice(None), []), np.zeros(0, np.uint8), np.zeros((0, 2), ">i4")):
        assert x[key].shape == x.numpy()[key].shape
    assert x[np.array([1, 0], ">i8")].tolist() == [[3, 4, 5], [0, 1, 2]]


def test_a_value_must_fit(on_numpy: Backend) -> None:
    x = pa.ones((2, 3))
    with pytest.raises(ShapeError):
        x[0] = pa.ones(4)
    with pytest.raises(ShapeError):
        x[x > 0] = pa.ones(5)
    assert x.tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    "key",
    [
        (0, slice(None), np.array([0, 3])),
        (slice(None), 0, np.array([0, 3])),
        (slice(None), 0, None, np.array([0, 3])),
        (slice(None), np.array([0, 2]), None, np.array([0, 3])),
        (np.array([1, 0]), slice(None), 2),
        (-1, np.array([[2], [0]])),
    ],
)
def test_an_int_beside_an_index_array_is_one_too(backend: Backend, key: tuple) -> None:
    """Its position determines where the axes of the index arrays go, as in NumPy."""
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    got = pa.asarray(x)
    np.testing.assert_array_equal(got[ours(key)].numpy(), x[key])
    value = -1 - np.arange(x[key].size, dtype="float32").reshape(x[key].shape)
    got[ours(key)] = pa.asarray(value)
    x[key] = value
    np.testing.assert_array_equal(got.numpy(), x)
