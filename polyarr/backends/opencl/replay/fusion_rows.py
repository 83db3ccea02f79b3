"""Fused steps over rows, some of which reduce them: softmax and norms, for example.

A row is processed in phases. The reductions that a step needs decide in which phase it computes; in each phase, the
next reductions are computed, in the order of the kernels that reduce_rows of reduce.py would launch.
"""

from abc import abstractmethod
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from polyarr import ops
from polyarr.backends.opencl.elementwise.elementwise import STEPS
from polyarr.backends.opencl.reductions.reduce import is_by_rows
from polyarr.backends.opencl.replay.groups import Group, Layouts, Plan
from polyarr.backends.opencl.replay.statements import ARITHMETIC
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import broadcast_strides, collapse, is_gapless
from polyarr.backends.opencl.runtime.program import types
from polyarr.backends.opencl.runtime.source import STRUCTURE
from polyarr.core.program import Kind, Program, Step
from polyarr.core.spec import Spec

JOINS = {ops.sum: "ADDED", ops.max: "GREATEST", ops.min: "SMALLEST"}
MIN_GROUP_ELEMENTS = 16384  # elements that are worth a work-group


def kind_of_reduction(device: Device, step: Step, specs: tuple[Spec, ...]) -> Kind | None:
    """Return the kind of a reduction of the last axes whose sums have the stored dtype; else None."""
    if step.op not in JOINS:
        return None
    (x,), axes = specs, step.params["axis"]
    is_last = axes == tuple(range(x.ndim - len(axes), x.ndim)) and step.params["keepdims"]
    accumulator = types(x.dtype)["ACC"]
    is_exact = ARITHMETIC.get(accumulator) == x.dtype == step.params.get("dtype", x.dtype)
    if not axes or not is_last or not is_exact or not is_by_rows(device, x, axes):
        return None
    return Kind(x.shape, accumulator, len(axes))


class Phases:
    """The phases of a group.

    Attributes:
        count: Number of phases.
        direct: Inputs that are reduced.
        made: Other values that are reduced.
        dtype: Dtype of the reduced values.
    """

    def __init__(self, group: Program, kind: Kind) -> None:
        self._group, self._reduced = group, kind.reduced
        self.makers = {step.outputs: step for step in group.steps}
        self.of = self._of()
        self.count = max(self.of.values()) + 1
        joined = dict.fromkeys(step.inputs[1] for step in group.steps if step.op in JOINS)
        self.made = [v for v in joined if v in self.makers]
        self.direct = [v for v in joined if v not in self.makers]
        self.dtype = group.specs[next(iter(joined))].dtype

    def _of(self) -> dict[int, int]:
        """Return the phase in which each value is computed; inputs are available in the first."""
        found: dict[int, int] = {}
        for step in self._group.steps:
            found[step.outputs] = max(found.get(v, 0) for v in step.inputs[1:]) + (step.op in JOINS)
        return found

    def is_of_rows(self, v: int) -> bool:
        """Return whether a value is constant along a row."""
        return all(n == 1 for n in self._group.specs[v].shape[-self._reduced :])

    def of_rows(self, phase: int) -> list[int]:
        """Return the values with one element per row that a phase computes, apart from reductions."""
        steps = [step for step in self._group.steps if step.op not in JOINS and self.of[step.outputs] == phase]
        return [step.outputs for step in steps if self.is_of_rows(step.outputs)]

    def joins(self, phase: int) -> list[Step]:
        """Return the reductions that a phase computes."""
        return [step for step in self._group.steps if step.op in JOINS and self.of[step.outputs] == phase + 1]

    def stored(self, phase: int) -> list[int]:
        """Return the outputs with all elements that a phase computes."""
        return [v for v in self._group.outputs if self.of[v] == phase and not self.is_of_rows(v)]

    @property
    def row_outputs(self) -> list[int]:
        """The outputs with one element per row."""
        return [v for v in self._group.outputs if self.is_of_rows(v)]


class Rows(NamedTuple):
    """The layout of arrays for a kernel that processes rows.

    Attributes:
        shape: Shape of the rows, and their length.
        steps: The distinct strides of arrays along these axes.
        at: Index into steps, by array.
        along: Name of an array's last stride, as in elementwise.cl.
        dense: Arrays with all elements and without gaps.
    """

    shape: tuple[int, ...]
    steps: list[tuple[int, ...]]
    at: dict[int, int]
    along: dict[int, str]
    dense: set[int]

    @property
    def columns(self) -> int:
        """The length of a row."""
        return self.shape[-1]

    @property
    def total(self) -> int:
        """The number of rows."""
        return prod(self.shape[:-1])

    def layout(self, *more: int) -> np.ndarray:
        """Return the layout that kernels take: lengths, strides, the number of rows, and more."""
        return np.array([*self.shape, *(n for s in self.steps for n in s), self.total, *more], np.int64)

    @property
    def macros(self) -> dict[str, int | str]:
        """The macros of unravel.cl."""
        is_small = self.total * self.columns < 1 << 31
        return {"NDIM": len(self.shape), "ARRAYS": len(self.steps), "INDEX": "uint" if is_small else "ulong"}


class RowGroup(Group):
    """A group of steps of which some reduce the last axes."""

    def __init__(self, device: Device, group: Program, kind: Kind) -> None:
        super().__init__(device, group, kind)
        self.phases = Phases(group, kind)

    def plan(self, layouts: Layouts) -> Plan | None:
        """Plan a launch, as Group does; None if a reduced input is not dense, as eager calls then add in another order.
        """
        rows = self._rows([layout[:3] for layout in layouts])
        return self.plan_of(rows, layouts) if rows is not None and rows.dense.issuperset(self.phases.direct) else None

    @abstractmethod
    def plan_of(self, rows: Rows, layouts: Layouts) -> Plan | None:
        """Return the plan for arrays of this layout."""

    def _rows(self, windows: list[tuple[Any, ...]]) -> Rows | None:
        """Return the layout; None if the reduced axes do not collapse into one in all arrays."""
        shape, reduced = self.kind.shape, self.kind.reduced
        strides = [broadcast_strides(own, steps, len(shape)) for own, _, steps in windows]
        outer, outer_steps = collapse(shape[:-reduced], [s[:-reduced] for s in strides])
        (*more, columns), last_steps = collapse(shape[-reduced:], [s[-reduced:] for s in strides])
        if more:
            return None
        steps = [(*s, last) for s, (last,) in zip(outer_steps, last_steps, strict=True)]
        unique, arrays = list(dict.fromkeys(steps)), self.statements.arrays
        return Rows(
            (*outer, columns), unique,
            {v: unique.index(s) for v, s in zip(arrays, steps, strict=True)},
            {v: STEPS.get(s[-1], "STRIDED") for v, s in zip(arrays, steps, strict=True)},
            {v for v, (own, _, s) in zip(arrays, windows, strict=True) if own == shape and is_gapless(own, s)},
        )  # fmt: skip

    def loads(self, rows: Rows) -> dict[int, str]:
        """Return the declarations of element j of the inputs."""
        return {v: self.statements.load(v, rows.at[v], rows.along[v]) for v in self.statements.arrays}

    def of_rows(self, loads: dict[int, str]) -> list[str]:
        """Return the declarations of the inputs with one element per row."""
        return [load.replace("(j)", "0") for v, load in loads.items() if self.phases.is_of_rows(v)]

    def links(self, values: Iterable[int]) -> list[str]:
        """Return the declarations of the results of ops."""
        return [self.statements.links[v] for v in values]


class SerialRows(RowGroup):
    """Rows that are processed by one work-item each: see fusion_rows.cl.

    A phase is a loop over the row and then its reductions, of which one takes place in the loop. Reduced values that
    are read again are kept in memory; casts of inputs and all other values are computed again.
    """

    def __init__(self, device: Device, group: Program, kind: Kind) -> None:
        super().__init__(device, group, kind)
        after = {step.inputs[1] for phase in range(self.phases.count) for step in self._after(phase)}
        self._kept = [v for v in self.phases.made if v in after or not self._is_cast(v)]
        last = {v: time for phase in range(self.phases.count) for v, time in self._reads(phase).items()}
        self._kept = [v for v in self.phases.made if v in last]
        self._homes = self._outputs_that_hold(last)
        self._elsewhere = [v for v in self._kept if v not in self._homes]

    def plan_of(self, rows: Rows, layouts: Layouts) -> Plan | None:
        """Return the plan for arrays of this layout."""
        text, phases, geometry = self.statements, self.phases, self.device.geometry
        worth = -(-rows.total * rows.columns // MIN_GROUP_ELEMENTS)
        block = -(-rows.total // max(1, min(geometry.row_groups(rows.total, True), worth)))
        groups, layout, kept = -(-rows.total // block), rows.layout(block), len(self._elsewhere)
        if not self.fits(layout):
            return None
        kernel = self.device.build(
            "fusion_rows",
            **text.macros([*rows.at.values()]), **rows.macros, PHASES=self._text(rows), KEPT=kept,
            A=types(phases.dtype)["ACC"], VECTORS=int(geometry.has_vectors), STRIDE=1, LANES=1,
            PARTIALS=geometry.partials,
        ).fusion_rows  # fmt: skip
        kernel.arguments = *text.arguments, *[None][:kept], STRUCTURE
        workspace = Spec((groups * kept * rows.columns,), phases.dtype) if kept else None
        return Plan(kernel, (groups,), (1,), layout.tobytes(), workspace)

    # ---- what is kept, and where -----------------------------------------------------------------------------

    def _is_cast(self, v: int) -> bool:
        step = self.phases.makers[v]
        return step.op is ops.astype and step.inputs[1] not in self.phases.makers

    def _in_loop(self, phase: int) -> Step | None:
        """Return the reduction that takes place in the loop that computes its elements."""
        return next((step for step in self.phases.joins(phase) if step.inputs[1] in self.phases.made), None)

    def _after(self, phase: int) -> list[Step]:
        """Return the reductions of elements in memory, after the loop."""
        return [step for step in self.phases.joins(phase) if step is not self._in_loop(phase)]

    def _reads(self, phase: int) -> dict[int, int]:
        """Return the kept values that a phase reads, and when: at 2 * phase in its loop, one later after it."""
        in_loop = [v for v in self._declared(phase, {}) if self._is_there(v, phase)]
        after = [step.inputs[1] for step in self._after(phase) if step.inputs[1] in self._kept]
        return dict.fromkeys(in_loop, 2 * phase) | dict.fromkeys(after, 2 * phase + 1)

    def _outputs_that_hold(self, last: dict[int, int]) -> dict[int, int]:
        """Return, for kept values, an output in whose memory they can be: one that is written after their last read."""
        phases, specs, found = self.phases, self.group.specs, dict[int, int]()
        whole = [v for v in self.group.outputs if not phases.is_of_rows(v) and specs[v].dtype == phases.dtype]
        for v in self._kept:
            late = [o for o in whole if last[v] <= 2 * phases.of[o]]
            if free := [o for o in ([v] if v in whole else late) if o not in found.values()]:
                found[v] = free[0]
        return found

    def _is_there(self, v: int, phase: int) -> bool:
        """Return whether a value was kept by an earlier phase."""
        return v in self._kept and self.phases.of[v] < phase

    def _array(self, v: int) -> tuple[str, str]:
        """Return the array that holds a kept value, and where the row begins in it."""
        if v in self._homes:
            return f"q{self.group.outputs.index(self._homes[v])}", "i"
        return "kept", f"KEPT_FROM({self._elsewhere.index(v)})"

    def _kept_at_j(self, v: int) -> str:
        array, start = self._array(v)
        return f"{array}[{start} + j]"

    # ---- source ----------------------------------------------------------------------------------------------

    def _text(self, rows: Rows) -> str:
        """Return the source of all phases."""
        phases, loads = self.phases, self.loads(rows)
        found = self.of_rows(loads)
        for phase in range(phases.count):
            found += self.links(phases.of_rows(phase))
            found += self._through_the_row(phase, loads)
            found += [self._join(step, rows) for step in self._after(phase)]
        found += [self.statements.store(v, "row") for v in phases.row_outputs]
        return " ".join(found)

    def _through_the_row(self, phase: int, loads: dict[int, str]) -> list[str]:
        """Return the loop over a row's elements that computes what is reduced next, keeps values and writes outputs."""
        text, joined = self.statements, self._in_loop(phase)
        statements = [*self._declared(phase, loads).values()]
        new = [v for v in self._kept if self.phases.of[v] == phase and self._homes.get(v) != v]
        statements += [f"{self._kept_at_j(v)} = {text.names[v]};" for v in new]
        statements += [text.store(v, "i + j") for v in self.phases.stored(phase)]
        if joined is not None:
            total, x, how = text.names[joined.outputs], text.names[joined.inputs[1]], JOINS[joined.op]
            begins, ends = f"JOIN_BEGINS({total}, {how})", f"JOIN_ENDS({total}, {x})"
            return [begins, *statements, f"JOIN_CONTINUES({x})", *statements, ends]
        return ["WIDELY for (long j = 0; j < columns; j++) {", *statements, "}"] if statements else []

    def _declared(self, phase: int, loads: dict[int, str]) -> dict[int, str]:
        """Return the declarations of the elements that a phase reduces or writes, and of all that they depend on."""
        found, phases, text = dict[int, str](), self.phases, self.statements

        def declare(v: int) -> None:
            if v in found or v not in text.names or phases.is_of_rows(v):
                return
            if v in text.arrays:
                found[v] = loads.get(v, "")
            elif self._is_there(v, phase):
                found[v] = f"const T {text.names[v]} = {self._kept_at_j(v)};" if loads else ""
            else:
                for operand in phases.makers[v].inputs[1:]:
                    declare(operand)
                found[v] = text.links[v]

        for v in (*(step.inputs[1] for step in phases.joins(phase)), *phases.stored(phase)):
            if v in phases.makers:
                declare(v)
        return found

    def _join(self, step: Step, rows: Rows) -> str:
        x, how = step.inputs[1], JOINS[step.op]
        if x in self._kept:
            source = ", ".join(self._array(x))
        else:
            source = f"p{self.statements.arrays.index(x)}, o{self.statements.arrays.index(x)} + b{rows.at[x]}"
        return f"const A {self.statements.names[step.outputs]} = join_row({source}, 1, 0, columns, 0, 0, {how});"
