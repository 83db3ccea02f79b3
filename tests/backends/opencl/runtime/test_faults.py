"""Errors that kernels note name the op and the line of the user's code, although they are raised at a later read."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import polyarr as pa
from polyarr import nn
from polyarr.core.backend import Backend

X, BAD, GOOD = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0, 7], [0, 2]
CALLS: dict[str, Callable[..., Any]] = {
    "take": lambda x, at: x[at],
    "take_along_axis": lambda x, at: pa.take_along_axis(x, at[:, None], axis=0),
    "scatter": lambda x, at: pa.scatter(x, at, x[:2], axis=0),
    "scatter_add": lambda x, at: pa.scatter_add(x, at, x[:2], axis=0),
    "embedding": lambda x, at: pa.embedding(x, at),
    "cross_entropy": lambda x, at: pa.cross_entropy(x[:2], at),
    "slice": lambda x, at: pa.ops.slice(x, (at[1], 0), steps=(1, 1), shape=(1, 2)),
}


@pytest.fixture(autouse=True)
def _on_opencl(backend: Backend) -> None:
    if "opencl" not in backend.name:
        pytest.skip("the other backends raise at once")


def line_of(fn: Callable) -> str:
    return rf"called at .*test_faults\.py:{fn.__code__.co_firstlineno}"


@pytest.mark.parametrize("op", CALLS)
def test_an_index_out_of_range_names_op_and_line(op: str) -> None:
    fn, x, bad = CALLS[op], pa.asarray(X), pa.asarray(BAD)
    found, length = fn(x, bad), 2 if op == "cross_entropy" else 3
    told = f"^{op}: index 7 is out of range for an axis of length {length}; {line_of(fn)}$"
    with pytest.raises(IndexError, match=told):
        found.numpy()


@pytest.mark.parametrize("op", CALLS)
def test_in_a_compiled_function_the_line_is_that_of_the_op(op: str) -> None:
    x, good, compiled = pa.asarray(X), pa.asarray(GOOD if op != "cross_entropy" else [0, 1]), pa.compile(CALLS[op])
    for _ in range(4):  # the last runs are replayed
        compiled(x, good).numpy()
    found = compiled(x, pa.asarray(BAD))
    with pytest.raises(IndexError, match=f"^{op}: index 7 .*; {line_of(CALLS[op])}$"):
        found.numpy()


def test_of_several_ops_in_a_compiled_function_all_are_named() -> None:
    table = nn.Sequential(nn.Embedding(3, 2))
    loss = lambda table, at: pa.cross_entropy(pa.zeros((2, 3)), at) + pa.sum(table(at))
    compiled = pa.compile(loss)
    for _ in range(4):
        compiled(table, pa.asarray(GOOD)).numpy()
    found = compiled(table, pa.asarray(BAD))
    with pytest.raises(IndexError, match=r"^cross_entropy or embedding: .*; called at .*test_faults.py:\d+ or layer "):
        found.numpy()


def test_a_bad_matrix_names_the_line() -> None:
    found, line = pa.linalg.inv(pa.zeros((3, 3))), inspect.currentframe().f_lineno  # type: ignore[union-attr]
    with pytest.raises(pa.MatrixError, match=rf"must have an inverse; called at .*test_faults\.py:{line}$"):
        found.numpy()


def test_a_line_that_is_no_longer_known_is_left_out(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    x, good = pa.asarray(X), pa.asarray(GOOD)
    found = pa.take(x, pa.asarray(BAD), axis=0)
    for _ in range(1000):
        pa.take(x, good, axis=0)
    with pytest.raises(IndexError, match=r"^index 7 is out of range for an axis of length 3$"):
        found.numpy()
