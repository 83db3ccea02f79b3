"""Padded rows: logits, their loss and gradient with a row stride above the row length."""

from importlib import import_module

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.array import Array
from polyarr.core.spec import bfloat16
from tests.helpers.opencl_modules import opencl_modules

matmul, copy, devices, layout, product, variants = opencl_modules(
    "matmul", "copy", "devices", "layout", "product", "variants"
)
Plans = import_module("polyarr.backends.opencl.runtime.plans").Plans
pytestmark = pytest.mark.polyarr_backend("opencl")
B, T, C, V = 2, 3, 8, 13
PITCH = {bfloat16: 16, np.dtype("float32"): 16}


@pytest.fixture
def device(backend, monkeypatch):
    found = devices.select(backend.name)
    monkeypatch.setattr(found, "plans", Plans(found))
    return found


def padded(device, host):
    """Return an array with rows padded to 16 bytes with nan."""
    pitch = PITCH[host.dtype]
    rows = device.upload(np.full((*host.shape[:-1], pitch), np.nan, host.dtype))._replace(shape=host.shape)
    copy.write(device, rows, device.upload(host))
    return rows


def as_array(buf):
    return Array(pa.get_backend(), buf, layout.spec_of(buf))


@pytest.mark.parametrize("dtype", [*PITCH])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_reads_padded_rows_in_place_and_its_gradient_has_them_too(device, monkeypatch, dtype, reduction) -> None:
    generator = np.random.default_rng(0)
    host = generator.standard_normal((B, T, V)).astype(dtype)
    targets = pa.asarray(generator.integers(0, V, (B, T)))

    def loss(x):
        return pa.sum(pa.ops.cross_entropy(x, targets, reduction=reduction, label_smoothing=0.1))

    expected = pa.value_and_grad(loss)(as_array(device.upload(host)))
    logits = as_array(padded(device, host))
    copied, duplicate = [], copy.duplicate
    monkeypatch.setattr(copy, "duplicate", lambda device, buf: copied.append(buf.shape) or duplicate(device, buf))
    value, grad = pa.value_and_grad(loss)(logits)
    assert host.shape not in copied
    assert grad.buf.strides == logits.buf.strides == (T * PITCH[dtype], PITCH[dtype], 1)
    # GPUs split unaligned rows differently among work-items, so sums may differ; on a CPU they are equal.
    rounding = 0 if device.features.is_cpu else 1e-5 if dtype == "float32" else 2**-7
    np.testing.assert_allclose(value.numpy(), expected[0].numpy(), rtol=rounding)
    np.testing.assert_allclose(grad.numpy().astype(np.float64), expected[1].numpy().astype(np.float64), rtol=rounding)


@pytest.mark.parametrize(
    "shape, strides, pitch",
    [
        ((2, 3, 13), (48, 16, 1), 16), ((2, 3, 13), (39, 13, 1), 13), ((2, 3, 13), (64, 16, 1), 0), ((13,), (1,), 13),
        ((4, 13), (0, 1), 0), ((4, 13), (1, 4), 0), ((4, 13), (13, -1), 0), ((1, 13), (99, 1), 13),
    ],
)  # fmt: skip
def test_how_far_apart_rows_lie(shape, strides, pitch) -> None:
    assert layout.row_pitch(shape, strides) == pitch


def test_rows_that_begin_anywhere_are_copied(device) -> None:
    whole = device.upload(np.arange(60, dtype=np.float32).reshape(4, 15))
    for buf in (whole._replace(shape=(4, 13)), whole._replace(shape=(3, 13), strides=(16, 1), offset=1)):
        found, pitch = copy.in_rows(device, buf)
        assert pitch == 13 and found.is_dense
        np.testing.assert_array_equal(copy.download(device, found), copy.download(device, buf))


def pads(device, dtype, p, aligned, epilogue):
    """Return the plan of a variant that pads rows: the portable kernels and a copy."""
    if not epilogue.pads:
        return None
    launch = variants.choose(device, "gemm", matmul.TILED, dtype, p, aligned, epilogue)

    def and_copy(arrays, x_start, y_start):
        *others, out, saved = arrays
        assert saved is None
        dense = device.empty(product.Spec((p.m, p.n), dtype))
        sums = device.empty(launch.sums) if launch.sums else dense
        launch.launch((*others[:3], sums.memory, dense.memory, None), x_start, y_start)
        copy.write(device, layout.Buffer(out, dense.shape, dtype, (PITCH[dtype], 1)), dense)

    return product.Plan(and_copy, None, PITCH[dtype])


@pytest.mark.parametrize("dtype", [*PITCH])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_layer_whose_rows_are_padded_is_as_any_other(device, monkeypatch, dtype, activation) -> None:
    generator = np.random.default_rng(0)
    x, weight = (pa.asarray(generator.standard_normal(s).astype(dtype)) for s in ((B, 8, C), (V, C)))
    targets = pa.asarray(generator.integers(0, V, (B, 8)))

    def layer(x, weight):
        return pa.ops.linear(x, weight, activation=activation)

    def loss(x, weight):
        return pa.ops.cross_entropy(layer(x, weight), targets)

    found = []
    for tried in ((), (variants.Variant("pads", "padded rows", pads, stem="split"),)):
        monkeypatch.setattr(device.vendor, "gemm", tried)
        monkeypatch.setattr(device, "plans", Plans(device))
        y = layer(x, weight)
        assert y.buf.is_dense == (not tried or activation is not None)
        results = [y, pa.exp(y), pa.reshape(y, (-1,)), y[:, 1], layer(x[0, 0], weight), y @ pa.matrix_transpose(y)]
        found.append([a.numpy() for a in (*results, *pa.grad(loss, argnums=(0, 1))(x, weight))])
    for a, b in zip(*found, strict=True):
        near = 0.01 if dtype == bfloat16 else 1e-5
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=near, atol=1e-6)
