"""Functions of NumPy called with arrays: ufuncs and reductions run as ops, others on a copy on the host."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend

UFUNCS = """abs add arctan2 bitwise_and ceil conjugate copysign cosh divide equal exp expm1 floor_divide greater hypot
invert isfinite isnan left_shift less_equal log1p logaddexp logical_not logical_or matmul maximum multiply negative
not_equal power reciprocal remainder rint sign signbit sin sqrt square subtract trunc""".split()
REDUCTIONS = "all any argmax argmin max mean min prod std sum var".split()


def matrix(dtype: Any = "float32") -> np.ndarray:
    return np.array([[1, 2], [3, 4]], dtype)


@pytest.mark.parametrize("name", UFUNCS)
def test_ufuncs_run_as_ops(backend: Backend, name: str) -> None:
    ufunc = getattr(np, name)
    kind = {"bitwise_and": "int32", "invert": "int32", "left_shift": "int32"}.get(name, "float32")
    host = matrix(kind)
    found = ufunc(*[pa.asarray(host)] * ufunc.nin)
    assert type(found) is pa.Array and found.device == backend.name
    np.testing.assert_allclose(found.numpy(), ufunc(*[host] * ufunc.nin), rtol=1e-5)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 1])
def test_reductions_run_as_ops(backend: Backend, name: str, axis: int | None) -> None:
    host = matrix("bool" if name in ("all", "any") else "float32")
    found = getattr(np, name)(pa.asarray(host), axis=axis)
    assert type(found) is pa.Array and found.device == backend.name
    np.testing.assert_allclose(found.numpy(), getattr(np, name)(host, axis=axis), rtol=1e-6)


def test_gradients_pass_through_ufuncs_and_reductions(on_numpy: Backend) -> None:
    grad = pa.grad(lambda x: np.sum(np.square(x) * np.float32(3)))(pa.asarray([1.0, 2.0]))
    assert grad.tolist() == [6, 12]


@pytest.mark.parametrize(
    "call",
    [np.sort, np.cumsum, np.median, np.stack, np.linalg.norm, lambda x: np.reshape(x, -1), lambda x: np.clip(x, 2, 3)],
)
def test_other_functions_run_on_the_host(backend: Backend, call: Callable) -> None:
    found = call(pa.asarray(matrix()))
    assert isinstance(found, (np.ndarray, np.generic)) and np.array_equal(found, call(matrix()))


def test_scalars_of_numpy_are_numbers(on_numpy: Backend) -> None:
    x = pa.asarray([1.0, 2.0])
    assert (np.float32(2) * x).tolist() == [2, 4] and (np.float64(3) - x).tolist() == [2, 1]
    assert (np.float32(1) < x).tolist() == [False, True] and (np.float32(1) == x).tolist() == [True, False]
    assert (np.int64(2) ** pa.asarray([1, 2])).dtype == pa.int64
    assert (x * np.complex64(1j)).dtype == pa.complex64 and (np.complex128(2) + x).tolist() == [3, 4]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: np.ones(2) + x, r"^add: x is a numpy\.ndarray; it must be .* so write polyarr\.asarray\(x\)"),
        (lambda x: np.ones(2) == x, r"^equal: x is a numpy\.ndarray; it must be a polyarr array"),
        (np.frexp, r"^numpy\.frexp: got a polyarr array; write numpy\.frexp\(x\.numpy\(\)\)$"),
        (np.degrees, r"^numpy\.degrees: got a polyarr array; write x \* \(180 / pa\.pi\), or numpy\.degrees\("),
        (lambda x: np.exp(x, out=np.ones(2)), r"^numpy\.exp: got a polyarr array with out; write pa\.exp, or numpy\."),
        (np.add.reduce, r"^numpy\.add\.reduce: got a polyarr array; write numpy\.add\.reduce\(x\.numpy\(\)\)$"),
        (lambda x: np.maximum.at(x, [0], 1.0), r"^numpy\.maximum\.at: got a polyarr array; write pa\.where\("),
        (lambda x: np.add.at(x, [0], 1.0), r"^numpy\.add\.at: got a polyarr array; write pa\.scatter_add\(x, "),
        (lambda x: np.sum(x, out=np.ones(())), r"^sum: unknown argument out \(leave it out: results"),
        (lambda x: np.std(x, ddof=1), r"^std: unknown argument ddof \(write correction\); it takes std"),
    ],
)
def test_what_cannot_run_says_what_to_write(on_numpy: Backend, call: Callable, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(pa.asarray([1.0, 2.0]))
