"""Convolution and pooling layers: parameters, initial values and results."""

import math

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, ops
from polyarr.core.errors import ShapeError

IMAGE = np.random.default_rng(0).standard_normal((2, 9, 8, 6)).astype("float32")


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_layer_is_its_op(on_numpy, axes):
    x = pa.asarray(IMAGE.reshape((2, 72, 6) if axes == 1 else (2, 9, 8, 6) if axes == 2 else (2, 3, 3, 8, 6)))
    conv, transpose = ((nn.Conv1d, nn.Conv2d, nn.Conv3d), (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
    layer = conv[axes - 1](6, 4, 3, stride=2, padding=1, groups=2, activation="relu")
    assert layer.weight.shape == (4, *(3,) * axes, 3) and layer.bias.shape == (4,)
    params = {"stride": 2, "padding": 1, "groups": 2}
    y = layer(x)
    np.testing.assert_array_equal(y.numpy(), ops.relu(ops.conv(x, layer.weight, layer.bias, **params)).numpy())

    back = transpose[axes - 1](4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    assert back.weight.shape == (4, *(3,) * axes, 3) and back.bias.shape == (6,)
    expected = ops.conv_transpose(y, back.weight, back.bias, output_padding=1, **params)
    np.testing.assert_array_equal(back(y).numpy(), expected.numpy())
    pa.grad(lambda layers: pa.sum(layers[1](layers[0](x))))([layer, back])


def test_pools_are_their_ops(on_numpy):
    x, inside = pa.asarray(IMAGE), {"stride": 1, "padding": 1, "count_include_pad": False}
    for layer, expected in (
        (nn.MaxPool(3, 2, 1), ops.max_pool(x, kernel=3, stride=2, padding=1)),
        (nn.MeanPool(2), ops.mean_pool(x, kernel=2)),
        (nn.MeanPool(3, 1, 1, count_include_pad=False), ops.mean_pool(x, kernel=3, **inside)),
        (nn.AdaptiveMeanPool((3, 2)), ops.adaptive_mean_pool(x, shape=(3, 2))),
    ):  # fmt: skip
        np.testing.assert_array_equal(layer(x).numpy(), expected.numpy())


def test_parameters_begin_as_those_of_pytorch(on_numpy):
    """Uniform within 1 / sqrt(fan-in); of a transposed convolution, the fan counts along its outputs."""
    pa.random.seed(0)
    for layer, elements in (
        (nn.Conv2d(8, 64, 3, groups=2), 4 * 9), (nn.ConvTranspose2d(8, 64, 3), 64 * 9), (nn.Conv1d(16, 32, (5,)), 80)
    ):  # fmt: skip
        for a in (layer.weight, layer.bias):
            largest = float(pa.max(pa.abs(a)))
            assert 0.8 / math.sqrt(elements) < largest <= 1 / math.sqrt(elements)
    given = nn.Conv2d(3, 4, 3, init=nn.normal(0.1))
    assert pa.sum(pa.abs(given.bias)).item() == 0 and nn.Conv2d(3, 4, 3, bias=False).bias is None


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: nn.Conv2d(3, 4, (3, 3, 3)),
            r"^Conv2d: kernel_size is \(3, 3, 3\); it must be an int or 2 of them, at",
        ),
        (lambda: nn.Conv1d(3, 4, 0), r"^Conv1d: kernel_size is 0; it must be an int or 1 of them, at least 1$"),
        (
            lambda: nn.ConvTranspose2d(3, 4, 3, groups=3),
            r"^ConvTranspose2d: in_channels is 3, out_channels is 4, groups i",
        ),
        (lambda: nn.Conv2d(3, 4, 3)(pa.zeros((1, 5, 5, 4))), r"^conv: "),
    ],
)
def test_errors_are_one_line(on_numpy, make, text):
    with pytest.raises(ShapeError, match=text) as caught:
        make()
    assert "\n" not in str(caught.value)
