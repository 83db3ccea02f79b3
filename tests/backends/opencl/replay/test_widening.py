"""Casts of gradients that OpenCL's replay omits because the kernel that reads them widens them anyway."""


import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, ops, optim
from polyarr.core.current import use_backend
from polyarr.testing.compare import bits
from tests.backends.opencl.rows.test_gpu_kernels import as_gpu  # noqa: F401  a fixture
from tests.helpers.opencl_modules import opencl_modules

replay, table, widening = opencl_modules("replay", "table", "widening")
pytestmark = [pytest.mark.polyarr_backend("opencl"), pytest.mark.usefixtures("compiled_only")]


@pytest.fixture(params=["as it is", "as a gpu"])
def chosen(request, backend):
    """The backend, or one with a GPU's work distribution, as the current one."""
    if request.param == "as a gpu":
        backend = request.getfixturevalue("as_gpu")._replace(reads=table.READS)
    with use_backend(backend):
        yield backend


@pytest.fixture
def casts(monkeypatch):
    """The number of casts of many arrays in each program that is replayed from now on."""
    found, real = [], replay.remove_widening_casts

    def noted(program):
        changed = real(program)
        found.append([step.name for step in changed.steps].count("astype_all"))
        return changed

    monkeypatch.setattr(replay, "remove_widening_casts", noted)
    return found


def model():
    pa.random.seed(0)
    return nn.Sequential(nn.Linear(17, 33, activation="gelu"), nn.LayerNorm(33), nn.Linear(33, 9))


def trained(dtype, optimizer, update=None):
    """Return the weights after three steps, captured and eager."""
    x = pa.asarray(np.random.default_rng(0).standard_normal((70, 17), dtype=np.float32))

    def step(model, state, x):
        loss = pa.value_and_grad(lambda m: ops.mean(ops.astype(m.astype(dtype)(x.astype(dtype)), pa.float32) ** 2))
        value, grads = loss(model)
        return value, *(update or optimizer.update)(grads, state, model)

    found = []
    for fn in (pa.compile(step, donate=("model", "state")), step):
        net = model()
        state = optimizer.init(net)
        for _ in range(3):
            loss, net, state, *rest = fn(net, state, x)
        found.append([bits(a) for a in (loss, *pa.tree.leaves(net), *pa.tree.leaves(rest))])
    return found


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_adamw_takes_narrow_gradients(chosen, casts, dtype, clip):
    captured, eager = trained(dtype, optim.AdamW(lr=0.1, clip=clip))
    assert captured == eager
    assert casts == [1], "that of the weights"


def shown(grads, state, net):
    """Return an update that also returns its gradients."""
    return *optim.AdamW(lr=0.1).update(grads, state, net), grads


def with_another(grads, state, net):
    """Return an update whose norm includes one more array."""
    norm = ops.global_norm([*pa.tree.leaves(grads), pa.ones((3,))])
    return *optim.AdamW(lr=0.1, clip=1.0).update(grads, state, net, norm), norm


@pytest.mark.parametrize("update", [shown, with_another], ids=lambda update: update.__name__)
def test_gradients_with_other_readers_are_cast(chosen, casts, update):
    captured, eager = trained("bfloat16", optim.AdamW(lr=0.1), update)
    assert captured == eager
    assert casts == [2]


def test_weights_are_cast_for_another_optimiser(chosen, casts):
    captured, eager = trained("bfloat16", optim.SGD(lr=0.1, momentum=0.9))
    assert captured == eager
    assert casts == [2]


def test_another_norm_is_left_alone(chosen, casts, monkeypatch):
    monkeypatch.setattr(widening, "KERNELS", table.KERNELS | {ops.global_norm: object()})
    trained("bfloat16", optim.AdamW(lr=0.1, clip=0.01))
    assert casts == [2]
