"""What the tape keeps, and for how long: deep graphs, memory that is given back, and what a gradient must not hold."""

import gc
import weakref

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend

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
    """Weak references to the memory of every array made while it watches."""

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
    """What a node kept goes when it is pulled, so the peak is the forward pass and not twice that."""
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
