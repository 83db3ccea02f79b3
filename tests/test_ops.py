"""Every op on every backend against NumPy in float64: values, gradients, layouts, dtypes, and what must not happen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend, Fused
from polyarr.core.op import OPS, Op
from polyarr.testing import SAMPLES, checks

OURS = [op for op in OPS if op.__module__.startswith("polyarr.")]
SMOOTH = [op for op in OURS if SAMPLES[op].smooth]


def each(chosen: list[Op]) -> pytest.MarkDecorator:
    """One test per op."""
    return pytest.mark.parametrize("op", chosen, ids=[op.name for op in chosen])


def usual(op: Op) -> str:
    """The dtype that most of an op's checks use."""
    return "float32" if "float32" in SAMPLES[op].dtypes else SAMPLES[op].dtypes[-1]


def other_dtypes(op: Op, backend: Backend) -> list[str]:
    """The op's other dtypes that the backend holds."""
    held = {d.name for d in backend.dtypes}
    return [d for d in SAMPLES[op].dtypes if d != usual(op) and d in held]


def test_every_op_has_a_sample() -> None:
    assert set(OURS) == set(SAMPLES)


@each(OURS)
@given(data=st.data())
def test_forward(op: Op, backend: Backend, data: st.DataObject) -> None:
    checks.check_forward(op, backend, data.draw(SAMPLES[op].cases(usual(op))))


@each(SMOOTH)
@given(data=st.data())
def test_backward(op: Op, backend: Backend, data: st.DataObject) -> None:
    checks.check_backward(op, backend, data.draw(SAMPLES[op].smooth("float32")))


@each(OURS)
@given(data=st.data())
@settings(max_examples=1)
def test_every_dtype(op: Op, backend: Backend, data: st.DataObject) -> None:
    for dtype in other_dtypes(op, backend):
        checks.check_forward(op, backend, data.draw(SAMPLES[op].cases(dtype)))


@each([op for op in SMOOTH if "float16" in SAMPLES[op].dtypes])
@given(data=st.data())
@settings(max_examples=1)
def test_backward_in_every_dtype(op: Op, backend: Backend, data: st.DataObject) -> None:
    for dtype in other_dtypes(op, backend):
        if "float" in dtype:
            checks.check_backward(op, backend, data.draw(SAMPLES[op].smooth(dtype)))


@each([op for op in OURS if op.body])
@given(data=st.data())
def test_fused_pair(op: Op, backend: Backend, data: st.DataObject) -> None:
    if type(backend.kernels.get(op)) is Fused:
        checks.check_fused_pair(op, backend, data.draw(SAMPLES[op].smooth("float32")))


@each(OURS)
@given(data=st.data())
@settings(max_examples=4)
def test_habits(op: Op, backend: Backend, data: st.DataObject) -> None:
    """No input changes, the same bits every time, no way through the host."""
    sample = data.draw((SAMPLES[op].smooth or SAMPLES[op].cases)(usual(op)))
    checks.check_purity(op, backend, sample)
    checks.check_determinism(op, backend, sample)
    checks.check_no_transfers(op, backend, sample)


@each(OURS)
@given(data=st.data())
@settings(max_examples=2)
def test_layouts(op: Op, backend: Backend, data: st.DataObject) -> None:
    checks.check_layout(op, backend, data.draw(SAMPLES[op].cases(usual(op))))


EPS = float(np.finfo("float32").eps)


@pytest.mark.parametrize("value", [0.1, 0.64])
@pytest.mark.parametrize(
    ("shape", "axis"), [((1_000_000,), None), ((100_000, 7), 0), ((3, 300_000), 1), ((5, 20_000, 2), 1)]
)
def test_long_sums_lose_no_digits(backend: Backend, shape: tuple, axis: int | None, value: float) -> None:
    """Equal numbers are the worst case: every addition rounds the same way."""
    x = pa.full(shape, value)
    exact = x.numpy().astype("float64").sum(axis)
    # NumPy itself adds row by row along all axes but the last.
    rtol = 1e-3 if backend.name == "numpy" and axis not in (None, len(shape) - 1) else 128 * EPS
    np.testing.assert_allclose(ops.sum(x, axis=axis).numpy(), exact, rtol=rtol)
    np.testing.assert_allclose(ops.mean(x, axis=axis).numpy(), np.float32(value), rtol=rtol)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (4, 5), (1, 64), (64, 1)])
def test_long_products_lose_no_digits(backend: Backend, rows: int, columns: int) -> None:
    x, y = pa.full((rows, 10_000), 0.64), pa.full((10_000, columns), 0.3)
    exact = float(np.float32(0.64)) * float(np.float32(0.3)) * 10_000
    np.testing.assert_allclose((x @ y).numpy(), exact, rtol=128 * EPS)
