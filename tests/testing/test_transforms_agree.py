"""assert_transforms_agree: pure functions pass, planted faults under compile and vmap fail; messages."""

import re

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.core.current import capturing, current_level, use_backend
from polyarr.core.errors import BatchingError, CaptureError, GradientError
from polyarr.testing import CheckFailure, assert_gradients_agree, assert_transforms_agree


def normal(*shape, dtype="float32"):
    return np.asarray(np.random.default_rng(0).standard_normal(shape), dtype)


def failure_of(fn, args, *given, kind=CheckFailure, check=assert_transforms_agree):
    with use_backend("numpy"), pytest.raises(kind) as caught:
        check(fn, args, *given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def trees(params, x):
    hidden = pa.tanh(x @ params["w"] + params["b"][0])
    return {"hidden": hidden, "both": (pa.sum(hidden), pa.asarray([1, 2])), "name": "kept"}


RIGHT = {
    "trees": (trees, ({"w": normal(4, 2), "b": [normal(2)]}, normal(3, 4))),
    "layer": (lambda layer, x: pa.gelu(layer(x)), (nn.Linear(4, 2), normal(3, 4))),
    "draws": (lambda x: nn.Dropout(0.5)(x) * pa.random.normal((4,)), (normal(4),)),
    "indices": (lambda x, i, k: pa.take(x, i, axis=0) * k, (normal(4), np.array([0, 2, 0]), 3)),
    "own gradient": (pa.custom_vjp(pa.sin, lambda x: (pa.sin(x), x), lambda x, g: (g * pa.cos(x),)), (normal(3),)),
    "in place, on a copy": (lambda x: _replaced(pa.asarray(x, copy=True)), (normal(3),)),
    "other results": (lambda x: {"y": x * 2, "is": x > 0, "n": pa.argmax(x)}, (normal(3),)),
    "scalar": (lambda x: x * x, (normal(),)),
    "empty": (lambda x: x * x, (normal(0, 3),)),
}


def _replaced(x):
    x[0] = 0.0
    return x * x


@pytest.mark.parametrize("name", RIGHT)
def test_right_functions_pass(backend, name):
    fn, args = RIGHT[name]
    assert_transforms_agree(fn, args, backend=backend)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_narrow_dtypes(backend, dtype):
    if dtype not in {d.name for d in backend.dtypes}:
        pytest.skip(f"{backend.name} holds no {dtype}")
    x = pa.asarray(normal(2, 3), dtype=dtype, device=backend)
    assert_transforms_agree(lambda x: pa.softmax(x), (x,))


class Net(nn.Module):
    def __init__(self):
        self.inner = nn.Linear(4, 2)

    def __call__(self, x):
        return self.inner(x)

    def loss(self, x):
        return pa.mean(self(x) ** 2)


def test_modules_methods_and_compiled_functions_use_their_own_arrays():
    with use_backend("numpy"):
        net, w = Net(), pa.ones(4)
        for fn in (net, net.loss, pa.compile(lambda x: net(x * w), captures=(net, w))):
            assert_transforms_agree(fn, (normal(3, 4),))
        text = failure_of(lambda x: x * w, (normal(3, 4),), kind=CaptureError)
        assert "that the function was not given; make it an argument" in text


def subtracts(x, rest):
    x -= pa.mean(x)
    return x * rest["k"]


def test_an_argument_that_is_changed_in_place():
    text = failure_of(subtracts, (normal(3), {"k": normal(3)}))
    assert text.startswith("subtracts on numpy: the call changes its argument x in place, which grad and vmap do not")

    def fn(x, rest):
        rest["count"][0] = 7
        return x

    assert "its argument rest.count in place" in failure_of(fn, (normal(3), {"count": np.array([1, 2])}))
    assert "its argument x in place" in failure_of(lambda x: _replaced(x), (normal(3),))


def test_a_setting_of_a_module_that_is_changed():
    class Counting(nn.Module):
        calls = 0

        def __call__(self, x):
            self.calls = self.calls + 1
            return x / self.calls

    text = failure_of(lambda m, x: m(x), (Counting(), normal(3)), kind=CaptureError)
    assert "changes what is in its argument 'm'" in text


def test_state_that_is_kept_from_call_to_call():
    class Momentum:
        m = None

        def __call__(self, g):
            self.m = g if self.m is None else 0.9 * self.m + g
            return self.m

    assert "Momentum on numpy: two calls with the same arguments gave" in failure_of(Momentum(), (normal(3),))


def test_code_that_a_transform_refuses():
    def clipped(x):
        return x / pa.max(x) if pa.max(x) > 1 else x

    with pytest.raises(CaptureError, match=rf"{re.escape(__file__)}:\d+ reads an array's values") as caught:
        assert_transforms_agree(clipped, (normal(3),), "compile", backend="numpy")
    (note,) = caught.value.__notes__
    assert "    assert_transforms_agree(clipped, args, transforms=('compile',), backend='numpy', seed=0)" in note
    assert "reads the values of a mapped array" in failure_of(clipped, (normal(3),), "vmap", kind=BatchingError)


def differs_when(is_inside, value, backward=lambda x, g: (2 * g * x,)):
    """Return the square, with another value or gradient where `is_inside` holds in the call."""
    plain = pa.custom_vjp(lambda x: x * x, lambda x: (x * x, x), backward)
    return lambda x: value(x) if is_inside() else plain(x)


def test_a_value_that_differs_in_a_compiled_function():
    wrong = differs_when(lambda: capturing.get() is not None, lambda x: 1.01 * x * x)
    text = failure_of(wrong, (normal(3) + 2,))
    assert re.match(r"lambda at \S+ on numpy, compiled, first call: the result \(float32\) differs at \[0\]", text)


def test_a_gradient_that_differs_in_a_compiled_function():
    stopped = lambda x: x * pa.stop_gradient(x)
    text = failure_of(differs_when(lambda: capturing.get() is not None, stopped), (normal(3) + 2,))
    assert re.match(r"lambda at \S+ on numpy, compiled, first call: d/dx \(float32\) differs at \[0\]", text)


def test_a_value_and_a_gradient_that_differ_in_vmap():
    for value, what in ((lambda x: x * x[::-1], "the result"), (lambda x: x * pa.stop_gradient(x), "d/dx")):
        wrong = differs_when(lambda: current_level() is not None, value)
        text = failure_of(wrong, (normal(3) + 2,), "vmap")
        assert re.match(rf"lambda at \S+ on numpy, mapped by vmap, example 0: {what} \(float32\) differs at", text)


def rms(x):
    eps = pa.asarray(1e-6, dtype="float64")
    return {"y": x / pa.sqrt(pa.mean(x * x) + eps)}


@pytest.mark.parametrize("check", [assert_transforms_agree, assert_gradients_agree])
def test_a_result_that_became_float64(check):
    more = () if check is assert_transforms_agree else (("numpy",),)
    text = failure_of(rms, (normal(3),), *more, check=check)
    assert text == (
        "rms on numpy: result y is float64; it must be as narrow as its arguments (float32): make constants with "
        "dtype=x.dtype, or cast with astype"
    )
    check(rms, (normal(3, dtype="float64"),), *more or ("compile",))
    check(lambda x: pa.sum(x.astype("float32")), (normal(3).astype(np.float16),), *more or ("compile",))


@pytest.mark.parametrize("transforms", [(), ("jit",), "grad"])
def test_transforms_are_two(transforms):
    text = failure_of(pa.sin, (normal(3),), transforms, kind=ValueError)
    assert re.fullmatch(
        r"assert_transforms_agree: transforms is \(.*\); it must hold some of 'compile', 'vmap'", text
    )


def test_wrong_arguments():
    assert "args is ndarray; it must be the tuple" in failure_of(pa.sin, normal(3), kind=TypeError)
    text = failure_of(lambda x: 3.0, (normal(3),), kind=GradientError)
    assert text.endswith(" returned float; it must return a floating-point array")
