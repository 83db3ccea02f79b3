"""Gradient checks of functions that return different values in every call, and of functions without a name."""

from pathlib import Path

import numpy as np
import pytest

import polyarr as pa
from polyarr.testing import CheckFailure, assert_gradients_agree, assert_transforms_agree, check_grads

X = np.random.default_rng(0).standard_normal(3)
DIFFER = "two calls with the same arguments gave"


def failure_of(check, *args, **kwargs):
    with pytest.raises(CheckFailure) as caught:
        check(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


CHANGING = {
    "every call": lambda x, n: x * float(n),
    "random": lambda x, n: x * pa.asarray(np.random.default_rng(n).standard_normal(3)),
    "from the third call on": lambda x, n: x + float(max(n - 2, 0)),
    "little": lambda x, n: x + 1e-9 * n,
    "shapes": lambda x, n: pa.concat([x] * n),
    "results": lambda x, n: [x] * n,
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_function_that_changes_is_called_that_and_no_kink(name):
    calls = []

    def fn(x):
        calls.append(0)
        return CHANGING[name](x, len(calls))

    text = failure_of(check_grads, fn, (X,), 1, backend="numpy")
    assert text.startswith("fn on numpy, order 1") and DIFFER in text and "kink" not in text


def test_a_gradient_that_changes_is_called_that():
    """The second order treats the gradient as a function."""
    calls = []

    def backward(x, g):
        calls.append(0)
        return (g * pa.cos(x) + (len(calls) > 1) * 1e-3 * len(calls) * x,)

    fn = pa.custom_vjp(pa.sin, lambda x: (pa.sin(x), x), backward)
    assert f"order 2: {DIFFER}" in failure_of(check_grads, fn, (X,), backend="numpy")


def test_no_backend_is_blamed_for_a_function_that_changes():
    calls = []

    def fn(x):
        calls.append(0)
        return x * float(len(calls))

    assert failure_of(assert_gradients_agree, fn, (X,), ("numpy",)).startswith(f"fn: {DIFFER}")


def test_what_polyarr_draws_is_the_same_in_every_call():
    check_grads(lambda x: x * pa.random.normal((3,)), (X,), backend="numpy")


def test_a_lambda_is_called_by_where_it_stands():
    fn = lambda x: pa.asarray(x.tolist(), dtype=x.dtype) * 2
    text = failure_of(check_grads, fn, (X,), 1, backend="numpy")
    assert text.startswith(f"lambda at {__file__.rpartition('/')[2]}:{fn.__code__.co_firstlineno} on numpy, order 1")


def test_a_lambda_inside_of_custom_vjp_is_called_by_where_it_stands():
    plain = lambda x: x * x
    fn = pa.custom_vjp(plain, lambda x: (x * x, x), lambda x, g: (g * x,))
    for wrapped in (fn, pa.compile(fn)):
        text = failure_of(check_grads, wrapped, (X,), 1, backend="numpy")
        assert text.startswith(f"lambda at {__file__.rpartition('/')[2]}:{plain.__code__.co_firstlineno} on numpy")


def test_the_lines_that_no_gradient_passes_are_listed():
    def scaled(x):
        return x / float(pa.sum(x * x))

    with pytest.raises(CheckFailure) as caught:
        check_grads(scaled, (X,), 1, backend="numpy")
    _, lines, _ = caught.value.__notes__
    line = scaled.__code__.co_firstlineno + 1
    assert lines.startswith("no gradient passes these lines:\n    times  where ")
    assert f"{__file__.rpartition('/')[2]}:{line}  scaled  float()  values, gradient" in lines


@pytest.mark.parametrize("mode", ["rev", "fwd"])
def test_the_wrong_elements_are_counted(mode):
    """As where a rule forgets what a block of two does not divide; forward mode has no gradient to look at."""
    even = lambda x: pa.concat([x[: x.shape[0] // 2 * 2], pa.zeros_like(x[x.shape[0] // 2 * 2 :])])
    fn = pa.custom_vjp(lambda x: x * x, lambda x: (x * x, x), lambda x, g: (even(2 * g * x),))
    for x in (np.linspace(1.0, 2.0, 5), np.linspace(1.0, 2.0, 15).reshape(5, 3), np.linspace(1.0, 2.0, 257)):
        with pytest.raises(CheckFailure) as caught:
            check_grads(fn, (x,), 1, mode, backend="numpy")
        notes = caught.value.__notes__
        rest, at = x.size // len(x), [len(x) - 1] + [0] * (x.ndim - 1)
        said = f"{rest} of {x.size} elements of its gradient differ, the first at {at}: 0, numerically "
        is_counted = mode == "rev" and x.size <= 256
        assert notes[0].startswith(said) if is_counted else not any("elements" in note for note in notes)
        assert notes[-1].startswith("to reproduce it")


def test_the_line_of_a_gradient_that_stops_in_the_second_order():
    cube = pa.custom_vjp(lambda x: x**3, lambda x: (x**3, pa.stop_gradient(x)), lambda x, g: (g * 3 * x * x,))
    with pytest.raises(CheckFailure, match="order 2") as caught:
        check_grads(cube, (X,), backend="numpy")
    assert "stop_gradient()  gradient" in caught.value.__notes__[1]


@pytest.mark.parametrize("check", [check_grads, assert_gradients_agree, assert_transforms_agree])
def test_pytest_shows_a_failure_at_the_line_of_the_test(check):
    """Not in the code of the checks, whose locals would fill the screen."""
    calls = []

    def fn(x):
        calls.append(0)
        return x * float(len(calls))

    with pytest.raises(CheckFailure) as caught:
        check(fn, (X,))
    assert [entry.path.name for entry in caught.traceback if not entry.ishidden(caught)] == [Path(__file__).name]
