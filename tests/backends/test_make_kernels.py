"""make_kernels(xp) for libraries with the array API standard's names other than NumPy."""

import contextlib
import importlib
import math
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops, plugins
from polyarr.backends.kernels import LINALG, make_kernels
from polyarr.core.backend import Backend
from polyarr.core.spec import COMPLEX, DTYPES, NARROW
from polyarr.testing import USUAL_LEVEL, Data, Sample, checks
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import Lacking
from tests.helpers.root import ROOT

# Ops whose NumPy kernels use features that the standard does not have.
UNLIKE = ("scatter", "scatter_add", "slice_update", "argsort", "floor_divide", "remainder", "take", "random_bits")
EXAMPLES = ROOT / "examples"
GPT = ("backend-complete", "backend-copies", "backend-training", "backend-generation")
CASES = cases(USUAL_LEVEL)
HELD = [dtype for dtype in DTYPES if dtype not in NARROW]  # the standard has no others


@contextlib.contextmanager
def example(name, monkeypatch):
    """Start the backend of an example."""
    monkeypatch.syspath_prepend(EXAMPLES / f"polyarr-{name}")
    try:
        with plugins.fresh():
            plugins.register_plugin(importlib.import_module(f"polyarr_{name}"))
            yield pa.get_backend(name)
    finally:
        sys.modules.pop(f"polyarr_{name}", None)


def failing(backend, effort, cases):
    """Return the failures of the conformance kit, by case."""
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
    """An array of a library that is unlike NumPy and cannot be mixed with it by accident.

    It is immutable, has a dtype of the library's own, size() as a function, no negative steps, and no methods. It
    refuses NumPy's arrays and numbers, and implicit copies to NumPy, as CuPy does.
    """

    __array_ufunc__ = None
    __hash__ = None
    shape = property(lambda self: self.host.shape)
    ndim = property(lambda self: self.host.ndim)
    dtype = property(lambda self: Dtype(self.host.dtype))

    def __init__(self, host):
        self.host = np.asarray(host)

    def __array__(self, *_, **__):
        raise TypeError("an implicit copy to NumPy")

    def __int__(self):
        return int(self.host)

    def __bool__(self):
        return bool(self.host)

    def __getitem__(self, key):
        each = key if type(key) is tuple else (key,)
        assert all(k.step is None or k.step > 0 for k in each if isinstance(k, slice)), "a negative step"
        return type(self)(self.host[ours(key)])

    def size(self):
        return self.host.size


def operator(name):
    return lambda a, b=None: type(a)(getattr(a.host, name)(*([] if b is None else [ours(b)])))


for _name in "add radd sub rsub mul rmul truediv and rand or xor rxor rshift eq ne lt le gt ge neg".split():
    setattr(Foreign, f"__{_name}__", operator(f"__{_name}__"))


class Dtype(NamedTuple):
    """A dtype that NumPy does not know."""

    real: np.dtype


def ours(value):
    """Return NumPy's version of the library's argument; NumPy's own objects are refused."""
    if isinstance(value, Foreign):
        return value.host
    if isinstance(value, Dtype):
        return value.real
    if isinstance(value, (np.ndarray, np.generic, np.dtype)):
        raise TypeError("NumPy's array, number or dtype in a call of another library")
    return type(value)(map(ours, value)) if type(value) in (tuple, list) else value


class Function:
    """A NumPy function with the standard's parameters, and without at()."""

    array = Foreign

    def __init__(self, fn):
        self.fn = fn

    def __call__(self, *args, **kwargs):
        assert not kwargs.keys() & {"order", "kind", "out", "where", "mode"}
        found = self.fn(*ours(args), **{name: ours(value) for name, value in kwargs.items()})
        return tuple(map(self.array, found)) if isinstance(found, tuple) else self.array(found)


class ForeignLibrary:
    """NumPy's functions by the standard's names; integer division by zero is undefined."""

    def __getattr__(self, name):
        if name == "erf":
            return Function(np.vectorize(math.erf, "d"))
        if name == "linalg":
            names = [*(op.name for op in LINALG), "diagonal"]
            return types.SimpleNamespace(**{name: Function(getattr(np.linalg, name)) for name in names})
        if hasattr(pa, name) and isinstance(getattr(pa, name), np.dtype):
            return Dtype(getattr(pa, name))
        fn = getattr(np, name)
        if name in ("floor_divide", "remainder"):
            return Function(lambda x, y: np.where((y == 0) & (x.dtype.kind in "iu"), x.dtype.type(7), fn(x, y)))
        return Function(fn)


class OnGpu(Foreign):
    """An array like CuPy's, with NumPy dtypes."""

    dtype = property(lambda self: self.host.dtype)


class GpuFunction(Function):
    """A function that accepts NumPy's dtypes, but nothing else of NumPy's."""

    array = OnGpu

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **{k: Dtype(v) if k == "dtype" else v for k, v in kwargs.items()})


class Gpu(types.ModuleType):
    """CuPy as its example uses it, including CuPy's deviations from NumPy."""

    cuda = types.SimpleNamespace(
        Device=lambda: types.SimpleNamespace(id=0, synchronize=lambda: None),
        runtime=types.SimpleNamespace(getDeviceProperties=lambda number: {"name": b"a GPU"}),
    )

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "remainder":
            return GpuFunction(lambda x, y: x - np.floor_divide(x, y) * y)
        return GpuFunction(getattr(np, name))

    def array(self, host):
        return OnGpu(host.copy())

    def asnumpy(self, buf, order):
        return np.array(buf.host, order=order)


def checked(xp, upload, download, chosen, dtypes=DTYPES):
    """Return the failures of the chosen cases for a library."""
    backend = Backend("foreign", make_kernels(xp), upload, download, dtypes=frozenset(dtypes) - {*COMPLEX})
    return failing(backend, Effort(examples=1), chosen)


def test_make_kernels_mixes_no_libraries():
    """Cases that only repeat the calls of others, in threads or many times, are left out."""
    left_out = ("int16", "uint8", "lasting", "threads", "backend-threads", "backend-overlaps")
    core = [case for case in CASES if case.level == "core" and not case.name.startswith(left_out)]
    assert checked(ForeignLibrary(), lambda h: Foreign(h.copy()), lambda b: np.array(b.host, order="C"), core) == {}


def test_the_example_on_cupy(monkeypatch):
    """With arrays that behave like CuPy's; the whole kit needs a machine with a GPU."""
    gpu = Gpu("cupy")
    special = types.SimpleNamespace(erf=GpuFunction(np.vectorize(math.erf, "d")))
    names = {"cupy": gpu, "array_api_compat": types.SimpleNamespace(cupy=gpu), "array_api_compat.cupy": gpu}
    for name, module in (names | {"cupyx.scipy.special": special, "cupyx.scipy": None, "cupyx": None}).items():
        monkeypatch.setitem(sys.modules, name, module or types.ModuleType(name))
    with example("cupy", monkeypatch) as backend:
        assert (backend.name, backend.hardware) == ("cupy", "a GPU")
        chosen = [case for case in CASES if case.subject in UNLIKE or case.name in (*GPT, "numbers-add")]
        assert failing(backend, Effort(examples=1), chosen) == {}


def test_an_op_that_the_library_lacks_is_left_out():
    lacking = types.SimpleNamespace(**{name: fn for name, fn in vars(np).items() if name not in ("log2", "erf")})
    assert {ops.erf, ops.log2} == make_kernels(np, erf=math.erf).keys() - make_kernels(lacking).keys()


def test_make_kernels_by_the_standard_alone():
    """The standard's reference library refuses whatever the standard does not define."""
    xp = pytest.importorskip("array_api_strict")
    chosen = [case for case in CASES if case.subject in UNLIKE or case.name in ("backend-complete", "forward-matmul")]
    xp.erf = lambda x: xp.asarray(np.vectorize(math.erf, "d")(np.asarray(x)))
    try:
        found = checked(xp, lambda host: xp.asarray(host.copy()), lambda b: np.array(b, order="C"), chosen, HELD)
    finally:
        del xp.erf
    assert found == {}


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", [ops.scatter, ops.scatter_add], ids=str)
def test_of_many_updates_for_a_place(op, axis):
    """The last update wins, or all are added, for indices of any shape."""
    backend = Backend("sorting", make_kernels(np), np.array, lambda b: np.array(b, order="C"))
    for seed in range(10):
        for count in ((9,), (40,), (5, 3)):
            index = Data(count, "int32", "index", seed=seed, limit=3)
            updates = [4, 3, 5]
            updates[axis : axis + 1] = count
            sample = Sample((Data((4, 3, 5), seed=seed), index, Data(tuple(updates), seed=seed + 1)), {"axis": axis})
            checks.check_forward(op, backend, sample)


def test_the_example_on_jax(monkeypatch):
    """The functions that all ops' kernels use; the example's own tests run the whole kit."""
    pytest.importorskip("jax")
    with example("jax", monkeypatch) as backend:
        whole = ("backend-complete", "backend-copies", "special-multiply", "numbers-add")
        chosen = [case for case in CASES if case.subject in UNLIKE or case.name in whole]
        assert failing(backend, Effort(examples=1), chosen) == {}
