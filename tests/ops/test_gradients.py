"""Gradients and second derivatives of every op against central differences in float64; points without a derivative."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import polyarr as pa
from polyarr import ops, tree
from polyarr.core.backend import Backend
from polyarr.core.op import OPS, Op
from polyarr.testing import SAMPLES, Data, Sample, cases, checks
from polyarr.testing.samples import elementwise, large
from polyarr.testing.strategies import PAIRS

pytestmark = pytest.mark.imports_only

DIFFERENTIABLE = [op for op in OPS if op in SAMPLES and SAMPLES[op].smooth]
SMOOTH = [(op, "float64") for op in DIFFERENTIABLE if SAMPLES[op].usual != "complex64"]
SMOOTH += [  # the docstring of sign says that it gives complex numbers no gradient
    (op, "complex128") for op in DIFFERENTIABLE if "complex128" in SAMPLES[op].dtypes and op is not ops.sign
]
NAMES = [op.name if dtype == "float64" else f"{op.name}-complex" for op, dtype in SMOOTH]
each = pytest.mark.parametrize(("op", "dtype"), SMOOTH, ids=NAMES)


@each
@given(data=st.data())
def test_gradient(op: Op, dtype: str, data: st.DataObject) -> None:
    sample = data.draw(SAMPLES[op].smooth(dtype))
    if checks.carries_gradient(op, sample):
        checks.check_gradient(op, "numpy", sample)


@each
@given(data=st.data())
@settings(max_examples=6)
def test_second_order(op: Op, dtype: str, data: st.DataObject) -> None:
    sample = data.draw(SAMPLES[op].smooth(dtype))
    if checks.carries_gradient(op, sample):
        checks.check_second_order(op, "numpy", sample)


def has_two_arrays(sample: Sample) -> bool:
    return sum(isinstance(a, Data) for a in sample.inputs) == 2


@pytest.mark.parametrize(
    "op", [op for op in DIFFERENTIABLE if op.inputs == ("x", "y") and op in elementwise.SAMPLES], ids=lambda op: op.name
)
def test_gradient_of_every_pair_of_shapes(op: Op) -> None:
    """Drawn examples seldom have an array without axes beside another one."""
    drawn = find(SAMPLES[op].smooth("float64"), has_two_arrays)
    for shapes in PAIRS:
        inputs = tuple(replace(a, shape=shape) for a, shape in zip(drawn.inputs, shapes, strict=True))
        checks.check_gradient(op, "numpy", replace(drawn, inputs=inputs))


@pytest.mark.parametrize("op", [op for op in DIFFERENTIABLE if SAMPLES[op].usual == "float32"], ids=lambda op: op.name)
def test_gradient_of_calls_with_many_axes(op: Op) -> None:
    """Drawn examples have few axes, and slices of each step seldom."""
    for sample in large(op, cases.first_example(op, checks.reference())):
        size = sum(math.prod(a.shape) for a in tree.leaves(sample.inputs) if isinstance(a, Data))
        if size < 3000 and checks.carries_gradient(op, sample):
            checks.check_gradient(op, "numpy", sample)


# ---- points without a derivative: what the docstrings promise ---------------------------------------------------

NAN, INF = float("nan"), float("inf")


def slopes(fn, *values: float) -> list[float]:
    """Return the gradients of fn's sum at one-element float64 arrays."""
    arrays = [pa.asarray([v], dtype="float64") for v in values]
    found = pa.grad(lambda *a: ops.sum(fn(*a)), argnums=tuple(range(len(values))))(*arrays)
    return [g.item() for g in found]


@pytest.mark.parametrize(
    ("fn", "at", "expected"),
    [
        (ops.abs, (0.0,), [0]),
        (ops.relu, (0.0,), [0]),
        (ops.sign, (0.0,), [0]),
        (ops.floor, (1.0,), [0]),
        (ops.maximum, (2.0, 2.0), [0.5, 0.5]),
        (ops.minimum, (2.0, 2.0), [0.5, 0.5]),
        (ops.maximum, (1.0, 2.0), [0, 1]),
        (ops.minimum, (1.0, 2.0), [1, 0]),
        (ops.hypot, (0.0, 0.0), [0, 0]),
        (lambda x, y: ops.std(ops.stack((x, y))), (2.0, 2.0), [0, 0]),
        (ops.atan2, (0.0, 0.0), [0, 0]),
        (ops.atan2, (3e200, 4e200), [1.6e-201, -1.2e-201]),
        (ops.atan2, (3e-200, 4e-200), [1.6e199, -1.2e199]),
        (ops.pow, (0.0, 2.0), [0, 0]),
        (ops.pow, (0.0, 0.0), [0, 0]),
        (ops.pow, (-2.0, 3.0), [12, 0]),
        (ops.pow, (0.0, 1.0), [1, 0]),
        (lambda x: x**0, (0.0,), [0]),
        (lambda x: x**0, (INF,), [0]),
        (lambda x: x**2, (-3.0,), [-6]),
        (lambda x: 2.0**x, (0.0,), [np.log(2.0)]),
        (lambda x: 0.0**x, (2.0,), [0]),
        (lambda x: ops.clip(x, 0.0, 1.0), (0.0,), [1]),
        (lambda x: ops.clip(x, 0.0, 1.0), (1.0,), [1]),
        (lambda x: ops.clip(x, 0.0, 1.0), (1.5,), [0]),
        (lambda x: ops.where(x > 0, ops.sqrt(ops.where(x > 0, x, 1.0)), 0.0), (-1.0,), [0]),
        (ops.copysign, (2.0, -3.0), [-1, 0]),
        (ops.logaddexp, (INF, INF), [0.5, 0.5]),
        (ops.logaddexp, (-INF, 0.0), [0, 1]),
        (ops.sigmoid, (1000.0,), [0]),
        (ops.silu, (-1000.0,), [0]),
        (ops.tanh, (1000.0,), [0]),
    ],
)
def test_slope_at(on_numpy: Backend, fn, at: tuple, expected: list) -> None:
    np.testing.assert_allclose(slopes(fn, *at), expected, rtol=1e-12)


@pytest.mark.parametrize("fn", [ops.max, ops.min])
def test_ties_of_a_reduction_share_equally(on_numpy: Backend, fn: Op) -> None:
    x = pa.asarray([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 5.0, -5.0]])
    g = pa.grad(lambda a: ops.sum(fn(a, axis=1)))(x).numpy()
    np.testing.assert_array_equal(g[0], [0.25] * 4)
    assert g[1].sum() == 1


def test_prod_with_zeros(on_numpy: Backend) -> None:
    for values, expected in (
        ([2.0, 0.0, 3.0], [0, 6, 0]), ([0.0, 0.0, 3.0], [0, 0, 0]), ([2.0], [1]), ([2.0, 3.0, 4.0], [12, 8, 6])
    ):  # fmt: skip
        np.testing.assert_array_equal(pa.grad(lambda a: ops.prod(a))(pa.asarray(values)).numpy(), expected)


def test_norm_of_zeros_has_the_gradient_zero(on_numpy: Backend) -> None:
    assert pa.grad(lambda a: ops.global_norm([a]))(pa.zeros(3)).tolist() == [0, 0, 0]


def test_scatter_drops_the_gradient_of_what_it_overwrites(on_numpy: Backend) -> None:
    x, updates, at = pa.ones(4), pa.ones(2), pa.asarray([1, 3])
    weights = pa.asarray([1.0, 2.0, 3.0, 4.0])
    gx, gu = pa.grad(lambda a, u: ops.sum(ops.scatter(a, at, u) * weights), argnums=(0, 1))(x, updates)
    assert gx.tolist() == [1, 0, 3, 0]
    assert gu.tolist() == [2, 4]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_gradient_has_its_inputs_dtype(on_numpy: Backend, dtype: str) -> None:
    x = pa.asarray([1.0, 2.0, 3.0], dtype=dtype)
    wide = pa.asarray([1.0, 2.0, 3.0], dtype="float64")
    for fn in (
        lambda a: ops.sum(a * a),
        lambda a: ops.sum(a * wide),
        lambda a: ops.sum(a, dtype="float64"),
        lambda a: ops.prod(a, dtype="float64"),
        lambda a: ops.sum(ops.cumulative_sum(a, dtype="float64")),
        lambda a: ops.sum(a.astype("float32")),
        lambda a: ops.global_norm([a]),
        lambda a: ops.sum(ops.layer_norm(a, wide)),
        lambda a: ops.sum(ops.concat([a, wide])),
    ):
        g = pa.grad(fn)(x)
        assert g.dtype == x.dtype
        assert g.shape == x.shape
        assert ops.add(g, x).dtype == x.dtype


def test_layer_norm_of_small_narrow_numbers_has_a_finite_gradient(backend: Backend) -> None:
    """The third power of 1 / 0.02 overflows in float16."""
    x = pa.asarray(np.random.default_rng(0).standard_normal((4, 8)) * 0.02)
    weights = pa.asarray(np.random.default_rng(1).standard_normal((4, 8)))
    slope = pa.grad(lambda a: ops.sum(ops.layer_norm(a) * weights.astype(a.dtype)))
    found, exact = slope(x.astype("float16")).numpy(), slope(x.astype("float32")).numpy()
    np.testing.assert_allclose(found.astype("float32"), exact, rtol=0.05, atol=0.05 * abs(exact).max())


def test_gelu_of_huge_numbers(backend) -> None:
    """Their cube overflows."""
    x = np.array([1e30, -1e30, 12.0, -12.0, 10.0], np.float32)
    for approximate in ("none", "tanh"):
        slope = pa.grad(lambda a, form=approximate: pa.sum(ops.gelu(a, approximate=form)))
        for where in (backend, backend.without_fused()):
            np.testing.assert_allclose(slope(pa.asarray(x, device=where)).numpy(), [1, 0, 1, 0, 1], atol=1e-15)


def test_gelu_of_negative_numbers_has_the_error_of_one_rounding(backend) -> None:
    """1 + erf(x / sqrt(2)) cancels: its error is that of erf, half a unit in the last place of 1."""
    x = np.linspace(-3, -1, 10_001, dtype=np.float32)
    exact = [v * math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()]
    np.testing.assert_allclose(ops.gelu(pa.asarray(x)).numpy(), exact, rtol=0, atol=9e-8)
