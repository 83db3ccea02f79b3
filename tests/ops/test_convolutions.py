"""Convolutions, pooling and resizing: layouts, paddings, edge cases, ties and errors; values against float64 loops."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyarr as pa
from polyarr import nn, ops
from polyarr.core.backend import Backend
from polyarr.core.errors import ShapeError
from polyarr.testing import check_grads, naive

pytestmark = pytest.mark.usefixtures("on_numpy")
RNG = np.random.default_rng(7)


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def close(found: pa.Array, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


def first(a: np.ndarray, axes: int) -> np.ndarray:
    """Return a with channels before the spatial axes."""
    return np.moveaxis(a, -1, a.ndim - 1 - axes)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple:
    """Draw x, weight and window parameters; each window overlaps x or its padding."""
    axes, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    each = [draw(st.tuples(*(st.integers(1, 3),) * 3, *(st.integers(0, 2),) * 2)) for _ in range(axes)]
    kernel, stride, dilation, before, after = map(tuple, zip(*each, strict=True))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    least = [max(r - lo - hi, 1) for r, lo, hi in zip(reach, before, after, strict=True)]
    lengths = [draw(st.integers(n, n + 4)) for n in least]
    x = drawn(draw(st.integers(0, 2)), *lengths, groups * draw(st.integers(0, 2)))
    weight = drawn(groups * draw(st.integers(0, 2)), *kernel, x.shape[-1] // groups)
    padding = draw(st.sampled_from((tuple(zip(before, after, strict=True)), "same")))
    return x, weight, {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}


@given(convolutions())
def test_any_convolution_and_its_gradients_are_those_of_loops(call: tuple) -> None:
    x, weight, params = call
    expected = naive.conv_product(x, weight, **params)
    value, pull = pa.vjp(lambda x, w: pa.conv(x, w, **params), pa.asarray(x), pa.asarray(weight))
    close(value, expected)
    dx, dweight = pull(pa.asarray(expected))
    close(dx, naive.conv_input_gradient(expected, weight, shape=x.shape[1:-1], **params))
    close(dweight, naive.conv_weight_gradient(expected, x, shape=weight.shape[1:-1], **params))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_channels_may_be_first_and_there_may_be_any_leading_axes(axes: int) -> None:
    """Results are equal up to the order of axes."""
    lengths, kernel = (5, 6, 4)[:axes], (3, 2, 2)[:axes]
    x, weight, bias = drawn(2, *lengths, 4), drawn(6, *kernel, 2), drawn(6)
    up = drawn(4, *kernel, 3)
    for fn, more, params in (
        (pa.conv, (weight, bias), {"padding": 1, "groups": 2}),
        (pa.conv_transpose, (up, drawn(6)), {"stride": 2, "groups": 2}),
        (pa.max_pool, (kernel,), {"padding": ((1, 0),) * axes}),
        (pa.mean_pool, (kernel,), {"ceil_mode": True}),
        (pa.adaptive_mean_pool, ((2,) * axes,), {}),
        (pa.interpolate, ((7,) * axes,), {"mode": "linear"}),
    ):
        last = [pa.asarray(a) if isinstance(a, np.ndarray) else a for a in more]
        turned = [pa.asarray(first(a, axes)) if isinstance(a, np.ndarray) and a.ndim > 1 else b
                  for a, b in zip(more, last, strict=True)]  # fmt: skip
        expected = fn(pa.asarray(x), *last, **params).numpy()
        close(fn(pa.asarray(first(x, axes)), *turned, **params, layout="channels_first"), first(expected, axes))
        close(fn(pa.asarray(x[0]), *last, **params), expected[0])
        close(fn(pa.asarray(x[None]), *last, **params), expected[None])


def test_a_stride_beyond_everything_leaves_one_window() -> None:
    x, weight = pa.asarray(drawn(1, 5, 6, 2)), pa.asarray(drawn(3, 2, 2, 2))
    found, pull = pa.vjp(lambda w: pa.conv(x, w, stride=10**30, padding=1), weight)
    close(found, naive.conv_product(x.numpy(), weight.numpy(), padding=1, stride=9))
    assert pull(found)[0].shape == weight.shape
    assert pa.max_pool(x, 2, stride=10**30, ceil_mode=True).shape == (1, 1, 1, 2)


def test_same_padding_keeps_lengths_and_what_is_odd_comes_after() -> None:
    x, weight = pa.asarray(np.arange(1.0, 6).reshape(1, 5, 1)), pa.ones((1, 2, 1), dtype="float64")
    assert pa.conv(x, weight, padding="same").numpy().ravel().tolist() == [3, 5, 7, 9, 5]
    assert pa.conv(x, weight, padding="same", stride=2).numpy().ravel().tolist() == [3, 7, 5]
    assert pa.conv_transpose(x, weight, padding="same", stride=3).shape == (1, 15, 1)


def test_the_first_of_the_largest_gets_the_gradient_to_any_order(backend: Backend) -> None:
    x = pa.asarray(np.array([[2, 2, 1, 2, 2, 0]], "f4").reshape(1, 6, 1))
    squares = lambda x: pa.sum(pa.max_pool(x, (3,), stride=1) ** 2)
    assert pa.grad(squares)(x).numpy().ravel().tolist() == [4, 4, 0, 8, 0, 0]
    again = pa.grad(lambda x: pa.sum(pa.grad(squares)(x) * x))(x)  # doubled for a quadratic form
    assert again.numpy().ravel().tolist() == [8, 8, 0, 16, 0, 0]


def test_gradients_of_any_order_are_differences() -> None:
    x, weight = pa.asarray(drawn(2, 5, 6, 4)), pa.asarray(drawn(6, 3, 2, 2))
    params = {"stride": (2, 1), "dilation": (1, 2), "padding": ((1, 0), (0, 2)), "groups": 2}
    check_grads(lambda x, w: pa.conv(x, w, **params), (x, weight), order=2)
    check_grads(lambda x: pa.mean_pool(pa.tanh(x), 3, stride=2, padding=1, ceil_mode=True), (x,), order=2)
    check_grads(lambda x: pa.interpolate(pa.tanh(x), scale=1.7, mode="bilinear"), (x,), order=2)
    check_grads(lambda x: pa.interpolate(pa.tanh(x), scale=1.7, mode="bicubic"), (x,), order=2)


def test_sums_of_16_bits_are_kept_in_32() -> None:
    """For 3,000 sevenths, float16 accumulation would lose two digits."""
    x = pa.full((1, 3000, 1), 1 / 7, dtype="float16")
    found = pa.conv(x, pa.ones((1, 3000, 1), dtype="float16"))
    assert found.dtype == pa.float16
    np.testing.assert_allclose(float(found.item()), 3000 * float(np.float16(1 / 7)), rtol=1e-3)


CONV = "conv: x is float32[2, 5, 6, 4]"
X, W = pa.Spec((2, 5, 6, 4), pa.float32), pa.Spec((6, 3, 3, 4), pa.float32)
TURNED = pa.Spec((4, 3, 3, 6), pa.float32)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: ops.conv(X, W, padding="sam"), "conv: padding is 'sam'; it must be 'same', 'valid', an int,"),
        (lambda: ops.conv(X, W, padding=-1), "conv: padding is -1; it must be 'same', 'valid', an int,"),
        (lambda: ops.conv(X, W, stride=0), "conv: stride is 0; it must be an int or 2 of"),
        (lambda: ops.conv(X, W, dilation=(1, 2, 3)), "conv: dilation is (1, 2, 3); it must be an int or 2 of"),
        (lambda: ops.conv(X, W, groups=2), f"{CONV}, weight is float32[6, 3, 3, 4], groups is 2;"),
        (lambda: ops.conv(X, W, dilation=3), f"{CONV}, a window reaches over [7, 7]; x with its"),
        (lambda: ops.conv(X, W, pa.Spec((5,), pa.float32)), "conv: bias is float32[5]; it must be [6]"),
        (lambda: ops.conv(X, pa.Spec((6, 3, 4), pa.float32)), f"{CONV}, weight is float32[6, 3, 4]; both must have as"),
        (lambda: ops.conv_transpose(X, W), "conv_transpose: x is float32[2, 5, 6, 4], weight is float32[6, 3, 3, 4],"),
        (lambda: ops.max_pool(X, kernel=2, padding=2), "max_pool: x is float32[2, 5, 6, 4], a window reaches"),
        (lambda: ops.max_pool(X, kernel=9), "max_pool: x is float32[2, 5, 6, 4], a window reaches over [9, 9]; x with"),
        (lambda: ops.mean_pool(X, kernel=0), "mean_pool: kernel is 0; it must be an int or 2 of"),
        (lambda: ops.adaptive_mean_pool(X, shape=0), "adaptive_mean_pool: shape is 0; it must be an int or 2 of"),
        (lambda: ops.adaptive_mean_pool(X, shape=(None, 0)), "adaptive_mean_pool: shape is (None, 0); it must be an"),
        (lambda: ops.interpolate(X), "interpolate: shape is None, scale is None; one of them must be given"),
        (lambda: ops.interpolate(X, scale=0.1), "interpolate: x is float32[2, 5, 6, 4], scale is 0.1; it must leave"),
        (lambda: ops.interpolate(X, scale=-1), "interpolate: scale is -1; it must be a number above 0, or 2 of them"),
        (lambda: ops.interpolate(X, shape=3, mode="area"), "interpolate: mode is 'area'; it must be one of 'near"),
        (lambda: pa.max_pool(X, ()), "max_pool: x is float32[2, 5, 6, 4], 0 spatial axes are named; there may be 1, 2"),
        (lambda: pa.conv(X, W, layout="NCHW"), "conv: layout is 'NCHW'; it must be 'channels_last'"),
        (lambda: pa.conv(X, W, layout=np.array([1, 2])), "conv: layout is a numpy.ndarray; it must be"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_one_line(call, told: str) -> None:
    with pytest.raises((ShapeError, ValueError), match=f"^{re.escape(told)}[^\n]*$"):
        call()


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3)])
def test_images_of_other_layouts_lead_to_what_to_write(layer: nn.Module, on_numpy) -> None:
    written, single = pa.ones((2, 4, 5, 5)), pa.ones((5, 5, 4))
    with pytest.raises(ShapeError, match=r"; channels are last: write polyarr\.moveaxis\(x, 1, -1\)$"):
        layer(written)
    with pytest.raises(ShapeError, match=r"batch first and channels last; of one example write x\[None\]$"):
        layer(single)
    with pytest.raises(ShapeError, match=r"batch first and channels last$"):
        layer(single[None, None])
    with pytest.raises(ShapeError, match=r"(groups divide|groups must divide)[^;]*$"):
        layer(pa.ones((2, 5, 5, 3)))
    assert layer(pa.moveaxis(written, 1, -1)).ndim == layer(single[None]).ndim == 4


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda n: pa.conv(X, W, groups=n), "conv: groups is 1.0; it"),
        (lambda n: pa.conv(X, W, stride=n), "conv: stride is 1.0; it"),
        (lambda n: pa.conv(X, W, padding=((n, 1), (1, 1))), "conv: padding is ((1.0, 1), (1, 1)); it"),
        (lambda n: pa.conv(X, W, dilation=(1, n)), "conv: dilation is (1, 1.0); it"),
        (lambda n: pa.conv_transpose(X, TURNED, groups=n), "conv_transpose: groups is 1.0; it"),
        (lambda n: pa.max_pool(X, n), "max_pool: kernel is 1.0; it"),
        (lambda n: pa.mean_pool(X, 2, stride=n), "mean_pool: stride is 1.0; it"),
        (lambda n: pa.adaptive_mean_pool(X, n), "adaptive_mean_pool: shape is 1.0; it"),
        (lambda n: pa.interpolate(X, n), "interpolate: shape is 1.0; it"),
        (lambda n: nn.Conv2d(4, 6, n), "Conv2d: kernel_size is 1.0; it"),
        (lambda n: nn.Conv2d(4, 6, 3, n), "Conv2d: stride is 1.0; it"),
        (lambda n: nn.MaxPool(n), "MaxPool: kernel_size is 1.0; it"),
    ],
)  # fmt: skip
def test_a_float_is_refused_even_after_the_same_call_with_an_int(call, told: str) -> None:
    call(1)
    with pytest.raises(TypeError, match=f"^{re.escape(told)} must be an int or a tuple of ints$"):
        call(1.0)


def test_of_elements_that_are_all_minus_infinity_the_first_has_the_gradient():
    """Padding, which is also -inf, has none."""
    for host, params, expected in (
        ([-np.inf] * 4, {"kernel": 3, "padding": 1, "stride": 3}, [1, 0, 1, 0]),
        ([-np.inf] * 3, {"kernel": 2, "padding": 1, "ceil_mode": True}, [1, 1, 0]),
        ([-np.inf, -np.inf, 1, -np.inf], {"kernel": 3, "padding": 1, "stride": 3}, [1, 0, 1, 0]),
    ):
        x = pa.asarray(np.reshape(host, (1, -1, 1)))
        found = pa.grad(lambda x, params=params: pa.sum(pa.max_pool(x, **params)))(x)
        np.testing.assert_array_equal(found.numpy().reshape(-1), expected)


def test_a_small_share_of_a_large_element_keeps_its_digits():
    x = np.zeros((1, 50, 1), np.float32)
    x[0, ::2] = 1000  # every point is next to a zero, so the error is that of the other one's weight
    for length in (99, 101, 333):
        found = pa.interpolate(pa.asarray(x), shape=(length,), mode="linear").numpy()
        expected = naive.interpolate(x.astype(np.float64), shape=(length,), mode="linear")
        np.testing.assert_allclose(found, expected, rtol=2.5e-7)



@pytest.mark.parametrize(
    ("theirs", "ours"), [("conv2d", "conv"), ("avg_pool1d", "mean_pool"), ("upsample", "interpolate")]
)
def test_names_of_other_libraries_are_understood(theirs: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=f"; write pa.{ours}$"):
        getattr(pa, theirs)


def test_means_of_any_number_of_parts_are_those_of_loops() -> None:
    x = np.random.default_rng(0).normal(size=(1, 30, 2))
    for n in (1, 2, 6, 7, 12, 30):
        for m in (1, 2, 4, 5, 7, 9, 12, 25, 31, 64):
            parts = [x[:, i * n // m : -(-(i + 1) * n // m)].mean(axis=1) for i in range(m)]
            found = pa.adaptive_mean_pool(pa.asarray(x[:, :n]), m)
            np.testing.assert_allclose(found.numpy(), np.stack(parts, axis=1), rtol=1e-14, atol=1e-15)
