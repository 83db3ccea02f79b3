"""Planted faults in PyTorch and JAX: the adapters find them. Runs where torch or jax is installed.

The controls are the same cases without a fault, and the names of devices.
"""

import pytest

from polyarr.core.errors import BackendError
from polyarr.testing import adapters
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import CheckFailure, Lacking

CASES = {case.name: case for case in cases()}


def run(name: str, framework, functions) -> None:
    changed = framework._replace(functions={**framework.functions, **functions})
    CASES[name].run(adapters.backend_of(changed, "planted"), Effort(12))


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pytorch():
    pytest.importorskip("torch")
    adapters.start("torch:cpu")
    from polyarr.testing.adapters import pytorch

    return pytorch


def with_gradient(forward, backward):
    """Return a function of one tensor whose gradient is backward(x, g)."""
    import torch

    class Planted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            return backward(ctx.saved_tensors[0], g)

    return Planted.apply


def faults_of_pytorch():
    """Return description -> (name of the op, planted function, name of the case)."""
    import torch
    from torch.nn import functional

    def overwriting(x):
        found = torch.sin(x)
        with torch.no_grad():
            x.mul_(1.5)
        return found

    def beside(x):
        torch.as_strided(x.detach(), (1,), (1,), x.storage_offset() + 1).zero_() if x.stride()[-1:] == (2,) else None
        return torch.cos(x)

    def in_memory_order(x):  # as a kernel that ignores strides
        return torch.exp(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) if x.ndim > 1 else x)

    def layer_norm(x, weight, bias, *, eps):
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps * 2)

    def softmax(x, *, axis):
        return torch.softmax(x, -1)

    def matmul(x, y):
        return torch.matmul(x.bfloat16(), y.bfloat16()).to(x.dtype)

    return {
        "a value": ("erf", lambda x: torch.erf(x) * 1.0001, "forward-erf"),
        "a gradient": ("tanh", with_gradient(torch.tanh, lambda x, g: g * (1 - x * x)), "backward-tanh"),
        "a gradient of broadcast cotangents": ("sin", with_gradient(
            torch.sin, lambda x, g: g * x.cos() * (0 not in g.stride() or g.ndim == 0)), "cotangents-sin"),
        "a gradient at ties": ("relu", with_gradient(torch.relu, lambda x, g: g * (x >= 0)), "promised-relu"),
        "a detached input": ("multiply", lambda x, y: torch.mul(x.detach() if hasattr(x, "detach") else x, y),
            "backward-multiply"),
        "a dtype": ("sqrt", lambda x: torch.sqrt(x).double(), "forward-sqrt"),
        "a dtype of indices": ("argmax", lambda x, *, axis, keepdims: torch.argmax(x, axis, keepdims).int(),
            "forward-argmax"),
        "strides": ("exp", in_memory_order, "layout-exp"),
        "no elements": ("prod", lambda x, *, axis, keepdims, dtype: torch.zeros(
            torch.amax(x, axis or (), keepdims).shape if x.numel() and axis else ()), "forward-prod"),
        "nan": ("maximum", lambda x, y: torch.fmax(*pytorch_tensors(x, y)), "special-maximum"),
        "infinity": ("sigmoid", lambda x: torch.sigmoid(x.clamp(-15, 15)), "special-sigmoid"),
        "an input that is overwritten": ("sin", overwriting, "purity-sin"),
        "memory beside a view": ("cos", beside, "bounds-cos"),
        "a parameter": ("softmax", softmax, "caches-softmax"),
        "eps": ("layer_norm", layer_norm, "forward-layer_norm"),
        "large arrays": ("add", lambda x, y: torch.add(x, y) * (1 + 1e-5 * (getattr(x, "numel", int)() > 65_536)),
            "large-add"),
        "products in 16 bits": ("matmul", matmul, "forward-matmul"),
        "noise": ("log", lambda x: torch.log(x) + 1e-7 * torch.rand(x.shape), "determinism-log"),
        "bfloat16": ("square", lambda x: torch.square(x) * (1.01 if x.dtype == torch.bfloat16 else 1),
            "bfloat16-square"),
    }  # fmt: skip


def pytorch_tensors(*values):
    from polyarr.testing.adapters.pytorch_arrays import as_tensors

    return as_tensors(*values)


FAULTS_OF_PYTORCH = (
    "a value", "a gradient", "a gradient of broadcast cotangents", "a gradient at ties", "a detached input", "a dtype",
    "a dtype of indices", "strides", "no elements", "nan", "infinity", "an input that is overwritten",
    "memory beside a view", "a parameter", "eps", "large arrays", "products in 16 bits", "noise", "bfloat16",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS_OF_PYTORCH)
def test_a_fault_planted_in_pytorch_is_found(pytorch, fault):
    op, function, case = faults_of_pytorch()[fault]
    framework = pytorch.framework("cpu")
    run(case, framework, {})
    with pytest.raises((CheckFailure, RuntimeError, ValueError)):
        run(case, framework, {op: function})


def test_a_device_that_pytorch_lacks_is_an_error(pytorch):
    with pytest.raises(BackendError, match="PyTorch has no device 'nonsense'"):
        pytorch.framework("nonsense")


def test_what_pytorch_has_not_implemented_is_left_out(pytorch):
    with pytest.raises(Lacking, match="no counterpart of the calls of solve"):
        run("float16-solve", pytorch.framework("cpu"), {})


# ---- JAX -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def xla():
    pytest.importorskip("jax")
    adapters.start("jax:cpu")
    from polyarr.testing.adapters import xla

    return xla


def faults_of_jax():
    """Return description -> (name of the op, planted function, name of the case)."""
    import jax
    from jax import numpy as jnp

    wrong = jax.custom_vjp(jnp.tanh)
    wrong.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * (1 - x * x),))
    return {
        "a value": ("exp", lambda x: jnp.exp(x) * 1.0001, "forward-exp"),
        "a gradient": ("tanh", wrong, "backward-tanh"),
        "a stopped gradient": ("multiply", lambda x, y: jax.lax.stop_gradient(x) * y, "backward-multiply"),
        "a dtype": ("sum", lambda x, *, axis, keepdims, dtype: jnp.sum(x, axis, jnp.float64, keepdims=keepdims),
            "forward-sum"),
        "no elements": ("prod", lambda x, *, axis, keepdims, dtype: jnp.prod(
            x, axis, dtype, keepdims=keepdims) * (1 if x.size else 0), "forward-prod"),
        "nan": ("maximum", lambda x, y: jnp.fmax(x, y), "special-maximum"),
        "a parameter": ("softmax", lambda x, *, axis: jax.nn.softmax(x, -1), "caches-softmax"),
        "float16": ("square", lambda x: jnp.square(x) * (1.01 if x.dtype == jnp.float16 else 1), "float16-square"),
    }  # fmt: skip


FAULTS_OF_JAX = (
    "a value", "a gradient", "a stopped gradient", "a dtype", "no elements", "nan", "a parameter", "float16",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS_OF_JAX)
def test_a_fault_planted_in_jax_is_found(xla, fault):
    op, function, case = faults_of_jax()[fault]
    run(case, xla.framework("cpu"), {})
    with pytest.raises((CheckFailure, TypeError, BackendError)):
        run(case, xla.framework("cpu"), {op: function})


def test_a_platform_that_jax_lacks_is_an_error(xla):
    with pytest.raises(BackendError, match="JAX has no platform 'nonsense'"):
        xla.framework("nonsense")
