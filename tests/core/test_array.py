"""Array and Python's protocols, NumPy and other array libraries; array creation."""

import copy
import inspect
import operator
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.spec import Spec

BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
BITS = ["and_", "or_", "xor", "lshift", "rshift"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


def same(got: pa.Array, expected: object, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(got.numpy(), expected, rtol=rtol)


# ---- operators -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators(backend: Backend, name: str) -> None:
    fn, a, b = getattr(operator, name), np.float32([1.5, 2.0, 5.0]), np.float32([2.0, 3.0, 0.5])
    x, y = pa.asarray(a), pa.asarray(b)
    same(fn(x, y), fn(a, b))
    same(fn(x, 2), fn(a, 2))
    same(fn(x, 2.5), fn(a, np.float32(2.5)))
    same(fn(2, x), fn(np.float32(2), a))


@pytest.mark.parametrize("name", BITS)
def test_bit_operators(backend: Backend, name: str) -> None:
    fn, a, b = getattr(operator, name), np.asarray([1, 6, 12]), np.asarray([3, 1, 2])
    same(fn(pa.asarray(a), pa.asarray(b)), fn(a, b))
    same(fn(pa.asarray(a), 2), fn(a, 2))
    same(fn(5, pa.asarray(b)), fn(5, b))


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(backend: Backend, name: str) -> None:
    fn, a = getattr(operator, name), np.float32([1.0, 2.0, np.nan])
    got = fn(pa.asarray(a), 2)
    assert got.dtype == pa.bool
    assert got.tolist() == fn(a, 2).tolist()
    assert fn(pa.asarray(a), pa.asarray(a[::-1].copy())).tolist() == fn(a, a[::-1]).tolist()
    assert fn(2, pa.asarray(a)).tolist() == fn(2, a).tolist()


def test_unary_operators(backend: Backend) -> None:
    x = pa.asarray([-1.5, 2.0])
    same(-x, [1.5, -2])
    same(+x, [-1.5, 2])
    same(abs(x), [1.5, 2])
    assert (~pa.asarray([True, False])).tolist() == [False, True]
    assert (~pa.asarray([0, 5])).tolist() == [-1, -6]


def test_matmul_operator(backend: Backend) -> None:
    a = np.arange(6, dtype="float32").reshape(2, 3)
    x = pa.asarray(a)
    same(x @ x.T, a @ a.T)
    same(x @ pa.asarray(a[0].copy()), a @ a[0])
    y = pa.asarray(np.eye(3, dtype="float32"))
    x @= y
    same(x, a)


@pytest.mark.parametrize("name", BINARY)
def test_in_place_operators_rebind_one_handle(backend: Backend, name: str) -> None:
    fn = getattr(operator, "i" + name)
    x = pa.asarray([1.0, 2.0])
    handle, other = x, x.snapshot()
    x = fn(x, 3)
    assert x is handle
    same(x, getattr(operator, name)(np.float32([1, 2]), np.float32(3)))
    same(other, [1, 2])


def test_in_place_must_keep_shape_and_dtype(on_numpy: Backend) -> None:
    x = pa.ones((2, 3))
    with pytest.raises(ShapeError, match=r"in place it must stay float32\[2, 3\]"):
        x += pa.ones((4, 2, 3))
    with pytest.raises((ShapeError, DtypeError)):
        x += pa.ones((2, 3), dtype="float64")
    assert x.tolist() == [[1] * 3] * 2


@pytest.mark.parametrize("fn", [getattr(operator, n) for n in (*BINARY, *COMPARISONS, "matmul")])
@pytest.mark.parametrize("other", [np.ones(2, "float32"), "text", None, [1.0, 2.0], object()])
def test_a_stranger_on_either_side_is_a_type_error(on_numpy: Backend, fn, other: object) -> None:
    x = pa.ones(2)
    if isinstance(other, str) and fn is operator.mod:
        return  # formats the text
    if fn in (operator.eq, operator.ne) and not isinstance(other, (np.ndarray, list)):
        assert fn(x, other) is fn(other, x) is (fn is operator.ne)  # types differ, as in Python
        return
    for call in (lambda: fn(x, other), lambda: fn(other, x)):
        with pytest.raises(TypeError):
            call()


def test_the_type_error_says_what_to_do(on_numpy: Backend) -> None:
    for call in (lambda: pa.ones(2) + np.ones(2), lambda: np.ones(2) + pa.ones(2), lambda: pa.exp(np.ones(2))):
        with pytest.raises(TypeError, match=r"numpy\.ndarray; it must be a polyarr array, so write polyarr\.asarray\("):
            call()


def test_numpy_scalars_count_as_python_numbers(on_numpy: Backend) -> None:
    x = pa.ones(2)
    for y in (x + np.float64(2), np.float64(2) + x, x * np.int64(3), x + np.float32(1)):
        assert isinstance(y, pa.Array) and y.dtype == pa.float32


# ---- to Python -------------------------------------------------------------------------------------------------


def test_conversions(backend: Backend) -> None:
    assert float(pa.asarray([[2.5]])) == 2.5 and int(pa.asarray(7)) == 7 and int(pa.asarray(2.9)) == 2
    assert bool(pa.asarray(1.0)) is True and bool(pa.asarray([False])) is False
    assert pa.asarray(3.5).item() == 3.5 and type(pa.asarray(3).item()) is int and pa.asarray(True).item() is True
    assert [10, 20, 30][pa.asarray(1)] == 20
    assert pa.asarray([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert pa.asarray(1.5, dtype="bfloat16").item() == 1.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: float(pa.ones(2)), "only an array with one element converts to a Python float"),
        (lambda: int(pa.ones(2)), "only an array with one element"),
        (lambda: bool(pa.ones(2)), "only an array with one element converts to a Python bool"),
        (lambda: pa.ones(0).item(), "only an array with one element"),
        (lambda: operator.index(pa.asarray(1.0)), "only an integer array without axes can be an index"),
        (lambda: operator.index(pa.asarray([1])), "only an integer array without axes"),
        (lambda: len(pa.asarray(1.0)), "an array without axes has no length"),
        (lambda: iter(pa.asarray(1.0)), "cannot be iterated over"),
        (lambda: {pa.ones(1): 1}, "unhashable"),
        (lambda: pa.ones((2, 2, 2)).T, "it must have two axes"),
    ],
)
def test_conversion_errors(on_numpy: Backend, call, message: str) -> None:
    with pytest.raises((TypeError, ShapeError), match=message):
        call()


def test_methods_are_the_functions(backend: Backend) -> None:
    """Methods shared by NumPy, PyTorch and MLX arrays are called as in these libraries."""
    host = np.float32([[1, 5, 3], [4, 2, 6]])
    x = pa.asarray(host)
    for name in ("sum", "mean", "max", "min", "prod", "var", "std", "argmax", "argmin", "all", "any"):
        same(getattr(x, name)(), getattr(host, name)())
        same(getattr(x, name)(axis=0), getattr(host, name)(axis=0))
        same(getattr(x, name)(-1), getattr(host, name)(-1))
    assert x.sum(axis=1, keepdims=True).shape == (2, 1)
    for axes in ((), (1, 0), ((1, 0),), ([-1, 0],)):
        same(x.transpose(*axes), host.T)
    cube = np.arange(24).reshape(2, 3, 4)
    same(pa.asarray(cube).transpose(), cube.transpose())
    same(pa.asarray(cube).swapaxes(0, -1), cube.swapaxes(0, -1))
    assert x.flatten().tolist() == host.flatten().tolist() and pa.zeros((0, 2)).flatten().shape == (0,)
    assert pa.ones((1, 3, 1)).squeeze().shape == (3,) and pa.ones((1, 3, 1)).squeeze(0).shape == (3, 1)
    assert pa.grad(lambda a: (a.reshape(3, 2).mean(axis=0) * 3).max())(x).shape == (2, 3)


def test_methods_describe_themselves(on_numpy: Backend) -> None:
    x = pa.ones((2, 3))
    assert str(inspect.signature(x.sum)) == "(axis=None, keepdims=False, dtype=None)"
    assert (pa.Array.sum.__qualname__, pa.Array.sum.__doc__) == ("Array.sum", ops.sum.__doc__)
    assert x.spec.mean(axis=0) == Spec((3,), pa.float32)  # inference, as with the operators
    with pytest.raises(TypeError, match=r"sum: unknown argument dim \(write axis\); it takes sum"):
        x.sum(dim=0)
    with pytest.raises(ShapeError, match=r"permute_dims: x is float32\[2, 3\]; axes \[0\] must name"):
        x.transpose(0)
    with pytest.raises(ShapeError, match=r"swapaxes: .* axis 2 must be"):
        x.swapaxes(0, 2)


def test_a_loss_is_printed_as_a_number_is(backend: Backend) -> None:
    loss = pa.asarray(2.71828)
    assert f"{loss:.2f}" == "2.72" and f"{pa.asarray([7]):>3}" == "  7" and f"{loss}" == str(loss)
    assert round(loss, 2) == 2.72 and type(round(loss, 2)) is float and round(loss) == 3
    for call, asked in ((lambda: f"{pa.ones(2):.2f}", r"format '.2f'"), (lambda: round(pa.ones(2), 1), "round")):
        with pytest.raises(TypeError, match=rf"^{asked}: x is float32\[2\]; only an array with one element"):
            call()


def test_length_and_iteration(backend: Backend) -> None:
    x = pa.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert len(x) == 3 and [row.tolist() for row in x] == [[1, 2], [3, 4], [5, 6]]
    a, b = pa.asarray([7, 8])
    assert (a.item(), b.item()) == (7, 8)
    assert list(pa.ones((0, 2))) == []
    rows = iter(x)
    x += 1
    assert [row.tolist() for row in rows] == [[1, 2], [3, 4], [5, 6]]
    assert pa.grad(lambda x: sum(x[0] * value for value in x))(pa.asarray([2.0, 3.0])).tolist() == [7, 2]


def test_asking_whether_an_array_can_be_iterated_over_computes_nothing(backend: Backend, monkeypatch) -> None:
    x = pa.ones((3, 2))
    monkeypatch.setattr(pa.ops, "unstack", None)
    assert np.iterable(x) and not np.iterable(pa.ones(()))


def test_repr(backend: Backend) -> None:
    name = backend.name
    assert repr(pa.asarray([1.0, 2.5])) == f"Array([1. , 2.5], float32, {name!r})"
    assert repr(pa.asarray([[1, 2], [3, 4]])) == f"Array([[1, 2],\n       [3, 4]], int64, {name!r})"
    assert repr(pa.asarray(True)) == f"Array(True, bool, {name!r})"
    assert "..." in repr(pa.zeros((200, 200)))
    assert repr(pa.zeros((0, 2))).startswith("Array([]")
    assert "1.5" in repr(pa.asarray([1.5], dtype="bfloat16"))


def test_attributes(backend: Backend) -> None:
    x = pa.zeros((2, 3), dtype="int16")
    assert (x.shape, x.dtype, x.ndim, x.size, x.device) == ((2, 3), pa.int16, 2, 6, backend.name)
    assert x.T.shape == (3, 2) and pa.zeros((4, 2, 3)).mT.shape == (4, 3, 2)
    assert x.reshape(3, 2).shape == x.reshape((3, 2)).shape == x.reshape(3, -1).shape == (3, 2)
    for name in ("shape", "dtype", "size"):
        with pytest.raises(AttributeError):
            setattr(x, name, None)


# ---- to NumPy and others ---------------------------------------------------------------------------------------


def test_numpy_gets_a_copy(backend: Backend) -> None:
    x = pa.asarray([1.0, 2.0])
    for host in (x.numpy(), np.asarray(x), np.array(x), np.from_dlpack(x, device="cpu")):
        assert host.tolist() == [1, 2] and host.dtype == np.float32
        if host.flags.writeable:
            host[0] = 9
    assert x.tolist() == [1, 2]
    assert np.asarray(x, dtype="float64").dtype == np.float64
    with pytest.raises(ValueError, match="cannot be viewed without a copy"):
        np.asarray(x, copy=False)


def test_asarray_takes_a_copy(backend: Backend) -> None:
    host = np.arange(6.0).reshape(2, 3)
    arrays = [pa.asarray(host), pa.asarray(host.T).T, pa.from_dlpack(host)]
    host += 1
    for x in arrays:
        assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_download_of_a_view_is_contiguous(backend: Backend) -> None:
    x = pa.asarray(np.arange(12.0).reshape(3, 4))
    host = x.T[::-1, 1:].numpy()
    assert host.flags.c_contiguous and host.flags.owndata
    np.testing.assert_array_equal(host, np.arange(12.0).reshape(3, 4).T[::-1, 1:])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_pickling_and_copying(backend: Backend, dtype: str) -> None:
    x = pa.asarray([[1, 0], [3, 4]]).astype(dtype).T
    for y in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)):
        assert y.dtype == x.dtype and y.shape == x.shape and y.device == x.device
        assert y.tolist() == x.tolist()
        y[0, 0] = 0
        assert x[0, 0].item() == 1


def test_ops_can_be_pickled(on_numpy: Backend) -> None:
    assert pickle.loads(pickle.dumps(ops.exp)) is ops.exp


def test_a_pickled_spec_has_the_hash_of_the_process_that_reads_it() -> None:
    program = "import pickle, sys, polyarr as pa; sys.stdout.buffer.write(pickle.dumps(pa.Spec((2,), pa.float32)))"
    for seed in "12":  # of the hashes of strings, and thereby of dtypes
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        assert pickle.loads(done.stdout) in {pa.Spec((2,), pa.float32)}


def test_to_another_backend(backend: Backend) -> None:
    x = pa.asarray([1.0, 2.0])
    y = x.to("numpy")
    assert y.device == "numpy" and y.tolist() == [1, 2]
    back = y.to_device(backend.name)
    assert back.device == backend.name and (back + x).tolist() == [2, 4]
    assert x.to(backend) is x
    mirror = get_backend("numpy")._replace(name="mirror")
    assert pa.asarray(x, device=mirror).device == "mirror"


def test_transfers_are_counted(backend: Backend) -> None:
    before = pa.transfers()
    x = pa.asarray(np.ones((2, 3), "float32"))
    y = ops.softmax(x @ x.T)
    between = pa.transfers()
    y.numpy()
    after = pa.transfers()
    assert (between.uploads - before.uploads, between.upload_bytes - before.upload_bytes) == (1, 24)
    assert between.downloads == before.downloads
    assert (after.downloads - between.downloads, after.download_bytes - between.download_bytes) == (1, 16)


# ---- the standard's namespace ----------------------------------------------------------------------------------


def test_namespace(on_numpy: Backend) -> None:
    x = pa.ones(2)
    assert pa.__array_api_version__ == "2025.12"
    for version in (None, "2021.12", "2024.12", pa.__array_api_version__):
        assert x.__array_namespace__(api_version=version) is pa
    for version in ("1999.1", 2025.12):
        with pytest.raises(ValueError, match=rf"api_version is '?{version}'?; it must be one of 2021.12, .*, 2025.12"):
            x.__array_namespace__(api_version=version)


def test_namespace_info(backend: Backend) -> None:
    info = pa.__array_namespace_info__()
    assert info.default_device() == backend.name and backend.name in info.devices()
    assert info.default_dtypes()["real floating"] == pa.float32
    assert set(info.dtypes(kind="signed integer")) == {"int8", "int16", "int32", "int64"}
    assert "float32" in info.dtypes(kind=("real floating", "bool")) and "bool" in info.dtypes()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}


def test_every_device_that_is_named_holds_arrays(backend: Backend) -> None:
    info = pa.__array_namespace_info__()
    names = info.devices()
    assert type(names) is tuple and names[0] == backend.name and len({*names}) == len(names)
    assert "numpy" in names
    for name in names:
        x = pa.asarray([1, 2], device=name)
        assert x.device == name and x.to_device(backend.name).device == backend.name
        assert info.default_dtypes(device=name)["integral"] in info.dtypes(device=name).values()


def test_devices_and_kinds_that_do_not_exist() -> None:
    info = pa.__array_namespace_info__()
    for ask in (info.dtypes, info.default_dtypes):
        with pytest.raises(pa.BackendError, match="no backend called 'cuda'"):
            ask(device="cuda")
    with pytest.raises(ValueError, match="kind is 'nonsense'"):
        info.dtypes(kind=("bool", "nonsense"))


def test_arrays_have_up_to_as_many_axes_as_is_said(backend: Backend) -> None:
    x = pa.zeros((1,) * pa.__array_namespace_info__().capabilities()["max dimensions"])
    assert (x + 1).numpy().ndim == x.ndim


def test_isdtype_finfo_iinfo() -> None:
    assert pa.isdtype(pa.float32, "real floating") and not pa.isdtype(pa.float32, "integral")
    assert pa.isdtype(pa.uint8, ("bool", "unsigned integer")) and pa.isdtype(pa.int8, "numeric")
    assert pa.isdtype(pa.bfloat16, "real floating") and pa.isdtype(pa.int8, pa.int8)
    with pytest.raises(ValueError, match="kind is 'nonsense'"):
        pa.isdtype(pa.int8, "nonsense")
    for dtype in ("float16", "float32", "float64"):
        ours, theirs = pa.finfo(dtype), np.finfo(dtype)
        assert (ours.eps, ours.max, ours.min, ours.bits) == (theirs.eps, theirs.max, theirs.min, theirs.bits)
        assert ours.smallest_normal == theirs.smallest_normal
    assert pa.finfo("bfloat16").eps == 2**-7 and pa.finfo("bfloat16").bits == 16
    assert pa.finfo(pa.bfloat16).dtype == pa.bfloat16
    assert pa.iinfo(pa.int8).max == 127
    with pytest.raises(DtypeError):
        pa.finfo(pa.int8)
    with pytest.raises(DtypeError):
        pa.iinfo(pa.float32)


STANDARD = """abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype atan atan2 atanh
bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor bool broadcast_arrays
broadcast_to can_cast ceil clip concat copysign cos cosh cumulative_sum divide e empty equal exp expand_dims expm1
eye finfo flip float32 float64 floor floor_divide from_dlpack full full_like greater greater_equal hypot iinfo inf
int16 int32 int64 int8 isdtype isfinite isinf isnan less less_equal linspace log log10 log1p log2 logaddexp
logical_and logical_not logical_or logical_xor matmul matrix_transpose max maximum mean meshgrid min minimum moveaxis
multiply nan negative newaxis nextafter nonzero not_equal ones ones_like permute_dims pi positive pow prod reciprocal
remainder repeat reshape result_type roll round sign signbit sin sinh sort split sqrt square squeeze stack std subtract
sum take take_along_axis tan tanh tensordot tile tril triu trunc uint16 uint32 uint64 uint8 unstack var vecdot where
zeros zeros_like __array_namespace_info__ broadcast_shapes conj count_nonzero cumulative_prod diff imag isin real
searchsorted unique_all unique_counts unique_inverse unique_values"""


@pytest.mark.parametrize("name", [n for n in STANDARD.split() if n != "split"])
def test_the_namespace_has(name: str) -> None:
    assert hasattr(pa, name)


# ---- making arrays ---------------------------------------------------------------------------------------------


def test_asarray(backend: Backend) -> None:
    assert pa.asarray([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert pa.asarray([pa.asarray(1.0), pa.asarray(2.0)]).tolist() == [1, 2]
    assert pa.asarray((1.5, 2)).dtype == pa.float32
    assert pa.asarray([]).shape == (0,) and pa.asarray(3).shape == ()
    x = pa.asarray([1.0])
    assert pa.asarray(x) is x
    y = pa.asarray(x, copy=True)
    y += 1
    assert x.tolist() == [1]
    assert pa.asarray(x, dtype="int32").dtype == pa.int32
    with pytest.raises(ValueError):
        pa.asarray([[1], [2, 3]])


def test_ranges(backend: Backend) -> None:
    for args in ((5,), (2, 7), (0, 10, 3), (5, 0, -2), (3, 3), (5, 0), (0.0, 1.0, 0.25), (1, 2, 0.3), (0, -1)):
        same(pa.arange(*args), np.arange(*args))
    same(pa.linspace(-1, 2, 7), np.linspace(-1, 2, 7))
    same(pa.linspace(0, 1, 4, endpoint=False), np.linspace(0, 1, 4, endpoint=False))
    assert pa.linspace(0, 1, 1).tolist() == [0] and pa.linspace(0, 1, 0).shape == (0,)
    assert pa.arange(2**33, 2**33 + 2).tolist() == [2**33, 2**33 + 1]
    with pytest.raises(ValueError, match="step is 0"):
        pa.arange(0, 1, 0)


def test_filled(backend: Backend) -> None:
    assert pa.full((2, 2), 7).tolist() == [[7, 7], [7, 7]] and pa.full(3, 1.5).tolist() == [1.5] * 3
    assert pa.zeros(()).item() == 0 and pa.ones((0, 2)).shape == (0, 2) and pa.empty((2,)).shape == (2,)
    for args in ((3,), (2, 3), (3, 2), (0,)):
        for k in (0, 1, -1, 5):
            same(pa.eye(*args, k=k), np.eye(*args, k=k))
    x = pa.ones((2, 3), dtype="int8")
    assert ops.zeros_like(x).dtype == pa.int8 and ops.full_like(x, 4, dtype="float32").tolist() == [[4] * 3] * 2
    with pytest.raises(ShapeError, match="lengths must not be negative"):
        pa.zeros((2, -1))


def test_meshgrid(backend: Backend) -> None:
    for indexing in ("xy", "ij"):
        hosts = np.arange(3), np.arange(4), np.arange(2)
        for n in (1, 2, 3):
            got = pa.meshgrid(*map(pa.asarray, hosts[:n]), indexing=indexing)
            for a, b in zip(got, np.meshgrid(*hosts[:n], indexing=indexing), strict=True):
                np.testing.assert_array_equal(a.numpy(), b)
    with pytest.raises(ValueError, match="indexing is 'ab'"):
        pa.meshgrid(pa.arange(2), indexing="ab")


# ---- functions that are no single op ---------------------------------------------------------------------------

EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("bhtd,bhsd->bhts", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("i,i", (3,), (3,)),
    ("i,j->ij", (2,), (3,)),
    ("...ij,...jk->...ik", (4, 2, 3), (3, 2)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("ij,ij->i", (2, 3), (2, 3)),
    ("b...->...b", (2, 3, 4)),
    ("iij->j", (3, 3, 2)),
    ("ab,bc", (2, 3), (3, 2)),
    ("ij,j->i", (0, 3), (3,)),
]


@pytest.mark.parametrize("case", EINSUMS, ids=lambda c: c[0])
def test_einsum(backend: Backend, case: tuple) -> None:
    rng = np.random.default_rng(0)
    hosts = [rng.standard_normal(s).astype("float32") for s in case[1:]]
    arrays = [pa.asarray(h) for h in hosts]
    np.testing.assert_allclose(ops.einsum(case[0], *arrays).numpy(), np.einsum(case[0], *hosts), rtol=1e-4, atol=1e-5)
    grads = pa.grad(lambda *a: ops.sum(ops.einsum(case[0], *a) ** 2), argnums=tuple(range(len(arrays))))(*arrays)
    assert [g.shape for g in grads] == [a.shape for a in arrays]


@pytest.mark.parametrize(
    "case", [("ij,jk->ik", (2, 3), (4, 5)), ("ij", (2,)), ("ij,jk->iz", (2, 3), (3, 4)), ("ij,jk->ik", (2, 3))]
)
def test_einsum_errors(on_numpy: Backend, case: tuple) -> None:
    with pytest.raises(ShapeError, match="einsum"):
        ops.einsum(case[0], *(pa.ones(s) for s in case[1:]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pa.ones((2, 3)) + pa.ones(4), r"add: cannot broadcast float32\[2, 3\] with float32\[4\]"),
        (
            lambda: pa.ones((2, 3)) @ pa.ones((4, 5)),
            r"matmul: x is float32\[2, 3\], y is float32\[4, 5\]; x.shape\[-1\] must equal",
        ),
        (
            lambda: ops.layer_norm(pa.ones((2, 5, 8)), pa.ones(9)),
            r"weight is float32\[9\], x is float32\[2, 5, 8\]; weight must be \[8\]",
        ),
        (lambda: ops.sum(pa.ones(2), axis=3), "axis 3"),
        (lambda: ops.reshape(pa.ones(6), shape=(4, -1)), "does not hold as many"),
        (lambda: ops.concat([pa.ones((2, 3)), pa.ones((2, 4))]), "they must agree on every axis but 0"),
        (lambda: ops.max(pa.ones((0, 2)), axis=0), "has no element to choose from"),
        (lambda: ops.squeeze(pa.ones((2, 1)), axis=0), "must have length 1"),
        (lambda: ops.split(pa.ones(5), indices_or_sections=2), "does not divide into 2 equal parts"),
        (
            lambda: ops.attention(pa.ones((2, 3)), pa.ones((2, 4)), pa.ones((2, 4))),
            "q and k must agree on the last axis",
        ),
        (lambda: ops.topk(pa.ones(3), k=4), "k is 4, it must be from 0 to 3"),
    ],
)
def test_shape_errors(on_numpy: Backend, call, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.sum(pa.ones(2), axes=1), r"sum: unknown argument axes \(write axis\); it takes sum"),
        (lambda: ops.reshape(pa.ones(2)), "reshape: missing shape; it takes reshape"),
        (lambda: ops.add(pa.ones(2)), "add: missing y"),
        (lambda: ops.exp(), "exp: missing x"),
        (lambda: ops.exp(pa.ones(1), 2), "exp: too many arguments"),
        (lambda: ops.concat([]), "got no arrays; it needs a list of arrays"),
        (lambda: ops.concat(pa.ones(2)), "got one array; it needs a list of arrays"),
    ],
)
def test_call_errors(on_numpy: Backend, call, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_value_errors(on_numpy: Backend) -> None:
    for call in (
        lambda: ops.gelu(pa.ones(2), approximate="fast"),
        lambda: ops.linear(pa.ones((2, 2)), pa.ones((2, 2)), activation="no"),
        lambda: ops.dropout(pa.ones(2), 0, 0, rate=1.5),
        lambda: ops.cross_entropy(pa.ones((2, 2)), pa.asarray([0, 1]), reduction="none of these"),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()


def test_integers_have_no_negative_powers(backend: Backend) -> None:
    """As for a number in NumPy, PyTorch and JAX; the values of an array of exponents are not read."""
    x, power = pa.asarray([1, 2, 3]), pa.compile(lambda x, n: x**n)
    calls = [lambda: x**-1, lambda: pa.pow(x, -1), lambda: power(x, -1), lambda: pa.vmap(lambda row: row**-1)(x[None])]
    assert power(x, 2).tolist() == (x**2).tolist() == [1, 4, 9] and (x**0).tolist() == [1, 1, 1]
    for call in calls:
        said = r"^pow: x is int64\[3\], y is -1; to a negative power x must be floating-point, by astype"
        with pytest.raises(ValueError, match=said):
            call()
    assert (x ** pa.asarray([-1, -1, 2])).tolist() == [1, 0, 9]
    assert (pa.asarray([1.0, 2.0]) ** -1).tolist() == [1, 0.5]
