"""The array API standard 2025.12: calls, special values, dtypes and errors with past deviations."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.op import OPS

pytestmark = pytest.mark.usefixtures("backend")

INF, NAN = float("inf"), float("nan")


def matrix() -> pa.Array:
    return pa.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def vector(dtype: str = "int8") -> pa.Array:
    return pa.asarray([1, 2, 3], dtype=dtype)


# ---- calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: pa.concat([x, vector("float32")], axis=None), [1, 2, 3, 4, 5, 6, 1, 2, 3]),
        (lambda x: pa.concat([pa.asarray(1), pa.asarray(2)], axis=None), [1, 2]),
        (lambda x: pa.reshape(x, (3, 2), copy=True), [[1, 2], [3, 4], [5, 6]]),
        (lambda x: pa.reshape(x, 6, copy=False), [1, 2, 3, 4, 5, 6]),
        (lambda x: pa.astype(x, pa.int32, copy=True), [[1, 2, 3], [4, 5, 6]]),
        (lambda x: pa.cumulative_sum(x[0], include_initial=True), [0, 1, 3, 6]),
        (lambda x: pa.cumulative_sum(x, axis=-2, include_initial=True), [[0, 0, 0], [1, 2, 3], [5, 7, 9]]),
        (lambda x: pa.cumulative_prod(x, axis=1), [[1, 2, 6], [4, 20, 120]]),
        (lambda x: pa.cumulative_prod(x, axis=0, include_initial=True), [[1, 1, 1], [1, 2, 3], [4, 10, 18]]),
        (lambda x: pa.cumulative_prod(pa.ones((2, 0)), axis=1, include_initial=True), [[1], [1]]),
        (lambda x: pa.diff(x), [[1, 1], [1, 1]]),
        (lambda x: pa.diff(x, axis=0, prepend=pa.zeros((1, 3)), append=x[1:]), [[1, 2, 3], [3, 3, 3], [0, 0, 0]]),
        (lambda x: pa.diff(x, n=2), [[0], [0]]),
        (lambda x: pa.diff(x, n=9), [[], []]),
        (lambda x: pa.count_nonzero(pa.asarray([[0.0, NAN], [0.0, -0.0]]), axis=1), [1, 0]),
        (lambda x: pa.count_nonzero(pa.asarray([True, False]), keepdims=True), [1]),
        (lambda x: pa.repeat(x, pa.asarray([2, 0]), axis=0), [[1, 2, 3], [1, 2, 3]]),
        (lambda x: pa.repeat(x, pa.asarray([1], dtype=pa.uint8)), [1, 2, 3, 4, 5, 6]),
        (lambda x: pa.sum(x, axis=[0, -1]), 21),
        (lambda x: pa.eye(2, 3, k=2**63), [[0, 0, 0], [0, 0, 0]]),
        (lambda x: pa.full_like(x, 7, dtype=pa.int8, device=x.device), [[7] * 3] * 2),
        (lambda x: pa.vecdot(x, pa.ones(3), axis=-1), [6, 15]),
        (lambda x: pa.permute_dims(x, (-1, 0)), [[1, 4], [2, 5], [3, 6]]),
        (lambda x: pa.expand_dims(x, (-1, 0)), [[[[1], [2], [3]], [[4], [5], [6]]]]),
        (lambda x: pa.expand_dims(x, ()), [[1, 2, 3], [4, 5, 6]]),
        (lambda x: pa.searchsorted(x[0], 2), 1),
        (lambda x: pa.searchsorted(x[0], 2.5, side="right"), 2),
    ],
)
def test_calls_of_the_standard(call: Callable, expected: Any) -> None:
    assert call(matrix()).tolist() == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("squeeze", ["x", "axis"]), ("expand_dims", ["x", "axis"]), ("permute_dims", ["x", "axes"]),
        ("broadcast_to", ["x", "shape"]), ("roll", ["x", "shift", "axis"]),
        ("astype", ["x", "dtype", "copy", "device"]), ("reshape", ["x", "shape", "copy"]),
        ("cumulative_sum", ["x", "axis", "dtype", "include_initial"]),
    ],
)  # fmt: skip
def test_signatures_say_what_a_call_accepts(name: str, expected: list[str]) -> None:
    found = inspect.signature(getattr(pa, name)).parameters
    assert list(found) == expected
    assert found[expected[1]].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD or name == "cumulative_sum"


def test_a_public_name_is_the_op_or_a_function_that_takes_more() -> None:
    """Tables of kernels use ops such as polyarr.ops.reshape; polyarr.reshape is a wrapper."""
    named = {op.name: op for op in OPS if op.__module__.startswith("polyarr.") and hasattr(pa, op.name)}
    assert all(getattr(pa.ops, name) is op for name, op in named.items())
    apart = {name for name, op in named.items() if getattr(pa, name) is not op}
    of_layouts = {"adaptive_mean_pool", "conv", "conv_transpose", "interpolate", "max_pool", "mean_pool"}
    assert apart == of_layouts | {
        "astype", "concat", "cumulative_sum", "repeat", "reshape", "where",
    }  # fmt: skip
    for name in apart:
        own, function = (inspect.signature(f).parameters for f in (named[name], getattr(pa, name)))
        assert list(function)[: len(own)] == list(own)
        assert [function[p].default for p in own] == [p.default for p in own.values()]


def test_results_that_come_in_tuples() -> None:
    assert type(pa.broadcast_arrays(matrix(), pa.ones(3))) is tuple and pa.broadcast_arrays() == ()
    assert type(pa.meshgrid(pa.ones(2), pa.ones(3))) is tuple and pa.meshgrid() == ()
    assert pa.unstack(pa.ones((0, 2))) == ()


def test_dtypes_that_stay() -> None:
    assert pa.vecdot(vector("uint8"), vector("uint8")).dtype == pa.uint8
    assert pa.cumulative_prod(vector("int8")).dtype == pa.int64
    assert pa.cumulative_prod(vector("int8"), dtype=pa.float32).dtype == pa.float32
    assert pa.astype(matrix(), pa.float32, copy=False).dtype == pa.float32


def test_copy_false_never_copies() -> None:
    x = matrix()
    assert pa.asarray(x, copy=False) is x and pa.astype(x, pa.float32, copy=False) is x
    assert pa.from_dlpack(x, copy=False) is x
    for call in (lambda: pa.asarray([1, 2], copy=False), lambda: pa.asarray(x, dtype=pa.int32, copy=False)):
        with pytest.raises(ValueError, match="copy=False"):
            call()


def test_gradients_of_compositions() -> None:
    weights = pa.asarray([1.0, 10.0, 100.0])
    grad = pa.grad(lambda x: pa.sum(pa.cumulative_prod(x) * weights))(pa.asarray([2.0, 0.0, 3.0]))
    assert grad.tolist() == [1, 620, 0]
    assert pa.grad(lambda x: pa.sum(pa.diff(x) * weights[:2]))(weights).tolist() == [-1, -9, 10]


def test_inspection_names_only_dtypes_of_the_standard(backend: Backend) -> None:
    found = pa.__array_namespace_info__().dtypes()
    assert "float32" in found and not {"float16", "bfloat16"} & set(found)


# ---- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (INF, 2, INF), (INF, -2, -INF), (-INF, 2, -INF), (-INF, -2, INF), (INF, INF, NAN),
        (1, INF, 0.0), (-1, INF, -0.0), (1, -INF, -0.0), (-1, -INF, 0.0), (0, INF, 0.0), (1, 0, INF), (7, -2, -4),
    ],
)  # fmt: skip
def test_floor_divide_at_infinity(x: float, y: float, expected: float) -> None:
    found = pa.floor_divide(pa.asarray([x], dtype=pa.float32), pa.asarray([y], dtype=pa.float32)).numpy()
    np.testing.assert_array_equal(found, [expected])
    assert np.isnan(expected) or np.signbit(found[0]) == np.signbit(expected)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [(1, INF, 1), (-1, INF, INF), (1, -INF, -INF), (-1, -INF, -1), (0, INF, 0), (INF, 2, NAN), (1, 0, NAN)],
)
def test_remainder_at_infinity(x: float, y: float, expected: float) -> None:
    """Single elements are tested because a kernel may have a shortcut for many ordinary ones."""
    found = pa.remainder(pa.asarray([x], dtype=pa.float32), pa.asarray([y], dtype=pa.float32)).numpy()
    np.testing.assert_array_equal(found, [expected])


def test_python_numbers_beyond_the_dtype() -> None:
    with pytest.raises(OverflowError):
        pa.asarray([300], dtype=pa.uint8)
    with pytest.raises(OverflowError):
        pa.asarray(-1, dtype=pa.uint16)
    assert pa.asarray(np.array([300]), dtype=pa.uint8).tolist() == [44]  # a conversion, which wraps


def test_complex_of_one_element() -> None:
    assert complex(pa.asarray(2.5)) == 2.5 + 0j


# ---- indexing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 0, 4), (0,)])
@pytest.mark.parametrize("axes", [0, 1])
def test_masks_over_arrays_without_elements(shape: tuple, axes: int) -> None:
    mask = np.arange(np.prod(shape[:axes], dtype=int)).reshape(shape[:axes]) % 2 == 0
    host = np.zeros(shape, np.float32)
    x = pa.asarray(host)
    assert x[pa.asarray(mask)].shape == host[mask].shape
    x[pa.asarray(mask)] = x[pa.asarray(mask)]
    assert x.shape == shape


@pytest.mark.parametrize(("shape", "mask"), [((3, 4), (0, 4)), ((3, 4), (0,)), ((0, 1), (0, 0)), ((3, 4), (3, 0))])
def test_masks_without_elements_choose_none(shape: tuple, mask: tuple) -> None:
    x, key = pa.ones(shape), pa.zeros(mask, dtype=pa.bool)
    assert x[key].shape == np.ones(shape)[np.zeros(mask, np.bool_)].shape
    x[key] = 5.0
    assert x.tolist() == np.ones(shape).tolist()
    with pytest.raises(IndexError):
        x[pa.zeros((0, 2), dtype=pa.bool)]


# ---- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: x[True], IndexError),
        (lambda x: pa.nonzero(pa.asarray(1)), ShapeError),
        (lambda x: pa.expand_dims(x, axis=3), IndexError),
        (lambda x: pa.expand_dims(x, axis=-4), IndexError),
        (lambda x: pa.expand_dims(x, axis=(0, -5)), IndexError),
        (lambda x: pa.expand_dims(x, axis=(3, -1)), IndexError),
        (lambda x: pa.permute_dims(x, (0, -2)), ShapeError),
        (lambda x: pa.argmax(x, axis=(0, 1)), TypeError),
        (lambda x: pa.take(x, [0, 1]), TypeError),
        (lambda x: x + None, TypeError),
        (lambda x: pa.add(x, [1.0, 2.0, 3.0]), TypeError),
        (lambda x: pa.sum(x, axis=np.array([0])), TypeError),
        (lambda x: pa.reshape(x, np.array([3, 2])), TypeError),
        (lambda x: pa.sum(x, axis=0.0), TypeError),
        (lambda x: pa.zeros((2.5,)), TypeError),
        (lambda x: pa.reshape(pa.zeros((0, 3)), (-1, 0)), ShapeError),
        (lambda x: pa.vecdot(pa.asarray(1.0), pa.asarray(1.0)), ShapeError),
        (lambda x: pa.vecdot(x, x, axis=5), ShapeError),
        (lambda x: pa.tensordot(x, x, axes=-1), ShapeError),
        (lambda x: pa.repeat(x, pa.asarray([1, 2]), axis=1), ShapeError),
        (lambda x: pa.cumulative_prod(x), ShapeError),
        (lambda x: pa.diff(x, n=-1), ValueError),
    ],
)
def test_errors(call: Callable, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(pa.asarray([[1.5, 2.5, 3.5]]))  # a shape of its own: a cached plan of another call would hide the check


def test_in_place_results_keep_shape_and_dtype() -> None:
    x = vector()
    with pytest.raises(DtypeError, match=r"in place it must stay int8\[3\], so cast one of the two$"):
        x += vector("int16")
    with pytest.raises(ShapeError, match=r"in place it must stay int8\[3\]"):
        x += pa.zeros((2, 3), dtype=pa.int8)


def test_an_axis_that_is_a_bool_or_a_numpy_integer_leaves_no_trace() -> None:
    x = pa.ones((5, 7, 2))
    for axis in (True, np.int64(1), 1):
        assert pa.sum(x, axis=axis).shape == (5, 2) and pa.flip(x, axis=axis).shape == x.shape
    assert pa.argmax(pa.ones((5, 7, 3)), axis=np.int64(1)).shape == (5, 3)


def test_no_difference_is_the_array_itself() -> None:
    """Without prepend and append, as in NumPy, and with a new handle."""
    x = pa.asarray([1.0, 3.0])
    y = pa.diff(x, n=0, prepend=pa.zeros(1), append=pa.zeros(1))
    y += 1
    assert y.tolist() == [2, 4] and x.tolist() == [1, 3]
