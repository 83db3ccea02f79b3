"""random_bits: Philox4x32-10, a pure function of key, counter and position; and kernel arguments for its state."""

from typing import Any, NamedTuple, cast

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import astype, launch
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.core.spec import Spec, int64, uint64

WORD = (1 << 64) - 1
WORDS = (int64, uint64)  # dtypes that kernels can read as 64-bit words
ONE = Spec((), uint64)


class State(NamedTuple):
    """Key and counter as kernel arguments: numbers, or arrays for programs built with STATE_ON_DEVICE=1."""

    on_device: int
    arguments: tuple[int, int, Any, Any]  # for the STATE of a kernel: key, counter, and the memory of each


def state_of(device: Device, key: int | Buffer, counter: int | Buffer, unread: Buffer) -> State:
    """Return the state as kernels take it; `unread` is a placeholder for memory arguments that are not read."""
    if type(key) is not Buffer and type(counter) is not Buffer:
        key, counter = (0 if number is None else cast("int", number) & WORD for number in (key, counter))
        return State(0, (key, counter, unread.memory, unread.memory))
    return State(1, (0, 0, _word(device, key).memory, _word(device, counter).memory))


def _word(device: Device, number: int | Buffer) -> Buffer:
    """Return a number as a 64-bit word in device memory."""
    if type(number) is not Buffer:
        return launch(device, ONE, cast("int", number) & WORD)
    return dense(device, number if number.dtype in WORDS else astype(device, ONE, number, dtype=uint64))


def random_bits(
    device: Device, out: Spec, key: int | Buffer, counter: int | Buffer, like: Buffer | None, *, shape: tuple[int, ...]
) -> Buffer:
    """Return independent uniform uint32 numbers."""
    result = device.empty(out)
    state = state_of(device, key, counter, result)
    plan = device.plans[_plan](out.size, state.on_device)
    plan.kernel(plan.work, plan.group, result.memory, *state.arguments, *plan.numbers)
    return result


def _plan(device: Device, size: int, on_device: int) -> LaunchPlan:
    work, group, span = device.geometry.items(-(-size // 4), least=256)
    return LaunchPlan(device.build("random", STATE_ON_DEVICE=on_device).random_bits, work, group, (size, span))
