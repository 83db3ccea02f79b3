"""polyarr.fused: the values and derivatives of the function itself, few kernels, and few bytes kept between them."""

import contextlib
import copy
import itertools
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyarr as pa
from polyarr import nn, ops
from polyarr.capture.partition import Graph
from polyarr.core.errors import CaptureError
from polyarr.testing.compare import bits


def array(*shape, dtype="float32", seed=0):
    return pa.asarray(np.random.default_rng(seed).standard_normal(shape), dtype=dtype)


def swiglu(gate, up):
    return pa.silu(gate) * up


def rms_norm(x, weight, eps=1e-6):
    return x * pa.rsqrt(pa.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotary(x, cos, sin):
    left, right = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + pa.concat([-right, left], axis=-1) * sin


def huber(predicted, target, width=1.0):
    error = pa.abs(predicted - target)
    return pa.mean(pa.where(error < width, 0.5 * error * error, width * (error - 0.5 * width)), axis=-1)


def several(tree, scale):
    x, y = tree["x"], tree["y"][0]
    return {"sum": x + y * scale, "same": x, "flags": x > y, "count": scale * 2, "name": "two", "pair": (pa.exp(x), y)}


CALLS = {
    "swiglu": (swiglu, (array(4, 6), array(4, 6, seed=1)), {}),
    "swiglu-bfloat16": (swiglu, (array(4, 6, dtype="bfloat16"), array(4, 6, dtype="bfloat16", seed=1)), {}),
    "rms": (rms_norm, (array(5, 33), array(33, seed=1)), {}),
    "rms-float16": (rms_norm, (array(2, 3, 70, dtype="float16"), array(70, dtype="float16", seed=1)), {"eps": 1e-3}),
    "rotary": (rotary, (array(2, 3, 5, 8), array(5, 8, seed=1), array(5, 8, seed=2)), {}),
    "huber": (huber, (array(7, 5), array(7, 1, seed=1)), {"width": 0.7}),
    "matmul": (lambda x, w, b: ops.gelu(x @ w + b), (array(4, 6), array(6, 3, seed=1), array(3, seed=2)), {}),
    "softmax": (lambda x: ops.softmax(x * 2) * ops.layer_norm(x), (array(6, 40),), {}),
    "attention": (ops.attention, (array(1, 2, 8, 4), array(1, 2, 8, 4, seed=1), array(1, 2, 8, 4, seed=2)), {}),
    "conv": (ops.conv, (array(1, 6, 6, 3), array(4, 3, 3, 3, seed=1)), {}),
    "twice": (lambda x, y: x * y + pa.sin(x), (array(5), array(5)), {}),
    "empty": (swiglu, (array(0, 6), array(0, 6)), {}),
    "scalar": (swiglu, (array(), array(4, seed=1)), {}),
}


def both(fn, args, kwargs):
    """Return the value of fn at args, and the gradients of its product with other numbers."""
    value, pull = pa.vjp(lambda *a: fn(*a, **kwargs), *args)
    return value, pull(array(*value.shape, dtype=value.dtype.name, seed=9))


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_the_function(backend, name):
    fn, args, kwargs = CALLS[name]
    args = pa.tree.map(lambda a: a.to(backend), args)
    fused = pa.fused(fn)
    for _ in range(2):
        assert bits(both(fused, args, kwargs)) == bits(both(fn, args, kwargs))
        assert bits(fused(*args, **kwargs)) == bits(fn(*args, **kwargs))
    again = pa.compile(lambda *a: both(fused, a, kwargs))
    assert bits(again(*args)) == bits(both(fn, args, kwargs)) == bits(again(*args))
    assert len(fused.programs()) == 3, "without a gradient, forward and backward; each is captured once"


def test_an_array_in_two_places_has_both_gradients(backend):
    x = array(4).to(backend)
    fused = pa.fused(lambda x, y: x * pa.exp(y))
    assert bits(pa.grad(lambda x: pa.sum(fused(x, x)))(x)) == bits(pa.grad(lambda x: pa.sum(fused.fn(x, x)))(x))


def test_trees_numbers_and_results_that_have_no_gradient(backend):
    given = pa.tree.map(lambda a: a.to(backend), {"x": array(3, 4), "y": [array(3, 4, seed=1)]})
    fused = pa.fused(several)

    def loss(fn, tree, scale):
        found = fn(tree, scale)
        assert found["name"] == "two" and found["flags"].dtype == pa.bool and found["count"] == scale * 2
        return pa.sum(found["sum"] * found["pair"][0]) + pa.sum(found["same"])

    for scale in (2.0, 3.5):
        due = pa.value_and_grad(lambda t, s=scale: loss(several, t, s))(given)
        assert bits(pa.value_and_grad(lambda t, s=scale: loss(fused, t, s))(given)) == bits(due)
    assert len(fused.programs()) == 2, "numbers are inputs"


class Gated(nn.Module):
    """A part whose forward pass is fused."""

    def __init__(self):
        self.up, self.gate = nn.Linear(6, 5), nn.Linear(6, 5)

    def __call__(self, x):
        return both_halves(self.gate(x), self.up(x))


both_halves = pa.fused(swiglu)


def test_within_a_module_a_checkpoint_and_a_captured_training_step(backend):
    with pa.use_backend(backend):
        pa.random.seed(1)
        model, x = Gated(), array(4, 6).to(backend)
        loss = lambda model, x: pa.mean(pa.square(model(x)))
        due = pa.value_and_grad(loss)(model, x)
        assert bits(pa.value_and_grad(pa.checkpoint(loss))(model, x)) == bits(due)
        step = pa.compile(lambda model, x: pa.value_and_grad(loss)(model, x))
        assert bits(step(model, x)) == bits(due) == bits(step(model, x))


def test_higher_derivatives_are_those_of_the_function(backend):
    x, y = array(3, 4).to(backend), array(3, 4, seed=1).to(backend)
    fused = pa.fused(swiglu)

    def curvature(fn):
        return pa.grad(lambda x: pa.sum(pa.square(pa.grad(lambda x: pa.sum(fn(x, y) * x))(x))))(x)

    assert bits(curvature(fused)) == bits(curvature(swiglu))
    tangents = [pa.jvp(lambda x, fn=fn: fn(x, y), (x,), (y,)) for fn in (fused, swiglu)]
    assert bits(tangents[0]) == bits(tangents[1])


@pytest.mark.polyarr_backend("opencl")
def test_each_direction_is_one_kernel_and_keeps_inputs_and_statistics(backend):
    fused = {name: pa.fused(CALLS[name][0]) for name in ("swiglu", "rms")}
    for name, fn in fused.items():
        both(fn, pa.tree.map(lambda a: a.to(backend), CALLS[name][1]), {})
    (forward, backward), (norm, norm_backward) = (fn.programs() for fn in fused.values())
    assert [step.part for step in (*forward.steps, *backward.steps, *norm.steps)] == ["group"] * 3
    assert set(forward.outputs[1:]) == set(forward.inputs), "gate and up"
    x, weight = norm.inputs
    assert [norm.specs[v].shape for v in norm.outputs if v not in norm.inputs] == [(5, 33), (5, 1)]
    assert {x, weight} < set(norm.outputs)
    assert [step.name for step in norm_backward.steps][1:] == ["sum"], "of the columns, for the weight"


@pytest.mark.polyarr_backend("numpy")
def test_the_tape_holds_what_is_kept_and_no_more(backend):
    fused, seen = pa.fused(lambda x: pa.exp(x)), []

    def loss(x):
        h = x * 2.0
        seen.append(weakref.ref(h.buf))
        y = fused(h)
        del h
        seen.append(seen[0]() is None)
        return pa.sum(y)

    pa.grad(loss)(array(3, 4).to(backend))
    assert seen[1], "exp needs its result only"


def test_zeros_are_not_kept(backend):
    x = pa.ones((2, 2**20)).to(backend)  # zeros of this size are no constant of the program
    fused = pa.fused(lambda x: pa.exp(x[:, : 2**19]))
    pa.grad(lambda x: pa.sum(fused(x)))(x)
    forward, backward = fused.programs()
    assert len({*forward.outputs}) == 1 and "fill" not in str(forward) and "fill" in str(backward)


@pytest.mark.polyarr_backend("opencl")
def test_what_a_product_of_the_gradient_reads_is_kept(backend):
    x, w = array(4, 6).to(backend), array(5, 6, seed=1).to(backend)
    fused = pa.fused(lambda x, w: pa.matmul(ops.tanh(x * 2) + 1, ops.matrix_transpose(w)))
    pa.vjp(fused, x, w)[1](array(4, 5, seed=2).to(backend))
    _, backward = fused.programs()
    groups = [step for step in backward.steps if step.part == "group"]
    assert [step.name for step in groups] == ["multiply+tanh+square+subtract+multiply+multiply"], "of the slope alone"


async def sleeping(x):
    return x


@pa.fused
def named(x):
    return pa.sin(x) * x


def test_a_fused_function_is_pickled_by_name_and_copied(backend):
    pa.grad(lambda x: pa.sum(named(x)))(array(3).to(backend))
    assert pickle.loads(pickle.dumps(named)) is named and copy.deepcopy(named) is named


def unused_results(x):
    return x * 2, pa.log(x), (x * 3) @ pa.exp(x)


def test_results_that_a_gradient_does_not_use_add_nothing(backend):
    x = pa.asarray([0.0, 1.0, -0.0]).to(backend)
    fused = pa.fused(unused_results)
    for used in ((0,), (1,), (0, 2), (2,)):
        due = pa.grad(lambda x, used=used: sum(pa.sum(unused_results(x)[i]) for i in used))(x)
        assert bits(pa.grad(lambda x, used=used: sum(pa.sum(fused(x)[i]) for i in used))(x)) == bits(due), used
        step = pa.compile(pa.grad(lambda x, used=used: sum(pa.sum(fused(x)[i]) for i in used)))
        assert bits(step(x)) == bits(due), used
    _, pull = pa.vjp(fused, x)
    assert bits(pull((x, None, None))) == bits(pa.vjp(unused_results, x)[1]((x, None, None)))


def test_one_result_twice_and_an_argument_as_a_result(backend):
    x = array(4).to(backend)
    for fn in (lambda x: (pa.exp(x),) * 2, lambda x: (x, x, x * 2), lambda x: x):
        value, pull = pa.vjp(fn, x)
        assert bits(pa.vjp(pa.fused(fn), x)[1](value)) == bits(pull(value))
        captured = pa.compile(lambda x, g, fn=fn: pa.vjp(fn, x)[1](g))
        assert bits(captured(x, value)) == bits(pull(value))


def test_numbers_in_a_captured_step(backend):
    x, whole = array(4).to(backend), pa.asarray([1, 2, 3], dtype="int32").to(backend)
    chosen = lambda x, y, n: pa.where(x > n, x, n) * pa.sum(y + n).astype("float32")
    for fn in (lambda x, y, n: x * n, lambda x, y, n: x[n], chosen):
        fused = pa.fused(fn)
        step = pa.compile(lambda x, y, n, fused=fused: pa.grad(lambda x: pa.sum(fused(x, y, n)))(x))
        for n in (2, 3):
            assert bits(step(x, whole, n)) == bits(pa.grad(lambda x, n=n, fn=fn: pa.sum(fn(x, whole, n)))(x))


class Scaled(nn.Module):
    """A part with a fused method."""

    def __init__(self):
        self.weight = pa.asarray([0.5, 2.0])

    @pa.fused
    def __call__(self, x):
        return pa.tanh(x * self.weight)


def test_methods_and_containers_that_change_before_the_second_pull(backend):
    with pa.use_backend(backend):
        model, x = Scaled().to(backend), array(3, 2).to(backend)
        due = pa.grad(lambda m: pa.sum(pa.tanh(x * m.weight)))(model)
        assert bits(pa.grad(lambda m: pa.sum(m(x)))(model)) == bits(due)

    def second(fn):
        given = [None, x]

        def call(x):
            given[0] = x
            return fn(given)

        _, pull = pa.vjp(call, x)
        given.append(3)
        return pa.vjp(lambda g: pull(g)[0], x)[0]

    product = lambda many: many[0] * many[0] * many[1]
    assert bits(second(pa.fused(product))) == bits(second(product))


def test_a_gradient_captured_again_and_again_brings_a_warning_once(backend):
    fn = pa.fused(lambda x: ops.exp(x) * x)
    change = r"<lambda> was captured 9 times, the last time because an argument was float32\[8\] and is float32\[9\];"
    with pytest.warns(pa.CaptureWarning, match=f"^fused: {change}") as found:
        for n in range(1, 12):
            pa.grad(lambda x: ops.sum(fn(x)))(pa.ones(n))
    assert len(found) == 1 and found[0].filename == __file__


def test_what_cannot_be_captured_is_refused(backend):
    with pa.use_backend(backend):
        x, other = array(3).to(backend), array(3, seed=1).to(backend)

    def changes(x):
        x += 1.0
        return x

    def appends(many):
        many.append(1.0)
        return many[0] * 2

    for fn in (changes, lambda x: x * pa.random.normal(3)):
        plain = pa.fused(fn)
        for _ in range(3):
            with pytest.raises(CaptureError, match=r"^fused: .* do so outside of it$"), pa.use_backend(backend):
                plain(x)
    for fn, match in (
        (changes, "^fused: changes changes an argument in place; do so outside of it$"),
        (lambda x: x * pa.random.normal(3), "draws random numbers"),
        (lambda x: appends([x]), ""),
        (lambda x: pa.fused(appends)([x]), "^fused: appends changes what is in an argument; return what is new$"),
        (lambda x: x if float(x[0]) > 0 else -x, "reads an array's values"),
        (lambda x: x * other, "that the function was not given"),
    ):
        refused = pytest.raises(CaptureError, match=match) if match else contextlib.nullcontext()
        with refused, pa.use_backend(backend):
            pa.grad(lambda x, fn=fn: pa.sum(pa.fused(fn)(x)))(x)
    for no_function in (3, sleeping):
        with pytest.raises(TypeError, match=r"^fused: .* is no plain function; what runs later cannot be captured"):
            pa.fused(no_function)
    _, pull = pa.vjp(pa.fused(swiglu), x, other)
    with pytest.raises(CaptureError, match="was not given"):
        pa.compile(lambda g: pull(g))(x)


@given(st.data())
def test_the_cut_is_the_cheapest(data):
    count = data.draw(st.integers(1, 6))
    costs = [data.draw(st.integers(0, 9)) for _ in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    arrows = data.draw(st.lists(st.sampled_from(pairs), max_size=10)) if pairs else []
    sources = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    sinks = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    graph = Graph()
    for v, cost in enumerate(costs):
        graph.vertex(v, cost)
    for a, b in arrows:
        graph.arrow(a, b)
    for v in sources:
        graph.source(v)
    for v in sinks:
        graph.sink(v)

    def separates(cut):
        reached = sources - cut
        for a, b in sorted(arrows):
            reached |= {b} - cut if a in reached else set()
        return reached.isdisjoint(sinks)

    every = (set(c) for n in range(count + 1) for c in itertools.combinations(range(count), n))
    found = graph.cut()
    assert separates(found)
    assert sum(costs[v] for v in found) == min(sum(costs[v] for v in c) for c in every if separates(c))


def halves(x):
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


def glu(x):
    a, b = halves(ops.tanh(x) * 2)
    return a * pa.sigmoid(b)


def joined_then_reduced(x, y):
    both = pa.concat([x * 2, y], axis=-1)
    return both * pa.sum(both, axis=-1, keepdims=True), pa.exp(both)


def thirds(x):
    a, b, c = pa.split(x, 3, axis=-1)
    return pa.concat([b + 1, c * a, -a], axis=-1) * x


def of_the_model(x, cos, sin):
    return nn.rotary(x, nn.RotaryTables(cos, sin))


def minus_zero(x, y):
    v = pa.full((3, 4), -0.0, dtype=x.dtype.name)
    v[:, :2] = x
    return v + y


PIECES = {
    "one column": (lambda x: pa.concat([x * 2, x + 1], axis=-1), (array(4, 1),)),
    "stacked": (lambda a, b, w: pa.stack([a, b], axis=-1) * w, (array(3), array(3, seed=1), array(3, 1, seed=2))),
    "four columns": (lambda x: pa.concat([pa.exp(c) for c in pa.split(x, 4, axis=-1)][::-1], axis=-1), (array(7, 4),)),
    "in -0.0": (minus_zero, (array(3, 2), array(3, 4) * 0.0 - 0.0)),
    "rotary": (rotary, (array(2, 3, 5, 8), array(5, 8, seed=1), array(5, 8, seed=2))),
    "rotary of 6": (rotary, (array(2, 3, 5, 6), array(5, 6, seed=1), array(5, 6, seed=2))),
    "one axis": (rotary, (array(10), array(10, seed=1), array(10, seed=2))),
    "tables of one row": (rotary, (array(3, 64), array(64, seed=1), array(1, 1, seed=2))),
    "of the model": (of_the_model, (array(2, 3, 4, 8), array(3, 4, seed=1), array(3, 4, seed=2))),
    "glu": (glu, (array(4, 12),)),
    "thirds": (thirds, (array(5, 9),)),
    "halves swapped": (lambda x: pa.concat(halves(x)[::-1], axis=-1) * 2, (array(3, 34),)),
    "unequal": (lambda x: pa.concat([x[..., :1] * 2, x[..., 1:] * 3], axis=-1) * x, (array(3, 4),)),
    "other axis": (lambda x: pa.concat([x[:2] * 2, x[2:] * 3], axis=0) * x, (array(4, 3),)),
    "gradient of one half": (lambda x: pa.exp(x[..., :4]), (array(3, 8),)),
    "results that are pieces": (lambda x: halves(pa.exp(x)), (array(3, 8),)),
    "reduced": (joined_then_reduced, (array(3, 4), array(3, 4, seed=1))),
    "negative zeros": (rotary, (array(3, 8) * 0.0, array(3, 8, seed=1), array(3, 8, seed=2))),
}


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("name", PIECES)
def test_steps_in_pieces_have_the_bits_of_the_function(backend, name, dtype):
    fn, args = PIECES[name]
    args = pa.tree.map(lambda a: a.astype(dtype).to(backend), args)

    def gradients(fn, args):
        value, pull = pa.vjp(fn, *args)
        return value, pull(pa.tree.map(lambda a: array(*a.shape, dtype=dtype, seed=9).to(backend), value))

    given = pa.tree.map(lambda a: array(*a.shape, dtype=dtype, seed=9).to(backend), fn(*args))
    captured = pa.compile(lambda args, g: (lambda value, pull: (value, pull(g)))(*pa.vjp(fn, *args)))
    due = bits(gradients(fn, args))
    assert bits(captured(args, given)) == due == bits(captured(args, given))
    assert bits(gradients(pa.fused(fn), args)) == due
    assert bits(pa.compile(fn)(*args)) == bits(fn(*args))


@pytest.mark.polyarr_backend("opencl")
@pytest.mark.parametrize("name", ("rotary", "rotary of 6", "of the model"))
def test_a_rotary_embedding_and_its_gradient_are_one_kernel(backend, name):
    fn, args = PIECES[name]
    args = pa.tree.map(lambda a: a.to(backend), args)
    captured = pa.compile(lambda x, *rest: (lambda value, pull: (value, pull(x)))(*pa.vjp(lambda x: fn(x, *rest), x)))
    captured(*args)
    steps = [step for step in captured.programs()[0].steps if step.op not in (ops.slice, ops.reshape)]
    assert [step.part for step in steps] == ["group"]
