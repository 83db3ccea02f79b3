"""Composed ops that run as captured programs once they were called often: the same bits in few launches."""

import math
import threading
from collections import deque

import numpy as np
import pytest

import polyarr as pa
from polyarr.capture import repeated
from polyarr.core.op import OPS, composed
from polyarr.testing.cases import first_example
from polyarr.testing.compare import bits
from polyarr.testing.samples import SAMPLES
from tests.helpers.launches import launches
from tests.helpers.opencl_modules import opencl_modules

(table,) = opencl_modules("table")
pytestmark = pytest.mark.polyarr_backend("opencl")
MANY = repeated.MANY
ON_HOST = ("eig", "eigvals")  # no op for OpenCL
WITHOUT_KERNEL = [op for op in SAMPLES if op not in table.KERNELS and op not in table.PAIRS and op.name not in ON_HOST]
CALLS = {
    "erfinv": lambda x: pa.special.erfinv(x),
    "logsumexp": lambda x: pa.logsumexp(x, axis=-1),
    "std": lambda x: pa.std(x, axis=0, correction=1),
    "narrow": lambda x: pa.std(x.astype("bfloat16"), axis=-1),
}


@pytest.fixture(autouse=True)
def _fresh_plans(backend):
    """Count from 0, whatever ran before."""
    for op in OPS:
        op._plans.clear()


@pytest.fixture
def new_op():
    """The op that a test defines, which is forgotten at its end."""
    known = len(OPS)
    yield composed
    del OPS[known:]


def numbers(*shape, seed=0):
    return pa.asarray(np.random.default_rng(seed).uniform(-0.9, 0.9, shape).astype(np.float32))


def is_replayed(call):
    """Return whether a call launches no kernel through a launcher, because a replay enqueues its commands."""
    call()
    with launches() as names:
        call()
    return not names


@pytest.mark.parametrize("name", CALLS)
def test_bits_are_the_same(name):
    """Other numbers, layouts and memory of one signature included."""
    call, shape = CALLS[name], (5, 7, 11)
    given = [numbers(*shape, seed=seed) for seed in range(3)]
    given += [pa.permute_dims(numbers(11, 5, 7), (1, 2, 0)), numbers(5, 8, 12)[:, 1:, 1:]]
    given.append(pa.broadcast_to(numbers(11), shape))
    due = [call(x).numpy() for x in given]
    assert not is_replayed(lambda: pa.special.erfinv(numbers(3)))
    for _ in range(MANY):
        call(given[0])
    if name != "narrow":  # the cast before it is launched
        assert is_replayed(lambda: call(given[0]))
    for x, expected in zip(given * 2, due * 2, strict=True):
        np.testing.assert_array_equal(call(x).numpy(), expected)


@pytest.mark.parametrize("op", WITHOUT_KERNEL, ids=lambda op: op.name)
def test_the_simplest_call_of_every_op(backend, op):
    sample = first_example(op, backend)
    args = sample.arrays(backend)
    with repeated.after(math.inf):
        due = bits(op(*args, **sample.params))
    with repeated.after(0):
        assert all(bits(op(*args, **sample.params)) == due for _ in range(3))


def test_numbers_are_those_of_each_call(new_op):
    @new_op
    def shifted(x, by, times):
        return ((x + by) * times + by) * times

    x = numbers(6)
    for k in range(MANY + 3):
        found = shifted(x, 0.5 * k, k)
        np.testing.assert_array_equal(found.numpy(), shifted.decomposition(x, 0.5 * k, k).numpy())
    assert is_replayed(lambda: shifted(x, 7.5, 9))


def test_an_array_twice_and_another_precision_have_programs_of_their_own(new_op):
    @new_op
    def combined(x, y):
        return (x + y) * (x - y) + pa.sum(x @ y)

    x, y = numbers(4, 4), numbers(4, 4, seed=1)
    for precision in ("highest", "high"):
        with pa.use_matmul_precision(precision):
            for a, b in ((x, y), (x, x)) * (MANY + 2):
                np.testing.assert_array_equal(combined(a, b).numpy(), combined.decomposition(a, b).numpy())


def test_several_results_and_views(new_op):
    @new_op
    def parts(x, y):
        return pa.permute_dims(x, (1, 0)), (y * 2 + 1) * y - 3, pa.reshape(x, (-1,))

    x, y = numbers(4, 3), numbers(4, 3, seed=1)
    for _ in range(MANY + 2):
        turned, computed, view = parts(x, y)
        np.testing.assert_array_equal(turned.numpy(), x.numpy().T)
        np.testing.assert_array_equal(computed.numpy(), ((y * 2 + 1) * y - 3).numpy())
        np.testing.assert_array_equal(view.numpy(), x.numpy().reshape(-1))


def test_ops_that_cannot_be_captured_run_step_by_step(new_op):
    @new_op(infer=lambda x: x)
    def by_value(x):
        return (x * 2 + 1) * 3 if float(pa.sum(x)) > 0 else -((x * 2 + 1) * 3)

    x = pa.ones(3)
    for k in range(2 * MANY):
        sign = 1 if k % 2 else -1
        np.testing.assert_array_equal(by_value(x * sign).numpy(), np.full(3, 9.0 if sign > 0 else 3.0))


def test_a_bad_index_names_the_line_of_its_call(new_op):
    @new_op(indices="indices")
    def scaled_rows(x, indices):
        return (pa.take(x, indices, axis=0) * 2 + 1) * 3 - 4

    x, good, bad = numbers(4, 3), pa.asarray([0, 3]), pa.asarray([0, 4])
    for _ in range(MANY + 2):
        scaled_rows(x, good)
    with pytest.raises(IndexError, match=r"called at .*test_repeated\.py"):  # not at scaled_rows
        scaled_rows(x, bad).numpy()


def test_a_bad_matrix_names_the_line_of_its_call():
    good, bad = pa.eye(3), pa.full((3, 3), math.nan)
    for _ in range(MANY + 2):
        pa.linalg.pinv(good)
    with pytest.raises(pa.MatrixError, match=r"called at .*test_repeated\.py"):
        pa.linalg.pinv(bad).numpy()


def test_masks_are_not_held(new_op):
    @new_op
    def masked(x):
        return pa.where(pa.tril(pa.ones((80, 80), dtype=bool)), (x * 2 + 1) * 3, x - 1)

    x = numbers(80, 80)
    for _ in range(MANY + 2):
        masked(x)
    assert not is_replayed(lambda: masked(x))


def test_the_oldest_programs_are_forgotten(new_op, monkeypatch):
    """A loop over lengths does not take more and more memory."""

    @new_op
    def polynomial(x):
        return ((x * 2 + 1) * x - 3) * x

    monkeypatch.setattr(repeated, "MAX_PROGRAMS", 3)
    monkeypatch.setattr(repeated, "_kept", deque())
    given = [numbers(n) for n in range(1, 6)]
    for x in given:
        for _ in range(MANY + 2):
            polynomial(x)
    assert [bool(plan.programs) for plan in polynomial._plans.values()] == [False, False, True, True, True]
    assert is_replayed(lambda: polynomial(given[-1])) and not is_replayed(lambda: polynomial(given[0]))


def test_gradients_and_captures_are_as_before():
    x = numbers(5, 6)
    grad = pa.grad(lambda x: pa.sum(pa.logsumexp(x, axis=-1) * pa.std(x, axis=-1)))
    compiled = pa.compile(lambda x: pa.logsumexp(x, axis=-1))
    due, value = grad(x).numpy(), compiled(x).numpy()
    for _ in range(MANY + 2):
        np.testing.assert_array_equal(pa.logsumexp(x, axis=-1).numpy(), value)
        np.testing.assert_array_equal(grad(x).numpy(), due)
        np.testing.assert_array_equal(pa.vmap(pa.logsumexp)(x).numpy(), value)
    assert pa.compile(lambda x: pa.logsumexp(x, axis=-1))(x).numpy().tolist() == value.tolist()


def test_threads(new_op):
    @new_op
    def polynomial(x):
        return ((x * 2 + 1) * x - 3) * x

    given = [numbers(50, seed=seed) for seed in range(4)]
    due, wrong = [polynomial.decomposition(x).numpy() for x in given], []

    def work(x, expected):
        for _ in range(4 * MANY):
            if not np.array_equal(polynomial(x).numpy(), expected):
                wrong.append(expected)

    threads = [threading.Thread(target=work, args=each) for each in zip(given, due, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_compiling_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("POLYARR_COMPILE", "0")
    x = numbers(7)
    for _ in range(MANY + 2):
        pa.special.erfinv(x)
    assert not is_replayed(lambda: pa.special.erfinv(x))


def test_a_profile_shows_the_kernels_that_run():
    x = numbers(40, 30)
    for _ in range(MANY + 2):
        pa.logsumexp(x, axis=-1)
    with pa.profile() as found:
        pa.logsumexp(x, axis=-1)
    fused = next(line for line in str(found).splitlines() if line.startswith("max+"))
    assert ", logsumexp  " in fused  # the op in place of a line, which would be another call's
