"""Creation of arrays from scalars: fill, iota."""

from collections.abc import Callable
from typing import Any

import numpy as np

from polyarr.backends.opencl.elementwise.elementwise import astype, launch
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import types
from polyarr.core.number import evaluate
from polyarr.core.spec import COMPLEX, FLOATS, UNSIGNED, Number, Spec, real_of


def fill(device: Device, out: Spec, value: Number, like: Any, *, shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
    """Return an array whose elements are all `value`."""
    return launch(device, out, value)


def iota(device: Device, out: Spec, start: Number, step: Number, like: Any, *, size: int, dtype: np.dtype) -> Buffer:
    """Return start + i * step for i < size. Floats are computed in float64, or as double-float32 without it."""
    if dtype in COMPLEX:
        real = Spec(out.shape, real_of(dtype))
        values = iota(device, real, start, step, like, size=size, dtype=real.dtype)
        return astype(device, out, values, dtype=dtype)
    plan, result = device.plans[_plan](dtype, size), device.empty(out)
    parts: tuple[Callable[[Any], Any], ...]
    if dtype in FLOATS:
        parts = (float,) if device.features.fp64 else (_single, _rest)
    else:
        parts = (_wrapped,) if dtype in UNSIGNED else (int,)
    numbers = [evaluate(part, number) for number in (start, step) for part in parts]
    plan.kernel(plan.work, plan.group, result.memory, *numbers, *plan.numbers)
    return result


def _plan(device: Device, dtype: np.dtype, size: int) -> LaunchPlan:
    work, group, each = device.geometry.items(size)
    stored = {name: macro for name, macro in types(dtype).items() if name != "LOAD"}
    program = device.build("create", **stored, COUNTER=_counter(device, dtype), WG=group[0])
    kernel = program.iota_of_floats if _counter(device, dtype) == "float" else program.iota
    return LaunchPlan(kernel, work, group, (size, each))


def _counter(device: Device, dtype: np.dtype) -> str:
    if dtype in FLOATS:
        return "double" if device.features.fp64 else "float"
    return "ulong" if dtype in UNSIGNED else "long"


def _single(number: float) -> float:
    """Round a number to float32."""
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _rest(number: float) -> float:
    """Return the difference between a number and the nearest float32."""
    return float(number) - _single(number)


def _wrapped(number: int) -> int:
    """Wrap a number to 64 bits: in two's complement a negative step of unsigned integers then works."""
    return int(number) & 0xFFFFFFFFFFFFFFFF
