"""make_kernels(xp) for libraries that have NumPy's names and are not NumPy."""

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops, plugins
from polyarr.backends.numpy.table import make_kernels
from polyarr.core.backend import Backend
from polyarr.testing import Data, Sample, checks
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import Lacking

# The ops whose kernels NumPy's users write in a way that not every library knows.
UNLIKE = ("scatter", "scatter_add", "slice_update", "argsort", "floor_divide", "remainder", "take", "random_bits")
JAX = Path(__file__).parents[1] / "examples" / "polyarr-jax"
CASES = cases()


def failing(backend, effort, cases):
    """What the conformance kit finds, by the case's name."""
    found = {}
    with pa.use_backend(backend):
        for case in cases:
            try:
                case.run(backend, effort)
            except Lacking:
                continue
            except Exception as error:
                found[case.name] = error
    return found


class Foreign:
    """An array of a library that has NumPy's names and is not NumPy: the two cannot be mixed by accident."""

    __array_ufunc__ = None

    def __init__(self, host):
        self.host = np.asarray(host)

    def __array__(self, *_, **__):
        raise TypeError("an implicit copy to NumPy")

    def __getattr__(self, name):
        found = getattr(self.host, name)
        return Function(found, type(self)) if callable(found) else found

    def __int__(self):
        return int(self.host)

    def __getitem__(self, key):
        return type(self)(self.host[ours(key)])

    def __setitem__(self, key, value):
        self.host[ours(key)] = ours(value)


OPERATORS = "add radd sub rsub mul rmul truediv and or xor rshift eq ne lt ge"
for _name in OPERATORS.split():
    setattr(Foreign, f"__{_name}__", lambda a, b, n=f"__{_name}__": type(a)(getattr(a.host, n)(ours(b))))


def ours(value):
    """What NumPy computes on, out of what the library's user gives; an array of NumPy's own is refused."""
    if isinstance(value, Foreign):
        return value.host
    if isinstance(value, np.ndarray):
        raise TypeError("NumPy's array in a call of another library")
    return type(value)(map(ours, value)) if type(value) in (tuple, list) else value


class Function:
    """A NumPy function as the library has it."""

    def __init__(self, fn, array=Foreign):
        self.fn, self.array = fn, array

    def __call__(self, *args, **kwargs):
        return self.array(self.fn(*ours(args), **kwargs))

    def at(self, *args):
        self.fn.at(*ours(args))


class Library:
    def __getattr__(self, name):
        return Function(getattr(np, name))


def test_make_kernels_mixes_no_libraries():
    kernels = make_kernels(Library(), erf=Function(np.vectorize(math.erf, "d")))
    backend = Backend("foreign", kernels, lambda host: Foreign(host.copy()), lambda buf: np.array(buf.host, order="C"))
    core = [case for case in CASES if case.level == "core"]
    assert failing(backend, Effort(examples=1), core) == {}
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with pa.use_backend(backend):
        np.testing.assert_array_equal(pa.random.bits((5,)).shape, (5,))
        assert float(pa.sum(pa.asarray(x) @ pa.asarray(x.T))) == 83


# ---- arrays that never change ----------------------------------------------------------------------------------


class Frozen(Foreign):
    """An array without assignment, whose changed copies x.at makes, in an order that nobody knows."""

    at = property(lambda self: Places(self))

    def __setitem__(self, key, value):
        raise TypeError("arrays never change")


class Places:
    """x.at, and x.at[places]."""

    def __init__(self, x, key=None):
        self.x, self.key = x, key

    def __getitem__(self, key):
        return Places(self.x, key)

    def set(self, value):
        """Of several values for a place, the first one counts here."""
        numbers = np.arange(self.x.host.size).reshape(self.x.host.shape)[ours(self.key)].reshape(-1)
        values = np.broadcast_to(ours(value), self.x.host[ours(self.key)].shape).reshape(-1)
        new = self.x.host.copy().reshape(-1)
        new[numbers[::-1]] = values[::-1]
        return Frozen(new.reshape(self.x.host.shape))

    def add(self, value):
        return self._changed(np.add, value)

    def max(self, value):
        return self._changed(np.maximum, value)

    def _changed(self, fn, value):
        new = self.x.host.copy()
        fn.at(new, ours(self.key), ours(value))
        return Frozen(new)


class Rigid(Function):
    """A function that knows no order= and has no at()."""

    at = None

    def __init__(self, fn):
        super().__init__(fn, Frozen)

    def __call__(self, *args, **kwargs):
        assert not kwargs.keys() & {"order", "kind", "out"}
        return super().__call__(*args, **kwargs)


class FrozenLibrary:
    """Arrays never change, and integers divided by zero are what the machine makes of them."""

    def __getattr__(self, name):
        fn = getattr(np, name)
        if name in ("floor_divide", "remainder"):
            return Rigid(lambda x, y: np.where((y == 0) & (x.dtype.kind in "iu"), x.dtype.type(7), fn(x, y)))
        return Rigid(fn)


def test_make_kernels_for_arrays_that_never_change():
    kernels = make_kernels(FrozenLibrary(), erf=Rigid(np.vectorize(math.erf, "d")))
    backend = Backend("frozen", kernels, lambda host: Frozen(host.copy()), lambda buf: np.array(buf.host, order="C"))
    assert failing(backend, Effort(examples=1), [case for case in CASES if case.subject in UNLIKE]) == {}
    for axis in (0, 1, -1):
        for seed in range(20):
            inputs = (Data((4, 3, 5), seed=seed), Data((9,), "int32", "index", seed=seed, limit=3))
            shape = tuple(9 if i == axis % 3 else n for i, n in enumerate((4, 3, 5)))
            sample = Sample((*inputs, Data(shape, seed=seed + 1)), {"axis": axis})
            checks.check_forward(ops.scatter, backend, sample)
            checks.check_forward(ops.scatter_add, backend, sample)


@pytest.fixture
def jax_backend(monkeypatch):
    """The example, where JAX is installed."""
    pytest.importorskip("jax")
    monkeypatch.syspath_prepend(JAX)
    with plugins.fresh():
        plugins.register_plugin(importlib.import_module("polyarr_jax"))
        yield pa.get_backend("jax")
    sys.modules.pop("polyarr_jax")


def test_make_kernels_for_jax(jax_backend):
    """The kernels that JAX's own arrays would not stand as NumPy's do; the whole kit is for the example's own tests."""
    whole = ("whole-complete", "whole-copies", "special-multiply")
    some = [case for case in CASES if case.subject in UNLIKE or case.name in whole]
    assert failing(jax_backend, Effort(examples=1), some) == {}
