"""How the kernel of a group of steps is launched, whichever it is."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.elementwise import LAYOUT, PLACE
from polyarr.backends.opencl.replay.statements import Statements
from polyarr.backends.opencl.runtime.device import Device, room_of
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.number import evaluate
from polyarr.core.program import Kind, Program, taken
from polyarr.core.spec import Spec, uint32

PEAKS = Spec((3,), uint32)  # of a result whose largest magnitude is told
ARGUMENTS = 1024  # bytes that OpenCL promises for those of a kernel
Layouts = tuple[tuple[Any, ...], ...]  # shape, dtype and strides of each array, and what else its plan depends on


class Plan(NamedTuple):
    """What one combination of layouts needs at every launch; room is memory that the kernel needs while it runs."""

    kernel: Any
    work: tuple[int, ...]
    group: tuple[int, ...]
    layout: bytes
    room: Spec | None = None


class Group(ABC):
    """Several steps as one kernel, which is built for each combination of layouts.

    tells   the output whose largest magnitude the kernel leaves in its plan's room, as batch_norm.cl does; mostly None
    """

    tells: int | None = None

    def __init__(self, device: Device, group: Program, kind: Kind) -> None:
        self.device, self.group, self.kind = device, group, kind
        self.specs = [group.specs[v] for v in group.outputs]
        self.statements = Statements(group, kind.calls)
        self._rooms = [device.plans[room_of](spec) for spec in self.specs]
        self._arrays = [i for i, v in enumerate(group.inputs) if v in group.specs]
        self._plans: dict[Layouts, Plan | None] = {}

    def layouts(self, arrays: list[Buffer]) -> Layouts:
        """What a plan depends on."""
        return tuple([b[LAYOUT] for b in arrays])

    @abstractmethod
    def plan(self, layouts: Layouts) -> Plan | None:
        """How to launch with these layouts; None where the steps have to run one by one."""

    def fits(self, layout: np.ndarray) -> bool:
        """True if every device takes so many arguments."""
        return 8 * len(self.statements.arguments) + layout.nbytes <= ARGUMENTS

    def __call__(self, outs: tuple[Spec, ...], *inputs: Any) -> tuple[Buffer, ...]:
        """The outputs, of arrays in any layout, and numbers."""
        device, arrays = self.device, [inputs[i] for i in self._arrays]
        layouts = self.layouts(arrays)
        if layouts not in self._plans:
            self._plans[layouts] = self.plan(layouts)
        plan, given = self._plans[layouts], dict(zip(self.group.inputs, inputs, strict=True))
        values = {**self.group.constants, **given}
        if plan is None:
            return self._by_steps(values)
        device.faults.follow(inputs)
        numbers = [evaluate(n.argument, values[n.value]) for n in self.statements.numbers]
        results = device.fresh_all(self.specs, self._rooms)
        places = [part for b in arrays for part in b[PLACE]] + [r.memory for r in results]
        room = None if plan.room is None else device.empty(plan.room)
        places += [] if room is None else [room.memory]
        if self.tells is not None:
            device.fill_zero(room)
            results[self.tells] = results[self.tells]._replace(peaks=room)
        plan.kernel(plan.work, plan.group, *numbers, *places, plan.layout)
        return tuple(results)

    def _by_steps(self, values: dict[int, Any]) -> tuple[Buffer, ...]:
        for step in self.group.steps:
            values[step.gives] = step.call(*taken(values, step.takes), **step.params)
        return tuple([values[v] for v in self.group.outputs])
