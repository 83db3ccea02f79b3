"""New arrays from numbers."""

from typing import Any

import numpy as np

from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.elementwise import COPY, launch
from polyarr.backends.opencl.layout import Buffer
from polyarr.backends.opencl.program import types
from polyarr.core.spec import FLOATS, UNSIGNED, Number, Spec


def full(device: Device, out: Spec, value: Number, like: Any, *, shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
    """An array whose elements are all value."""
    return launch(device, COPY, out, value)


def arange(device: Device, out: Spec, start: Number, step: Number, like: Any, *, size: int, dtype: np.dtype) -> Buffer:
    """start, start + step ... : size of them. Floats are computed in the widest type that the device has."""
    counter, argument = _counter(device, dtype)
    work, group, each = device.geometry.items(size)
    stored = {name: macro for name, macro in types(dtype).items() if name != "LOAD"}
    program = device.build("create", **stored, COUNTER=counter, WG=group[0])
    result = device.empty(out)
    program.arange(work, group, result.memory, argument(start), argument(step), size, each)
    return result


def _counter(device: Device, dtype: np.dtype) -> tuple[str, Any]:
    if dtype in FLOATS:
        return "double" if device.features.fp64 else "float", float
    # Two's complement: a negative step of unsigned integers wraps to what it should be.
    return ("ulong", _wrapped) if dtype in UNSIGNED else ("long", int)


def _wrapped(number: int) -> int:
    return int(number) & 0xFFFFFFFFFFFFFFFF
