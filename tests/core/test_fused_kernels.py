"""Fused kernels and VJP rules of the backend contract: unwanted gradients, lists of inputs, several results."""

from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.array import Array, spec_of
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import BackendError
from polyarr.core.op import OPS, Op, composed
from polyarr.core.spec import Spec
from polyarr.testing import Data, Sample
from polyarr.testing.compare import CheckFailure
from polyarr.testing.tape import check_wanted

pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.fixture
def paired():
    """Return an op of a list and an array with two results, a backend with Fused kernels for it, and their requests."""

    @composed
    def sums_and_products(arrays, factor):
        """Return the sum of the arrays, and the sum of each one's product with factor."""
        total = arrays[0]
        for a in arrays[1:]:
            total = ops.add(total, a)
        return total, ops.multiply(total, factor)

    asked: list = []

    def forward(out: tuple, arrays: tuple, factor: np.ndarray) -> tuple:
        total = sum(arrays)
        return (total, total * factor), (total,)

    def backward(g: tuple, saved: tuple, arrays: tuple, factor: np.ndarray, *, wanted: tuple) -> tuple:
        asked.append(wanted)
        slope = g[0] + g[1] * factor
        return tuple(slope if want else None for want in wanted[0]), g[1] * saved[0] if wanted[1] else None

    backend = get_backend("numpy")
    kernels = {**backend.kernels, sums_and_products: Fused(forward, backward)}
    yield sums_and_products, backend._replace(kernels=kernels), asked
    OPS.remove(sums_and_products)


def numbers(count: int) -> list[Array]:
    return [pa.asarray(np.random.default_rng(i).standard_normal((2, 3))) for i in range(count)]


def test_a_fused_kernel_with_a_list_and_two_results(paired) -> None:
    op, backend, asked = paired

    def loss(arrays: list, factor: Array) -> Array:
        total, product = op(arrays, factor)
        return ops.sum(total**2) + ops.sum(ops.exp(product))

    found = []
    for where in (backend, get_backend("numpy")):
        with use_backend(where):
            found.append(pa.grad(loss, argnums=(0, 1))(numbers(3), numbers(1)[0]))
    for a, b in zip(*map(pa.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)
    assert asked == [((True, True, True), True)]


@pytest.mark.parametrize("only", [0, 1])
def test_an_unused_result_has_a_zero_cotangent(paired, only: int) -> None:
    op, backend, _ = paired
    found = []
    for where in (backend, get_backend("numpy")):
        with use_backend(where):
            found.append(pa.grad(lambda a, f: ops.sum(op([a, a], f)[only]))(numbers(1)[0], numbers(2)[1]).numpy())
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_backward_gets_the_wanted_gradients(paired) -> None:
    op, backend, asked = paired
    with use_backend(backend):
        a, b, factor = numbers(3)
        pa.grad(lambda b: ops.sum(op([a, b], factor)[1]))(b)
        pa.grad(lambda f: ops.sum(op([a, b], f)[1]))(factor)
        assert asked == [((False, True), False), ((False, False), True)]
        second = pa.grad(lambda f: ops.sum(pa.grad(lambda f: ops.sum(op([a, b], f)[1] ** 2))(f)))(factor)
    total = a.numpy() + b.numpy()
    np.testing.assert_allclose(second.numpy(), 2 * total**2, rtol=1e-12)


def test_too_few_gradients_are_an_error(paired) -> None:
    op, backend, _ = paired
    short = backend.kernels[op]._replace(backward=lambda g, saved, *bufs, wanted: (None,))
    with (
        use_backend(backend._replace(kernels={**backend.kernels, op: short})),
        pytest.raises(BackendError, match="backward of the Fused kernel of backend 'numpy' gave a tuple of 1; it must"),
    ):
        pa.grad(lambda f: ops.sum(op(numbers(2), f)[1]))(numbers(1)[0])


@pytest.mark.parametrize("backward", [lambda g, saved, *bufs: bufs, lambda g, saved, *bufs, **params: int(**params)])
def test_a_backward_that_knows_of_no_wanted_is_an_error_where_no_plugin_brings_it(paired, backward) -> None:
    op, backend, _ = paired
    old = backend._replace(kernels={**backend.kernels, op: backend.kernels[op]._replace(backward=backward)})
    told = f"^{op.name}: backward of its Fused kernel has no parameter wanted; since api 2 it is"
    with use_backend(old), pytest.raises(BackendError, match=told):
        pa.grad(lambda f: ops.sum(op(numbers(2), f)[1]))(numbers(1)[0])


def test_backward_gets_specs_of_inputs_it_does_not_need(paired) -> None:
    """Only if no higher derivative can be requested, and never for numbers or needed inputs."""
    op, backend, _ = paired
    pair, got = backend.kernels[op], []

    def backward(g: tuple, saved: tuple, arrays: tuple, factor: Any, *, wanted: tuple) -> tuple:
        got.append((arrays, factor))
        slope = g[0] if isinstance(factor, Spec) else g[0] + g[1] * factor
        return tuple(slope if want else None for want in wanted[0]), g[1] * saved[0] if wanted[1] else None

    needs = {"arrays": ("factor",), "factor": ()}
    with use_backend(backend._replace(kernels={**backend.kernels, op: Fused(pair.forward, backward, needs)})):
        a, b, factor = numbers(3)
        pa.grad(lambda a: ops.sum(op([a, b], factor)[1]))(a)
        dfactor = pa.grad(lambda f: ops.sum(op([a, b], f)[1]))(factor)
        pa.vjp(lambda f: op([a, b], f), factor)[1](op([a, b], factor))
        loss = pa.grad(pa.checkpoint(lambda f: ops.sum(op([a, b], f)[1] ** 2)))
        second = pa.grad(lambda f: ops.sum(loss(f)))(factor)
    arrays, nothing = (np.ndarray, np.ndarray), (Spec, Spec)
    kinds = [(tuple(map(type, given)), type(factor)) for given, factor in got]
    assert kinds[:3] == [(nothing, np.ndarray), (nothing, Spec), (arrays, np.ndarray)]
    np.testing.assert_allclose(dfactor.numpy(), a.numpy() + b.numpy(), rtol=1e-12)
    np.testing.assert_allclose(second.numpy(), 2 * (a.numpy() + b.numpy()) ** 2, rtol=1e-12)


def test_a_fused_kernel_with_needs_gives_every_gradient(paired) -> None:
    op, backend, _ = paired
    pair = Fused(backend.kernels[op].forward, lambda g, saved, *bufs, wanted: (None, None), {"factor": ()})
    with (
        use_backend(backend._replace(kernels={**backend.kernels, op: pair})),
        pytest.raises(BackendError, match="the Fused kernel of 'numpy' states what its backward needs; it must"),
    ):
        pa.grad(lambda f: ops.sum(op(numbers(2), f)[1]))(numbers(1)[0])


def plain_parts(x: Array, axis: int) -> tuple:
    """Return the slices that unstack gives."""
    at = [slice(None)] * x.ndim
    return tuple(x[(*at[:axis], i, *at[axis + 1 :])] for i in range(x.shape[axis]))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1), (1, 1)])
def test_the_gradient_of_unstack_is_that_of_slices(axis: int, used: tuple[int, ...]) -> None:
    def loss(parts: Any) -> Any:
        return lambda x: ops.sum(ops.exp(sum((parts(x)[i] * (i + 1) for i in used), start=ops.zeros_like(parts(x)[0]))))

    x = pa.asarray(np.random.default_rng(axis).standard_normal((2, 2, 2)))
    by_op, by_slices = loss(lambda x: ops.unstack(x, axis=axis)), loss(lambda x: plain_parts(x, axis))
    np.testing.assert_allclose(pa.grad(by_op)(x).numpy(), pa.grad(by_slices)(x).numpy(), rtol=1e-12)
    first, second = (pa.grad(lambda x, f=f: ops.sum(pa.grad(f)(x) ** 2))(x).numpy() for f in (by_op, by_slices))
    np.testing.assert_allclose(first, second, rtol=1e-12)
    assert not pa.grad(lambda x: ops.sum(x * 0) + ops.sum(ops.unstack(x, axis=-1)[0]) * 0)(x).numpy().any()


def test_unstack_of_nothing_and_of_integers() -> None:
    assert ops.unstack(pa.zeros((0, 3))) == ()
    assert pa.grad(lambda x: ops.sum(x) + len(ops.unstack(pa.zeros((0, 3)))))(pa.ones(3)).tolist() == [1, 1, 1]
    parts = ops.unstack(pa.asarray([[1, 2], [3, 4]]))
    assert [p.tolist() for p in parts] == [[1, 2], [3, 4]] and all(p.node is None for p in parts)


def test_dropout_keeps_no_input_and_masks_its_gradient_alike() -> None:
    x = pa.asarray(np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32))
    value, (g,) = (lambda v, pull: (v, pull(ops.ones_like(v))))(*pa.vjp(lambda x: ops.dropout(x, 3, 4, rate=0.5), x))
    np.testing.assert_allclose(g.numpy(), np.where(value.numpy() == 0, 0, 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("forward", "backward", "told"),
    [
        (lambda out, x, **_: x, None, r"forward of .* gave a numpy\.ndarray; it must give a tuple of 2, buff"),
        (lambda out, x, **_: (x,), None, "forward of .* gave a tuple of 1; it must"),
        (lambda out, x, **_: None, None, "forward of .* gave None; it must"),
        (None, lambda g, *_, **__: g, r"backward of .* gave a numpy\.ndarray; it must give a tuple of 1, one for each"),
        (None, lambda *_, **__: None, "backward of .* gave None; it must"),
    ],
)
def test_a_bare_buffer_is_no_result_of_a_fused_kernel(forward: Any, backward: Any, told: str) -> None:
    """Two rows would be mistaken for two results, and one for one gradient."""
    sound = softmax_pair()
    pair = Fused(forward or sound.forward, backward or sound.backward)
    x = pa.ones((1, 4)) if backward else pa.ones((2, 4))
    with use_backend(with_pair(ops.softmax, pair)) as backend, pytest.raises(BackendError, match=told):
        pa.grad(lambda x: ops.sum(ops.softmax(x)))(x.to(backend))


# ---- what the kit says of a pair ------------------------------------------------------------------------------


def softmax_pair(saved: Any = None, backward: Any = None) -> Fused:
    body = get_backend("numpy")

    def forward(out: Any, x: np.ndarray, *, axis: int) -> tuple:
        with use_backend(body):
            y = ops.softmax(pa.asarray(x), axis=axis).numpy()
        return y, saved(y) if saved else y

    def right(g: np.ndarray, y: np.ndarray, x: np.ndarray, *, wanted: tuple, axis: int) -> tuple:
        return (y * (g - (g * y).sum(axis, keepdims=True)),)

    return Fused(forward, backward or right)


def with_pair(op: Op, pair: Fused) -> Backend:
    backend = get_backend("numpy")
    return backend._replace(kernels={**backend.kernels, op: pair})


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        (lambda y: [y], "softmax on numpy: the fused kernel saves a builtins.list; it must be a tree of tuples"),
        (lambda y: (y, lambda: y), "the fused kernel saves a builtins.function"),
        (lambda y: {"y": y}, "the fused kernel saves a builtins.dict"),
    ],
)
def test_what_is_saved_must_be_a_tree(saved: Any, told: str) -> None:
    def backward(g: Any, kept: Any, x: Any, *, wanted: tuple, axis: int) -> tuple:
        return (g * 0,)

    with pytest.raises(CheckFailure, match=told):
        check_wanted(ops.softmax, with_pair(ops.softmax, softmax_pair(saved, backward)), Sample((Data((3, 4)),)))


def test_a_correct_fused_kernel_passes() -> None:
    check_wanted(ops.softmax, with_pair(ops.softmax, softmax_pair()), Sample((Data((3, 4)),)))


def test_a_gradient_that_hangs_on_the_others_is_found() -> None:
    """The gradient is correct only if all are wanted."""

    def forward(out: Any, x: np.ndarray, weight: np.ndarray, *, eps: float) -> tuple:
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        return (x * scale * weight).astype(x.dtype), scale

    def backward(g: Any, scale: Any, x: Any, weight: Any, *, wanted: tuple, eps: float) -> tuple:
        n, h = x * scale, g * weight
        dx = scale * (h - n * (h * n).mean(-1, keepdims=True))
        dweight = (g * n).sum(0) if wanted[0] else (g * n)[0]
        return dx.astype(x.dtype), dweight.astype(x.dtype)

    with pytest.raises(CheckFailure, match=r"rms_norm on numpy: asked for alone, d/dweight .* differs"):
        sample = Sample((Data((3, 4)), Data((4,))), {"eps": 0.1})
        check_wanted(ops.rms_norm, with_pair(ops.rms_norm, Fused(forward, backward)), sample)


def test_specs_of_several_results() -> None:
    assert [str(s) for s in ops.unstack(spec_of(pa.zeros((2, 3))))] == ["float32[3]", "float32[3]"]


def test_rules_of_several_results_that_name_them_hold_to_the_second_order() -> None:
    """The outer derivative depends on its inputs through the results and through the rule that uses them."""

    @composed
    def powers(x):
        """Return exp(x) and exp(2 x)."""
        return ops.exp(x), ops.exp(ops.multiply(x, 2))

    powers.vjp(x=lambda g, out: ops.add(ops.multiply(g[0], out[0]), ops.multiply(ops.multiply(g[1], out[1]), 2)))
    try:
        x = numbers(1)[0]
        found = [
            pa.grad(lambda x, op=op: ops.sum(pa.grad(lambda x: ops.sum(ops.square(op(x)[0]) * op(x)[1]))(x) * x))(x)
            for op in (powers, powers.decomposition)
        ]
    finally:
        OPS.remove(powers)
    np.testing.assert_allclose(*(a.numpy() for a in found), rtol=1e-12)
