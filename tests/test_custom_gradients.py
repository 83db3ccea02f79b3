"""checkpoint and custom_vjp: the arrays that they keep, and closures."""

import math
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, ops, tree
from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.errors import GradientError

pytestmark = pytest.mark.usefixtures("on_numpy")


def close(got, expected, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, rtol=rtol, atol=1e-6)


def scalar(value: float) -> Array:
    return pa.asarray(value, dtype="float64")


def test_checkpoint_gives_the_same_gradient_with_dropout(backend: Backend) -> None:
    def block(params: dict, x: Array) -> Array:
        return ops.dropout(ops.tanh(x @ params["w"]), *pa.random.draw(), rate=0.5)

    params, x = {"w": pa.random.normal((8, 8))}, pa.random.normal((4, 8))
    found = []
    for wrap in (lambda f: f, pa.checkpoint):
        pa.random.seed(5)
        f = wrap(block)
        loss = lambda p, a, f=f: ops.sum(f(p, f(p, a)) ** 2)
        value, grads = pa.value_and_grad(loss, argnums=(0, 1))(params, x)
        found.append((value.item(), grads[0]["w"].numpy(), grads[1].numpy(), pa.random.get_state()))
    close(found[0][0], found[1][0])
    close(found[0][1], found[1][1], rtol=1e-4)
    close(found[0][2], found[1][2], rtol=1e-4)
    assert found[0][3] == found[1][3]


def test_checkpoint_computes_again_and_keeps_nothing() -> None:
    calls = []

    def fn(a: Array) -> Array:
        calls.append(1)
        hidden = ops.exp(a)
        inner.append(weakref.ref(hidden))
        return ops.sum(hidden * hidden)

    inner: list = []
    _, pull = pa.vjp(pa.checkpoint(fn), pa.asarray([1.0]))
    assert len(calls) == 1 and inner[0]() is None
    close(pull(pa.asarray(1.0))[0], [2 * math.exp(2)])
    assert len(calls) == 2


def test_checkpoint_sees_its_arguments_as_they_were() -> None:
    def fn(a: Array) -> Array:
        b = a * 1
        y = pa.checkpoint(lambda c: ops.sum(c * c))(b)
        b += 100
        return y

    close(pa.grad(fn)(pa.asarray([1.0, 2.0])), [2, 4])


def test_second_order_through_checkpoint() -> None:
    cube = pa.checkpoint(lambda a: a * a * a)
    close(pa.grad(pa.grad(cube))(scalar(2.0)), 12)
    close(pa.grad(pa.grad(pa.grad(cube)))(scalar(2.0)), 6)


def test_custom_vjp() -> None:
    clipped = pa.custom_vjp(
        lambda x, limit: x, lambda x, limit: (x, limit), lambda limit, g: (ops.clip(g, -limit, limit), None)
    )
    x = pa.asarray([1.0, -2.0])
    close(clipped(x, 0.5), [1, -2])
    close(pa.grad(lambda a: ops.sum(clipped(a, 0.5) * pa.asarray([3.0, -0.1])))(x), [0.5, -0.1])


def test_custom_vjp_of_trees_and_its_second_order() -> None:
    def forward(p: dict) -> tuple:
        return {"product": p["a"] * p["b"], "count": 2}, p

    def backward(p: dict, g: dict) -> tuple:
        return ({"a": g["product"] * p["b"], "b": g["product"] * p["a"]},)

    fn = pa.custom_vjp(lambda p: forward(p)[0], forward, backward)
    p = {"a": scalar(3.0), "b": scalar(5.0)}
    g = pa.grad(lambda q: fn(q)["product"])(p)
    close(g["a"], 5)
    close(g["b"], 3)
    gg = pa.grad(lambda q: pa.grad(lambda r: fn(r)["product"] ** 2)(q)["a"])(p)  # 2 a b^2
    close(gg["a"], 50)
    close(gg["b"], 60)


# ---- what the function closes over -------------------------------------------------------------------------------


def test_checkpoint_differentiates_what_it_closes_over() -> None:
    x = scalar(3.0)
    fn = lambda w: pa.checkpoint(lambda x: x * w)(x * w)  # x w^2
    close(pa.grad(fn)(scalar(2.0)), 12)
    close(pa.grad(pa.grad(fn))(scalar(2.0)), 6)
    close(pa.jvp(fn, (scalar(2.0),), (scalar(1.0),))[1], 12)
    _, pull = pa.vjp(fn, scalar(2.0))
    close(pull(scalar(1.0))[0], 12)
    close(pull(scalar(2.0))[0], 24)


def test_checkpoint_takes_arguments_by_name() -> None:
    fn = pa.checkpoint(lambda x, *, y, times=1: x * y * times)
    close(pa.grad(lambda y: fn(scalar(3.0), y=y * y, times=5))(scalar(2.0)), 60)
    assert fn(scalar(3.0), y=2.0).item() == 6


def test_checkpoint_of_a_module_trains_it(backend: Backend) -> None:
    model = nn.Sequential(nn.Linear(3, 4, activation="gelu"), nn.Linear(4, 3))
    x = pa.random.normal((5, 3))
    plain = pa.grad(lambda m: ops.sum(m(x) ** 2))(model)
    for name, wrapped in {
        "itself": lambda m: pa.checkpoint(m)(x),
        "a closure": lambda m: pa.checkpoint(lambda a: m(a))(x),
        "a method": lambda m: pa.checkpoint(m.__call__)(x),
        "nested": lambda m: pa.checkpoint(lambda a: pa.checkpoint(m)(a) * 1.0)(x),
        "no argument": lambda m: pa.checkpoint(lambda: m(x))(),
    }.items():
        found = pa.grad(lambda m, wrapped=wrapped: ops.sum(wrapped(m) ** 2))(model)
        for expected, got in zip(tree.leaves(plain), tree.leaves(found), strict=True):
            np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_checkpoint_that_returns_what_it_closes_over() -> None:
    fn = lambda w: pa.checkpoint(lambda x: (w, x * x, x))(scalar(3.0))[0] * 5
    close(pa.grad(fn)(scalar(2.0)), 5)


def test_checkpoint_reads_views_and_transfers_of_what_it_closes_over() -> None:
    x = pa.asarray([1.0, 2.0])
    close(pa.grad(lambda w: pa.checkpoint(lambda x: ops.sum(x * w[:]))(x))(x), [1, 2])
    close(pa.grad(lambda w: pa.checkpoint(lambda x: ops.sum(x * w.to("numpy")))(x))(x), [1, 2])


def test_checkpoint_with_a_gradient_inside() -> None:
    fn = lambda w: pa.checkpoint(lambda x: x * pa.grad(lambda z: z * z * w)(x))(3 * w)  # 2 w (3 w)^2
    close(pa.grad(fn)(scalar(2.0)), 54 * 4)


def test_checkpoint_sees_what_it_closes_over_as_it_was() -> None:
    def tracked(w: Array) -> Array:
        c = w * 1
        y = pa.checkpoint(lambda x: x * c)(w)
        c += 5
        assert c.item() == 7
        return y

    def untracked(w: Array) -> Array:
        c = scalar(4.0)
        y = pa.checkpoint(lambda x: x * c)(w)
        c[...] = 100
        return y * c

    close(pa.grad(tracked)(scalar(2.0)), 4)
    close(pa.grad(untracked)(scalar(2.0)), 400)


COPIES = [lambda c: c[:], pa.stop_gradient, lambda c: pa.asarray(c, copy=True), lambda c: c.item()]


@pytest.mark.parametrize("copied", COPIES)
def test_checkpoint_sees_a_copy_of_what_it_closes_over_as_it_was(copied: Callable) -> None:
    def fn(w: Array) -> Array:
        c = pa.asarray([4.0])
        y = pa.checkpoint(lambda x: x * copied(c))(w)
        c += 100
        return ops.sum(y)

    close(pa.grad(fn)(scalar(2.0)), 4)


def added(h: Array, x: Array, w: Array) -> Array:
    h += x
    return h * h


def placed(h: Array, x: Array, w: Array) -> Array:
    h[...] = h * x + w
    return h * w


def returned(h: Array, x: Array, w: Array) -> Array:
    h *= x
    return h


def thrice(h: Array, x: Array, w: Array) -> Array:
    inner = pa.checkpoint(lambda y: y * h * w)
    for _ in range(3):
        h -= inner(x)
    return x


@pytest.mark.parametrize("change", [added, placed, returned, thrice])
@pytest.mark.parametrize("make", [lambda w: w * 2.0, lambda w: scalar(5.0)], ids=["tracked", "untracked"])
def test_checkpoint_that_rebinds_what_it_closes_over(change: Callable, make: Callable) -> None:
    def fn(w: Array, transform: Callable) -> Array:
        h = make(w)
        y = transform(lambda x: change(h, x, w))(w * 1.0) * 1.0  # another handle than h
        z = transform(lambda x: change(h, x, y))(w * 0.5)
        return y + z * h

    plain, checked = (pa.value_and_grad(lambda w, t=t: fn(w, t)) for t in (lambda f: f, pa.checkpoint))
    w = pa.asarray(0.75, dtype="float64")
    for expected, found in zip(plain(w), checked(w), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)
    second = lambda first: pa.grad(lambda w: first(w)[1])(w).numpy()
    np.testing.assert_allclose(second(checked), second(plain), rtol=1e-6)


def test_checkpoint_of_a_function_that_reads_something_else_the_second_time() -> None:
    def fn(w: Array) -> Array:
        used = [w * 1, w * 2]
        return pa.checkpoint(lambda x: x * used.pop())(w)

    with pytest.raises(GradientError, match="read other arrays when it was computed again"):
        pa.grad(fn)(scalar(2.0))


def test_checkpoint_of_what_carries_no_gradient() -> None:
    place = pa.checkpoint(lambda x: ops.argmax(x))
    close(pa.grad(lambda w: w[0] * place(w).astype(w.dtype))(pa.asarray([2.0, 3.0])), [1, 0])


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (lambda kept, g: (g, g), r"^custom_vjp: backward \(\S+\) returned 2 gradients; it must return a tuple of 1"),
        (lambda kept, g: g, r"^custom_vjp: backward \(\S+\) returned Array; it must return a tuple of 1"),
        (lambda kept, g: (pa.ones(3, dtype="float64"),), r"^custom_vjp: backward \(\S+\) returned at index 0 float64"),
    ],
)
def test_custom_vjp_checks_what_backward_returns(backward: Callable, message: str) -> None:
    double = pa.custom_vjp(lambda x: x * 2, lambda x: (x * 2, x), backward)
    with pytest.raises((GradientError, pa.ShapeError), match=message):
        pa.grad(double)(scalar(2.0))


def test_custom_vjp_says_which_backward_was_wrong_for_which_argument() -> None:
    """As where the sum over broadcast axes is missing."""
    backward = lambda kept, g: (g * kept[1], g * kept[0])
    scaled = pa.custom_vjp(lambda x, w: x * w, lambda x, w: (x * w, (x, w)), backward)
    where = rf"\(test_custom_gradients.py:{backward.__code__.co_firstlineno}\)"
    message = rf"^custom_vjp: backward {where} returned at index 1 float32\[4, 3\] for float32\[3\]; it must be"
    with pytest.raises(pa.ShapeError, match=message):
        pa.grad(lambda w: pa.sum(scaled(pa.ones((4, 3)), w)))(pa.ones(3))


def test_custom_vjp_names_what_it_closes_over() -> None:
    def scaled(w: Array) -> Array:
        return pa.custom_vjp(lambda x: x * w, lambda x: (x * w, x), lambda x, g: (g * w,))(w * 3)

    def through(model: nn.Module) -> Array:
        fn = pa.custom_vjp(lambda x: model(x), lambda x: (model(x), None), lambda _, g: (g,))
        return ops.sum(fn(pa.ones((2, 3))))  # no argument is differentiated

    with pytest.raises(GradientError, match=r"custom_vjp: 'w' \(float64\[\]\) is differentiated and is no argument"):
        pa.grad(scaled)(scalar(2.0))
    with pytest.raises(GradientError, match=r"'model.weight' \(float32\[4, 3\]\)"):
        pa.grad(through)(nn.Linear(3, 4))


def test_custom_vjp_may_close_over_what_is_stopped() -> None:
    def fn(w: Array) -> Array:
        stopped = pa.stop_gradient(w)
        return pa.custom_vjp(lambda x: x * stopped, lambda x: (x * stopped, None), lambda _, g: (g * stopped,))(w)

    close(pa.grad(fn)(scalar(2.0)), 2)


def test_custom_vjp_decorates() -> None:
    @pa.custom_vjp
    def clipped(x: Array, limit: float) -> Array:
        """x, whose gradient is clipped."""
        return x * 1

    clipped.defvjp(lambda x, limit: (x * 1, limit), lambda limit, g: (ops.clip(g, -limit, limit), None))
    x, weights = pa.asarray([1.0, -2.0]), pa.asarray([3.0, -0.1])
    assert (clipped.__name__, clipped.__doc__) == ("clipped", "x, whose gradient is clipped.")
    close(clipped(x, limit=0.5), [1, -2])
    for call in (lambda a: clipped(a, 0.5), lambda a: clipped(limit=0.5, x=a)):
        close(pa.grad(lambda a, call=call: ops.sum(call(a) * weights))(x), [0.5, -0.1])


def test_a_decorated_function_without_a_gradient_says_so() -> None:
    @pa.custom_vjp
    def half(x: Array, *, by: float = 2.0) -> Array:
        return x / by

    assert half(scalar(3.0)).item() == 1.5
    with pytest.raises(GradientError, match=r"^custom_vjp: half has no gradient; state it by defvjp\("):
        pa.grad(half)(scalar(3.0))
    with pytest.raises(GradientError, match=r"^custom_vjp: by is keyword-only; fn must take it by position"):
        half(scalar(3.0), by=3.0)
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        half(z=scalar(3.0))
    half.defvjp(lambda x: x / 2, lambda kept, g: (g / 2,))
    with pytest.raises(GradientError, match=r"^custom_vjp: forward returned float64\[\]; it must return \(value, save"):
        pa.grad(half)(scalar(3.0))
    for wrap in (pa.custom_vjp, pa.checkpoint):
        with pytest.raises(GradientError, match="fn is None; it must be a function"):
            wrap(None)
