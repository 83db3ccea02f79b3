"""vmap within and around the other transforms: gradients, compile, fused, checkpoint and custom_vjp."""

from functools import partial

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import use_backend
from polyarr.core.errors import BatchingError, GradientError
from tests.helpers.examples import close, given

FUNCTIONS = {
    "tanh": lambda w, x: pa.sum(pa.tanh(x @ w) ** 2),
    "softmax": lambda w, x: pa.sum(pa.softmax(x @ w) * pa.softmax(w[0])),
    "norm": lambda w, x: pa.sum(pa.layer_norm(x @ w, w[0], w[1]) ** 3),
    "linear": lambda w, x: pa.sum(pa.linear(x, w.mT, w[0], activation="gelu")),
    "attention": lambda w, x: pa.sum(pa.attention(w, w * x[0], pa.sin(w), causal=True)),
    "loss": lambda w, x: pa.cross_entropy((x @ w)[None], pa.asarray([1])),
    "indexing": lambda w, x: pa.sum(w[pa.argsort(x)] * x[:, None]) * x[-1],
    "in place": lambda w, x: _in_place(w, x),
}


def _in_place(w, x):
    y = x @ w
    y[1:3] = y[:2] * w[0, 0]
    y *= y
    return pa.sum(y)


W, X = np.random.default_rng(1).standard_normal((3, 5)), np.random.default_rng(2).standard_normal((4, 3))


@pytest.fixture(params=FUNCTIONS)
def fn(request):
    return FUNCTIONS[request.param]


def arrays():
    return pa.asarray(W.astype(np.float32)), pa.asarray(X.astype(np.float32))


def test_the_gradient_of_each_example(backend: Backend, fn) -> None:
    w, x = arrays()
    found = pa.vmap(pa.value_and_grad(fn, argnums=(0, 1)), in_axes=(None, 0))(w, x)
    for i in range(4):
        value, grads = pa.value_and_grad(fn, argnums=(0, 1))(w, x[i])
        close(found[0][i], value.numpy(), 1e-4)
        for got, due in zip(found[1], grads, strict=True):
            close(got[i], due.numpy(), 1e-4)


def total(fn):
    return lambda w, x: pa.sum(pa.sin(pa.vmap(fn, in_axes=(None, 0))(w, x)))


def total_of_loop(fn):
    return lambda w, x: pa.sum(pa.stack([pa.sin(fn(w, x[i])) for i in range(4)]))


def penalty(fn):
    return lambda w, x: pa.sum(pa.vmap(pa.grad(fn), in_axes=(None, 0))(w, x) ** 2)


def penalty_of_loop(fn):
    return lambda w, x: pa.sum(pa.stack([pa.sum(pa.grad(fn)(w, x[i]) ** 2) for i in range(4)]))


@pytest.mark.parametrize("wrap", [lambda f: f, pa.compile, pa.checkpoint], ids=["plain", "compile", "checkpoint"])
@pytest.mark.parametrize(("batched", "looped"), [(total, total_of_loop), (penalty, penalty_of_loop)])
def test_the_gradient_through_vmap(backend: Backend, fn, wrap, batched, looped) -> None:
    w, x = arrays()
    due = pa.grad(looped(fn), argnums=(0, 1))(w, x)
    for got, g in zip(pa.grad(wrap(batched(fn)), argnums=(0, 1))(w, x), due, strict=True):
        close(got, g.numpy(), 2e-4)
    compiled = pa.compile(pa.grad(batched(wrap(fn)), argnums=(0, 1)))
    for _ in range(2):
        for got, g in zip(compiled(w, x), due, strict=True):
            close(got, g.numpy(), 2e-4)


def test_jvp_of_vmap_and_vmap_of_jvp(backend: Backend, fn) -> None:
    w, x = arrays()
    mapped = pa.vmap(fn, in_axes=(None, 0))
    value, tangent = pa.jvp(mapped, (w, x), (w * 0.5, x * 2))
    inner = pa.vmap(lambda w, x: pa.jvp(fn, (w, x), (w * 0.5, x * 2)), in_axes=(None, 0))(w, x)
    for i in range(4):
        due = pa.jvp(fn, (w, x[i]), (w * 0.5, x[i] * 2))
        close(value[i], due[0].numpy(), 1e-4)
        close(tangent[i], due[1].numpy(), 1e-4)
        close(inner[1][i], due[1].numpy(), 1e-4)


def test_a_compiled_function_captures_vmap_with_other_arrays(backend: Backend) -> None:
    w, x = arrays()
    step = pa.compile(lambda x, rate: pa.vmap(lambda a: pa.tanh(a @ w) * rate)(x), captures=[w])
    for rate in (1.0, 2.0):
        close(step(x, rate), rate * np.tanh(X @ W))
    w += 1.0
    close(step(x, 1.0), np.tanh(X @ (W + 1)))
    assert len(step.programs()) == 1


def test_fused_functions_of_examples(backend: Backend) -> None:
    gate = pa.fused(lambda a, b: pa.silu(a) * b)
    w, x = arrays()
    loss = lambda x, w=w: pa.sum(gate(x @ w, x @ w + 1) ** 2)
    found = pa.vmap(pa.grad(loss))(x)
    outside = pa.grad(lambda x: pa.sum(pa.vmap(loss)(x)))(x)
    jacobian = pa.jacrev(lambda x: gate(x @ w, x @ w + 1))(x[0])
    for i in range(4):
        close(found[i], pa.grad(loss)(x[i]).numpy(), 1e-4)
        close(outside[i], pa.grad(loss)(x[i]).numpy(), 1e-4)
    plain = pa.jacrev(lambda x: pa.silu(x @ w) * (x @ w + 1))(x[0])
    close(jacobian, plain.numpy(), 1e-4)


def test_checkpoint_inside_vmap_keeps_nothing_outside_of_its_inputs(backend: Backend) -> None:
    w, x = arrays()
    calls = []

    def fn(a):
        calls.append(1)
        return pa.sum(pa.sin(pa.exp(a @ w)))

    due = pa.grad(lambda x: pa.sum(pa.vmap(fn)(x)))(x)
    assert len(calls) == 1
    found = pa.grad(lambda x: pa.sum(pa.vmap(pa.checkpoint(fn))(x)))(x)
    assert len(calls) == 3  # once more in the backward pass
    close(found, due.numpy(), 1e-5)
    close(pa.vmap(pa.grad(pa.checkpoint(fn)))(x), due.numpy(), 1e-5)


CLIPPED = pa.custom_vjp(
    lambda x, w: pa.sum(x * w), lambda x, w: (pa.sum(x * w), (x, w)), lambda s, g: (g * 10 * s[1], g * pa.sin(s[0]))
)


def test_a_custom_vjp_inside_vmap_is_the_gradient_inside_and_outside(on_numpy) -> None:
    x, w = given(4, 3), given(3)
    inside = pa.vmap(pa.grad(CLIPPED, argnums=(0, 1)), in_axes=(0, None))(x, w)
    close(inside[0], np.stack([10 * w.numpy()] * 4))
    close(inside[1], np.sin(x.numpy()))
    outside = pa.grad(lambda x, w: pa.sum(pa.vmap(CLIPPED, in_axes=(0, None))(x, w)), argnums=(0, 1))(x, w)
    close(outside[0], np.stack([10 * w.numpy()] * 4))
    close(outside[1], np.sin(x.numpy()).sum(0))  # what all examples share has the sum of their gradients
    nested = pa.vmap(pa.vmap(CLIPPED, in_axes=(0, None)), in_axes=(None, 0))
    twice = pa.grad(lambda x, w: pa.sum(nested(x, w)), argnums=(0, 1))(x, pa.stack([w, w * 2]))
    close(twice[0], np.stack([30 * w.numpy()] * 4))
    close(twice[1], np.stack([np.sin(x.numpy()).sum(0)] * 2))
    compiled = pa.compile(pa.grad(lambda x, w: pa.sum(pa.vmap(CLIPPED, in_axes=(0, None))(x, w)), argnums=(0, 1)))
    for got, due in zip(compiled(x, w), outside, strict=True):
        close(got, due.numpy())


def test_a_custom_vjp_that_both_sides_differentiate(on_numpy) -> None:
    """Its gradient is the stated one for both, also for an argument that only one of them differentiates."""
    x, w = given(4, 3), given(3)
    both = lambda x, w: pa.sum(pa.grad(lambda z: CLIPPED(x * z, z) * z[0])(w) ** 2)
    shared = lambda x, w: pa.sum(pa.grad(lambda z: CLIPPED(x, z) * z[0])(w) ** 2)
    for fn in (both, shared):
        mapped = lambda x, w, fn=fn: pa.sum(pa.vmap(fn, in_axes=(0, None))(x, w))
        loop = lambda x, w, fn=fn: pa.sum(pa.stack([fn(x[i], w) for i in range(4)]))
        for got, due in zip(*(pa.grad(f, argnums=(0, 1))(x, w) for f in (mapped, loop)), strict=True):
            close(got, due.numpy(), 1e-4)


def test_a_custom_vjp_refuses_closures_that_are_differentiated(on_numpy) -> None:
    x, w = given(4, 3), given(3)
    fn = lambda z, a: pa.custom_vjp(lambda q: pa.sum(q * z), lambda q: (pa.sum(q * z), q), lambda s, g: (g * s,))(a)
    with pytest.raises(GradientError, match=r"custom_vjp: an array float32\[3\] is differentiated and is no argument"):
        pa.grad(lambda x: pa.sum(pa.vmap(lambda a: pa.sum(pa.grad(fn)(w, a)))(x)))(x)


def test_a_checkpoint_inside_vmap_refuses_changes_of_closures(on_numpy) -> None:
    x = given(4, 3)

    def fn(a):
        h = a * 2

        def inner(z):
            h[0] = z[1]
            own = z * 1
            own += 1
            z += 1
            return pa.sum(own * z)

        return pa.checkpoint(inner)(a) + pa.sum(h)

    close(pa.vmap(fn)(x), [fn(x[i]).item() for i in range(4)])
    close(pa.vmap(pa.grad(fn))(x), np.stack([pa.grad(fn)(x[i]).numpy() for i in range(4)]))
    with pytest.raises(BatchingError, match=r"changes an array .* that it closes over in place"):
        pa.grad(lambda x: pa.sum(pa.vmap(fn)(x)))(x)


def test_stop_gradient_inside_vmap_stops_the_gradient_outside(on_numpy) -> None:
    x, w = given(4, 3), given(3)
    fn = lambda x, w: pa.sum(x * pa.stop_gradient(x) * pa.stop_gradient(w))
    total = lambda x, w: pa.sum(pa.vmap(fn, in_axes=(0, None))(x, w))
    dx, dw = pa.grad(total, argnums=(0, 1))(x, w)
    close(dx, x.numpy() * w.numpy())
    close(dw, np.zeros(3))
    closing = pa.grad(lambda w: pa.sum(pa.vmap(lambda a: pa.sum(a * pa.stop_gradient(w) * w))(x)))(w)
    close(closing, (x.numpy() * w.numpy()).sum(0))


def test_a_pull_is_mapped_and_may_be_called_again(on_numpy) -> None:
    x = given(3)
    _, pull = pa.vjp(lambda x: pa.layer_norm(pa.sin(x)), x)
    basis = pa.eye(3)
    found = pa.vmap(pull)(basis)[0]
    close(found, np.stack([pull(basis[i])[0].numpy() for i in range(3)]))
    close(pa.vmap(pull)(basis)[0], found.numpy())


# ---- backends with fused kernels ---------------------------------------------------------------------------------


def with_fused_softmax(backend: Backend) -> tuple[Backend, list[tuple]]:
    """Return a backend with a Fused kernel for softmax, and the shapes that its functions are called with."""
    calls: list[tuple] = []

    def forward(out, x, *, axis):
        calls.append(("forward", out.shape))
        e = np.exp(x - x.max(axis, keepdims=True))
        y = e / e.sum(axis, keepdims=True)
        return y.astype(x.dtype), (y.astype(x.dtype),)

    def backward(g, saved, x, *, wanted, axis):
        calls.append(("backward", g.shape))
        (y,) = saved
        return (y * (g - (g * y).sum(axis, keepdims=True)),)

    kernels = {**backend.kernels, pa.softmax: Fused(forward, backward)}
    return backend._replace(name="fusing", kernels=kernels), calls


def test_a_fused_kernel_runs_once_for_all_examples(on_numpy) -> None:
    backend, calls = with_fused_softmax(on_numpy)
    with use_backend(backend):
        x = given(4, 5)
        loss = lambda a: pa.sum(pa.softmax(a) ** 2)
        due = pa.vmap(pa.grad(lambda a: pa.sum((pa.exp(a) / pa.sum(pa.exp(a))) ** 2)))(x)
        pa.vmap(pa.softmax)(x)
        assert calls == [("forward", (4, 5))]
        calls.clear()
        close(pa.grad(lambda x: pa.sum(pa.vmap(loss)(x)))(x), due.numpy())
        assert calls == [("forward", (4, 5)), ("backward", (4, 5))]
        calls.clear()
        close(pa.vmap(pa.grad(loss))(x), due.numpy())
        assert calls == [("forward", (4, 5)), ("forward", (4, 5)), ("backward", (4, 5))]
        close(pa.jacrev(pa.softmax)(x[0]), pa.jacfwd(pa.softmax)(x[0]).numpy())


CUBED = pa.custom_vjp(lambda x: x**3, lambda x: (x**3, x), lambda x, g: (3 * g * x * x,))
UNUSED = pa.custom_vjp(lambda x, y: y * 2, lambda x, y: (y * 2, None), lambda _, g: (None, g * 2))
OF_CLOSURES = {
    "value_and_grad": lambda x: pa.value_and_grad(lambda a: pa.sum(a**3))(x)[0],
    "grad": pa.grad(lambda a: pa.sum(a**3)),
    "vjp": lambda x: pa.vjp(lambda a: a**3, x)[1](pa.ones(3))[0],
    "jvp": lambda x: pa.jvp(lambda a: a**3, (x,), (pa.ones(3),))[1],
    "jvp along": lambda x: pa.jvp(lambda a: a**3, (pa.ones(3),), (x,))[1],
    "jacrev": lambda x: pa.sum(pa.jacrev(lambda a: a**3)(x), axis=0),
    "jacfwd": lambda x: pa.sum(pa.jacfwd(lambda a: a**3)(x), axis=0),
    "hessian": lambda x: pa.sum(pa.hessian(lambda a: pa.sum(a**3))(x), axis=0),
    "linearize": lambda x: pa.linearize(lambda a: a**3, x)[1](pa.ones(3)),
    "vmap": pa.vmap(lambda a: a**3),
    "scan": lambda x: pa.scan(lambda c, a: (c + a**3, a), x, pa.ones((2, 3)))[0],
    "checkpoint": pa.checkpoint(lambda a: a**3),
    "fused": pa.fused(lambda a: a * a),
    "compile": pa.compile(lambda a: a * a),
    "custom_vjp": CUBED,
}


@pytest.mark.parametrize("of", OF_CLOSURES.values(), ids=OF_CLOSURES)
def test_a_checkpoint_knows_the_closures_that_transforms_in_it_take(on_numpy, of) -> None:
    x, y = given(3), given(3)

    def fn(wrap, x, y):
        h = x * 2.0
        value = wrap(lambda y: of(h) * y)(y)
        h[0] = 9.0  # which the checkpoint does not see
        value += wrap(lambda y: wrap(lambda unused: y * 2)(x))(y) + wrap(lambda y: UNUSED(x, y))(y)
        inner = wrap(lambda y: pa.grad(lambda y: pa.sum(pa.sin(of(x)) * y * y))(y))(y)
        return pa.sum(value * y + inner)

    plain, again = (pa.grad(partial(fn, wrap), argnums=(0, 1))(x, y) for wrap in (lambda f: f, pa.checkpoint))
    for found, due in zip(again, plain, strict=True):
        close(found, due.numpy(), 1e-4)


PULLED = [pa.softmax, pa.tanh, pa.fused(lambda x: pa.tanh(x) * x), CUBED, pa.checkpoint(pa.softmax)]


@pytest.mark.parametrize("inner", PULLED, ids=["softmax", "tanh", "fused", "custom_vjp", "checkpoint"])
def test_a_checkpoint_knows_what_a_pull_in_it_reads(backend: Backend, inner) -> None:
    def fn(wrap):
        def outer(x, y):
            _, pull = pa.vjp(inner, x)
            return pa.sum(wrap(lambda y: pull(y)[0])(y) ** 2)

        return pa.grad(outer, argnums=(0, 1))

    x, y = given(4, 3), given(4, 3)
    mapped = pa.vmap(fn(pa.checkpoint))(x, y)
    for plain, found, each in zip(fn(lambda f: f)(x, y), fn(pa.checkpoint)(x, y), mapped, strict=True):
        close(found, plain.numpy(), 1e-4)
        close(each, plain.numpy(), 1e-4)
