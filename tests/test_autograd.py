"""Transforms of polyarr.autograd: results, nesting and errors."""

import asyncio
import math
import threading
import tracemalloc
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import BackendError, GradientError, ShapeError
from polyarr.core.spec import Spec
from polyarr.core.tape import _transforms, paused

pytestmark = pytest.mark.usefixtures("on_numpy")


def close(got, expected, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, rtol=rtol, atol=1e-6)


def scalar(value: float) -> Array:
    return pa.asarray(value, dtype="float64")


# ---- what comes back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("used", [(0, 1, 2), (1,)])
def test_the_gradient_of_split_joins_the_parts_once(used) -> None:
    def loss(x):
        parts = pa.split(x, (2, 5), axis=1)
        return pa.sum(pa.stack([pa.sum(pa.square(parts[i])) * (i + 1) for i in used]))

    x = np.float32([[1, -2, 3, 0, 5, -6], [7, 8, -9, 1, 2, 3]])
    gradient = pa.compile(pa.grad(loss))
    scale = np.float32([1 if i in used else 0 for i in range(3)]) * [1, 2, 3]
    close(gradient(pa.asarray(x)), 2 * x * np.repeat(scale, (2, 3, 1)))
    program = str(gradient.programs()[0])
    assert "slice_update" not in program and program.count(" concat") == 1


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (lambda x: (x[:, :2], x[:, 2:5], x[:, 5:]), "concat"),
        (lambda x: (x[:, 5:], x[:, :2], x[:, 2:5]), "concat"),
        (lambda x: (x[0], x[1]), "concat"),
        (lambda x: (x[:, :3], x[:, 3:3], x[:, 3:]), "concat"),
        (lambda x: (x[:, :2], x[:, 2:], x), "concat"),
        (lambda x: (x[:, :2], x[:, 3:]), "slice_update"),
        (lambda x: (x[:, :4], x[:, 2:]), "slice_update"),
        (lambda x: (x[:, :3], x[:, :3], x[:, 3:]), "slice_update"),
        (lambda x: (x[:, ::2], x[:, 1::2]), "slice_update"),
        (lambda x: (x[:, 2::-1], x[:, 3:]), "slice_update"),
        (lambda x: (x[0, :3], x[:, 3:]), "slice_update"),
        (lambda x: (x[:1], x[:, 3:]), "slice_update"),
    ],
)
def test_the_gradients_of_slices_that_cover_an_array_are_joined_once(cut, expected, monkeypatch) -> None:
    def loss(x):
        return sum(pa.sum(pa.square(part)) * (i + 1) for i, part in enumerate(cut(x)))

    x = np.float32([[1, -2, 3, 0, 5, -6], [7, 8, -9, 1, 2, 3]])
    weight = np.zeros_like(x)
    for i, places in enumerate(cut(np.arange(12).reshape(2, 6))):
        np.add.at(weight.reshape(-1), places.reshape(-1), i + 1)
    value, pull = pa.vjp(loss, pa.asarray(x))
    called = []
    for op in (ops.concat, ops.slice_update):
        monkeypatch.setattr(op, "_run", lambda *args, op=op, run=op._run: called.append(op.name) or run(*args))
    close(pull(pa.ones_like(value))[0], 2 * x * weight)
    assert {*called} == {expected}
    close(pa.vmap(pa.grad(loss))(pa.asarray(x)[None])[0], 2 * x * weight)
    close(pa.jvp(pa.grad(loss), (pa.asarray(x),), (pa.ones((2, 6)),))[1], 2 * weight)


def test_gradients_of_overlapping_slices_are_padded_one_at_a_time() -> None:
    with pa.use_backend("numpy"):
        x = pa.zeros((60, 4096))  # 1 MB
        value, pull = pa.vjp(lambda x: sum(pa.sum(x[i : i + 20]) for i in range(40)), x)
        tracemalloc.start()
        try:
            (g,) = pull(pa.ones_like(value))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    close(g[:, 0], np.append(np.convolve(np.ones(40), np.ones(20)), 0))
    assert peak < 8 * x.size * 4


def test_value_and_gradient() -> None:
    value, g = pa.value_and_grad(lambda x: ops.sum(x * x))(pa.asarray([1.0, 2.0, 3.0]))
    assert value.item() == 14
    close(g, [2, 4, 6])
    assert value.node is None and g.node is None


def test_argnums() -> None:
    fn = lambda x, y, z: ops.sum(x * y + z)
    args = pa.asarray([1.0, 2.0]), pa.asarray([3.0, 4.0]), pa.asarray([5.0, 6.0])
    close(pa.grad(fn, argnums=1)(*args), [1, 2])
    assert isinstance(pa.grad(fn, argnums=(0,))(*args), tuple)
    third, first = pa.grad(fn, argnums=(2, 0))(*args)
    close(third, [1, 1])
    close(first, [3, 4])


def test_one_array_for_two_arguments() -> None:
    x = pa.asarray([1.0, 2.0])
    both = pa.grad(lambda a, b: ops.sum(a * a * b), argnums=(0, 1))(x, x)
    close(both[0], [2, 8])
    close(both[1], [1, 4])


def test_keyword_arguments_pass_through() -> None:
    close(pa.grad(lambda x, *, power: ops.sum(x**power))(pa.asarray([2.0]), power=3), [12])


def test_aux() -> None:
    fn = lambda x: (ops.sum(x * x), {"double": x * 2, "name": "aux", "nothing": None})
    (value, aux), g = pa.value_and_grad(fn, has_aux=True)(pa.asarray([3.0]))
    assert value.item() == 9
    close(g, [6])
    close(aux["double"], [6])
    assert aux["name"] == "aux" and aux["nothing"] is None and aux["double"].node is None
    g, aux = pa.grad(fn, has_aux=True)(pa.asarray([3.0]))
    close(g, [6])
    assert aux["name"] == "aux"


Pair = namedtuple("Pair", "left right")


def test_trees() -> None:
    params = {
        "w": pa.asarray([1.0, 2.0]),
        "deep": [Pair(pa.asarray(3.0), pa.asarray([4])), (pa.asarray(5.0),)],
        "none": None,
    }
    fn = lambda p: ops.sum(p["w"]) * p["deep"][0].left * p["deep"][1][0]
    g = pa.grad(fn)(params)
    close(g["w"], [15, 15])
    assert isinstance(g["deep"][0], Pair)
    close(g["deep"][0].left, 15)
    assert g["deep"][0].right is None and g["none"] is None
    close(g["deep"][1][0], 9)


def test_an_array_that_does_not_matter_has_zeros() -> None:
    x, y = pa.asarray([1.0, 2.0]), pa.asarray([[3.0]])
    g = pa.grad(lambda a, b: ops.sum(a), argnums=(0, 1))(x, y)
    assert g[1].tolist() == [[0]]
    assert pa.grad(lambda a: ops.sum(y))(x).tolist() == [0, 0]


def test_module_gradients() -> None:
    layer = pa.nn.Linear(3, 2)
    g = pa.grad(lambda m, x: ops.sum(m(x)))(layer, pa.ones((4, 3)))
    assert [a.shape for a in pa.tree.leaves(g)] == [a.shape for a in pa.tree.leaves(layer.parameters())]
    close(g.bias, [4, 4])


# ---- repeated use, broadcasting, views, updates ----------------------------------------------------------------


def test_repeated_use(backend: Backend) -> None:
    x = pa.asarray([1.0, 2.0])
    close(pa.grad(lambda a: ops.sum(a * a + a * 3 + a / a))(x), [5, 7])


@pytest.mark.parametrize(
    "shapes", [((3,), (2, 3)), ((2, 1), (1, 3)), ((), (2, 3)), ((1, 1), (4, 2, 3)), ((0, 3), (1, 3))]
)
def test_broadcasting(backend: Backend, shapes: tuple) -> None:
    x, y = (pa.ones(s) * 2 for s in shapes)
    g = pa.grad(lambda a, b: ops.sum(a * b), argnums=(0, 1))(x, y)
    size = np.broadcast(np.zeros(shapes[0]), np.zeros(shapes[1])).size
    for a, da in zip((x, y), g, strict=True):
        assert da.shape == a.shape
        close(da, np.full(a.shape, 2 * size / a.size if a.size else 0))


def test_views(backend: Backend) -> None:
    x = pa.reshape(pa.arange(12.0, dtype="float32"), shape=(3, 4))
    fn = lambda a: ops.sum(a.T[1:, ::-1] * a.T[1:, ::-1]) + ops.sum(ops.flip(a)[0])
    expected = 2 * x.numpy()
    expected[:, 0] = 0
    expected[-1] += 1
    close(pa.grad(fn)(x), expected)


def test_indexing(backend: Backend) -> None:
    x = pa.asarray([1.0, 2.0, 3.0, 4.0])
    at = pa.asarray([0, 0, 3])
    close(pa.grad(lambda a: ops.sum(a[at] * a[at]))(x), [4, 0, 0, 8])
    close(pa.grad(lambda a: ops.sum(a[a > 2]))(x), [0, 0, 1, 1])
    close(pa.grad(lambda a: a[-1] * a[0])(x), [4, 0, 0, 1])


def test_assignment_is_recorded_and_leaves_the_caller_alone(backend: Backend) -> None:
    def fn(a: Array, v: Array) -> Array:
        before = a
        a = a * 1
        a[1:3] = v * 2
        a[0] = 7.0
        return ops.sum(a * a) + ops.sum(before)

    x, v = pa.asarray([1.0, 2.0, 3.0, 4.0]), pa.asarray([5.0, 6.0])
    gx, gv = pa.grad(fn, argnums=(0, 1))(x, v)
    close(gx, [1, 1, 1, 9])
    close(gv, [40, 48])
    assert x.tolist() == [1, 2, 3, 4]


def test_assignment_to_an_argument(backend: Backend) -> None:
    def fn(a: Array) -> Array:
        a[0] = a[1] * 3
        return ops.sum(a)

    x = pa.asarray([1.0, 2.0])
    close(pa.grad(fn)(x), [0, 4])
    assert x.tolist() == [1, 2]


def test_what_a_rule_kept_is_not_changed_by_a_later_update() -> None:
    def fn(a: Array) -> Array:
        b = a * 1
        y = ops.sum(b * b)
        b += 100
        b[0] = 0.0
        return y

    close(pa.grad(fn)(pa.asarray([1.0, 2.0])), [2, 4])


def test_in_place_operators() -> None:
    def fn(a: Array) -> Array:
        total = a * 0
        for k in range(3):
            total += a * k
        total *= a
        total -= 1
        total /= 2
        total **= 2
        return ops.sum(total)

    x = scalar(2.0)
    exact = pa.grad(lambda a: ops.sum(((3 * a * a - 1) / 2) ** 2))(x)
    close(pa.grad(fn)(x), exact.item())


# ---- nesting ---------------------------------------------------------------------------------------------------


def test_third_order() -> None:
    d3 = pa.grad(pa.grad(pa.grad(lambda x: x**4 + ops.sin(x))))
    close(d3(scalar(0.7)), 24 * 0.7 - math.cos(0.7))


def test_third_order_of_an_op_with_a_fused_kernel(backend: Backend) -> None:
    def third(x: Array) -> Array:
        f = lambda a: ops.sum(ops.softmax(a) ** 2)
        g = lambda a: ops.sum(pa.grad(f)(a) ** 2)
        return pa.grad(lambda a: ops.sum(pa.grad(g)(a) ** 2))(x)

    x = pa.asarray([0.1, -0.4, 1.0])
    with use_backend("numpy"):
        expected = third(pa.asarray(x.numpy().astype("float64")))
    close(third(x), expected.numpy(), rtol=1e-3)


def test_perturbation_confusion() -> None:
    x = scalar(3.0)
    close(pa.grad(lambda a: a * pa.grad(lambda b: a + b)(scalar(1.0)))(x), 1)
    close(pa.grad(lambda a: a * pa.grad(lambda b: a * b)(scalar(1.0)))(x), 6)
    close(pa.grad(lambda a: pa.grad(lambda b: a * a * b * b)(a))(x), 6 * 9)
    close(pa.grad(lambda a: pa.grad(lambda b: pa.stop_gradient(a) * b * b)(a))(x), 2 * 3)


def test_gradient_of_a_gradient_norm() -> None:
    x = pa.asarray([1.0, 2.0])
    penalty = lambda a: ops.global_norm([pa.grad(lambda b: ops.sum(b * b * b))(a)])
    norm = 3 * math.sqrt(17)
    close(pa.grad(penalty)(x), [18 * 1 / norm, 18 * 8 / norm])


def test_the_outer_transform_sees_values_of_the_inner_one() -> None:
    def fn(a: Array) -> Array:
        value, g = pa.value_and_grad(lambda b: b * b * a)(a)
        return value + g

    close(pa.grad(fn)(scalar(2.0)), 3 * 4 + 4 * 2)  # value a^3, gradient 2 a^2


# ---- vjp, jvp --------------------------------------------------------------------------------------------------


def test_vjp_of_a_tree_and_twice() -> None:
    x = pa.asarray([1.0, 2.0])
    value, pull = pa.vjp(lambda a: {"square": a * a, "sum": ops.sum(a), "index": ops.argmax(a)}, x)
    assert value["square"].tolist() == [1, 4] and value["square"].node is None
    for _ in range(2):
        (g,) = pull({"square": pa.asarray([1.0, 0.0]), "sum": pa.asarray(10.0), "index": value["index"]})
        close(g, [12, 10])


def test_vjp_of_one_result_used_twice() -> None:
    def fn(a: Array) -> tuple:
        y = a * 3
        return y, y

    one = scalar(1.0)
    close(pa.vjp(fn, one)[1]((one, one))[0], 6)


def test_jvp() -> None:
    x, t = pa.asarray([1.0, 2.0]), pa.asarray([0.5, -1.0])
    value, slope = pa.jvp(lambda a: ops.exp(a) * a[0], (x,), (t,))
    e = np.exp([1.0, 2.0])
    close(value, e)
    close(slope, e * [0.5, -1.0] + e * 0.5)


def test_jvp_with_integers_and_without_a_tangent() -> None:
    x, y, at = pa.asarray([1.0, 2.0]), pa.asarray([3.0, 4.0]), pa.asarray([1, 0])
    fn = lambda a, b, i: ops.sum(a * b[i])
    _, slope = pa.jvp(fn, (x, y, at), (pa.ones(2), None, None))
    close(slope, 7)


def test_jvp_equals_vjp(backend: Backend) -> None:
    x, t, g = (pa.random.normal((4, 5)) for _ in range(3))
    fn = lambda a: ops.layer_norm(ops.gelu(a), eps=0.1)
    _, push = pa.jvp(fn, (x,), (t,))
    _, pull = pa.vjp(fn, x)
    close(ops.sum(push * g), ops.sum(pull(g)[0] * t).item(), rtol=1e-3)


# ---- stop_gradient ---------------------------------------------------------------------------------------------


def test_stop_gradient() -> None:
    close(pa.grad(lambda x: ops.sum(x * pa.stop_gradient(x)))(pa.asarray([3.0])), [3])
    assert pa.stop_gradient({"a": [1, "b", None]}) == {"a": [1, "b", None]}


# ---- threads and scopes ----------------------------------------------------------------------------------------


def test_threads_compute_gradients_at_once(backend: Backend) -> None:
    x = pa.reshape(pa.arange(64.0, dtype="float32"), shape=(8, 8)) / 64
    expected = pa.grad(lambda a: ops.sum(ops.softmax(a @ a) * a))(x).numpy()
    found, errors = [], []

    def work() -> None:
        try:
            with use_backend(backend):
                found.extend(pa.grad(lambda a: ops.sum(ops.softmax(a @ a) * a))(x).numpy() for _ in range(10))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert len(found) == 80
    for g in found:
        np.testing.assert_allclose(g, expected, rtol=1e-6)


def test_use_backend_is_scoped_in_tasks() -> None:
    mirror = get_backend("numpy")._replace(name="mirror")

    async def names(backend: Backend) -> list[str]:
        found = []
        with use_backend(backend):
            for _ in range(5):
                found.append(pa.ones(1).device)
                await asyncio.sleep(0)
        return found

    async def both() -> list:
        return await asyncio.gather(names(mirror), names(get_backend("numpy")))

    assert asyncio.run(both()) == [["mirror"] * 5, ["numpy"] * 5]


def test_use_backend_is_scoped_in_threads() -> None:
    seen = []
    with use_backend(get_backend("numpy")._replace(name="mirror")):
        thread = threading.Thread(target=lambda: seen.append(get_backend().name))
        thread.start()
        thread.join()
        assert pa.zeros(2).device == "mirror"
    assert seen != ["mirror"]


# ---- asked wrongly ---------------------------------------------------------------------------------------------


def test_mixing_backends_names_both() -> None:
    mirror = get_backend("numpy")._replace(name="mirror")
    with pytest.raises(BackendError, match=r"add: inputs live on 'numpy' and 'mirror'.*\.to\("):
        pa.ones(2) + pa.ones(2, device=mirror)
    with pytest.raises(BackendError, match="concat: inputs live on 'numpy' and 'mirror'"):
        ops.concat([pa.ones(2), pa.ones(2, device=mirror)])


@pytest.mark.parametrize(
    ("fn", "arg", "error", "message"),
    [
        (
            lambda x: x,
            pa.asarray([1.0, 2.0], device="numpy"),
            GradientError,
            r"^grad: fn returned float32\[2\]; it must",
        ),
        (lambda x: ops.argmax(x), pa.asarray([1.0], device="numpy"), GradientError, r"returned int64\[\]"),
        (
            lambda x: 3.0,
            pa.asarray([1.0], device="numpy"),
            GradientError,
            "fn returned float; it must return a scalar array",
        ),
        (lambda x: None, pa.asarray([1.0], device="numpy"), GradientError, "fn returned NoneType"),
        (lambda x: (ops.sum(x), x), pa.asarray([1.0], device="numpy"), GradientError, "tuple; .* with has_aux=True$"),
        (
            lambda x: ops.sum(x),
            pa.asarray([1], device="numpy"),
            GradientError,
            "no floating-point array among the arguments",
        ),
        (lambda x: pa.asarray(1.0), 2.0, GradientError, "no floating-point array among the arguments"),
    ],
)
def test_messages(fn, arg, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        pa.grad(fn)(arg)


def test_an_error_inside_leaves_nothing_recording() -> None:
    def fail(x: Array) -> Array:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pa.grad(fail)(pa.asarray([1.0]))
    leaked = []
    pa.grad(lambda x: (leaked.append(x), ops.sum(x))[1])(pa.asarray([1.0]))
    assert (leaked[0] * 2).node is None


def test_gradient_comes_back_through_a_transfer(backend: Backend) -> None:
    x = pa.asarray([1.0, 2.0, 3.0], device="numpy")
    g = pa.grad(lambda x: pa.sum(((x * 3).to(backend) * 2).to("numpy") ** 2))(x)
    assert g.device == "numpy"
    assert g.tolist() == [72.0, 144.0, 216.0]


def test_a_fused_kernel_may_decline(on_numpy: Backend) -> None:
    """The decomposition then runs on the same backend, also in gradients."""
    asked = []

    def forward(out: Spec, x: np.ndarray, *, axis: int) -> object:
        asked.append(out.shape)
        return NotImplemented

    pair = Fused(forward, lambda *_, **__: pytest.fail("a pair that declined was asked for a gradient"))
    declining = on_numpy._replace(kernels={**on_numpy.kernels, ops.softmax: pair})
    x = np.random.default_rng(0).standard_normal((3, 5))
    found = []
    for backend in (declining, on_numpy):
        with pa.use_backend(backend):
            loss = lambda a: ops.sum(ops.softmax(a) ** 3)
            value, grad = pa.value_and_grad(loss)(pa.asarray(x))
            second = pa.grad(lambda a, loss=loss: ops.sum(pa.grad(loss)(a) ** 2))(pa.asarray(x))
            found.append([value.numpy(), grad.numpy(), second.numpy(), ops.softmax(pa.asarray(x)).numpy()])
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert asked and set(asked) == {(3, 5)}


def _same(x: Array) -> Array:
    return x


def _twice(x: Array) -> tuple:
    return x * 2, {"three": x * 3, "none": None, "count": 5}


@pytest.mark.parametrize(
    ("cotangent", "expected"),
    [
        (lambda g: (g, {"three": None, "none": None, "count": None}), 2),
        (lambda g: (None, {"count": 7, "none": None, "three": g}), 3),
        (lambda g: (g, None), 2),
        (lambda g: None, 0),
    ],
)
def test_a_cotangent_of_none_means_zeros(on_numpy: Backend, cotangent: Callable, expected: float) -> None:
    """None replaces an array or a part of the tree, also within a transform."""
    _, pull = pa.vjp(_twice, pa.ones(2))
    assert pull(cotangent(pa.ones(2)))[0].tolist() == [expected] * 2
    slope = pa.grad(lambda g: ops.sum(pull(cotangent(g))[0] ** 2))
    assert slope(pa.ones(2)).tolist() == [2 * expected**2] * 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: pa.grad(ops.sum)(x=x), GradientError, "^grad: argnums names argument 0 of 0 that were given"),
        (lambda x: pa.value_and_grad(ops.sum)(3.0), GradientError, "^value_and_grad: no floating-point array"),
        (lambda x: pa.grad(ops.sum, argnums=1)(x), GradientError, "argument 1 of 1 that"),
        (lambda x: pa.grad(ops.multiply, (0, -2))(x, x), GradientError, r"argnums is \(0, -2\) for 2 .* at most once"),
        (lambda x: pa.jacrev(ops.multiply, (0, 0))(x, x), GradientError, r"^jacrev: argnums is \(0, 0\) for 2 arg"),
        (lambda x: pa.grad(ops.sum, argnums="x"), GradientError, "argnums is 'x'; it must be an int or a tuple"),
        (lambda x: pa.grad(ops.multiply, True), GradientError, "argnums is True; it must be an int or a tuple of ints"),
        (lambda x: pa.jacfwd(ops.multiply, (0, True)), GradientError, r"argnums is \(0, True\); it must be an int or"),
        (lambda x: pa.grad(None), GradientError, "fn is None; it must be a function"),
        (lambda x: pa.grad(ops.sum)(3.0), GradientError, r"argument 0 is a float; wrap numbers with polyarr\.asarray"),
        (lambda x: pa.grad(ops.sum)(x.astype(pa.int8)), GradientError, r"argument 0 is int8\[2, 3\]; .*cast integers"),
        (lambda x: pa.grad(ops.sum)(np.ones(2)), GradientError, r"argument 0 is a numpy\.ndarray"),
        (
            lambda x: pa.value_and_grad(ops.sum, has_aux=True)(x),
            GradientError,
            r"fn returned float32\[\]; it must return \(value, aux\), for has_aux",
        ),
        (lambda x: pa.grad(lambda a: (a, 1, 2), has_aux=True)(x), GradientError, "fn returned a tuple; it must"),
        (lambda x: pa.vjp(3, x), GradientError, "^vjp: fn is a int; it must be a function"),
        (lambda x: pa.vjp(_same, x)[1](x[0]), ShapeError, r"a cotangent is float32\[3\] for float32\[2, 3\]"),
        (lambda x: pa.vjp(_same, x)[1](1.0), ShapeError, r"a cotangent is a float for float32\[2, 3\]"),
        (lambda x: pa.vjp(_same, x)[1]([]), ShapeError, r"a cotangent is a list for float32\[2, 3\]; it must be"),
        (lambda x: pa.vjp(_twice, x)[1]((x,)), GradientError, "is a tuple with 0 for a tuple with 0, 1; they must be"),
        (lambda x: pa.vjp(_twice, x)[1](x), GradientError, r"is float32\[2, 3\] for a tuple with 0, 1; they must be"),
        (lambda x: pa.jvp(_same, x, (x,)), GradientError, r"primals is float32\[2, 3\]; it must be a tuple"),
        (lambda x: pa.jvp(_same, (x,), None), GradientError, "tangents is None; it must be a tuple"),
        (
            lambda x: pa.jvp(_same, (x,), (x[0],)),
            ShapeError,
            r"a tangent is float32\[3\] for float32\[2, 3\]; it must be an array of that shape",
        ),
    ],
)
def test_bad_calls(call: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(pa.ones((2, 3), device="numpy"))


@pytest.mark.parametrize("wrap", [lambda f: f, pa.checkpoint])
def test_threads_of_a_function_are_part_of_its_gradient(on_numpy: Backend, wrap: Callable) -> None:
    """A new thread is in no transform, but its computations on the transform's arrays count."""
    square = wrap(lambda w: ops.sum(w * w))

    def loss(w: Array) -> Array:
        with ThreadPoolExecutor(2) as threads:
            return sum(threads.map(lambda i: square(w) * i, (1, 2)))

    assert pa.grad(loss)(pa.ones(3)).tolist() == [6, 6, 6]


def test_a_thread_of_its_own_records_nothing(on_numpy: Backend) -> None:
    """A separate thread is not recorded while another one differentiates."""

    def loss(w: Array) -> Array:
        with ThreadPoolExecutor(1) as threads:
            value, g = threads.submit(pa.value_and_grad(lambda x: ops.sum(x * x)), pa.ones(2)).result()
            assert value.node is None and g.node is None and g.tolist() == [2, 2]
            assert threads.submit(lambda: (pa.ones(2) * 2).node).result() is None
        with paused():
            assert (w * 2).node is None
        return ops.sum(w)

    assert pa.grad(loss)(pa.ones(3)).tolist() == [1, 1, 1]
    assert not _transforms


def test_the_forward_of_custom_vjp_may_call_the_function_itself(on_numpy: Backend) -> None:
    """JAX's documentation defines rules in this way."""

    @pa.custom_vjp
    def f(x: Array) -> Array:
        return ops.sin(x)

    f.defvjp(lambda x: (f(x), ops.cos(x)), lambda c, g: (g * c * 3,))
    x = pa.asarray(1.0)
    assert pa.grad(f)(x).item() == pytest.approx(3 * np.cos(1.0))
    assert pa.grad(pa.grad(f))(x).item() == pytest.approx(-3 * np.sin(1.0))
