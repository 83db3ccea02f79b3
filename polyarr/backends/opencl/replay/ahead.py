"""Prepares the programs of a first run ahead, several at once, in probe processes.

Building a program takes NVIDIA's driver 0.2 s, and checking one takes a second (runtime/variants.py). When the first
run of a captured program needs one, the launchers of all steps that are left plan once, and each check and build that
they ask for is submitted. The run then takes verdicts from there, and programs from the cache.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from polyarr.backends.opencl.replay.groups import Group
from polyarr.backends.opencl.replay.recording import settled
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.planning import Need, PlanningDevice
from polyarr.backends.opencl.runtime.variants import Verdicts
from polyarr.core.program import Program, assigned, lookup


def plan_ahead(device: Device, program: Program, start: int, values: dict[int, Any]) -> None:
    """Submit the checks and builds that the steps from `start` on need; `values` are those known before them."""
    needs = dict[str, Need]()
    planning, found = PlanningDevice(device, needs), {slot: settled(value) for slot, value in values.items()}
    for step in program.steps[start:]:
        try:
            result = launcher_on(planning, step.call)(*lookup(found, step.inputs), **step.params)
        except Exception:  # whatever it is, the run itself meets it
            result = _stand_in(planning, program, step.outputs)
        found.update(assigned(step.outputs, result))
    submit = device.plans[Verdicts]().probes.submit
    for text, need in sorted(reversed(needs.items()), key=lambda item: not item[1].is_check):  # the longest first
        if text not in device.programs.jobs:
            device.programs.jobs[text] = submit(need.call, *need.arguments)


def forget_jobs(device: Device) -> None:
    """Cancel the jobs that nobody waits for any more."""
    device.programs.ahead = None
    while device.programs.jobs:
        device.programs.jobs.popitem()[1].cancel()


def launcher_on(device: Device, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a step calls, on another device."""
    if isinstance(call, Group):
        steps = [step._replace(call=launcher_on(device, step.call)) for step in call.group.steps]
        return type(call)(device, call.group._replace(steps=tuple(steps)), call.kind)
    return partial(call.__wrapped__, device)  # type: ignore[attr-defined]  # as table.following has made it


def _stand_in(device: Device, program: Program, slots: Any) -> Any:
    """Return buffers in the place of the results in these slots."""
    if type(slots) is tuple:
        return tuple([_stand_in(device, program, slot) for slot in slots])
    return device.empty(program.specs[slots]) if slots in program.specs else None
