"""Lifetime of arrays on the tape: deep graphs, freed memory, and arrays that a gradient must not keep."""

import gc
import sys
import weakref

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core import record
from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend
from polyarr.core.op import Op
from polyarr.testing import Data, Sample
from polyarr.testing.compare import CheckFailure
from polyarr.testing.tape import TrackingBackend, check_tape
from tests.testing.negative_controls import fused_kernels
from tests.testing.negative_controls.table import with_kernels

pytestmark = pytest.mark.usefixtures("on_numpy")


def scalar(value: float) -> Array:
    return pa.asarray(value, dtype="float64")


def test_twenty_thousand_ops_deep() -> None:
    def fn(x: Array) -> Array:
        for _ in range(20_000):
            x = x + 1.0
        return x

    assert pa.grad(fn)(scalar(1.0)).item() == 1
    _, pull = pa.vjp(fn, scalar(1.0))
    assert pull(scalar(2.0))[0].item() == 2
    del pull  # freeing a chain of nodes must not recurse either


class Buffers:
    """Weak references to the memory of every array created in the block."""

    def __init__(self, backend: Backend) -> None:
        self.references: list[weakref.ref] = []
        self.backend = backend._replace(
            kernels={op: self._watched(k) for op, k in backend.without_fused().kernels.items()}, upload=self._uploaded
        )
        self._upload = backend.upload

    def _note(self, buf: np.ndarray) -> np.ndarray:
        base = buf if buf.base is None else buf.base
        self.references.append(weakref.ref(base))
        return buf

    def _uploaded(self, host: np.ndarray) -> np.ndarray:
        return self._note(self._upload(host))

    def _watched(self, kernel):
        return lambda *args, **params: self._note(kernel(*args, **params))

    def alive(self) -> int:
        return len({id(buf) for r in self.references if (buf := r()) is not None})  # a view counts as what it views


def test_buffers_are_freed_without_the_collector() -> None:
    watch = Buffers(get_backend("numpy"))

    def loss(p: dict, x: Array) -> Array:
        h = ops.gelu(ops.layer_norm(x @ p["w"], p["g"]))
        h[0] = 0.0
        h = pa.checkpoint(lambda a: ops.exp(a) + ops.softmax(a))(h)
        return ops.mean(ops.sqrt(h * h + 1))

    gc.collect()
    gc.disable()
    try:
        with use_backend(watch.backend):
            params = {"w": pa.ones((4, 4)) * 0.1, "g": pa.ones(4)}
            x = pa.ones((2, 4))
            before = watch.alive()
            value, grads = pa.value_and_grad(loss)(params, x)
            assert len(watch.references) > 50
            kept = before + 1 + len(grads)
            assert watch.alive() <= kept
            second = pa.grad(lambda p, x: ops.sum(pa.grad(loss)(p, x)["w"] ** 2))(params, x)
            _, pull = pa.vjp(loss, params, x)
            pull(value)
            del pull, second, _
            assert watch.alive() <= kept
            del value, grads, params, x
            assert watch.alive() == 0
    finally:
        gc.enable()


def test_arrays_are_freed_during_the_walk() -> None:
    """A node's arrays are freed when its gradient is computed, so the peak is that of the forward pass."""
    watch, alive = Buffers(get_backend("numpy")), []

    def fn(x: Array) -> Array:
        x = pa.custom_vjp(lambda a: a, lambda a: (a, None), lambda _, g: (alive.append(watch.alive()), (g,))[1])(x)
        for _ in range(50):
            x = ops.exp(x * 0.01)
        alive.append(watch.alive())
        return x

    with use_backend(watch.backend):
        pa.grad(fn)(scalar(0.0))
    at_the_top, at_the_bottom = alive
    assert at_the_bottom < at_the_top / 4


def spared(op: Op, *args: object, **params: object) -> list[bool]:
    """Return the names of the inputs and the result whose memory is freed after forward."""
    watch = TrackingBackend(get_backend("numpy"))
    with use_backend(watch.backend):
        inputs = [pa.asarray(a) for a in args]
        tracked: list = []

        def fn(*given: Array) -> Array:
            tracked[:] = (a + 0 for a in given)
            return op(*tracked, **params)

        value, pull = pa.vjp(fn, *inputs)
        kept = [weakref.ref(a.buf) for a in (*tracked, value)]
        tracked.clear()
        del value
        found = [k() is None for k in kept]
        del pull
        return found


@pytest.mark.parametrize(
    ("op", "params", "expected"),
    [
        (ops.add, {}, [True, True, True]),
        (ops.multiply, {}, [False, False, True]),
        (ops.divide, {}, [True, False, False]),
        (ops.maximum, {}, None),
    ],
)
def test_the_tape_keeps_what_rules_name(op: Op, params: dict, expected: list[bool] | None) -> None:
    x = np.ones((3, 4), np.float32)
    if expected is None:
        needs = {need for rule, needs in op.rules.values() if rule for need in needs}
        expected = [name not in needs for name in (*op.inputs, "out")]
    assert spared(op, x, x, **params) == expected


def test_a_result_that_no_rule_names_is_not_kept(monkeypatch) -> None:
    """The kit's check finds it otherwise."""
    sample = Sample((Data((3, 4)), Data((3, 4))))
    check_tape(ops.multiply, "numpy", sample)
    monkeypatch.setattr(record.Rules, "__init__", keeping(record.Rules.__init__))
    with pytest.raises(
        CheckFailure, match=r"after forward [3-9] buffers are kept; the gradient of x and y needs 2 at most"
    ):
        check_tape(ops.multiply, "numpy", sample)


def test_an_input_that_backward_does_not_need_is_not_kept(monkeypatch) -> None:
    pair = fused_kernels.softmax()._replace(needs={"x": ()})
    backend, sample = with_kernels(get_backend("numpy"), {ops.softmax: pair}), Sample((Data((3, 4)),))
    check_tape(ops.softmax, backend, sample)
    monkeypatch.setattr(record.FusedPull, "free_unneeded", lambda pull: None)
    with pytest.raises(CheckFailure, match="after forward 1 buffers are kept; the gradient of x needs 0 at most"):
        check_tape(ops.softmax, backend, sample)


def keeping(init):
    def changed(self, work, result, plan) -> None:
        caller = sys._getframe(1)
        value = caller.f_locals["value"]
        init(self, work, (value.backend, value.buf), plan)

    return changed
