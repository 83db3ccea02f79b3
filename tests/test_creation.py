"""Array creation: dtypes, and numbers that do not fit."""

import array
import collections
import inspect
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend


class Column:
    """An array-like as a pandas column: it has a dtype and __array__, and is no NumPy array."""

    def __init__(self, *values: float, dtype: str) -> None:
        self.values, self.dtype = np.array(values, dtype), np.dtype(dtype)

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int):
        return self.values[i]


half, brain = np.float16(1.5), ml_dtypes.bfloat16(1.5)
GIVEN = {
    "a buffer": (memoryview(np.ones(2)), "float64"),
    "array.array": (array.array("d", [1, 2]), "float64"),
    "array.array of int16": (array.array("h", [1, 2]), "int16"),
    "a column": (Column(1.0, 2.0, dtype="float64"), "float64"),
    "an integer column": (Column(1, 2, dtype="int8"), "int8"),
    "NumPy scalars": ([np.float64(1), np.float64(2)], "float64"),
    "a NumPy scalar and a float": ([np.float32(1), 2.0], "float32"),
    "a NumPy double and a float": ([2.0, np.float64(1)], "float64"),
    "a NumPy integer and a float": ([np.int8(1), 2.5], "float32"),
    "a NumPy integer and an int": ([np.int8(1), 2], "int64"),
    "both 16-bit floats": ([half, brain], "float32"),
    "one 16-bit float": ([[brain], [brain]], "bfloat16"),
    "NumPy arrays": ([np.ones(2, "float32"), np.ones(2)], "float64"),
    "Python floats": ([1.0, 2.0], "float32"),
    "Python numbers": ([True, 2, 3.5], "float32"),
    "Python ints and bools": ([True, 2], "int64"),
    "Python bools": ([True, False], "bool"),
    "a deque of floats": (collections.deque([1.0, 2.0]), "float32"),
    "a range": (range(3), "int64"),
    "nothing": ([], "float32"),
    "rows of nothing": ([[], []], "float32"),
    "a tuple": ((1.0, 2), "float32"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_dtype_of_what_is_given(on_numpy: Backend, name: str) -> None:
    given, dtype = GIVEN[name]
    found = pa.asarray(given)
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found.numpy().astype(np.float64), np.asarray(given).astype(np.float64))


def test_arrays_in_a_list_keep_their_dtype(backend: Backend) -> None:
    doubles = [pa.asarray(0.1, dtype="float64"), pa.asarray(0.2, dtype="float64")]
    assert pa.asarray(doubles).dtype == pa.float64 and pa.asarray(doubles).tolist() == [0.1, 0.2]
    assert pa.asarray([pa.ones(2), [1, 2]]).dtype == pa.float32
    assert pa.asarray([doubles[0], 1.0]).dtype == pa.float64


def test_arrays_in_a_list_keep_their_gradient(backend: Backend) -> None:
    def rows(x: pa.Array) -> pa.Array:
        return pa.asarray([[x[0] ** 2, x[0] * x[1]], (3, x[1])])

    x = pa.asarray([2.0, 5.0])
    assert rows(x).tolist() == [[4, 10], [3, 5]]
    assert pa.jacrev(rows)(x).tolist() == [[[4, 0], [5, 2]], [[0, 0], [0, 1]]]
    assert pa.compile(rows)(x).tolist() == rows(x).tolist()
    assert pa.vmap(rows)(pa.stack([x, 2 * x])).tolist() == [rows(x).tolist(), rows(2 * x).tolist()]
    moved = pa.asarray([x.to("numpy"), [1, 2]], dtype="float64")
    assert moved.device == x.device and moved.dtype == pa.float64
    for ragged in ([x, x[0]], [x, []], [[x], [1, 2]]):
        with pytest.raises(ValueError, match=r"^asarray: got a list of rows of several lengths; "):
            pa.asarray(ragged)


def test_what_holds_no_numbers_is_refused(on_numpy: Backend) -> None:
    for given in ("abc", [None], {"a": 1}, ["1"], [object()]):
        with pytest.raises(pa.DtypeError, match="it must hold numbers"):
            pa.asarray(given)
        with pytest.raises(pa.DtypeError, match="it must hold numbers"):
            pa.asarray(given, dtype="float32")
    for given in (1j, [1j], np.array([1 + 2j])):
        with pytest.raises(pa.DtypeError, match="asarray: got complex numbers; float32 has no imaginary part"):
            pa.asarray(given, dtype="float32")
    with pytest.raises(pa.DtypeError, match=r"cannot promote int64.* and uint64"):
        pa.asarray([np.int64(1), np.uint64(1)])


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", ">i2", ">u4", ">i8"])
def test_numbers_of_the_other_byte_order_are_taken(backend: Backend, dtype: str) -> None:
    host = np.array([[1, 2, 3], [4, 5, 1000]], dtype)
    for given in (host, host.T[::-1], [host, host], host[0, 0]):
        found = pa.asarray(given)
        assert found.dtype == np.dtype(dtype).newbyteorder("=")
        np.testing.assert_array_equal(found.numpy(), np.asarray(given))


UNFIT = {
    "ragged": (lambda: pa.asarray([[1], [2, 3]]), ValueError, "^asarray: got a list of rows of several lengths; "),
    "nan as int": (lambda: pa.asarray([np.nan], dtype="int32"), ValueError, "^asarray: int32 cannot hold an element: "),
    "a length": (lambda: pa.zeros(2.0), TypeError, "^zeros: shape is 2.0; it must be an int or a tuple of ints$"),
    "a shape": (lambda: pa.ones(pa.asarray([2, 3])), TypeError, r"^ones: shape is int64\[2\]; it must be"),
    "no array": (lambda: pa.full_like([1, 2], 3), TypeError, "^full_like: x is a list; it must be a polyarr array"),
    "a word": (lambda: pa.arange("3"), TypeError, "^arange: stop is '3'; it must be a number$"),
    "no step": (lambda: pa.arange(0, 1, None), TypeError, "^arange: step is None; it must be a number"),
    "nan": (lambda: pa.arange(np.nan), ValueError, "^arange: from 0 to nan by 1; these numbers must be finite$"),
    "no end": (lambda: pa.arange(np.inf), OverflowError, "^arange: from 0 to inf by 1; these numbers must be finite$"),
    "a list": (lambda: pa.linspace([0, 1], 2, 3), TypeError, r"^linspace: start is \[0, 1\]; it must be a number$"),
    "complex": (lambda: pa.linspace(0, 1j, 3, dtype="int8"), pa.DtypeError, "^linspace: an element is 0j; int8 has no"),
    "half a number": (lambda: pa.linspace(0, 1, 2.5), TypeError, "^linspace: num is 2.5; it must be an int"),
    "fewer than none": (lambda: pa.linspace(0, 1, -1), pa.ShapeError, r"^linspace: num is \[-1\]; lengths must not"),
    "wraps around": (lambda: pa.linspace(0, 300, 3, dtype="int8"), OverflowError, "^linspace: an element is 300.0;"),
    "a negative eye": (lambda: pa.eye(-1), pa.ShapeError, r"^eye: shape is \[-1, -1\]; lengths must not be negative$"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_named(on_numpy: Backend, name: str) -> None:
    call, error, message = UNFIT[name]
    with pytest.raises(error, match=message):
        call()


def test_an_array_without_axes_is_a_number(backend: Backend) -> None:
    for three in (pa.asarray(3), np.array(3), np.int8(3)):
        assert pa.arange(three).tolist() == [0, 1, 2] and pa.arange(three).dtype == pa.int64
    assert pa.arange(pa.asarray(1.5)).dtype == pa.float32
    assert pa.linspace(pa.asarray(0.0), np.float32(1), np.int64(3)).tolist() == [0, 0.5, 1]


def test_full_takes_the_dtype_of_its_value(backend: Backend) -> None:
    assert pa.full((2,), pa.asarray(3)).dtype == pa.int64
    assert pa.full((2,), pa.asarray(3, dtype="int8")).dtype == pa.int8
    assert pa.full((2,), np.float64(0.1)).tolist() == [0.1, 0.1]
    assert pa.full((2,), np.array(3, "int32")).dtype == pa.int32
    assert pa.full((2, 2), [1, 2]).tolist() == [[1, 2], [1, 2]]
    assert pa.full((2,), pa.asarray(3), dtype="float32").dtype == pa.float32
    assert [pa.full(1, v).dtype.name for v in (1, 1.0, True)] == ["int64", "float32", "bool"]
    with pytest.raises(pa.ShapeError, match=r"does not broadcast to \[2\]"):
        pa.full((2,), pa.ones(3))


# ---- numbers that do not fit -------------------------------------------------------------------------------------

small = lambda: pa.asarray([1, 2], dtype="int8")
TOO_LARGE = {
    "add": (lambda: small() + 300, r"^add: y is 300; int8 holds -128 to 127, so choose a wider dtype$"),
    "add, in front": (lambda: 300 + small(), "^add: x is 300; int8"),
    "a negative unsigned": (lambda: pa.asarray([1], dtype="uint8") * -1, "^multiply: y is -1; uint8 holds 0 to 255"),
    "compare": (lambda: small() < 128, "^less: y is 128"),
    "where": (lambda: pa.where(small() > 1, small(), 200), "^where: y is 200"),
    "clip": (lambda: pa.clip(small(), max=1000), "^clip: max is 1000"),
    "set an item": (lambda: small().__setitem__(0, -129), "value is -129"),
    "full": (lambda: pa.full(2, 256, dtype="uint8"), "^full: fill_value is 256"),
    "full of nan": (lambda: pa.full(2, float("nan"), dtype="int32"), "^full: fill_value is nan; int32"),
    "full_like": (lambda: pa.full_like(small(), 1 << 40), "^fill: value is 1099511627776"),
    "pad": (lambda: pa.ops.pad(small(), pad_width=1, constant_values=999), "^fill: value is 999"),
    "arange": (lambda: pa.arange(300, dtype="int8"), "^arange: an element is 299; int8"),
    "arange below": (lambda: pa.arange(0, -2, -1, dtype="uint8"), "^arange: an element is -1; uint8"),
    "a float": (lambda: pa.ones(2) + 10**400, "^add: y is an int of 1329 bits; float32 holds"),
    "asarray": (lambda: pa.asarray([300], dtype="int8"), "^asarray: int8 cannot hold an element: "),
    "asarray by default": (lambda: pa.asarray([2**63]), "^asarray: int64 cannot hold an element: "),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_number_beyond_the_dtype_is_an_error(backend: Backend, name: str) -> None:
    call, message = TOO_LARGE[name]
    with pytest.raises(OverflowError, match=message):
        call()


def test_numbers_at_the_limits_fit(backend: Backend) -> None:
    for dtype in (pa.int8, pa.uint8, pa.int32, pa.int64, pa.uint64):
        limits = pa.iinfo(dtype)
        zero = pa.zeros(1, dtype=dtype)
        assert (zero + int(limits.max)).tolist() == [limits.max] == pa.full(1, int(limits.max), dtype=dtype).tolist()
        assert (zero + int(limits.min)).tolist() == [limits.min] == pa.full(1, int(limits.min), dtype=dtype).tolist()
    assert pa.arange(5, -1, -1, dtype="uint8").tolist() == [5, 4, 3, 2, 1, 0]
    assert (pa.ones(1) + float("inf")).tolist() == [float("inf")]
    assert pa.full(2, 300, dtype="bool").tolist() == [True, True]


@pytest.mark.polyarr_backend("opencl")
@pytest.mark.parametrize(("start", "step", "size"), [(-1, 1 / 6, 13), (0, 0.1, 30000), (-5, 1e-3, 5000), (3e7, 1, 9)])
def test_arange_on_a_device_without_float64_is_rounded_once(backend, monkeypatch, start, step, size):
    """Numbers are sums of two float32, because the step's rounding error would grow with each element."""
    device = backend.home
    monkeypatch.setattr(device, "features", device.features._replace(fp64=False))
    monkeypatch.setattr(device, "plans", type(device.plans)(device))
    found = pa.ops.iota(start, step, size=size, dtype=np.dtype("float32")).numpy()
    np.testing.assert_array_equal(found, (start + np.arange(size) * float(step)).astype(np.float32))


ON_A_DEVICE = {  # function with a keyword `device` -> a call without it
    "arange": lambda to: pa.arange(3, **to),
    "asarray": lambda to: [pa.asarray(value, **to) for value in ([1], pa.ones(2), np.ones(2))],
    "astype": lambda to: [pa.astype(pa.ones(2), dtype, **to) for dtype in ("float32", "int8")],
    "empty": lambda to: pa.empty(3, **to),
    "empty_like": lambda to: pa.empty_like(pa.ones(2), **to),
    "eye": lambda to: pa.eye(2, **to),
    "from_dlpack": lambda to: [pa.from_dlpack(value, **to) for value in (pa.ones(2), np.ones(2))],
    "full": lambda to: [pa.full(2, value, **to) for value in (3.0, np.float32(3), pa.asarray(3))],
    "full_like": lambda to: [pa.full_like(pa.ones(2), value, **to) for value in (3.0, pa.asarray(3.0))],
    "linspace": lambda to: pa.linspace(0, 1, 3, **to),
    "load": lambda to: pa.load("x.safetensors", **to),
    "ones": lambda to: pa.ones(2, **to),
    "ones_like": lambda to: pa.ones_like(pa.ones(2), **to),
    "zeros": lambda to: pa.zeros((2, 0), **to),
    "zeros_like": lambda to: pa.zeros_like(pa.ones(2), **to),
}


@pytest.mark.parametrize("name", [*ON_A_DEVICE, "all of them"])
def test_a_device_is_honored(name: str, on_numpy: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pa.save("x.safetensors", pa.ones(2))
    if name == "all of them":
        functions = (n for n in pa.__all__ if callable(getattr(pa, n)) and not isinstance(getattr(pa, n), type))
        takers = {n for n in functions if "device" in inspect.signature(getattr(pa, n)).parameters}
        assert takers == ON_A_DEVICE.keys()
        return
    other = on_numpy._replace(name="other", home=None)
    for device in (other, on_numpy, None):
        found = ON_A_DEVICE[name]({"device": device})
        for x in found if isinstance(found, list) else [found]:
            assert x.device == (device or on_numpy).name and x.backend is (device or on_numpy), device
