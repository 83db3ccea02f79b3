"""New arrays from numbers."""

from typing import Any

import numpy as np

from polyarr.backends.opencl.elementwise import launch
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import types
from polyarr.core.number import evaluate
from polyarr.core.spec import FLOATS, UNSIGNED, Number, Spec


def full(device: Device, out: Spec, value: Number, like: Any, *, shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
    """An array whose elements are all value."""
    return launch(device, out, value)


def arange(device: Device, out: Spec, start: Number, step: Number, like: Any, *, size: int, dtype: np.dtype) -> Buffer:
    """start, start + step ... : size of them. Floats are computed in the widest type that the device has."""
    plan, result = device.plans[_plan](dtype, size), device.empty(out)
    argument = float if dtype in FLOATS else _wrapped if dtype in UNSIGNED else int
    numbers = evaluate(argument, start), evaluate(argument, step)
    plan.kernel(plan.work, plan.group, result.memory, *numbers, *plan.numbers)
    return result


def _plan(device: Device, dtype: np.dtype, size: int) -> LaunchPlan:
    work, group, each = device.geometry.items(size)
    stored = {name: macro for name, macro in types(dtype).items() if name != "LOAD"}
    program = device.build("create", **stored, COUNTER=_counter(device, dtype), WG=group[0])
    return LaunchPlan(program.arange, work, group, (size, each))


def _counter(device: Device, dtype: np.dtype) -> str:
    if dtype in FLOATS:
        return "double" if device.features.fp64 else "float"
    return "ulong" if dtype in UNSIGNED else "long"


def _wrapped(number: int) -> int:
    """In two's complement a negative step of unsigned integers wraps to what it should be."""
    return int(number) & 0xFFFFFFFFFFFFFFFF
