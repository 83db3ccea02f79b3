"""Launches of the fused kernel of a group of steps."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.replay.statements import Statements
from polyarr.backends.opencl.runtime.device import Device, allocation_of
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.number import evaluate
from polyarr.core.program import Kind, Program, lookup
from polyarr.core.spec import Spec

ARGUMENTS = 1024  # bytes of arguments that OpenCL guarantees for a kernel
Layouts = tuple[tuple[Any, ...], ...]  # shape, dtype and strides of each array, and whatever else its plan depends on


class Plan(NamedTuple):
    """A launch for one combination of layouts, with the spec of its scratch memory."""

    kernel: Any
    work: tuple[int, ...]
    group: tuple[int, ...]
    layout: bytes
    workspace: Spec | None = None


class Group(ABC):
    """Several steps fused into one kernel, which is built for each combination of layouts."""

    def __init__(self, device: Device, group: Program, kind: Kind) -> None:
        self.device, self.group, self.kind = device, group, kind
        self.specs = [group.specs[v] for v in group.outputs]
        self.statements = Statements(group, kind.calls)
        self._rooms = [device.plans[allocation_of](spec) for spec in self.specs]
        self._arrays = [i for i, v in enumerate(group.inputs) if v in group.specs]
        self._plans: dict[Layouts, Plan | None] = {}

    def layouts(self, arrays: list[Buffer]) -> Layouts:
        """Return what a plan depends on."""
        return tuple([(b.shape, b.dtype, b.strides) for b in arrays])

    @abstractmethod
    def plan(self, layouts: Layouts) -> Plan | None:
        """Return the plan for these layouts; None if the steps must run one by one."""

    def fits(self, layout: np.ndarray) -> bool:
        """Return whether every device accepts this many bytes of arguments."""
        return 8 * len(self.statements.arguments) + layout.nbytes <= ARGUMENTS

    def __call__(self, outs: tuple[Spec, ...], *inputs: Any) -> tuple[Buffer, ...]:
        """Return the outputs, given arrays in any layout and scalars."""
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
        pointers = [part for b in arrays for part in (b.memory, b.offset)] + [r.memory for r in results]
        pointers += [] if plan.workspace is None else [device.empty(plan.workspace).memory]
        plan.kernel(plan.work, plan.group, *numbers, *pointers, plan.layout)
        return tuple(results)

    def _by_steps(self, values: dict[int, Any]) -> tuple[Buffer, ...]:
        for step in self.group.steps:
            values[step.outputs] = step.call(*lookup(values, step.inputs), **step.params)
        return tuple([values[v] for v in self.group.outputs])
