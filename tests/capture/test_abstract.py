"""Captures on a backend that has functions which compute nothing for its kernels (Backend.abstract)."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Fused

TOLD = ops.fill, ops.add, ops.multiply, ops.sqrt  # the ops with an abstract kernel


@pytest.fixture
def calls():
    """The names of the kernels that were called, in order; with "abstract" if they were told not to compute."""
    return []


@pytest.fixture
def told(calls):
    """The NumPy backend with a Fused silu, and kernels of TOLD, that give nan in captures; the others compute there."""
    numpy = pa.get_backend("numpy")
    abstract = {kernel: kernel for kernel in numpy.kernels.values()}

    def noted(name, kernel, result):
        def real(*args, **params):
            calls.append(name)
            return kernel(*args, **params)

        def without_computing(*args, **params):
            calls.append(f"abstract {name}")
            return result(*args, **params)

        abstract[real] = without_computing
        return real

    def blank(out, *_, **__):
        return np.full(out.shape, np.nan, out.dtype)

    def forward(out, x):
        return x / (1 + np.exp(-x)), (x,)

    def backward(g, saved, x, wanted):
        s = 1 / (1 + np.exp(-saved[0]))
        return (g * (s + saved[0] * s * (1 - s)),)

    kernels = {op: noted(op.name, numpy.kernels[op], blank) for op in TOLD}
    kernels[ops.silu] = Fused(
        noted("silu", forward, lambda out, x: (blank(out), (blank(out),))),
        noted("silu backward", backward, lambda g, saved, x, wanted: (np.full_like(g, np.nan),)),
    )
    backend = numpy._replace(name="told", kernels={**numpy.kernels, **kernels}, abstract=abstract)
    with pa.use_backend(backend):
        yield backend


def test_nothing_is_computed_in_a_capture(told, calls):
    def fn(x):
        y = ops.sqrt(x) + x
        assert [name for name in calls if name in ("add", "sqrt")] == []
        return y * 2

    compiled = pa.compile(fn)
    for n in range(2):
        found = compiled(pa.asarray([4.0, 9.0 + n])).numpy()
        np.testing.assert_allclose(found, [12, 2 * ((9 + n) ** 0.5 + 9 + n)], rtol=1e-6)
    assert calls.count("abstract sqrt") == 1 and calls.count("sqrt") == 2


def test_gradients_of_a_fused_kernel_are_captured_without_it(told, calls):
    gradient = pa.compile(pa.grad(lambda x: ops.silu(x).sum()))
    x = pa.asarray([0.5, -2.0])
    s = 1 / (1 + np.exp(-x.numpy()))
    np.testing.assert_allclose(gradient(x).numpy(), s + x.numpy() * s * (1 - s), rtol=1e-6)
    assert calls.index("abstract silu backward") < calls.index("silu backward")
    assert calls.count("silu") == calls.count("silu backward") == 1


def test_what_depends_on_constants_only_is_computed_in_the_capture(told, calls):
    compiled = pa.compile(lambda x: x * ops.sqrt(pa.full((2,), 4.0)))
    assert [compiled(pa.asarray([1.0, 3.0])).tolist() for _ in range(2)] == [[2, 6], [2, 6]]
    assert calls.count("sqrt") == 1 and "abstract sqrt" not in calls


def test_what_was_changed_in_place_before_an_error_is_computed(told):
    def fails(x, y, n):
        x += y
        x *= n
        raise ValueError("stop")

    x, y = pa.asarray([1.0, 2.0]), pa.asarray([10.0, 20.0])
    with pytest.raises(ValueError, match="stop"):
        pa.compile(fails)(x, y, 3)
    assert x.tolist() == [33, 66] and y.tolist() == [10, 20]


def test_after_an_error_only_what_is_needed_is_computed_and_kept(told, calls):
    alive, most = weakref.WeakSet(), []

    def add(out, x, y):
        found = (x + y).view(_Weak)
        alive.add(found)
        most.append(len(alive))
        return found

    def fails(x):
        ops.sqrt(x)
        y = x
        for _ in range(20):
            y = y + 1.0
        x += y
        raise ValueError("stop")

    abstract = {**told.abstract, add: told.abstract[told.kernels[ops.add]]}
    with pa.use_backend(told._replace(name="few", kernels={**told.kernels, ops.add: add}, abstract=abstract)):
        x = pa.asarray([1.0])
        with pytest.raises(ValueError, match="stop"):
            pa.compile(fails)(x)
        assert x.tolist() == [22]
    assert max(most) <= 2 and len(most) == 21
    assert "sqrt" not in calls


class _Weak(np.ndarray):
    """An array that is hashed by its identity, so that a WeakSet takes it."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def test_everything_is_computed_if_a_kernel_of_somebody_else_needs_values(told, calls):
    def exact(out, x):
        calls.append("exact")
        assert x.tolist() == [9], "which an abstract kernel would not give"
        return np.sqrt(x)

    with pa.use_backend(told._replace(name="exact", kernels={**told.kernels, ops.sqrt: exact})):
        assert pa.compile(lambda x: ops.sqrt(x + 1))(pa.asarray([8.0])).tolist() == [3]
    assert calls == ["add", "exact", "add", "exact"]


@dataclass  # which compares instances, so that they have no hash
class _Kernel:
    kernel: Callable

    def __call__(self, *args, **params):
        return self.kernel(*args, **params)


def test_a_kernel_needs_no_hash(told):
    with pa.use_backend(told._replace(name="unhashable", kernels={**told.kernels, ops.sqrt: _Kernel(_sqrt)})):
        assert pa.compile(lambda x: ops.sqrt(x + 1))(pa.asarray([8.0])).tolist() == [3]


def _sqrt(out, x):
    return np.sqrt(x)
