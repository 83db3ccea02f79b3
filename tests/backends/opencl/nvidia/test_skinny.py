"""Skinny GEMM on tensor cores: values, and rows whose bits do not depend on the other rows."""

import pickle

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, ops
from polyarr.core.spec import Spec
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
pytestmark = pytest.mark.polyarr_backend("opencl")
skinny, skinny_gated, skinny_quantized, gated, dequantize, product = opencl_modules(
    "skinny", "skinny_gated", "skinny_quantized", "gated_linear", "dequantize", "product"
)


@pytest.fixture
def nvidia(backend):
    if not skinny.VARIANT.may_suit(backend.home.features):
        pytest.skip("needs an NVIDIA GPU from Ampere on")
    return backend


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("n", "k"), [(256, 8), (259, 72), (768, 3072), (2304, 768), (8200, 2048), (50257, 64)])
def test_rows_are_right_and_do_not_depend_on_each_other(nvidia, dtype, n, k):
    rng = np.random.default_rng(n)
    x, weight, bias = (pa.asarray(rng.standard_normal(s, np.float32)).astype(dtype) for s in ((64, k), (n, k), (n,)))
    whole = ops.linear(x, weight, bias, activation="silu").astype("float32").numpy()
    z = x.astype("float64").numpy() @ weight.astype("float64").numpy().T + bias.astype("float64").numpy()
    expected, step = z / (1 + np.exp(-z)), 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(whole, expected, rtol=step, atol=1e-5 * np.abs(z).max())
    some = (0, 1), (31, 1), (63, 1), (0, 2), (3, 7), (8, 8), (5, 16), (1, 17), (9, 23), (20, 32), (3, 33), (5, 59)
    for first, rows in some:
        part = ops.linear(x[first : first + rows], weight, bias, activation="silu")
        np.testing.assert_array_equal(part.astype("float32").numpy(), whole[first : first + rows])


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_how_k_is_split_does_not_depend_on_the_rows(bits):
    """Nor does a work-group need more local memory than a GPU has."""
    for n, k in ((256, 8), (768, 768), (768, 3072), (2048, 2048), (3072, 2048), (8192, 2048), (50257, 768)):
        shapes = [skinny.shape_of(n, k, rows, bits, 132) for rows in range(1, 65)]
        assert len({shape["WARPS"] for shape in shapes}) == 1
        for rows, shape in enumerate(shapes, 1):
            assert shape["M"] >= rows if rows <= 32 else shape["M"] in (32, 64)
            step = skinny.STEPS[bits]
            columns = 16 * shape["TILES"] * (160 if bits == 16 else step * bits // 8 + 16 + step // 16)
            stage = columns + shape["M"] * (2 * step + 32)
            assert shape["WARPS"] * shape["STAGES"] * stage <= 226 * 1024


@pytest.mark.parametrize("change", [
    {}, {"m": 65}, {"n": 255}, {"batch": 2}, {"k": 12}, {"x": (1, 64, 0, 0)}, {"y": (64 + 4, 1, 0, 0)},
], ids=str)  # fmt: skip
def test_what_it_leaves_to_other_kernels(backend, monkeypatch, change):
    asked = []
    monkeypatch.setattr(skinny, "is_sound", lambda *_: asked.append(1))
    change = {name: product.Operand(*v) if isinstance(v, tuple) else v for name, v in change.items()}
    rows = product.Operand(64, 1, 0, 0)
    p = product.Problem(1, 1, 16, 512, 64, rows, rows)._replace(**change)
    assert skinny.plan(backend.home, pa.bfloat16, p, (True, True), product.PLAIN) is None
    assert bool(asked) == (not change), "it asks whether the device computes correctly only for what it accepts"


@pytest.mark.parametrize("row", [1, 64, 128])
def test_a_single_row_of_any_stride_is_served_as_several_rows_are(backend, row):
    """As that of one text behind attention, whose stride along the axis of length 1 is 1."""
    several, one = (product.problem_of((n, 1, 512), (n, 1, 128), (128, row, 1), (128, 512), (1, 128)) for n in (2, 1))
    assert one == several._replace(m=1)
    assert skinny.is_suited(pa.bfloat16, one.m, one.n, one.k) and one.x.kept % skinny.PIECE == 0


@pytest.mark.parametrize("kind", ["int8", "q8_0", "q4_0"])
@pytest.mark.parametrize(("n", "k"), [(256, 64), (259, 1088), (768, 3072), (8200, 2048), (13000, 256)])
def test_rows_with_quantized_weights_are_right_and_do_not_depend_on_each_other(nvidia, kind, n, k):
    rng = np.random.default_rng(n)
    x = pa.asarray(rng.standard_normal((64, k), np.float32)).astype("bfloat16")
    layer = nn.QuantizedLinear.of(pa.asarray(rng.standard_normal((n, k), np.float32)), kind)
    whole = layer(x).astype("float32").numpy()
    expected = x.astype("float64").numpy() @ layer.weight.astype("float64").numpy().T
    np.testing.assert_allclose(whole, expected, rtol=2.0**-8, atol=1e-5 * np.abs(expected).max())
    for first, rows in ((0, 1), (31, 1), (3, 7), (5, 16), (9, 23), (20, 40)):
        part = layer(x[first : first + rows]).astype("float32").numpy()
        np.testing.assert_array_equal(part, whole[first : first + rows])


GATED = [
    (pa.bfloat16, None, False), (pa.float16, None, True), (pa.bfloat16, (8, False, pa.float32), True),
    (pa.bfloat16, (4, True, pa.float16), False),
]  # fmt: skip


def gated_case(device, dtype, kind, bias):
    """Return what the check of a gated program is given, but for the device."""
    weight, epilogue = kind and dequantize.Quantized(4096, 2048, *kind), product.Epilogue(bias, "silu")
    x, layer = device.empty(Spec((8, 2048), dtype)), gated.Layer(device.empty(Spec((4096, 2048), dtype)), None, None)
    return skinny_gated._macros(device, x, weight, layer, epilogue), dtype, weight, dtype, epilogue


@pytest.mark.parametrize(("dtype", "kind", "bias"), GATED, ids=str)
@pytest.mark.parametrize("fault", ["", "gated", "alone"])
def test_a_gated_program_is_checked_against_its_products_and_these_against_numpy(
    backend, monkeypatch, dtype, kind, bias, fault
):
    """Portable kernels stand for the programs."""
    device, alone = backend.home, []

    def launch(device, macros, x, gate, up):
        spec, name = Spec((x.shape[0], gate.weight.shape[0]), x.dtype), macros["ACTIVATION"]
        name = None if name == "none" else name
        if up is None:
            return gated.factor(device, spec, x, gate, name)
        pair = (up, gate) if fault == "gated" else (gate, up)
        return gated.VARIANTS[0].plan(device, spec, x, *pair, name)

    def check_program(device, *given):
        alone.extend(a for a in given if isinstance(a, dict))
        if fault == "alone":
            raise pa.BackendError("a product is wrong")

    monkeypatch.setattr(skinny_gated, "_launch", launch)
    for module in (skinny, skinny_quantized):
        monkeypatch.setattr(module, "check_program", check_program)
        # On a GPU the kernels that stand for the programs would be of this variant, which a probe process checks.
        monkeypatch.setattr(module, "is_sound", lambda *_: False)
    given = gated_case(device, dtype, kind, bias)
    if fault:
        with pytest.raises(pa.BackendError, match="wrong"):
            skinny_gated._check(device, *given)
    else:
        skinny_gated._check(device, *given)
    assert alone == [given[0] | {"GATED": 0}]


@pytest.mark.parametrize(("dtype", "kind", "bias"), GATED, ids=str)
def test_the_check_of_a_gated_program_can_be_sent_to_another_process(backend, monkeypatch, dtype, kind, bias):
    device, sent = backend.home, []
    monkeypatch.setattr(skinny_gated, "is_sound", lambda *_: True)
    monkeypatch.setattr(skinny_gated, "is_sound_program", lambda *given: sent.append(given[3]))
    x, n, k = device.empty(Spec((2, 256), dtype)), 512, 256
    shift = device.empty(Spec((n,), dtype)) if bias else None
    layer = gated.Layer(device.empty(Spec((n, k), dtype)), None, shift)
    if kind:
        weight = dequantize.Quantized(n, k, *kind)
        scale = device.empty(Spec((n, k // 32) if weight.in_blocks else (n,), weight.scale))
        layer = gated.Layer(device.empty(Spec((n, k * weight.bits // 8), weight.codes)), scale, shift)
    assert skinny_gated.plan(device, Spec((2, n), dtype), x, layer, layer, "silu") is None
    (check,) = sent
    assert check.func is skinny_gated._check
    assert pickle.loads(pickle.dumps(check.args[1:])) == check.args[1:]
