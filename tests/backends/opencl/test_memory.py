"""Memory: training steps leak none, and many results can be requested at once."""

from importlib import import_module

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend
from polyarr.core.spec import Spec, float32
from polyarr.models.gpt import GPTModel
from polyarr.optim import AdamW
from tests.helpers.opencl_modules import opencl_modules

TINY = {
    "vocab_size": 33,
    "context_length": 8,
    "emb_dim": 8,
    "n_heads": 2,
    "n_layers": 1,
    "drop_rate": 0.1,
    "qkv_bias": True,
}


def test_steps_of_training_leave_nothing_behind(backend: Backend) -> None:
    model, optimizer = GPTModel(TINY), AdamW(1e-3, clip=1.0)
    state, windows = optimizer.init(model), pa.asarray(np.arange(18).reshape(2, 9) % 33)
    step = pa.value_and_grad(lambda m: m.loss(windows[:, :-1], windows[:, 1:]))
    held = {}
    for done in range(1, 31):
        loss, grads = step(model)
        model, state = optimizer.update(grads, state, model)
        held[done] = pa.memory_stats().in_use if done in (10, 30) else 0
    assert np.isfinite(loss.item())
    assert held[30] == held[10] > 0


@pytest.fixture
def device():
    """An OpenCL device with a pool of its own."""
    pytest.importorskip("pyopencl")
    devices, device = opencl_modules("devices", "device")
    return device.Device(devices.select().cl_device, "for memory")


@pytest.mark.polyarr_backend("opencl")
def test_many_results_at_once_are_as_one_by_one(device) -> None:
    outs = [Spec(shape, float32) for shape in ((3,), (0,), (), (2, 33), (1000,))]
    rooms = [device.plans[import_module("polyarr.backends.opencl.runtime.device").allocation_of](out) for out in outs]
    together, alone = device.fresh_all(outs, rooms), [device.empty(out) for out in outs]
    for a, b in zip(together, alone, strict=True):
        assert a[1:] == b[1:]
        assert a.memory.size == b.memory.size
    assert len({a.memory.int_ptr for a in together + alone}) == 2 * len(outs)
    assert device.memory()["peak"] == device.memory()["in use"] > 0
