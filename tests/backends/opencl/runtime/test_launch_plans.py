"""Cached launch plans of an OpenCL device."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
on_opencl = pytest.mark.polyarr_backend("opencl")
attention, device_module, devices, geometry, plans, segments, table = opencl_modules(
    "attention", "device", "devices", "geometry", "plans", "segments", "table"
)


def another():
    """Return another device on the same hardware that nothing else refers to."""
    return device_module.Device(devices.select().cl_device, "another")


@on_opencl
def test_a_device_goes_with_its_last_user(backend):
    """Neither plans nor tiles nor exit handlers keep it alive."""
    device = another()
    kernels, spec = table.make_kernels(device), pa.Spec((4, 4), pa.float32)
    x = device.upload(np.ones((4, 4), np.float32))
    y = kernels[ops.matrix_product](spec, kernels[ops.add](spec, x, x), x)
    assert (device.download(y) == 8).all()
    gone = weakref.ref(device)
    del device, kernels, x, y
    gc.collect()
    assert gone() is None


def test_plans_are_bounded(monkeypatch):
    """The least recently used plan is evicted first, one at a time."""
    monkeypatch.setattr(plans, "MAX_RESULTS", 3)
    made = []
    kept = plans.Plans("device")

    def make(device, number):
        made.append((device, number))
        return number

    for number in (1, 2, 3, 1, 4, 1, 3):
        assert kept[make](number) == number
    assert made == [("device", n) for n in (1, 2, 3, 4)] and kept[make].cache_info().currsize == 3


def step(i, w, params):
    """Run calls that repeat with another position, rate, counter or key each time."""
    cache = ops.slice_update(w, w[:4], starts=(4 * i, 0), steps=(1, 1))
    rows = cache[4 * i : 4 * i + 4]
    heads = ops.reshape(rows, shape=(1, 4, 8))
    ops.attention(heads, heads, heads, None, i, i, causal=True, dropout_rate=0.1)
    y = ops.dropout(ops.linear(rows, cache[:8]), 7 + i, i, rate=0.25)
    ops.random_bits(i, i + 1, shape=(8,))
    ops.take(cache, pa.asarray([i]), axis=0)
    lists = ([p] for p in (params, y, params, params))
    ops.adamw(
        *lists, 0.1 / (i + 1), i + 1, 1.0 / (i + 1), beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=(0.01 * i,),
        decoupled=True,
    )  # fmt: skip
    ops.concat((cache[4 * i : 4 * i + 4], rows), axis=0)
    (cache[4 * i :][:4] * (i + 0.5)).numpy()


@on_opencl
def test_what_changes_from_step_to_step_is_no_part_of_a_plan(backend):
    device, w, params = devices.select(), pa.ones((32, 8)), pa.ones((4, 8))

    def kept():
        found = {(of.__module__, of.__name__): cached.cache_info().currsize for of, cached in device.plans.items()}
        return {**found, "steps": attention._steps.cache_info().currsize, "programs": len(device.programs._programs)}

    for i in (1, 2):
        step(i, w, params)
    before = kept()
    for i in (3, 4, 5, 6, 7):
        step(i, w, params)
    assert kept() == before


@on_opencl
def test_whether_order_matters_is_asked_when_a_device_starts(backend, monkeypatch):
    running = devices.select()
    monkeypatch.setenv("POLYARR_DETERMINISTIC", "0")
    assert running.deterministic and not another().deterministic
    for kind, expected in ((geometry.CpuGeometry, False), (geometry.GpuGeometry, True)):
        assert segments.adds_atomically(SimpleNamespace(geometry=kind(1), deterministic=False)) is expected
        assert not segments.adds_atomically(SimpleNamespace(geometry=kind(1), deterministic=True))
