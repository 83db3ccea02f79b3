"""Modules of the OpenCL backend by name, for tests of its internals."""

import pkgutil
from importlib import import_module
from types import ModuleType

import pytest


def opencl_modules(*names: str) -> tuple[ModuleType, ...]:
    """Return the modules, whichever subpackage they are in; skip the calling test if PyOpenCL is not installed."""
    pytest.importorskip("pyopencl")
    package = import_module("polyarr.backends.opencl")
    below = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    found = {module.name.rpartition(".")[2]: module.name for module in below if not module.ispkg}
    return tuple(import_module(found[name]) for name in names)
