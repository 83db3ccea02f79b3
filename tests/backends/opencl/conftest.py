"""Fixtures of tests with a fake CUDA driver."""

from collections.abc import Iterator
from typing import Any

import pytest

from polyarr.core.current import use_backend
from tests.backends.opencl.nvidia.fake_cuda import fake_backend


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
