"""Cotangents from around a transform are its inputs; those of another dtype, shape or device are refused."""

from collections.abc import Callable

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import get_backend
from polyarr.core.errors import BackendError, CaptureError, DtypeError, GradientError, ShapeError
from polyarr.core.tape import Node
from polyarr.testing.compare import bits

pytestmark = pytest.mark.usefixtures("on_numpy")


def _losses(dtype: str) -> dict[str, tuple[Callable, Array]]:
    x = pa.ones((4, 8), dtype=dtype)
    heads = pa.ones((1, 2, 8, 16), dtype=dtype)
    return {
        "cross_entropy": (lambda a: pa.cross_entropy(a, pa.zeros(4, dtype="int32")), x),
        "softmax": (lambda a: ops.softmax(a), x),
        "layer_norm": (lambda a: ops.layer_norm(a, None, None), x),
        "attention": (lambda a: ops.attention(a, a, a), heads),
        "add": (lambda a: a + a, x),
        "checkpoint": (pa.checkpoint(lambda a: ops.softmax(a)), x),
    }


@pytest.mark.parametrize("name", ["cross_entropy", "softmax", "layer_norm", "attention", "add", "checkpoint"])
@pytest.mark.parametrize(("dtype", "other"), [("float16", "float32"), ("float32", "float16"), ("bfloat16", "float16")])
def test_a_cotangent_of_another_dtype_is_refused(backend: Backend, name: str, dtype: str, other: str) -> None:
    fn, x = _losses(dtype)[name]
    value, pull = pa.vjp(fn, x)
    wrong = "float16" if value.dtype == pa.float32 else other
    with pytest.raises(DtypeError, match=f"^vjp: a cotangent is {wrong}.* for {value.dtype.name}.*cast it with astype"):
        pull(ops.ones_like(value).astype(wrong))
    assert pull(ops.ones_like(value))[0].dtype == x.dtype
    with pytest.raises(DtypeError, match=rf"^jvp: a tangent is float64.* for {dtype}\["):
        pa.jvp(fn, (x,), (pa.ones(x.shape, dtype="float64", device="numpy"),))


def _through_node(pull: Callable) -> Callable:
    """Return a function whose gradient comes from a Node."""
    return lambda x: ops.sum(Array(x.backend, x.buf, x.spec, Node((x.node,), (x.spec,), lambda node, g: [pull(g)])))


def _through_pair(changed: Callable) -> Callable:
    """Return a function whose gradient comes from a backend's Fused kernels."""
    pair = Fused(lambda out, x, axis: (x, None), lambda g, saved, x, wanted, axis: (changed(g),))

    def fn(x: Array) -> Array:
        kernels = {**x.backend.kernels, ops.softmax: pair}
        return ops.sum(ops.softmax(x.to(x.backend._replace(kernels=kernels, home=x.backend.name))))

    return fn


def _own(backward: Callable) -> Callable:
    return pa.custom_vjp(ops.sum, lambda x: (ops.sum(x), x), backward)


def _later(x: Array) -> Array:
    """Return a checkpointed function that returns another dtype when it is recomputed."""
    dtypes = ["float64", "float32"]
    return ops.sum(pa.checkpoint(lambda a: a.astype(dtypes.pop()))(x).astype("float32"))


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (_own(lambda x, g: (x.astype("float64"),)), DtypeError, r"backward \(\S+\) returned at index 0 float64"),
        (_own(lambda x, g: (1.0,)), ShapeError, r"^custom_vjp: backward \(\S+\) returned at index 0 a float for"),
        (_own(lambda x, g: (np.ones((2, 3), "f"),)), ShapeError, r"a numpy.ndarray for .* must be a polyarr array"),
        (_own(lambda x, g: (x.to(_mirror()),)), BackendError, r"^custom_vjp: backward .* on 'mirror' for an array"),
        (_through_node(lambda g: g.astype("float64")), DtypeError, r"gradient of an input is float64\[2, 3\] for"),
        (_through_node(lambda g: g[:, :2]), ShapeError, r"gradient of an input is float32\[2, 2\] for float32\[2, 3\]"),
        (_through_node(lambda g: g[0]), ShapeError, r"gradient of an input is float32\[3\] for float32\[2, 3\]"),
        (_through_pair(lambda b: b.astype("d")), BackendError, r"^softmax: .* d/dx came as float64\[2, 3\]; it must"),
        (_through_pair(lambda b: b[0]), BackendError, r"^softmax: .* d/dx came as float32\[3\]; it must be float32\[2"),
        (_later, GradientError, r"^checkpoint: fn gave float64\[2, 3\] when .* again, and float32\[2, 3\] the first"),
    ],
)
def test_a_gradient_unlike_its_input_is_refused(fn: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pa.grad(fn)(pa.ones((2, 3), device="numpy"))


def _mirror() -> Backend:
    return get_backend("numpy")._replace(name="mirror")


def test_cotangents_and_tangents_on_another_device_are_refused(backend: Backend) -> None:
    x, other = pa.ones((2, 3)), pa.ones((2, 3), device=_mirror())
    with pytest.raises(BackendError, match=rf"^vjp: a cotangent is .* on 'mirror' for an array on '{backend.name}'"):
        pa.vjp(ops.softmax, x)[1](other)
    with pytest.raises(BackendError, match=rf"^jvp: a tangent is .* on 'mirror' for an array on '{backend.name}'"):
        pa.jvp(ops.softmax, (x,), (other,))


PULLED = {
    "tanh": pa.tanh,
    "softmax": pa.softmax,
    "layer_norm": pa.layer_norm,
    "sort": pa.sort,
    "topk": lambda x: pa.topk(x, 4)[0],
    "fused": pa.fused(lambda x: pa.tanh(x) * 2.0),
    "custom": pa.custom_vjp(pa.positive, lambda x: (x, None), lambda _, g: (g,)),
}


@pytest.fixture(params=PULLED)
def pulled(request, backend: Backend):
    """Return a function of x and g that pulls g back through an op of x, and an x and a g."""
    fn, host = PULLED[request.param], np.random.default_rng(1)
    x, g = (pa.asarray(host.standard_normal((3, 4)).astype("f"), device=backend) for _ in range(2))
    return lambda x, g: pa.vjp(fn, x)[1](g)[0], x, g


def test_a_cotangent_from_around_vmap_is_shared(pulled) -> None:
    fn, x, g = pulled
    row = g[0]
    found = pa.vmap(lambda x: fn(x, row))(x)
    np.testing.assert_allclose(found.numpy(), pa.stack([fn(x[i], row) for i in range(3)]).numpy(), 1e-5, 1e-6)


def test_a_cotangent_that_compile_captures_is_read_at_every_run(pulled) -> None:
    fn, x, g = pulled
    with pytest.raises(CaptureError, match="that the function was not given"):
        pa.compile(lambda x: fn(x, g))(x)
    step = pa.compile(lambda x: fn(x, g), captures=[g])
    for _ in range(2):
        assert bits(step(x)) == bits(fn(x, g))
        g *= 2.0


def test_a_cotangent_that_a_checkpoint_closes_over_has_its_gradient(pulled) -> None:
    fn, x, g = pulled
    due = pa.grad(lambda g: pa.sum(fn(x, g) ** 2))(g)
    found = pa.grad(lambda g: pa.sum(pa.checkpoint(lambda x: fn(x, g))(x) ** 2))(g)
    np.testing.assert_allclose(found.numpy(), due.numpy(), 1e-5, 1e-6)
