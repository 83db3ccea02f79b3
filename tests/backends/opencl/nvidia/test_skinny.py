"""Skinny GEMM on tensor cores: values, and rows whose bits do not depend on the other rows."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
pytestmark = pytest.mark.polyarr_backend("opencl")
skinny, product = opencl_modules("skinny", "product")


@pytest.fixture
def nvidia(backend):
    if not skinny.VARIANT.may_suit(backend.home.features):
        pytest.skip("needs an NVIDIA GPU from Ampere on")
    return backend


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("n", "k"), [(256, 8), (259, 72), (768, 3072), (2304, 768), (8200, 2048), (50257, 64)])
def test_rows_are_right_and_do_not_depend_on_each_other(nvidia, dtype, n, k):
    rng = np.random.default_rng(n)
    x, weight, bias = (pa.asarray(rng.standard_normal(s, np.float32)).astype(dtype) for s in ((32, k), (n, k), (n,)))
    whole = ops.linear(x, weight, bias, activation="silu").astype("float32").numpy()
    z = x.astype("float64").numpy() @ weight.astype("float64").numpy().T + bias.astype("float64").numpy()
    expected, step = z / (1 + np.exp(-z)), 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(whole, expected, rtol=step, atol=1e-5 * np.abs(z).max())
    for first, rows in ((0, 2), (3, 7), (8, 8), (5, 16), (1, 17), (9, 23)):
        part = ops.linear(x[first : first + rows], weight, bias, activation="silu")
        np.testing.assert_array_equal(part.astype("float32").numpy(), whole[first : first + rows])


def test_work_groups_that_share_columns_do_not_depend_on_the_rows():
    """All units read, and a warp of each part has a step; a large product is not shared."""
    shapes = (768, 3072), (2048, 2048), (8192, 2048), (50257, 768), (256, 64)
    assert [skinny.parts_of(n, k, 132) for n, k in shapes] == [11, 4, 1, 1, 1]


@pytest.mark.parametrize("change", [
    {}, {"m": 1}, {"m": 33}, {"n": 255}, {"batch": 2}, {"k": 12}, {"x": (1, 64, 0, 0)}, {"y": (64 + 4, 1, 0, 0)},
], ids=str)  # fmt: skip
def test_what_it_leaves_to_other_kernels(backend, monkeypatch, change):
    asked = []
    monkeypatch.setattr(skinny, "is_sound", lambda *_: asked.append(1))
    change = {name: product.Operand(*v) if isinstance(v, tuple) else v for name, v in change.items()}
    rows = product.Operand(64, 1, 0, 0)
    p = product.Problem(1, 1, 16, 512, 64, rows, rows)._replace(**change)
    assert skinny.plan(backend.home, pa.bfloat16, p, (True, True), product.PLAIN) is None
    assert bool(asked) == (not change), "it asks whether the device computes correctly only for what it accepts"
