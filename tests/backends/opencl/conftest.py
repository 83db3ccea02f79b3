"""Fixtures: a fake CUDA driver, and what only some GPUs have."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from polyarr.capture import repeated
from polyarr.core.current import use_backend
from tests.backends.opencl.nvidia.fake_cuda import fake_backend
from tests.helpers.opencl_modules import opencl_modules


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The fake CUDA driver of the current backend."""
    pytest.importorskip("pyopencl")
    backend = fake_backend(monkeypatch)
    with use_backend(backend):
        cuda = backend.home.driver.cuda
        cuda.device, cuda.backend = backend.home, backend
        yield cuda
    backend.home.synchronize()


@pytest.fixture
def gated(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with kernels for gated layers, so that programs are changed for them; other devices' decline all."""
    pytest.importorskip("pyopencl")
    (gated_linear,), vendor = opencl_modules("gated_linear"), backend.home.vendor
    if not any(variant.may_suit(backend.home.features) for variant in vendor.gated):
        declines = gated_linear.VARIANTS[0]._replace(name="declines", plan=lambda *_: None)
        monkeypatch.setattr(type(vendor), "gated", (declines,))


@pytest.fixture
def compiled_only() -> Iterator[None]:
    """No programs but those of compiled functions: an op that is called again and again stays step by step."""
    with repeated.after(math.inf):
        yield
