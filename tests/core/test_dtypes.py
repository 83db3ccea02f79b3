"""Type promotion by the standard's table, conversions, and the dtypes that ops accept."""

import itertools
import re

import ml_dtypes
import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend
from polyarr.core.errors import DtypeError
from polyarr.core.spec import COMPLEX, DTYPES, FLOATS, INTEGERS, SIGNED, UNSIGNED
from polyarr.testing.strategies import Data

NAMES = [d.name for d in DTYPES]

# The standard's tables: each line has a dtype and its promotions with the dtypes after it.
SIGNED_TABLE = [["int8", "int16", "int32", "int64"], ["int16", "int32", "int64"], ["int32", "int64"], ["int64"]]
MIXED_TABLE = {
    ("int8", "uint8"): "int16", ("int8", "uint16"): "int32", ("int8", "uint32"): "int64",
    ("int16", "uint8"): "int16", ("int16", "uint16"): "int32", ("int16", "uint32"): "int64",
    ("int32", "uint8"): "int32", ("int32", "uint16"): "int32", ("int32", "uint32"): "int64",
    ("int64", "uint8"): "int64", ("int64", "uint16"): "int64", ("int64", "uint32"): "int64",
}  # fmt: skip


def rank(dtype: str) -> int:
    """Return the place of a dtype's kind: bool, integers, then floats and complex numbers."""
    return 0 if dtype == "bool" else 1 if "int" in dtype else 2


def expected_promotion(a: str, b: str) -> str | None:
    """Return the standard's promotion; bfloat16 joins the floats, and with float16 gives float32.

    Of two kinds, of which the standard says nothing, the higher one's dtype, as in JAX and PyTorch.
    """
    if a == b:
        return a
    if rank(a) != rank(b):
        return max(a, b, key=rank)
    if any("complex" in n for n in (a, b)) and all("complex" in n or "float" in n for n in (a, b)):
        return "complex128" if {"float64", "complex128"} & {a, b} else "complex64"
    kinds = {
        n: {"b": "bool", "u": "uint", "i": "int", "c": "complex"}.get(n[0], "float") if n != "bfloat16" else "float"
        for n in (a, b)
    }
    if set(kinds.values()) == {"int", "uint"}:
        return MIXED_TABLE.get(tuple(sorted((a, b))))
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    return max(a, b, key=lambda n: np.dtype(getattr(pa, n)).itemsize)


@pytest.mark.parametrize(("a", "b"), list(itertools.product(NAMES, NAMES)))
def test_promotion(on_numpy: Backend, a: str, b: str) -> None:
    x, y = pa.ones(2, dtype=a), pa.ones(2, dtype=b)
    expected = expected_promotion(a, b)
    combine = ops.where if "bool" in (a, b) else None
    call = (lambda: combine(pa.asarray([True, False]), x, y)) if combine else (lambda: ops.add(x, y))
    if expected is None:
        for fn in (call, lambda: pa.result_type(a, b)):
            with pytest.raises(DtypeError, match="cannot promote"):
                fn()
        assert not pa.can_cast(a, b)
    else:
        assert call().dtype.name == pa.result_type(x, b).name == expected
        assert pa.can_cast(a, expected) == (rank(a) == rank(expected))
        assert pa.can_cast(b, expected) == (rank(b) == rank(expected))


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("number", [True, 1, 1.0, 1 + 0j])
def test_python_numbers_are_weak(on_numpy: Backend, dtype: str, number: object) -> None:
    x = pa.ones(2, dtype=dtype)
    if type(number) is complex:
        expected = {"float64": "complex128"}.get(dtype, dtype if "complex" in dtype else "complex64")
    else:
        expected = max(dtype, {bool: "bool", int: "int64", float: "float32"}[type(number)], key=rank)
    assert ops.equal(x, number).tolist() == [True, True]
    assert ops.where(pa.asarray([True, False]), x, number).dtype == expected
    assert pa.result_type(x, number) == expected


@pytest.mark.parametrize("source", NAMES)
def test_every_conversion(backend: Backend, source: str) -> None:
    values = "positive" if "float" in source or "complex" in source else "mixed"
    host = Data((33,), source, values, seed=3).numpy()
    x = pa.asarray(host)
    for target in DTYPES:
        if source[:7] == "complex" and target not in (*COMPLEX, pa.bool):
            with pytest.raises(DtypeError, match=r"has no imaginary part; take real, imag or abs first"):
                x.astype(target)
            continue
        got = x.astype(target)
        assert got.dtype == target
        through = host.astype("float64") if target == ml_dtypes.bfloat16 and source[0] in "iu" else host
        with np.errstate(all="ignore"):
            expected = through.astype(target)
        if target in FLOATS:
            a, b = got.numpy().astype("float64"), expected.astype("float64")
            np.testing.assert_allclose(a, b, rtol=float(pa.finfo(target).eps))
        else:
            np.testing.assert_array_equal(got.numpy(), expected)


def test_conversion_cuts_and_asks(backend: Backend) -> None:
    x = pa.asarray([-1.9, -0.5, 0.0, 0.5, 1.9, 200.0])
    assert x.astype("int32").tolist() == [-1, 0, 0, 0, 1, 200]
    assert x.astype(bool).tolist() == [True, True, False, True, True, True]
    assert x.astype("uint8")[2:].tolist() == [0, 0, 1, 200]
    assert pa.asarray([float("nan"), -0.0]).astype("bool").tolist() == [True, False]
    assert pa.asarray([300, -1], dtype="int32").astype("uint8").tolist() == [44, 255]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_to_16_bits_is_to_the_even_neighbour(backend: Backend, dtype: str) -> None:
    step = float(pa.finfo(dtype).eps)
    values = [
        1 + step / 2,
        1 + 3 * step / 2,
        1 + step * 0.51,
        1e-8,
        1e39,
        -1e39,
        65519.0,
        65520.0,
        float("nan"),
        -0.0,
        6e-8,
    ]
    with np.errstate(all="ignore"):
        host = np.asarray(values, "float64").astype("float32")
        expected = host.astype(getattr(pa, dtype))
    got = pa.asarray(host).astype(dtype).numpy()
    np.testing.assert_array_equal(got.astype("float32"), expected.astype("float32"))
    assert np.signbit(got.astype("float32"))[-2]
    np.testing.assert_array_equal(pa.asarray(expected).astype("float32").numpy(), expected.astype("float32"))


@pytest.mark.parametrize("dtype", NAMES)
def test_every_dtype_survives_the_way_there_and_back(backend: Backend, dtype: str) -> None:
    for shape in ((5,), (), (0, 3), (2, 3)):
        host = Data(shape, dtype, "mixed", seed=1).numpy()
        back = pa.asarray(host).numpy()
        assert back.dtype == host.dtype and back.shape == host.shape
        assert back.tobytes() == host.tobytes()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64", "int32", "int64"])
def test_indices_of_every_integer_dtype(backend: Backend, dtype: str) -> None:
    at = pa.asarray([2, 0], dtype=dtype)
    table = pa.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert ops.embedding(table, at).tolist() == [[5, 6], [1, 2]]
    assert ops.take(table, at).tolist() == [[5, 6], [1, 2]]
    assert ops.take_along_axis(table[:, 0], at, axis=0).tolist() == [5, 1]
    assert ops.scatter_add(pa.zeros(3), at, pa.ones(2)).tolist() == [1, 0, 1]
    assert ops.scatter_add_along_axis(pa.zeros(3), at, pa.ones(2), axis=0).tolist() == [1, 0, 1]
    logits = pa.asarray([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    wide = ops.cross_entropy(logits, at.astype("int64")).item()
    assert ops.cross_entropy(logits, at).item() == wide
    grad = pa.grad(lambda w: ops.sum(ops.embedding(w, at)))(table)
    assert grad.tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize("dtype", [d.name for d in (pa.bool, *INTEGERS)])
def test_sums_of_integers_are_wide(backend: Backend, dtype: str) -> None:
    x = pa.asarray(np.full(100, 100 if dtype != "bool" else True).astype(dtype))
    expected = "uint64" if x.dtype in UNSIGNED else "int64"
    assert ops.sum(x).dtype == expected and ops.cumulative_sum(x).dtype == expected
    assert ops.sum(x).item() == (100 if dtype == "bool" else 10_000)
    assert ops.cumulative_sum(x)[-1].item() == ops.sum(x).item()


@pytest.mark.parametrize("dtype", [d.name for d in SIGNED])
def test_the_lowest_integer(backend: Backend, dtype: str) -> None:
    """Its negative and its quotient by -1 overflow; they wrap without a crash."""
    low = int(np.iinfo(dtype).min)
    x = pa.asarray([low, low, 7], dtype=dtype)
    y = pa.asarray([-1, 0, 0], dtype=dtype)
    assert ops.negative(x).tolist() == [low, low, -7]
    assert ops.abs(x).tolist() == [low, low, 7]
    assert ops.floor_divide(x, y).tolist()[1:] == [0, 0]
    assert ops.remainder(x, y).tolist() == [0, 0, 0]
    assert ops.floor_divide(x, -1).shape == (3,)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_whole_numbers_above_two_to_the_53(backend: Backend, dtype: str) -> None:
    n = 2**62 + 1
    x = pa.asarray([n, n - 1], dtype=dtype)
    assert (x + 1).tolist() == [n + 1, n]
    assert (x - x[1]).tolist() == [1, 0]
    assert ops.maximum(x, n).tolist() == [n, n]
    assert (x == n).tolist() == [True, False]
    assert ops.max(x).item() == n and ops.argmax(x).item() == 0
    assert ops.sort(x).tolist() == [n - 1, n]
    assert (x // 2).tolist() == [n // 2, (n - 1) // 2]
    for fn in (ops.round, ops.floor, ops.ceil, ops.trunc, ops.positive):
        assert fn(x).tolist() == [n, n - 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, i, b: pa.rms_norm(i), r"x is int32\[2\]; .*, so write x\.astype\(polyarr\.float32\)$"),
        (lambda x, i, b: ops.bitwise_and(x, x), "its dtype must be integer or bool"),
        (lambda x, i, b: b - b, "its dtype must be numeric, not bool"),
        (lambda x, i, b: (x + 1j) < x, "its dtype must be real-valued"),
        (lambda x, i, b: i + i.astype("uint64"), r"cannot promote int32\[2\] and uint64\[2\]; cast one of them"),
        (lambda x, i, b: ops.where(i, x, x), "its dtype must be bool"),
        (lambda x, i, b: ops.exp(0.5), "at least one input must be an array, by polyarr.asarray$"),
        (lambda x, i, b: ops.add(1, 2), "got only Python numbers; at least one input must be an array"),
        (lambda x, i, b: ops.take(x, x), "indices is"),
        (lambda x, i, b: x.astype("complex256"), "no dtype 'complex256'; polyarr has bool, int8"),
        (lambda x, i, b: pa.zeros(2, dtype="str"), "no dtype 'str'"),
        (lambda x, i, b: x.astype("flaot32"), "no dtype 'flaot32'"),
        (lambda x, i, b: x.astype(None), "no dtype None"),
        (lambda x, i, b: pa.asarray([1.5], dtype="flaot32"), "no dtype 'flaot32'"),
        (lambda x, i, b: pa.finfo("nothing"), "no dtype 'nothing'"),
        (lambda x, i, b: pa.asarray(["a"]), "must hold numbers"),
    ],
)
def test_errors(on_numpy: Backend, call, message: str) -> None:
    x, i, b = pa.asarray([1.0, 2.0]), pa.asarray([1, 2], dtype="int32"), pa.asarray([True, False])
    with pytest.raises(DtypeError, match=message):
        call(x, i, b)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64"])
@pytest.mark.parametrize(
    "call",
    [
        pa.exp, pa.mean, pa.var, pa.std, pa.softmax, pa.log_softmax, pa.gelu, pa.sigmoid, lambda x: x / (x + 1),
        lambda x: 2 / x, lambda x: x * 0.5, lambda x: x > 0.5, lambda x: pa.where(x > 0, x, 0.5), pa.linalg.vector_norm,
        pa.linalg.svdvals, pa.linalg.inv, pa.linalg.pinv, pa.linalg.matrix_rank, lambda x: pa.linalg.solve(x, x),
        pa.fft.fft, pa.fft.rfft, pa.fft.irfft, lambda x: pa.compile(pa.log)(x),
    ],
)  # fmt: skip
def test_integers_become_float32_where_floats_are_required(on_numpy: Backend, call, dtype: str) -> None:
    x = pa.asarray([[1, 0], [1, 1]], dtype=dtype)
    found, expected = call(x), call(x.astype("float32"))
    assert found.dtype == expected.dtype and found.tolist() == expected.tolist()


def test_gradients_pass_beside_integers(backend: Backend) -> None:
    mask, count = pa.asarray([True, False, True]), pa.asarray([1, 2, 3], dtype="int16")
    x = pa.asarray([1.0, 2.0, 3.0], dtype="bfloat16")
    found = pa.grad(lambda x: pa.sum(x * mask * count / 2 * True))(x)
    assert found.dtype == pa.bfloat16 and found.tolist() == [0.5, 0.0, 1.5]


def test_default_dtypes(on_numpy: Backend) -> None:
    for made, dtype in (
        (pa.asarray([1.0]), "float32"), (pa.asarray([1]), "int64"), (pa.asarray([True]), "bool"),
        (pa.zeros(1), "float32"),
        (pa.full((1,), 2), "int64"), (pa.full((1,), 2.0), "float32"), (pa.full((1,), True), "bool"),
        (pa.arange(3), "int64"),
        (pa.arange(3.0), "float32"), (pa.eye(2), "float32"), (pa.linspace(0, 1, 3), "float32"),
        (pa.asarray(np.zeros(2)), "float64"),
    ):  # fmt: skip
        assert made.dtype == dtype


@pytest.mark.parametrize(
    "call",
    [
        lambda: pa.ones((2, 3), dtype="float64"),
        lambda: pa.arange(3, dtype="float64"),
        lambda: pa.asarray([1.0]).astype("float64"),
        lambda: pa.sum(pa.asarray([1.0]), dtype="float64"),
        lambda: pa.asarray(np.ones(3)),
    ],
)
def test_a_dtype_that_the_backend_does_not_hold_is_refused(call) -> None:
    single = get_backend("numpy")._replace(name="single", dtypes=frozenset({pa.float32, pa.int64}))
    held = re.escape("float64 on 'single' (the host's CPU, NumPy); it holds int64, float32")
    with pa.use_backend(single), pytest.raises(DtypeError, match=held):
        call()


def test_the_root_of_minus_infinity_as_a_power(backend: Backend) -> None:
    """The standard's value; NumPy takes a square root if all exponents are 0.5."""
    assert pa.pow(pa.asarray([-np.inf, 4.0]), 0.5).tolist() == [np.inf, 2.0]


def test_overflow_is_not_worth_a_warning(on_numpy: Backend) -> None:
    big = pa.asarray([np.finfo("float32").max] * 2, dtype="float32")
    assert np.isinf(pa.cumulative_sum(big).numpy()[1])
    assert np.isinf(ops.scatter_add(big, pa.asarray([0]), big[:1]).numpy()[0])
    assert np.isinf(ops.nextafter(big, pa.full_like(big, np.inf)).numpy()).all()


@pytest.mark.parametrize("fn", [
    lambda xp, x, y: x + y, lambda xp, x, y: x * y, lambda xp, x, y: x + True, lambda xp, x, y: xp.maximum(x, y),
    lambda xp, x, y: x < y, lambda xp, x, y: xp.max(x, axis=0), lambda xp, x, y: xp.min(x),
    lambda xp, x, y: xp.argmax(y), lambda xp, x, y: xp.argmin(x), lambda xp, x, y: xp.sort(y),
    lambda xp, x, y: xp.argsort(x, stable=True),
])  # fmt: skip
def test_bools_compute_as_in_numpy(backend, fn):
    x, y = np.array([True, False, True, False]), np.array([False, False, True, True])
    due, found = fn(np, x, y), fn(pa, pa.asarray(x), pa.asarray(y))
    assert str(found.dtype) == f"{due.dtype}"
    np.testing.assert_array_equal(found.numpy(), due)
