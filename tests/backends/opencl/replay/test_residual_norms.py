"""Single kernels in OpenCL's replay for norms of sums, and for gradients of norms that are added to another array."""


import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.current import use_backend
from polyarr.testing.compare import bits
from tests.backends.opencl.rows.test_gpu_kernels import as_gpu  # noqa: F401  a fixture
from tests.helpers.opencl_modules import opencl_modules

norm, replay, residual_norms, steps = opencl_modules("norm", "replay", "residual_norms", "steps")
pytestmark = pytest.mark.polyarr_backend("opencl")


@pytest.fixture(params=["as it is", "as a gpu"])
def chosen(request, backend):
    """The backend, or one with a GPU's work distribution, as the current one."""
    with use_backend(request.getfixturevalue("as_gpu") if request.param == "as a gpu" else backend) as found:
        yield found


@pytest.fixture
def joined(monkeypatch):
    """The steps of each program that is replayed from now on."""
    found, real = [], residual_norms.fuse_residual_adds

    def noted(device, program):
        changed = real(device, program)
        found.append([step.name for step in changed.steps])
        return changed

    monkeypatch.setattr(replay, "fuse_residual_adds", noted)
    return found


def arrays(shape, dtype, count):
    rng = np.random.default_rng(0)
    made = [pa.asarray(rng.standard_normal(s, dtype=np.float32)) for s in [shape] * count + [shape[-1:]] * 2]
    return [a.astype(dtype) for a in made]


def of_layers(x, y, weight, bias):
    """Compute two layers, each of which adds its input to a sum before a norm."""
    few = weight[:5, None] * bias
    for norm_of in (lambda x: ops.layer_norm(x, weight, bias, eps=0.1), lambda x: ops.rms_norm(x, weight, eps=0.1)):
        x = x + y
        y = ops.linear(ops.linear(norm_of(x), few), few.mT)  # few multiplications even for long rows
    return ops.sum(ops.astype(x * y, pa.float32))


SHAPES = {
    "held": ((3, 5, 24), "float32"), "in chunks": ((4, 101), "float32"), "bfloat16": ((3, 7), "bfloat16"),
    "float16": ((2, 1100), "float16"), "many rows": ((70, 33), "float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_the_bits_are_those_of_the_ops(chosen, joined, name):
    step = pa.value_and_grad(lambda args: of_layers(*args))
    compiled, args = pa.compile(step), arrays(*SHAPES[name], 2)
    for _ in range(3):
        assert bits(compiled(args)) == bits(step(args))
    assert "layer_norm" in joined[0]


def total_shown(x, y, weight, bias):
    """Return a sum and two norms of it."""
    total = x + y
    return total, ops.rms_norm(total, weight), ops.layer_norm(total, weight, bias)


def gradient(x, y, weight, bias):
    _, pull = pa.vjp(lambda x: ops.layer_norm(x, weight, bias), x)
    return pull(y)[0]


JOINED = {
    "a norm": (lambda x, y, *others: ops.layer_norm(x + y, *others), ["layer_norm"]),
    "a sum for two": (total_shown, ["rms_norm", "layer_norm"]),
    "a gradient": (lambda x, y, *others: x + gradient(x, y, *others), ["layer_norm", "layer_norm backward"]),
    "of itself": (lambda x, y, *others: ops.layer_norm(x + x, *others), ["layer_norm"]),
}
APART = {
    "broadcast": (lambda x, y, *others: ops.layer_norm(x + y[:1], *others), ["slice", "add", "layer_norm"]),
    "a number": (lambda x, y, *others: ops.layer_norm(x + 2.0, *others), ["add", "layer_norm"]),
    "a later weight": (
        lambda x, y, _, bias: ops.layer_norm(x + y, (x + y)[0, 0], bias), ["add", "slice", "reshape", "layer_norm"]
    ),
    "a gradient's sum with itself": (
        lambda *args: gradient(*args) + gradient(*args), ["layer_norm", "layer_norm backward", "add"]
    ),
    "a gradient that is shown": (
        lambda x, *others: (x + gradient(x, *others), gradient(x, *others)),
        ["layer_norm", "layer_norm backward", "add"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*JOINED, *APART])
def test_what_is_joined(chosen, joined, name):
    fn, steps = (JOINED | APART)[name]
    args = arrays((2, 3, 16), "float32", 2)
    assert bits(pa.compile(fn)(*args)) == bits(fn(*args))
    assert joined == [steps]


def test_another_add_is_left_alone(chosen, joined, monkeypatch):
    monkeypatch.setattr(steps, "KERNELS", steps.KERNELS | {ops.add: object()})
    pa.compile(JOINED["a norm"][0])(*arrays((2, 16), "float32", 2))
    assert joined == [["add", "layer_norm"]]


def a_sum_of_one(patch):
    real = norm._launch
    patch.setattr(norm, "_launch", lambda device, out, x, y, *others: real(device, out, x, y and x, *others))


def a_gradient_without_what_is_added(patch):
    real = norm._backward
    patch.setattr(norm, "_backward", lambda *args: real(*args[:6], None, *args[7:]))


@pytest.mark.parametrize("plant", [a_sum_of_one, a_gradient_without_what_is_added], ids=lambda plant: plant.__name__)
def test_a_fault_is_seen(chosen, monkeypatch, plant):
    plant(monkeypatch)
    step, args = pa.value_and_grad(lambda args: of_layers(*args)), arrays(*SHAPES["bfloat16"], 2)
    assert bits(pa.compile(step)(args)) != bits(step(args))
