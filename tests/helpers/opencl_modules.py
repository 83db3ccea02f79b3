"""Modules of the OpenCL backend by name, for tests of its internals."""

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest


def opencl_modules(*names: str) -> tuple[ModuleType, ...]:
    """Return the modules, whichever subpackage they are in; skip the calling test if PyOpenCL is not installed."""
    pytest.importorskip("pyopencl")
    package = import_module("polyarr.backends.opencl")
    below = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    found = {module.name.rpartition(".")[2]: module.name for module in below if not module.ispkg}
    return tuple(import_module(found[name]) for name in names)


def device_as_gpu() -> Any:
    """Return a Device of the default OpenCL device with the kernels and the work distribution of a GPU.

    On a CPU it compiles without optimization, which for these kernels, many with barriers in unrolled loops, takes a
    fifth of the time. What an optimizer makes of them there says nothing about GPUs.
    """
    device_module, devices, geometry = opencl_modules("device", "devices", "geometry")
    device = device_module.Device(devices.select().cl_device, "as a gpu")
    device.geometry = geometry.GpuGeometry(2)
    device.programs.known["IS_CPU"] = 0
    if device.features.is_cpu:
        device.programs.options = ["-cl-opt-disable"]
    return device
