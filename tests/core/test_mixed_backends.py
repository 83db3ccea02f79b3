"""Ops on arrays of several backends, transfers between backends, and arguments that take over a call."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend, DLPack, transfers
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import BackendError
from polyarr.plugins import fresh, hookimpl, register_plugin

pytestmark = pytest.mark.usefixtures("on_numpy")
X = np.arange(6.0).reshape(2, 3)


def on(backend: Backend, values: Any = X) -> pa.Array:
    with use_backend(backend):
        return pa.asarray(values)


def numpy_called(name: str, **fields: Any) -> Backend:
    return get_backend("numpy")._replace(name=name, **{"dlpack": None, **fields})


# ---- homes -------------------------------------------------------------------------------------------------------


def test_backends_that_share_a_home_share_arrays(backend: Backend) -> None:
    """Backends with other kernels for the same memory: one without Fused kernels, one with a plugin's kernels."""
    if pa.float64 not in backend.dtypes:
        pytest.skip(f"{backend.name} holds no float64")
    plain = backend.without_fused()
    other = backend._replace(kernels={**backend.kernels, ops.negative: backend.kernels[ops.abs]})
    found = on(backend) + on(plain) * on(other)
    np.testing.assert_allclose(found.numpy(), X + X * X)
    assert ops.stack([on(backend), on(plain)]).shape == (2, 2, 3)
    before = transfers()
    moved = on(backend).to(plain)
    assert moved.backend is plain and transfers().downloads == before.downloads
    g = pa.grad(lambda x: ops.sum(x.to(plain) ** 2))(on(backend))
    assert g.backend is not None and np.array_equal(g.numpy(), 2 * X)


def test_a_backend_and_its_device_share_arrays_with_any_plugin() -> None:
    class Toy:
        @hookimpl
        def polyarr_backends(self, register: Any) -> None:
            register("toy", lambda device="0": numpy_called(f"toy:{device}"), api=2)

        @hookimpl
        def polyarr_kernels(self, backend: Backend) -> dict:
            return {ops.negative: lambda out, x: -x} if backend.family == "toy" else {}

    with fresh():
        register_plugin(Toy())
        found = on(get_backend("toy")) + on(get_backend("toy:0"))
        assert np.array_equal(found.numpy(), 2 * X)
        with pytest.raises(BackendError, match="inputs live on 'toy:0' and 'toy:1'; bring them to one backend"):
            on(get_backend("toy:0")) + on(get_backend("toy:1"))


def test_backends_with_different_homes_share_no_arrays() -> None:
    one, other = numpy_called("a", home=1), numpy_called("a", home=2)
    with pytest.raises(BackendError, match="add: inputs live on 2 backends called 'a'; bring them to one backend"):
        on(one) + on(other)
    with pytest.raises(BackendError, match="inputs live on"):
        ops.stack([on(one), on(other)])
    assert np.array_equal((on(one) + on(numpy_called("b", home=1))).numpy(), 2 * X)


# ---- moving ------------------------------------------------------------------------------------------------------


def test_a_transfer_of_the_backends_own_spares_the_host() -> None:
    def transfer(buf: np.ndarray, target: Backend) -> Any:
        asked.append(target.name)
        return np.array(buf) if target.name == "b" else NotImplemented

    asked: list[str] = []
    a, b, c = numpy_called("a", transfer=transfer), numpy_called("b"), numpy_called("c")
    x, before = on(a), transfers()
    assert np.array_equal(x.to(b).numpy(), X) and transfers().downloads == before.downloads + 1  # of .numpy()
    assert np.array_equal(x.to(c).numpy(), X) and transfers().downloads == before.downloads + 3
    assert asked == ["b", "c"]
    g = pa.grad(lambda x: ops.sum(x.to(b) ** 2))(x)
    assert g.backend is a and np.array_equal(g.numpy(), 2 * X)


def test_dlpack_spares_the_host_where_both_have_it() -> None:
    def refuse(_: Any) -> Any:
        raise BufferError("lives on another device")

    share = DLPack(lambda buf: buf, np.from_dlpack)
    a, b = numpy_called("a", dlpack=share), numpy_called("b", dlpack=share)
    x, before = on(a), transfers()
    moved = x.to(b)
    assert np.shares_memory(moved.buf, x.buf) and transfers().downloads == before.downloads
    assert np.array_equal(x.to(numpy_called("c")).numpy(), X)
    far = numpy_called("d", dlpack=DLPack(lambda buf: buf, refuse))
    assert np.array_equal(x.to(far).numpy(), X) and transfers().downloads > before.downloads
    with pytest.raises(pa.DtypeError, match="float64 on 'e'"):
        x.to(numpy_called("e", dlpack=share, dtypes=frozenset({pa.float32})))


# ---- other citizens ----------------------------------------------------------------------------------------------


class Counted:
    """An argument that takes over calls, counts them, and runs them on the array it wraps."""

    def __init__(self, array: pa.Array, calls: list) -> None:
        self.array, self.calls = array, calls

    def polyarr_op(self, op: Any, args: tuple, params: dict) -> Any:
        def plain(a: Any) -> Any:
            return tuple(map(plain, a)) if isinstance(a, (list, tuple)) else a.array if isinstance(a, Counted) else a

        self.calls.append((op.name, params))
        return type(self)(op(*map(plain, args), **params), self.calls)


def test_an_argument_may_take_over_the_call() -> None:
    calls: list = []
    x = Counted(on(get_backend("numpy")), calls)
    found = ops.sum(ops.concat([on(get_backend("numpy")) + x, x], axis=0), axis=1)
    assert found.array.tolist() == [6.0, 24.0, 3.0, 12.0]
    assert [name for name, _ in calls] == ["add", "concat", "sum"]
    assert calls[1][1] == {"axis": 0} and calls[2][1]["axis"] == 1
    assert (ops.sum(x=x)).array.item() == 15


def test_an_argument_may_take_over_a_call_in_place() -> None:
    x = on(get_backend("numpy"))
    y: Any = x
    y += Counted(x, [])
    assert type(y) is Counted and y.array.tolist() == (x + x).tolist()


class Traced(Counted):
    """A Counted that also names the array it stands for."""

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: self.array.ndim)


MADE_OF_OPS = {
    "einsum": lambda x, y: pa.einsum("ij,kj->ki", x, y),
    "einsum with itself": lambda x, y: pa.einsum("ij,ij->", y, y),
    "a key": lambda x, y: x[ops.argmin(y, axis=1)],
    "two keys": lambda x, y: x[pa.asarray([0, 1]), ops.argmin(y, axis=1)],
    "a key and a number": lambda x, y: x[1, ops.argmin(y, axis=1)],
    "get_item": lambda x, y: ops.get_item(y, (slice(None), -1)),
    "get_item of all": lambda x, y: ops.get_item(y, ...),
    "set_item": lambda x, y: ops.set_item(x, 0, ops.get_item(y, 1)),
    "full": lambda x, y: pa.full((2, 2, 3), y),
    "full of another dtype": lambda x, y: pa.full((2, 3), y, dtype="int32"),
    "zeros_like": lambda x, y: pa.zeros_like(y),
    "full_like": lambda x, y: pa.full_like(y, 7, dtype="int8"),
    "meshgrid": lambda x, y: pa.meshgrid(x[0], ops.get_item(y, 0))[1],
    "broadcast_arrays": lambda x, y: pa.broadcast_arrays(x, y)[1],
    "diff": lambda x, y: pa.diff(x, append=y, axis=0),
    "diff of nothing": lambda x, y: pa.diff(y, n=0),
    "count_nonzero": lambda x, y: pa.count_nonzero(y, axis=1),
    "cumulative_prod": lambda x, y: pa.cumulative_prod(y, axis=0),
    "cumulative_sum": lambda x, y: pa.cumulative_sum(y, axis=1, include_initial=True),
}


@pytest.mark.parametrize("name", MADE_OF_OPS)
def test_array_like_arguments_work_in_functions_made_of_ops(name: str) -> None:
    x, call = on(get_backend("numpy")), MADE_OF_OPS[name]
    found = call(x, Traced(x, []))
    assert isinstance(found, Counted) and found.array.dtype == call(x, x).dtype
    assert found.array.tolist() == call(x, x).tolist()


def test_other_arguments_are_refused_by_functions() -> None:
    x = on(get_backend("numpy"))
    for call in (lambda a: pa.einsum("ij", a), pa.diff, pa.zeros_like, pa.meshgrid):
        with pytest.raises(TypeError, match=r"^\w+: .* is a .*Counted; it must be a polyarr array"):
            call(Counted(x, []))
    with pytest.raises(IndexError, match="an index is Counted; it must be"):
        x[Counted(x, [])]
    with pytest.raises(IndexError, match=r"an index is float64\[2, 3\]; it must be an integer array"):
        x[Traced(x, [])]


def test_an_array_cannot_become_what_takes_over() -> None:
    x = on(get_backend("numpy"))
    with pytest.raises(TypeError, match=r"^x\[key\] = value: what took over the call gave a .*; it must give an arr"):
        x[0] = Traced(x[0], [])
    assert type(x) is pa.Array


def test_an_argument_may_decline_the_call() -> None:
    class Declines:
        def polyarr_op(self, op: Any, args: tuple, params: dict) -> Any:
            return NotImplemented

    with pytest.raises(TypeError, match=r"add: y is a .*Declines; it must be a polyarr array"):
        pa.ones(3) + Declines()


class Foreign:
    """An operand that handles arrays by Python's own protocol."""

    def answer(self, other: Any) -> str:
        return "mine"

    __radd__ = __rmatmul__ = __rsub__ = __gt__ = __eq__ = __ne__ = answer
    __hash__ = None


def test_python_asks_the_other_operand() -> None:
    x = pa.ones(3)
    assert x + Foreign() == "mine" and x @ Foreign() == "mine" and x - Foreign() == "mine"
    assert (x < Foreign()) == "mine" and (x == Foreign()) == "mine" and (x != Foreign()) == "mine"
    with pytest.raises(TypeError, match="unsupported operand"):
        x * Fraction(1, 2)
    y = x
    y += Foreign()
    assert y == "mine"


def test_an_array_is_not_none() -> None:
    x = pa.ones(3)
    assert (x == None) is False and (x != None) is True  # noqa: E711
    assert (x == "ones") is False and x not in [None, "a"]
    with pytest.raises(TypeError):
        x < None  # noqa: B015


class OfAnotherLibrary:
    """An array by its protocol that, like PyTorch's and JAX's, does not handle polyarr's."""

    def __dlpack__(self) -> None: ...


@pytest.mark.parametrize("other", [np.ones(3), [1, 2, 3], (1, 2)])
def test_errors_for_foreign_arrays_and_lists_name_the_remedy(other: Any) -> None:
    for compute in (lambda x: x + other, lambda x: x == other, lambda x: x < other):
        with pytest.raises(TypeError, match="array"):
            compute(pa.ones(3))
    with pytest.raises(TypeError, match="array"):
        other - pa.ones(3)


def test_an_array_of_another_library_is_not_just_unequal() -> None:
    for compute in (lambda x, y: x == y, lambda x, y: x != y, lambda x, y: y == x):
        with pytest.raises(TypeError, match=r"equal: y is a .*OfAnotherLibrary; it must be a polyarr array"):
            compute(pa.ones(3), OfAnotherLibrary())
