"""Scalar inputs that change between calls, as Python numbers or 0-d arrays: inputs that are no part of a signature."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops, optim
from polyarr.core.array import Array
from polyarr.core.backend import Backend, transfers
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import ShapeError
from polyarr.models.gpt import GPTModel
from polyarr.testing.backend_checks import GPT

X = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)


def scalar(value: Any, dtype: Any = None) -> Array:
    return pa.asarray(value, dtype=dtype)


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x.numpy(), y.numpy()) for x, y in zip(*map(pa.tree.leaves, (a, b)), strict=True))


def test_a_position_is_no_key(backend: Backend) -> None:
    x = pa.asarray(X)
    x[0:2], x[1:3]
    before = len(ops.slice._plans), len(ops.slice_update._plans)
    for i in range(4):
        assert np.array_equal(x[i : i + 2].numpy(), X[i : i + 2])
        x[i : i + 2] = 0.0
        x[i : i + 2] = pa.asarray(X[i : i + 2])
    assert len(ops.slice._plans) == before[0] and len(ops.slice_update._plans) <= before[1] + 1


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_starts_may_be_arrays(backend: Backend, dtype: str) -> None:
    x, window = pa.asarray(X), {"steps": (1, 2), "shape": (3, 2)}
    for i in range(3):
        found = ops.slice(x, [scalar(i, dtype), i], **window)
        assert np.array_equal(found.numpy(), X[i : i + 3, i : i + 4 : 2][:, :2])
        g = pa.grad(lambda x, i=i: ops.sum(ops.slice(x, [scalar(i, dtype), i], **window) ** 2))(x)
        expected = np.zeros_like(X)
        expected[i : i + 3, i : i + 4 : 2] = 2 * X[i : i + 3, i : i + 4 : 2]
        np.testing.assert_allclose(g.numpy(), expected)
        new = ops.slice_update(x, pa.zeros((3, 2)), (i, scalar(i, dtype)), steps=(1, 2))
        assert not new.numpy()[i : i + 3, i : i + 4 : 2].any() and new.numpy().any()


@pytest.mark.parametrize("start", [-1, 4, 10**30])
def test_a_window_must_lie_within(on_numpy: Backend, start: int) -> None:
    with pytest.raises((ShapeError, OverflowError), match=r"slice: x is float32\[6, 5\]; the window .* leaves it"):
        ops.slice(pa.asarray(X), (start, 0), steps=(1, 1), shape=(3, 5))
    with pytest.raises(ShapeError, match="leaves it"):
        ops.slice(pa.Spec((6, 5), pa.float32), (start, 0), steps=(1, 1), shape=(3, 5))


@pytest.mark.parametrize(("start", "last"), [(-1, -1), (4, 6)])
def test_a_start_in_memory_must_lie_within(backend: Backend, start: int, last: int) -> None:
    """IndexError, as for index arrays; OpenCL reports it at the next read."""
    x, told = pa.asarray(X), rf"the window .* leaves it|index {last} is out of range for an axis of length 6"
    for call in (
        lambda i: ops.slice(x, (i, 0), steps=(1, 1), shape=(3, 5)),
        lambda i: ops.slice(x, (i, 0), steps=(1, 1), shape=(3, 0)),
        lambda i: ops.slice_update(x, pa.zeros((3, 5)), (i, scalar(0)), steps=(1, 1)),
        lambda i: ops.slice_update(x, pa.zeros((3, 0)), (i, 0), steps=(1, 1)),
    ):
        with pytest.raises(IndexError, match=told):
            call(scalar(start)).numpy()
    assert np.array_equal(x.numpy(), X)


def test_no_start_in_memory_suits_a_window_that_is_too_long(backend: Backend) -> None:
    for steps, shape in (((1, 1), (7, 5)), ((2, 1), (4, 5)), ((-6, 1), (2, 5)), ((0, 1), (1, 5))):
        with pytest.raises(ShapeError, match=r"slice: x is float32\[6, 5\]; a window of .* leaves it, wherever"):
            ops.slice(pa.asarray(X), (scalar(0), 0), steps=steps, shape=shape)
    assert ops.slice(pa.asarray(X), (scalar(9), 0), steps=(1, 1), shape=(0, 5)).shape == (0, 5)


@pytest.mark.parametrize("bad", [1.0, "a", None, [0, 0]])
def test_a_start_is_an_integer(on_numpy: Backend, bad: Any) -> None:
    with pytest.raises((TypeError, ShapeError), match="slice: "):
        ops.slice(pa.asarray(X), (bad, 0), steps=(1, 1), shape=(3, 5))
    with pytest.raises((TypeError, ShapeError), match="slice: "):
        ops.slice(pa.asarray(X), (scalar([0, 1]), 0), steps=(1, 1), shape=(3, 5))


@pytest.mark.parametrize(
    ("build", "numbers", "dtype"),
    [
        (lambda n: [n, 1.0], (0.5, 2.5, -3.0), "float32"),
        (lambda n: [[1, n], [n, 2]], (3, 7, 2**40), "int64"),
        (lambda n: [n, 1.0, pa.ones((), dtype="float64")], (2, 5), "float64"),
    ],
)
def test_a_list_of_numbers_becomes_an_array(backend: Backend, build: Any, numbers: tuple, dtype: str) -> None:
    compiled = pa.compile(lambda x, n: pa.asarray(build(n)) + x.astype(dtype))
    for n in numbers:
        found = compiled(pa.zeros((), dtype=dtype), n)
        assert found.dtype == dtype and same(found, pa.asarray(build(n)))
    assert len(compiled.programs()) == 1


def test_random_keys_and_counters_may_be_arrays(backend: Backend) -> None:
    x = pa.asarray(X)
    key, counter = scalar(3), scalar(7)
    assert same(ops.random_bits(3, 7, x, shape=(9,)), ops.random_bits(key, counter, x, shape=(9,)))
    assert same(ops.dropout(x, 3, 7, rate=0.5), ops.dropout(x, key, counter, rate=0.5))
    q = pa.asarray(X[None])
    call = lambda *numbers: ops.attention(q, q, q, None, *numbers, causal=True, dropout_rate=0.5)
    assert same(call(3, 7), call(key, counter))
    loss = lambda *numbers: pa.grad(lambda x: ops.sum(ops.dropout(x, *numbers, rate=0.5) ** 2))(x)
    assert same(loss(3, 7), loss(key, counter))


def test_the_random_state_may_be_arrays(backend: Backend) -> None:
    before = pa.random.get_state()
    try:
        pa.random.set_state((11, 5))
        plain = [pa.random.uniform((4,)), pa.random.normal((3,))]
        counter = scalar(5)
        pa.random.set_state((scalar(11), counter))
        assert same(plain, [pa.random.uniform((4,)), pa.random.normal((3,))])
        assert pa.random.get_state()[1].item() == 7 and counter.item() == 5
        with pa.random.restored((scalar(11), counter)):
            assert same(plain[0], pa.random.uniform((4,)))
    finally:
        pa.random.set_state(before)


@pytest.mark.parametrize("make", [optim.AdamW, optim.Adam, optim.SGD, optim.Muon])
def test_a_step_with_its_numbers_in_arrays(backend: Backend, make: Any) -> None:
    """Equal to Python numbers up to the rounding of lr to float32."""
    model, grads = {"w": pa.asarray(X)}, {"w": pa.asarray(X[::-1].copy())}
    plain = in_arrays = None
    for lr, step in ((0.25, 0), (scalar(0.25, "float32"), scalar(0))):
        optimizer = make(lr=lr, weight_decay=0.1, clip=1.0)
        state = {**optimizer.init(model), "step": step}
        new = model
        for _ in range(3):
            new, state = optimizer.update(grads, state, new)
        plain, in_arrays = in_arrays, (new, state)
    np.testing.assert_allclose(plain[0]["w"].numpy(), in_arrays[0]["w"].numpy(), rtol=2e-6, atol=1e-6)
    assert plain[1]["step"] == 3 and in_arrays[1]["step"].item() == 3


def test_a_learning_rate_may_be_learnt(on_numpy: Backend) -> None:
    w, g = pa.asarray(X.astype("float64")), pa.asarray(X[::-1].astype("float64"))

    def after(lr: Any) -> Array:
        betas = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
        found = ops.adamw([w], [g], [g * 0], [g * 0], lr, 1, **betas, weight_decay=(0.1,), decoupled=True)
        return ops.sum(found[0][0] ** 2)

    slope = pa.grad(after)(scalar(0.25, "float64")).item()
    assert slope == pytest.approx((after(0.25 + 1e-6).item() - after(0.25 - 1e-6).item()) / 2e-6, rel=1e-6)


def test_a_kernel_gets_plain_numbers_unless_it_reads_them() -> None:
    plain, given = get_backend("numpy"), []

    def noting(out: Any, key: Any, counter: Any, *rest: Any, **params: Any) -> Any:
        given.append((type(key), type(counter)))
        numbers = (int(n) for n in (key, counter))
        return plain.kernels[ops.random_bits](out, *numbers, *rest, **params)

    noted = plain._replace(kernels={**plain.kernels, ops.random_bits: noting})
    for backend in (noted, noted._replace(reads={ops.random_bits: ("counter",)})):
        with use_backend(backend):
            before = transfers().downloads
            ops.random_bits(scalar(3), scalar(4), shape=(2,))
            given.append(transfers().downloads - before)
    assert given == [(int, int), 2, (int, np.ndarray), 1]


def training_step(backend: Backend, numbers_of: Any) -> tuple[Any, Any]:
    """Return a step of a GPT with dropout, as a function of model and optimizer state, and these two."""
    config = {**GPT, "drop_rate": 0.2}
    pa.random.set_state((numbers_of(5), numbers_of(0)))
    model, optimizer = GPTModel(config), optim.AdamW(lr=numbers_of(0.25), clip=1.0)
    state = {**optimizer.init(model), "step": numbers_of(0)}
    tokens = pa.asarray(np.random.default_rng(0).integers(0, config["vocab_size"], (2, 9)))

    def loss(model: Any) -> Array:
        return ops.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])

    def step(model: Any, state: Any) -> tuple[Any, Any]:
        value, grads = pa.value_and_grad(loss)(model)
        return (*optimizer.update(grads, state, model), value)

    return step, step(model, state)


@pytest.mark.polyarr_backend("opencl")
def test_a_start_in_memory_stays_there(backend: Backend) -> None:
    """A fixed-length cache takes a row at a position that the device increments, without waiting."""
    cache, row, at = pa.zeros((2, 6, 5)), pa.asarray(X[None, :2].swapaxes(0, 1)), scalar(2)
    kept, before = [], transfers()
    for _ in range(3):
        cache = ops.slice_update(cache, row, (0, at, 0), steps=(1, 1, 1))
        kept.append(ops.slice(cache, (0, at, 0), steps=(1, 1, 1), shape=(2, 1, 5)))
        at = at + 1
    assert transfers() == before
    assert all(same(part, row) for part in kept) and cache.numpy().any(axis=(0, 2)).tolist() == [0, 0, 1, 1, 1, 0]


@pytest.mark.polyarr_backend("opencl")
def test_a_training_step_with_its_numbers_in_arrays_moves_nothing(backend: Backend, monkeypatch: Any) -> None:
    """No copies to or from the host and no waits, so the step can be captured. Bits equal those with Python numbers."""
    commands, before = import_module("polyarr.backends.opencl.runtime.commands"), pa.random.get_state()
    plain, seen, found = commands.Command.__call__, [], []

    def noting(command: Any, *args: Any) -> Any:
        seen.append(command.name)
        return plain(command, *args)

    try:
        for numbers_of in (lambda number: number, scalar):
            step, (model, state, _) = training_step(backend, numbers_of)  # which builds the programs
            since = transfers()
            with monkeypatch.context() as patched:
                patched.setattr(commands.Command, "__call__", noting)
                patched.setattr(commands.Commands, "finish", None)
                found.append(step(model, state))
            assert transfers() == since and not {"upload", "transfer"} & set(seen) and "adamw" in seen
        assert same(*(model for model, _, _ in found)) and same(*(value for _, _, value in found))
    finally:
        pa.random.set_state(before)


@pytest.mark.parametrize(
    "fn",
    [
        lambda c, n: pa.full((2,), n),
        lambda c, n: pa.full((2,), n, dtype=pa.float64),
        lambda c, n: pa.full_like(pa.ones(2), n / 2),
        lambda c, n: pa.asarray(n) + pa.asarray(n, dtype=pa.int8).astype(pa.asarray(n).dtype),
        lambda c, n: pa.where(c, n, 0),
        lambda c, n: pa.where(c, True, n),
        lambda c, n: pa.where(c, n, 0.5),
    ],
)
@pytest.mark.parametrize("numbers", [(3, -4), (2.5, 7.25)])
def test_a_captured_number_fills_an_array(backend: Backend, fn: Any, numbers: tuple) -> None:
    condition, compiled = pa.asarray([True, False]), pa.compile(fn)
    for n in numbers:
        found, expected = compiled(condition, n), fn(condition, n)
        assert found.dtype == expected.dtype and same(found, expected)
    assert len(compiled.programs()) == 1


def test_a_captured_number_that_does_not_fit_is_refused_at_every_run(on_numpy: Backend) -> None:
    compiled = pa.compile(lambda n: pa.full(2, n, dtype=pa.int8))
    assert compiled(100).tolist() == [100, 100]
    with pytest.raises(OverflowError, match="300; int8 holds -128 to 127"):
        compiled(300)
