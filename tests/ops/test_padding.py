"""Padding: values beside those of NumPy, gradients, and wrong modes."""

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.errors import ShapeError
from polyarr.testing import assert_transforms_agree, check_grads

MODES = ("edge", "reflect", "symmetric", "wrap")
WIDTHS = [
    ((3,), 2), ((3, 4), ((1, 2), (5, 9))), ((1, 2), 3), ((2, 3, 4), ((0, 0), (1, 0), (0, 7))),
    ((5, 0), ((1, 1), (0, 0))),
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "widths"), WIDTHS)
def test_arrays_are_continued_as_by_numpy(backend, mode, shape, widths):
    host = np.arange(np.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(pa.pad(pa.asarray(host), widths, mode).numpy(), np.pad(host, widths, mode))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_add_up_where_elements_are_repeated(backend, mode):
    x = pa.asarray(np.random.default_rng(0).standard_normal((3, 4)), dtype="float32")

    def loss(x):
        return pa.sum(pa.pad(x, ((1, 2), (5, 0)), mode) ** 3, axis=1)

    check_grads(loss, (x,))
    assert_transforms_agree(loss, (x,))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1,), {"mode": "mirror"}, "'mirror'; it must be one of constant, edge, reflect, symmetric, wrap"),
        ((1,), {"mode": "edge", "constant_values": 3}, "constant_values is 3 and mode 'edge'"),
        ((2, 0), {"mode": "wrap"}, "axis 1 has no elements to continue"),
    ],
)
def test_wrong_modes(backend, shape, options, message):
    with pytest.raises((ValueError, ShapeError), match=message):
        pa.pad(pa.zeros(shape), 1, **options)
