"""Dropout. Its gradient is dropout with the same mask, which is recomputed instead of saved."""

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.random import state_of
from polyarr.backends.opencl.rows.rows import block_plan
from polyarr.backends.opencl.runtime.commands import InPlace
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.spec import Spec

IN_PLACE = (InPlace(0, 1),)


def dropout(
    device: Device, out: Spec, x: Buffer, key: int | Buffer, counter: int | Buffer, *, rate: float
) -> Buffer:
    """Zero elements with probability `rate`, and scale the others to keep the mean."""
    x, y = dense(device, x), device.empty(out)
    state, macros = state_of(device, key, counter, y), {"BATCH": device.geometry.draws(x.dtype.itemsize)}
    macros["STATE_ON_DEVICE"] = state.on_device
    plan = device.plans[block_plan]("dropout", "dropout", x.dtype, x.size, IN_PLACE, **macros)
    scale = 1 / (1 - rate) if rate < 1 else 0.0
    numbers = round(rate * 2**24), scale, *state.arguments
    plan.kernel(plan.work, plan.group, x.memory, y.memory, *plan.numbers, *numbers)
    return y
