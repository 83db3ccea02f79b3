"""scan and while_loop: values, gradients, compile, vmap and errors."""

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend
from polyarr.core.errors import CaptureError
from tests.helpers.examples import close, given


def cell(carry, x):
    h, count = carry
    h = pa.tanh(h + x)
    return (h, count + 1), {"h": h, "twice": h * 2}


def plain(h: np.ndarray, xs: np.ndarray) -> np.ndarray:
    found = []
    for x in xs:
        h = np.tanh(h + x)
        found.append(h)
    return np.stack(found)


def test_scan_stacks_values_and_keeps_the_last_state(backend: Backend) -> None:
    h, xs = given(3), given(5, 3)
    (last, count), ys = pa.scan(cell, (h, pa.asarray(0)), xs)
    due = plain(h.numpy(), xs.numpy())
    close(last, due[-1])
    close(ys["h"], due)
    close(ys["twice"], 2 * due)
    assert count.item() == 5
    _, backwards = pa.scan(cell, (h, pa.asarray(0)), xs, reverse=True)
    close(backwards["h"], plain(h.numpy(), xs.numpy()[::-1])[::-1])


def test_scan_without_arrays_or_steps(on_numpy) -> None:
    assert pa.scan(lambda c, _: (c + 1, c), pa.asarray(0), length=3)[1].tolist() == [0, 1, 2]
    carry, ys = pa.scan(cell, (pa.zeros(3), pa.asarray(0)), pa.zeros((0, 3)))
    assert ys["h"].shape == (0, 3) and carry[1].item() == 0


def test_scan_in_gradients_compile_checkpoint_and_vmap(backend: Backend) -> None:
    h, xs = given(4, 3), given(4, 5, 3)
    loss = lambda h, xs: pa.sum(pa.scan(cell, (h, pa.asarray(0)), xs)[1]["h"] ** 2)
    unrolled = lambda h, xs: pa.sum(_unrolled(h, xs) ** 2)
    due = [pa.grad(unrolled, argnums=(0, 1))(h[i], xs[i]) for i in range(4)]
    for found in (
        pa.vmap(pa.grad(loss, argnums=(0, 1)))(h, xs),
        pa.grad(lambda h, xs: pa.sum(pa.vmap(pa.checkpoint(loss))(h, xs)), argnums=(0, 1))(h, xs),
        pa.compile(pa.vmap(pa.grad(loss, argnums=(0, 1))))(h, xs),
        pa.vmap(pa.compile(pa.grad(loss, argnums=(0, 1))))(h, xs),
    ):
        for i in range(4):
            close(found[0][i], due[i][0].numpy(), 1e-4)
            close(found[1][i], due[i][1].numpy(), 1e-4)


def _unrolled(h, xs):
    found = []
    for i in range(xs.shape[0]):
        h = pa.tanh(h + xs[i])
        found.append(h)
    return pa.stack(found)


def test_a_compiled_body_is_captured_once(on_numpy) -> None:
    body = pa.compile(cell)
    pa.scan(body, (pa.zeros(3), pa.asarray(0)), given(6, 3))
    assert len(body.programs()) == 1


def test_while_loop(backend: Backend) -> None:
    cond, body = lambda s: s[0] < 50.0, lambda s: (s[0] * 2, s[1] + 1)
    value, steps = pa.while_loop(cond, body, (pa.asarray(3.0), pa.asarray(0)))
    assert (value.item(), steps.item()) == (96.0, 5)
    found = pa.vmap(lambda x: pa.while_loop(cond, body, (x, pa.asarray(0))))(pa.asarray([3.0, 100.0, 30.0]))
    assert [a.tolist() for a in found] == [[96.0, 100.0, 60.0], [5, 0, 1]]
    x = pa.asarray([3.0, 100.0, 30.0])
    with pa.use_backend("numpy"):  # the number becomes an array beside the others
        found = pa.vmap(lambda x: pa.while_loop(cond, body, (x, 0)))(x)
    assert [a.tolist() for a in found] == [[96.0, 100.0, 60.0], [5, 0, 1]]
    slope = pa.vmap(pa.grad(lambda x: pa.while_loop(cond, body, (x, 0))[0]))(pa.asarray([3.0, 100.0, 30.0]))
    assert slope.tolist() == [32.0, 1.0, 2.0]
    assert pa.while_loop(lambda n: n < 3, lambda n: n + 1, 0) == 3


def test_while_loop_in_nested_vmap(on_numpy) -> None:
    x = np.abs(given(2, 3).numpy()) + 0.1
    twice = pa.vmap(pa.vmap(lambda a: pa.while_loop(lambda s: s < 10.0, lambda s: s * 3, a)))(pa.asarray(x))
    due = x.copy()
    while (due < 10).any():
        due = np.where(due < 10, due * np.float32(3), due)
    close(twice, due)


STEPS = "calls while_loop, whose number of steps depends on values; use scan"


def spin(x):
    return pa.while_loop(lambda x: x < 9.0, pa.exp, x)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pa.compile(spin)(pa.asarray(1.0)), CaptureError, STEPS),
        (lambda: pa.compile(pa.vmap(spin))(pa.asarray([1.0])), CaptureError, STEPS),
        (lambda: pa.scan(cell, (pa.zeros(3), pa.asarray(0))), pa.ShapeError, "scan: there is no length"),
        (lambda: pa.scan(cell, 0, {"a": pa.zeros(3), "b": pa.zeros(4)}), pa.ShapeError, r"xs\['b'\] is float32\[4\]"),
        (lambda: pa.scan(cell, 0, pa.asarray(1.0)), pa.ShapeError, r"xs is float32\[\]; it must be an"),
        (lambda: pa.scan(lambda c, x: x, pa.asarray(0.0), pa.zeros(3)), pa.GradientError, "scan: body returned"),
        (lambda: pa.scan(lambda c, x: (x[None], c), pa.asarray(0.0), pa.zeros(3)), pa.ShapeError, "must keep"),
        (lambda: pa.scan(lambda c, x: (c, 1.0), 0, pa.zeros(3)), pa.ShapeError, "body returned a float in y; it"),
        (lambda: pa.scan(lambda c, x: (c, 0), 0, pa.zeros(3)), pa.ShapeError, "body returned a int in y; it"),
        (lambda: pa.scan(lambda c, x: (c, 0), 0, pa.zeros(0)), pa.ShapeError, "body returned a int in y; it"),
        (lambda: pa.scan(lambda c, x: (c + 1, [x] * c), 0, pa.zeros(3)), pa.ShapeError, "trees y that differ"),
        (lambda: pa.while_loop(lambda x: x, lambda x: x, pa.ones(2)), pa.ShapeError, "cond returned float32"),
        (lambda: pa.while_loop(lambda x: x < 2, lambda x: {}, pa.asarray(1)), pa.ShapeError, "carry is int64"),
    ],
)  # fmt: skip
def test_errors_have_one_line(on_numpy, call, error, message) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
