"""What OpenCL's launchers plan: captures compute nothing."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from tests.helpers.opencl_modules import opencl_modules

(commands,) = opencl_modules("commands")
pytestmark = pytest.mark.polyarr_backend("opencl")


def loss(x, w, b):
    y = ops.layer_norm(ops.gelu(x @ w + b), b, b)
    return (ops.softmax(y) * y).sum() + ops.attention(*[y.reshape(1, 2, 8, 16)] * 3, causal=True).mean()


def arguments():
    r = np.random.default_rng(0)
    return [pa.asarray(r.standard_normal(shape).astype("f4")) for shape in ((16, 16), (16, 16), (16,))]


def test_a_capture_launches_and_allocates_nothing(backend, monkeypatch):
    launched, memory, given = [], [], arguments()
    call = commands.Command.__call__
    monkeypatch.setattr(commands.Command, "__call__", lambda self, *a: launched.append(self.name) or call(self, *a))

    def fn(*args):
        launched.clear()
        memory.append(backend.memory()["in use"])
        found = pa.value_and_grad(loss, argnums=(0, 1, 2))(*args)
        memory.append(backend.memory()["in use"])
        assert launched == ["elementwise"] * 2, "constants from which the gradient begins"
        return found

    expected = pa.value_and_grad(loss, argnums=(0, 1, 2))(*given)
    found = pa.compile(fn)(*given)
    assert memory[1] - memory[0] <= 4096
    for ours, due in zip(pa.tree.leaves(found), pa.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours.numpy(), due.numpy(), rtol=1e-5, atol=1e-6)
