"""check_grads and assert_gradients_agree: correct gradients pass, planted wrong ones fail; messages."""

import functools
import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyarr as pa
from polyarr import nn, ops, plugins
from polyarr.backends.kernels import make_kernels
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import BackendError, DtypeError, GradientError
from polyarr.models.gpt import GPTModel
from polyarr.plugins import hookimpl
from polyarr.testing import CheckFailure, assert_gradients_agree, check_grads
from tests.helpers.root import ROOT

PAGE = ROOT / "docs" / "check-gradients.md"
GPT = {
    "vocab_size": 11,
    "context_length": 8,
    "emb_dim": 8,
    "n_heads": 2,
    "n_layers": 1,
    "drop_rate": 0.2,
    "qkv_bias": True,
}
MODES = ("rev", "fwd")
LAMBDA = "lambda at test_check_grads.py:"
in_each_mode = pytest.mark.parametrize("mode", MODES)
seeds = st.integers(0, 2**32 - 1)


def normal(seed, *shape):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def failure_of(check, *args, **kwargs):
    """Return the message of a failed check, in one line."""
    with pytest.raises(CheckFailure) as caught:
        check(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def error_of(kind, *args, check=check_grads, **kwargs):
    with pytest.raises(kind) as caught:
        check(*args, **kwargs)
    assert "\n" not in str(caught.value) and type(caught.value) is kind
    return str(caught.value)


# ---- right gradients -----------------------------------------------------------------------------------------


def tree_of_results(params, x):
    hidden = pa.tanh(x @ params["w"] + params["b"][0])
    return {"hidden": hidden, "both": (pa.sum(hidden * hidden), pa.asarray([1, 2])), "name": "kept"}


SMOOTH = [
    (pa.sin, lambda r: (normal(r, 3),)),
    (lambda x, y: x * pa.exp(y), lambda r: (normal(r, 2, 1), normal(r + 1, 3))),
    (pa.logsumexp, lambda r: (normal(r, 4, 2),)),
    (pa.softmax, lambda r: (normal(r, 3, 5),)),
    (tree_of_results, lambda r: ({"w": normal(r, 4, 2), "b": [normal(r + 1, 2)]}, normal(r + 2, 3, 4))),
]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(("fn", "draw"), SMOOTH, ids=["sin", "x exp(y)", "logsumexp", "softmax", "trees"])
@given(seed=seeds)
def test_right_gradients_pass(fn, draw, order, seed):
    check_grads(fn, draw(seed), order, MODES, backend="numpy", seed=seed)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0,), (3, 0), (2, 1, 3)], ids=str)
@given(seed=seeds)
def test_every_shape(shape, seed):
    x = normal(seed, *shape)
    check_grads(lambda x: pa.sin(x) * x, (x,), 2, MODES, backend="numpy")
    assert_gradients_agree(lambda x: pa.sin(x) * x, (x.astype(np.float32),), ("numpy",), seed=seed)


@pytest.mark.parametrize("dtype", [np.float16, pa.bfloat16, np.float32, np.float64, np.longdouble])
def test_every_float_dtype_is_widened(dtype):
    seen = []

    def fn(x):
        seen.append(x.dtype)
        return pa.exp(x)

    check_grads(fn, (normal(0, 3).astype(dtype),), backend="numpy")
    assert set(seen) == {pa.float64}


def test_on_each_backend(backend):
    if pa.float64 not in backend.dtypes:
        pytest.skip(f"{backend.name} holds no float64")
    seen = []

    def fn(params, x):
        seen.append((params["w"].device, x.device, get_backend().name))
        return pa.layer_norm(x @ params["w"], params["scale"], pa.zeros(3, dtype=x.dtype))

    x = pa.asarray(normal(0, 2, 4))
    with use_backend("numpy"):  # the first array decides
        check_grads(fn, ({"scale": normal(1, 3), "w": pa.asarray(normal(2, 4, 3), device=backend)}, x), 2, MODES)
    assert set(seen) == {(backend.name,) * 3}
    seen.clear()
    check_grads(fn, ({"scale": normal(1, 3), "w": normal(2, 4, 3)}, x.numpy()), 1)
    assert set(seen) == {(backend.name,) * 3}


def test_what_is_no_floating_point_array_is_held_fixed():
    seen = []

    def fn(x, rest):
        seen.append((rest["n"].tolist(), rest["flags"].tolist(), rest["rate"], rest["name"], rest["none"]))
        return pa.take(x, rest["n"], axis=0) * rest["rate"]

    rest = {"n": np.array([2, 0]), "flags": pa.asarray([True]), "rate": 0.5, "name": "a", "none": None}
    check_grads(fn, (normal(0, 3), rest), backend="numpy")
    assert all(row == ([2, 0], [True], 0.5, "a", None) for row in seen)


def test_a_function_that_draws():
    state = pa.random.get_state()
    check_grads(lambda x: nn.Dropout(0.5)(x) * pa.random.normal((4,)), (normal(0, 4),), 2, MODES, backend="numpy")
    assert pa.random.get_state() == state


def test_a_layer_and_a_models_loss():
    pa.random.seed(0)
    with use_backend("numpy"):
        layer, model = nn.TransformerBlock(8, 2, causal=True), GPTModel(GPT)
    check_grads(lambda layer, x: layer(x), (layer, normal(0, 2, 3, 8)), 1, MODES)
    check_grads(loss, (model, windows()), 2)


def loss(model, windows):
    return pa.cross_entropy(model(windows[:, :-1]), windows[:, 1:])


def windows():
    return np.random.default_rng(0).integers(0, GPT["vocab_size"], (2, 7))


# ---- planted wrong gradients ---------------------------------------------------------------------------------


def sine(backward):
    """Return the sine with this rule."""
    return pa.custom_vjp(pa.sin, lambda x: (pa.sin(x), x), lambda x, g: (backward(x, g),))


def forgotten_axis(x):
    """Return the sum along axis 0 with a rule that repeats g along the wrong one of two equal axes."""
    return pa.custom_vjp(
        lambda x: pa.sum(x, axis=0),
        lambda x: (pa.sum(x, axis=0), x),
        lambda x, g: (pa.broadcast_to(g[:, None], x.shape),),
    )(x)


WRONG = {
    "sign": sine(lambda x, g: -g * pa.cos(x)),
    "a factor of 1.001": sine(lambda x, g: 1.001 * g * pa.cos(x)),
    "g ignored": sine(lambda x, g: pa.cos(x)),
    "nothing": sine(lambda x, g: pa.zeros_like(x)),
    "one element": sine(lambda x, g: g * pa.cos(x) * pa.asarray(np.array([[1.0, 1, 1], [1, 1, 1], [1, 0.99, 1]]))),
    "axis": forgotten_axis,
}


@in_each_mode
@pytest.mark.parametrize("name", WRONG)
@given(seed=seeds)
def test_a_wrong_rule_is_found(name, mode, seed):
    x = np.random.default_rng(seed).uniform(-1, 1, (3, 3))  # where the sine has a slope

    def check():
        for s in (seed, seed + 1):  # the slope almost vanishes along one direction in ten thousand
            check_grads(WRONG[name], (x,), 1, mode, backend="numpy", seed=s)

    text = failure_of(check)
    found = re.fullmatch(
        r"\S+ on numpy, order 1, mode (\w+): the derivative along a random direction of (\S+) is (\S+), "
        r"numerically (\S+) \(off by (\S+), allowed (\S+)\)",
        text,
    )
    assert found[1] == mode and found[2] in ("x", "args[0]")
    exact, numeric, off, allowed = map(float, found.groups()[2:])
    assert abs(abs(exact - numeric) - off) <= 0.01 * off + 1e-8 and off > allowed


@in_each_mode
def test_a_rule_that_is_wrong_in_the_second_order_only(mode):
    fn = sine(lambda x, g: g * pa.stop_gradient(pa.cos(x)))
    x = normal(0, 4)
    check_grads(fn, (x,), 1, MODES, backend="numpy")
    text = failure_of(check_grads, fn, (x,), 2, mode, backend="numpy")
    assert f"sin on numpy, order 2, mode {mode} over {mode}: the derivative along a random direction of" in text


def test_a_rule_that_is_wrong_in_the_third_order_only():
    square = pa.custom_vjp(pa.square, lambda x: (x * x, x), lambda x, g: (g * 2 * x,))
    right_twice = sine(lambda x, g: g * (pa.cos(x) + 0.01 * square(x - pa.stop_gradient(x)) * x))
    x = normal(0, 4)
    check_grads(right_twice, (x,), 2, MODES, backend="numpy")
    assert "order 3, mode rev over rev over rev: " in failure_of(check_grads, right_twice, (x,), 3, backend="numpy")


def test_mixed_modes_are_all_tried():
    """Each mode alone is correct; the gradient of the push-forward is wrong because g is stopped."""
    fn = sine(lambda x, g: g * pa.cos(x) + (pa.stop_gradient(g) - g) * x)
    x = normal(0, 4)
    check_grads(fn, (x,), 1, "rev", backend="numpy")
    assert "order 1, mode fwd" in failure_of(check_grads, fn, (x,), 1, MODES, backend="numpy")


@in_each_mode
def test_the_argument_is_named(mode):
    def fn(x, params, *more):
        good, bad = params["layers"]
        return pa.sum(x) * 1e6 + pa.sum(pa.sin(good)) + pa.sum(WRONG["sign"](bad["w"])) + pa.sum(more[0])

    args = (normal(0, 3), {"layers": [normal(1, 2), {"w": normal(2, 2), "n": 3}]}, normal(3, 2))
    text = failure_of(check_grads, fn, args, 1, mode, backend="numpy")
    assert text.startswith("fn on numpy, order 1") and " direction of params.layers.1.w is " in text
    text = failure_of(check_grads, lambda *a: WRONG["sign"](a[1]), (normal(0, 2), normal(1, 2)), backend="numpy")
    assert " direction of args[1] is " in text


def test_a_parameter_of_a_model_is_named():
    pa.random.seed(0)
    with use_backend("numpy"):
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))

    def fn(model, x):
        first, second = model.layers
        return second(first(x)) + pa.sum(WRONG["sign"](second.bias))

    assert "of model.layers.1.bias is" in failure_of(check_grads, fn, (model, normal(0, 4, 3)))


def test_a_gradient_that_is_not_finite():
    text = failure_of(check_grads, lambda x: pa.where(x > 9, pa.log(x - 9), x), (np.full(2, 9.0) - [1, 0],))
    assert "mode rev: the gradient by x is nan at [1]; it must be finite where the value is" in text


@in_each_mode
def test_a_result_that_left_the_tape(mode):
    fn = lambda x: pa.asarray(x.tolist(), dtype=x.dtype) * 2
    text = failure_of(check_grads, fn, (normal(0, 3),), 1, mode, backend="numpy")
    assert " direction of x is 0, numerically " in text


def test_tolerances_and_steps_are_the_callers():
    x = normal(0, 3, 3)
    with use_backend("numpy"):
        check_grads(WRONG["a factor of 1.001"], (x,), 1, rtol=1e-2)
        check_grads(WRONG["sign"], (x,), 1, atol=100)
        assert "allowed 0)" in failure_of(check_grads, WRONG["sign"], (x,), 1, atol=0, rtol=0)
        wavy = lambda x: pa.sin(1e4 * x)
        failure_of(check_grads, wavy, (x,), 1, eps=1e-3)
        check_grads(wavy, (x,), 1, eps=1e-8, rtol=1e-3)


def test_a_failure_has_the_code_that_reproduces_it():
    bad, args = WRONG["sign"], (normal(0, 3), {"k": normal(1, 2, 2)})

    def fn(x, rest):
        return bad(x) + pa.sum(rest["k"])

    with pytest.raises(CheckFailure) as caught:
        check_grads(fn, args, 2, MODES, backend="numpy", seed=5, rtol=1e-5)
    note = caught.value.__notes__[-1]
    assert note.startswith("to reproduce it, where args hold x float64[3], rest.k float64[2, 2]:\n")
    with pytest.raises(CheckFailure, match=re.escape(str(caught.value))):
        exec("\n".join(line.strip() for line in note.splitlines()[1:]), {"fn": fn, "args": args})


# ---- points without a derivative -----------------------------------------------------------------------------


@in_each_mode
@pytest.mark.parametrize(
    ("fn", "at"),
    [
        (pa.relu, [0.0, 1.0]),
        (pa.relu, [1e-7, 1.0]),
        (lambda x: pa.max(x) * pa.asarray(2.0), [1.0, 1.0 + 1e-7]),
        (pa.round, [0.5, 1.2]),
        (lambda x: pa.where(x < 1, x, x * x), [1.0, 2.0]),
        (lambda x: pa.exp(x).astype("float32").astype("float64"), [0.3, 0.2]),
    ],
    ids=["relu(0)", "beside relu(0)", "max of two", "round", "where", "rounding inside"],
)
def test_a_kink_is_reported(fn, at, mode):
    text = failure_of(check_grads, fn, (np.array(at),), 1, mode, backend="numpy")
    number = r"[-+.\de]+"
    assert re.search(
        rf"; the function seems to have a kink here: the numerical slope is {number} "
        rf"(with step 1e-05 and {number} with step 1e-06|ahead and {number} behind)$",
        text,
    )


@given(seed=seeds)
def test_away_from_kinks_there_is_none(seed):
    x = normal(seed, 4)
    x += np.sign(x) * 1e-3
    check_grads(pa.relu, (x,), 2, MODES, backend="numpy")
    assert "kink" not in failure_of(check_grads, lambda x: WRONG["sign"](pa.relu(x)), (x + 2,), 1, backend="numpy")


def test_a_kink_beside_the_point_does_no_harm():
    """The kink is nearer than the first step and farther than the second."""
    check_grads(pa.abs, (np.array([5e-6]),), 1, backend="numpy")


# ---- wrong calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, -1, 1.0, True, None])
def test_orders_begin_at_one(order):
    text = error_of(ValueError, pa.sin, (normal(0, 2),), order)
    assert text == f"check_grads: order is {order!r}; it must be an int from 1"


@pytest.mark.parametrize("modes", [(), ("rev", "forward"), "reverse", (1,)])
def test_modes_are_two(modes):
    text = error_of(ValueError, pa.sin, (normal(0, 2),), 1, modes)
    assert re.fullmatch(r"check_grads: modes is \(.*\); it must hold some of 'rev', 'fwd'", text)


@pytest.mark.parametrize("eps", [0, -1e-5, float("nan"), float("inf")])
def test_eps_is_positive(eps):
    assert "check_grads: eps is" in error_of(ValueError, pa.sin, (normal(0, 2),), eps=eps)


@pytest.mark.parametrize("check", [check_grads, functools.partial(assert_gradients_agree, backends=("numpy",))])
def test_wrong_arguments(check):
    name = getattr(check, "func", check).__name__
    x = pa.asarray(normal(0, 2))
    with use_backend("numpy"):
        text = error_of(TypeError, pa.sin, x, check=check)
        assert text == f"{name}: args is float64[2]; it must be the tuple of fn's arguments, such as (x,)"
        assert f"{name}: args is ndarray" in error_of(TypeError, pa.sin, x.numpy(), check=check)
        for args in ((), (3.0,), (np.arange(3),), ({"a": [pa.asarray([1])]}, None)):
            text = error_of(GradientError, pa.sin, args, check=check)
            assert text == f"{name}: sin has no floating-point array among its arguments; one must be there"
        for value, said in ((3.0, "float"), (pa.asarray([1]), "int64[1]"), ({}, "dict"), (None, "NoneType")):
            text = error_of(GradientError, lambda x, value=value: value, (x,), check=check)
            ending = f" returned {said}; it must return a floating-point array"
            assert text.startswith(f"{name}: {LAMBDA}") and text.endswith(ending)


def test_results_that_are_not_finite():
    text = error_of(ValueError, pa.log, (np.array([1.0, -1.0]),), backend="numpy")
    assert text == "check_grads: log is nan or infinite at these arguments; it must be finite"
    text = error_of(ValueError, pa.log, (np.array([1.0, 1e-9]),), backend="numpy")
    assert text.startswith("check_grads: log is nan or infinite when x moves by about 1e-05; give args away")


def test_results_that_are_too_coarse():
    text = error_of(DtypeError, lambda x: pa.exp(x).astype("float32"), (normal(0, 2),), backend="numpy")
    assert re.match(
        rf"check_grads: {LAMBDA}\d+ returned float32\[2\] for float64 arguments; it must return float64", text
    )


def test_a_backend_without_float64():
    narrow = toy()._replace(dtypes=frozenset({pa.float32, pa.int32}), hardware="a small one")
    x = pa.asarray(normal(0, 2).astype(np.float32), device=narrow)
    text = error_of(DtypeError, pa.sin, (x,))
    assert text == "check_grads: 'toy' (a small one) holds no float64, which is required; backend=\"numpy\" does"
    check_grads(pa.sin, (x,), backend="numpy")
    assert_gradients_agree(pa.sin, (x,), (narrow,))


def test_without_backends_nothing_would_be_checked():
    text = error_of(ValueError, pa.sin, (normal(0, 2),), (), check=assert_gradients_agree)
    assert text == "assert_gradients_agree: backends is empty; it must name at least one"
    with pytest.raises(BackendError, match="no backend called 'nowhere'"):
        assert_gradients_agree(pa.sin, (normal(0, 2),), "nowhere")


# ---- the same on every backend -------------------------------------------------------------------------------


def toy(**replaced):
    kernels = {**make_kernels(np), **{getattr(ops, name): kernel for name, kernel in replaced.items()}}
    return Backend("toy", kernels, np.array, lambda buf: np.array(buf, order="C"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_backends_agree_on_trees(backend, dtype):
    if dtype not in {d.name for d in backend.dtypes}:
        pytest.skip(f"{backend.name} holds no {dtype}")
    params = {"w": pa.asarray(normal(1, 4, 2), dtype=dtype, device="numpy"), "b": [normal(2, 2).astype(np.float32)]}
    params["b"] = [pa.asarray(params["b"][0], dtype=dtype)]  # on the backend, the other on NumPy
    assert_gradients_agree(tree_of_results, (params, normal(3, 3, 4).astype(params["w"].dtype)), (backend,))


def test_backends_agree_on_a_layer_and_a_models_loss(backend):
    pa.random.seed(0)
    layer, model = nn.TransformerBlock(8, 2, causal=True), GPTModel(GPT)
    x = pa.random.normal((2, 5, 8))
    assert_gradients_agree(lambda layer, x: layer(x), (layer, x), ("numpy", backend))
    assert_gradients_agree(loss, (model, windows()), ("numpy", backend))


def bent(fn, at, by):
    """Return a kernel with one wrong element."""

    def kernel(out, x):
        value = np.array(fn(x), out.dtype)
        value[at] += by
        return value

    return kernel


def test_a_wrong_kernel_is_found():
    args = ({"x": [normal(0, 3, 4).astype(np.float32)]},)
    fn = lambda p: {"sine": pa.sin(p["x"][0])}
    assert_gradients_agree(fn, args, (toy(), toy(sin=bent(np.sin, (1, 2), 1e-6))))
    text = failure_of(assert_gradients_agree, fn, args, ("numpy", toy(sin=bent(np.sin, (1, 2), 1e-3))))
    assert re.match(
        rf"{LAMBDA}\d+ on toy: result sine \(float32\) differs at \[1, 2\]: \S+, expected \S+ \(off by ", text
    )
    text = failure_of(assert_gradients_agree, fn, args, toy(cos=bent(np.cos, (1, 2), 1e-3)))
    assert re.match(rf"{LAMBDA}\d+ on toy: d/dp.x.0 \(float32\) differs at \[1, 2\]: \S+, expected \S+ \(off by ", text)


def test_a_wrong_fused_kernel_is_found():
    body = get_backend("numpy")

    def forward(out, x, **params):
        with use_backend(body):
            return ops.softmax(pa.asarray(x), **params).numpy(), None

    wrong = Fused(forward, lambda g, saved, x, *, wanted, **params: (g,))
    x = normal(0, 2, 3).astype(np.float32)
    assert "on toy: d/dx" in failure_of(assert_gradients_agree, lambda x: pa.softmax(x), (x,), toy(softmax=wrong))


def test_a_rule_that_is_wrong_everywhere_is_not_for_this_check():
    assert_gradients_agree(WRONG["sign"], (normal(0, 3),), ("numpy",))


def test_a_gradient_of_another_dtype():
    fn = sine(lambda x, g: (g * pa.cos(x)).astype("float64"))
    with pytest.raises(DtypeError, match=r"^custom_vjp: backward \(\S+\) returned at index 0 float64\[3\] for"):
        assert_gradients_agree(fn, (normal(0, 3).astype(np.float32),), "numpy")


def test_mixed_dtypes_are_as_precise_as_the_coarsest():
    def fn(x, w):
        return {"y": pa.sin(x * 3) * w, "late": pa.exp(x).astype("float64")}

    x, w = normal(0, 5), normal(1, 5)
    for dtype in (np.float32, pa.bfloat16):
        assert_gradients_agree(fn, (x.astype(dtype), w), ("numpy",))
    wrong = toy(sin=bent(np.sin, 2, 1e-3))
    assert "result y (float64) differs at [2]" in failure_of(assert_gradients_agree, fn, (x.astype("f4"), w), wrong)


def test_a_function_that_asks_for_its_arrays_device(backend):
    x = normal(0, 3).astype(np.float32)
    assert_gradients_agree(lambda x: x * pa.ones(3, device=x.device), (x,), (backend,))


def test_results_that_depend_on_the_backend():
    def fn(x):
        return {"a": x, **({} if get_backend().name == "toy" else {"b": x})}

    text = failure_of(assert_gradients_agree, fn, (normal(0, 3),), toy())
    assert text == "fn on toy: results ['a'], expected ['a', 'b']"


def test_the_reference_is_out_of_plugins_reach():
    """A plugin that spoils NumPy's own kernels is detected by the comparison."""

    def polyarr_kernels(backend):
        return {ops.sin: bent(np.sin, 0, 0.5)} if backend.name == "numpy" else {}

    x = normal(0, 3).astype(np.float32)
    with plugins.fresh():
        plugins.register_plugin(types.SimpleNamespace(__name__="spoiler", polyarr_kernels=hookimpl(polyarr_kernels)))
        assert_gradients_agree(pa.sin, (x,), toy())
        assert "sin on numpy: the result" in failure_of(assert_gradients_agree, pa.sin, (x,), ("numpy",))


def test_what_to_type_to_see_a_difference_again():
    x = normal(0, 3).astype(np.float32)
    with plugins.fresh():
        hook = hookimpl(lambda register: register("toy", functools.partial(toy, cos=bent(np.cos, 0, 1)), api=2))
        plugins.register_plugin(types.SimpleNamespace(__name__="toy", polyarr_backends=hook))
        with pytest.raises(CheckFailure) as caught:
            assert_gradients_agree(pa.sin, (x,), ("numpy", "toy"), seed=3)
        (note,) = caught.value.__notes__
        typed = "\n".join(line.strip() for line in note.splitlines()[1:])
        assert "backends=['toy'], seed=3" in typed
        with pytest.raises(CheckFailure, match=re.escape(str(caught.value))):
            exec(typed, {"sin": pa.sin, "args": (x,)})


# ---- the page ------------------------------------------------------------------------------------------------


def test_the_page_is_a_test_file_that_passes(tmp_path):
    page = tmp_path / "test_page.py"
    page.write_text("\n\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, page]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Four without a backend, and one on NumPy and, if it starts, on OpenCL.
    assert re.search(r"^(6 passed|5 passed, 1 skipped) in", done.stdout, re.MULTILINE), done.stdout


def test_without_its_extra_the_kit_says_what_to_install():
    code = "import sys; sys.modules['hypothesis'] = None; from polyarr.testing import check_grads"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    expected = r"ImportError: polyarr.testing: .*hypothesis.*; install .*: pip install 'polyarr\[testing\]'"
    assert re.fullmatch(expected, done.stderr.splitlines()[-1])
