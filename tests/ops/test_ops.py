"""Ops beyond the conformance kit: documentation, equal numbers, and decompositions used as kernels."""

import pydoc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import polyarr as pa
from polyarr import ops
from polyarr.core.array import NUMBERS
from polyarr.core.backend import Backend
from polyarr.core.binding import bound_by_name
from polyarr.core.op import Op
from polyarr.core.spec import as_dtype
from polyarr.testing import SAMPLES, Data


@pytest.mark.parametrize("shape", [(33,), (1000, 7), (1,)])
def test_equal_numbers_have_no_deviation(backend: Backend, shape: tuple) -> None:
    """Although their mean has a rounding error."""
    x = pa.full(shape, 100.3)
    assert not ops.std(x, axis=0).numpy().any() and not ops.var(x).numpy().any()


def test_any_and_all_take_a_byte_an_element(on_numpy: Backend) -> None:
    x = pa.ones((1000, 1000), dtype="bool")
    for fn, y, most in ((pa.any, x, 0.1), (pa.all, x, 1.1), (pa.any, x.astype("float32"), 1.1)):
        tracemalloc.start()
        assert fn(y, axis=0).tolist() == [True] * 1000
        assert tracemalloc.get_traced_memory()[1] < most * x.size + 100_000
        tracemalloc.stop()


def test_float32_quotients_and_roots_are_the_nearest_numbers(backend: Backend) -> None:
    """As IEEE 754 requires and NumPy has them; OpenCL's compilers must be asked."""
    x, y = np.exp(np.random.default_rng(0).uniform(-20, 20, (2, 4096))).astype(np.float32)
    a, b = pa.asarray(x), pa.asarray(y)
    for found, expected in ((a / b, x / y), (ops.reciprocal(b), 1 / y), (ops.sqrt(a), np.sqrt(x))):
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize(("op", "exact"), [(ops.sin, np.sin), (ops.cos, np.cos), (ops.tan, np.tan)])
def test_sines_keep_their_digits_next_to_multiples_of_a_quarter_turn(backend: Backend, op: Any, exact: Any) -> None:
    near = (np.arange(1, 100_000) * (np.pi / 2)).astype(np.float32)
    x = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))])
    np.testing.assert_allclose(op(pa.asarray(x)).numpy(), exact(x.astype(np.float64)), rtol=5e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("op", "exact"), [(ops.asinh, np.arcsinh), (ops.acosh, np.arccosh)])
def test_inverse_hyperbolic_functions_as_other_ops(on_numpy: Backend, op: Op, exact: np.ufunc, dtype: str) -> None:
    """Without kernels for them: numbers whose square overflows, and arguments outside the domain."""
    bare = on_numpy._replace(kernels={o: k for o, k in on_numpy.kernels.items() if o is not op})
    large = float(pa.finfo(dtype).max)
    with pa.use_backend(bare), np.errstate(all="ignore"):
        x = pa.asarray([0.0, 0.3, 1.0, 1.5, 2.5, 100.0, large, np.inf, -0.5, -200.0, -large, -np.inf], dtype=dtype)
        expected = exact(x.numpy().astype("float64"))
        np.testing.assert_allclose(op(x).numpy().astype("float64"), expected, rtol=4 * float(pa.finfo(dtype).eps))


def test_help_shows_what_an_op_takes() -> None:
    text = pydoc.plain(pydoc.render_doc(pa.softmax))
    assert "softmax(x, axis=-1)" in text and "divided by its sum" in text


def spec_of(a: Any) -> Any:
    """Return the Spec of an input in a sample."""
    if isinstance(a, tuple):
        return tuple(map(spec_of, a))
    return pa.Spec(a.shape, as_dtype(a.dtype)) if isinstance(a, Data) else NUMBERS.get(type(a))


@settings(max_examples=1, phases=[Phase.generate])  # nothing to shrink
@given(data=st.data())
def test_errors_for_invalid_inputs_name_the_op_that_was_called(data: st.DataObject) -> None:
    """The error does not name an op of its decomposition."""
    told = []
    for op, entry in SAMPLES.items():
        sample = data.draw(entry.cases(entry.dtypes[0]))
        inputs, params = bound_by_name(op, sample.inputs, sample.params)
        specs = tuple(map(spec_of, inputs))
        for i, wrong in [(0, NUMBERS[float]), *((i, None) for i in range(len(specs)))]:
            try:
                op.plan((*specs[:i], wrong, *specs[i + 1 :]), {**op.defaults, **params})
            except (TypeError, ValueError, IndexError) as error:
                if not str(error).startswith(f"{op.name}: "):
                    told.append(str(error))
    # matrix_product, conv_product and its gradients are internal, and name matmul and conv in errors; errors about keys
    # name random bits.
    assert [line for line in told if not line.startswith(("matmul: ", "conv: ", "random_bits: "))] == []


def test_plans_of_an_op_go_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """New shapes in every call, as in generation, evict single plans of an op and never all at once."""
    monkeypatch.setattr("polyarr.core.op.MAX_PLANS", 8)
    monkeypatch.setattr(ops.exp, "_plans", {})

    def grow(start: int) -> list[bool]:
        return [ops.exp.plan((pa.Spec((n,), pa.float32),), {}).out.shape == (n,) for n in range(start, start + 100)]

    counts = []
    for n in range(50):
        ops.exp.plan((pa.Spec((n,), pa.float32),), {})
        counts.append(len(ops.exp._plans))
        assert (pa.Spec((n,), pa.float32),) in [key[0] for key in ops.exp._plans]
    assert max(counts) == 8 and min(counts[8:]) == 5
    with ThreadPoolExecutor(4) as pool:
        assert all(all(found) for found in pool.map(grow, (0, 20, 40, 60)))
    assert len(ops.exp._plans) <= 8 + 4


@pytest.mark.parametrize("two", [np.int64(2), np.uint8(2)])
def test_an_integer_of_numpy_is_a_number_of_parts_or_axes(on_numpy: Backend, two: Any) -> None:
    x = pa.reshape(pa.arange(6.0), (1, 6))
    assert [part.tolist() for part in pa.split(x, two, axis=1)] == [[[0, 1, 2]], [[3, 4, 5]]]
    assert pa.tensordot(x, x, axes=two).tolist() == 55


@pytest.mark.parametrize("op", ["sum", "prod", "cumulative_sum", "cumulative_prod"])
def test_no_sum_or_product_is_a_bool(on_numpy: Backend, op: str) -> None:
    with pytest.raises(pa.DtypeError, match=f"{op.removeprefix('cumulative_')}: dtype is bool; it must be numeric"):
        getattr(pa, op)(pa.ones(3), dtype="bool")


@pytest.mark.parametrize("op", ["sum", "prod", "cumulative_sum", "cumulative_prod"])
def test_no_sum_or_product_of_complex_numbers_is_real(on_numpy: Backend, op: str) -> None:
    x = pa.asarray([1 + 2j, 3])
    with pytest.raises(pa.DtypeError, match=r"complex64\[2\], and dtype float64 has no imaginary part; take real,"):
        getattr(pa, op)(x, dtype="float64")
    assert getattr(pa, op)(x, dtype="complex128").dtype == pa.complex128


def test_flip_takes_an_axis_once(on_numpy: Backend) -> None:
    with pytest.raises(pa.ShapeError, match=r"flip: x is .*; axis \(0, -2\) must name each axis once"):
        pa.flip(pa.ones((2, 3)), axis=(0, -2))
