"""Fused steps over rows that are shared by work-items: the kernels for GPUs.

A work-item goes through its share of a row once per phase. Values that it needs in later phases stay in registers if
its share is short enough; otherwise they are read and computed again.
"""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from polyarr import ops
from polyarr.backends.opencl.reductions.reduce import team_of
from polyarr.backends.opencl.replay.fusion_rows import RowGroup, Rows
from polyarr.backends.opencl.replay.groups import Layouts, Plan
from polyarr.backends.opencl.runtime.geometry import GpuGeometry
from polyarr.backends.opencl.runtime.layout import ALIGNMENT, Buffer, is_aligned
from polyarr.backends.opencl.runtime.program import types, vector_types
from polyarr.backends.opencl.runtime.source import STRUCTURE

HOW = {ops.sum: "ADD", ops.max: "LARGEST", ops.min: "LEAST"}
MAX_ROW = 1 << 30  # positions in a row are ints
READ_REGISTERS = 6  # values of an input that are in registers besides those that are held


class CooperativeRows(RowGroup):
    """Rows that are shared by work-items: see fusion_rows_gpu.cl."""

    def layouts(self, arrays: list[Buffer]) -> Layouts:
        """Return what a plan depends on: also whether an array is aligned to vectors."""
        return tuple([(b.shape, b.dtype, b.strides, is_aligned(b)) for b in arrays])

    def plan_of(self, rows: Rows, layouts: Layouts) -> Plan | None:
        """Return the plan, as RowGroup does; None also if a reduced input is not aligned, as results are."""
        columns, layout, text = rows.columns, rows.layout(), self.statements
        aligned = {v for v, (*_, begins) in zip(text.arrays, layouts, strict=True) if begins}
        if not self.fits(layout) or columns > MAX_ROW or not aligned.issuperset(self.phases.direct):
            return None
        group, vector, lanes = team_of(self.device, self.phases.dtype, columns)
        step, is_even = vector * lanes, columns % vector == 0
        slots, whole = -(-(columns + (0 if is_even else vector - 1)) // step), columns // step
        writer = Writer(self, rows, vector, aligned & (_even(rows, vector) if is_even else rows.dense))
        body, held = writer.text(holds=True)
        read = READ_REGISTERS * sum(not self.phases.is_of_rows(v) for v in text.arrays)
        if slots * vector * max(1, len(held)) + read > cast("GpuGeometry", self.device.geometry).most_values:
            slots, whole, (body, held) = 0, 0, writer.text(holds=False)
        kernel = self.device.build(
            "fusion_rows_gpu",
            **text.macros([*rows.at.values()]), **rows.macros, PHASES=body, VECTOR=vector,
            FUNCTIONS=" ".join(writer.functions()), HELD=" ".join(held),
            A=types(self.phases.dtype)["ACC"], WG=group, LANES=lanes, SLOTS=slots, WHOLE=whole, EVEN=int(is_even),
        ).fusion_rows_gpu  # fmt: skip
        kernel.arguments = *text.arguments, STRUCTURE
        work = -(-rows.total // (group // lanes)) * group
        return Plan(kernel, (work,), (group,), layout.tobytes())


def _even(rows: Rows, vector: int) -> set[int]:
    """Return the arrays whose rows are all aligned if the first one is."""
    return {v for v, i in rows.at.items() if not any(step % vector for step in rows.steps[i][:-1])}


class Writer:
    """Writes the source of a work-item for its share of a row; `aligned` are the inputs whose slots are vectors."""

    def __init__(self, group: CooperativeRows, rows: Rows, vector: int, aligned: set[int]) -> None:
        self._group, self._rows, self._vector = group, rows, vector
        self._phases, self._text, self._loads = group.phases, group.statements, group.loads(rows)
        self._specs, self._outputs = group.group.specs, group.group.outputs
        dense = {v for v in aligned if rows.along[v] == "DENSE"}
        self._read_at_once = {v for v in dense if self._is_vector(self._specs[v].dtype)}

    def functions(self) -> Iterator[str]:
        """Yield the definitions of vector loads and stores, by dtype."""
        for dtype in dict.fromkeys(self._specs[v].dtype for v in (*self._text.arrays, *self._outputs)):
            if self._is_vector(dtype):
                found: dict[str, Any] = {**types(dtype), **vector_types(dtype, self._vector)}
                yield "DEFINE_MOVES({DTYPE}, {T}, {RAW}, {ACC}, {WORD})".format(**found)

    def text(self, *, holds: bool) -> tuple[str, list[str]]:
        """Return the source of all phases, and the declarations of values held in registers."""
        plans, held = self._plans() if holds else ([self._needed(p, {}) for p in range(self._phases.count)], {})
        found = self._group.of_rows(self._loads)
        for phase, needed in enumerate(plans):
            found += self._group.links(self._phases.of_rows(phase))
            found += self._along_the_row(phase, needed, held)
        found += [f"if (me == 0 && end) {self._text.store(v, 'row')}" for v in self._phases.row_outputs]
        slots = sorted({(i, self._acc(v)) for v, i in held.items()})
        return " ".join(found), [f"{acc} h{i}[SLOTS][VECTOR];" for i, acc in slots]

    def _plans(self) -> tuple[list[dict[int, bool]], dict[int, int]]:
        """Return what each phase needs, and the register slots of values held between phases.

        A value reuses the slot of one whose last use is in the phase that computes it.
        """
        there, plans = dict[int, bool](), []
        for phase in range(self._phases.count):
            plans.append(self._needed(phase, there))
            there.update(plans[-1])
        held, slots = dict[int, int](), list[tuple[str, int]]()  # types, and the phases after which the slots are free
        for v in [v for v in there if any(needed.get(v) for needed in plans)]:  # in the order of their first phases
            first, *_, last = [phase for phase, needed in enumerate(plans) if v in needed]
            free = [i for i, (acc, until) in enumerate(slots) if acc == self._acc(v) and until <= first]
            held[v] = free[0] if free else len(slots)
            slots[held[v] : held[v] + 1] = [(self._acc(v), last)]
        return plans, held

    def _needed(self, phase: int, there: dict[int, bool]) -> dict[int, bool]:
        """Return the values of which a phase needs elements, in order of declaration, and whether they are held."""
        found = dict[int, bool]()

        def need(v: int) -> None:
            if v in found or v not in self._text.names or self._phases.is_of_rows(v):
                return
            if v not in there and v not in self._loads:
                for operand in self._phases.makers[v].inputs[1:]:
                    need(operand)
            found[v] = v in there

        for v in (*(step.inputs[1] for step in self._phases.joins(phase)), *self._phases.stored(phase)):
            need(v)
        return found

    def _along_the_row(self, phase: int, needed: dict[int, bool], held: dict[int, int]) -> list[str]:
        """Return the loop over slots: elements are read or held; results are held, reduced and written."""
        if not needed:
            return []
        stored, names = self._phases.stored(phase), self._text.names
        joins = [(names[step.inputs[1]], names[step.outputs], HOW[step.op]) for step in self._phases.joins(phase)]
        new = [v for v, is_there in needed.items() if not is_there]
        each = [self._declared(v, f"h{held[v]}[s][k]" if is_there else "") for v, is_there in needed.items()]
        return [
            *(f"A all_{v} = EMPTY_{how};" for _, v, how in joins),
            "EACH_RUN {",
            *(f"A some_{v}[VECTOR]; EACH_OF_VECTOR some_{v}[k] = EMPTY_{how};" for _, v, how in joins),
            "EACH_SLOT { SLOT",
            *(self._read(v) for v in new if v in self._read_at_once),
            *(self._declared_vector(v) for v in stored),
            "EACH_OF_VECTOR { FIND_BASE",
            *each,
            *(f"h{held[v]}[s][k] = {names[v]};" for v in new if v in held),
            *(f"JOIN_OWN({how}, some_{v}[k], {x})" for x, v, how in joins),
            *(self._assigned(v) for v in stored),
            "}",
            *(self._written(v) for v in stored),
            "}",
            *(f"EACH_OF_VECTOR all_{v} = {how}(all_{v}, some_{v}[k]);" for _, v, how in joins),
            "}",
            *(f"const A {v} = lanes_{how}(all_{v}, me, lanes + team);" for _, v, how in joins),
        ]

    def _acc(self, v: int) -> str:
        return self._text.types(v)["ACC"]

    def _is_vector(self, dtype: np.dtype) -> bool:
        return dtype.itemsize * self._vector <= ALIGNMENT

    def _read(self, v: int) -> str:
        i, take = self._text.arrays.index(v), f"take_{self._specs[v].dtype.name}"
        base = f"o{i} + b{self._rows.at[v]}, first"
        return f"{self._acc(v)} r{v}[VECTOR]; {take}(p{i}, {base}, columns, is_inner, r{v});"

    def _declared(self, v: int, held: str) -> str:
        """Return the declaration of one element of a value, which is held, read or computed."""
        source = held or (f"r{v}[k]" if v in self._read_at_once else "")
        if source:
            return f"const {self._acc(v)} {self._text.names[v]} = {source};"
        return self._loads[v] if v in self._loads else self._text.links[v]

    def _declared_vector(self, v: int) -> str:
        return f"{self._acc(v)} w{v}[VECTOR];"

    def _assigned(self, v: int) -> str:
        if self._is_vector(self._specs[v].dtype):
            return f"w{v}[k] = {self._text.names[v]};"
        return f"if (is_own) {self._text.store(v, 'i + j')}"

    def _written(self, v: int) -> str:
        dtype = self._specs[v].dtype
        return (
            f"put_{dtype.name}(q{self._outputs.index(v)}, i, first, end, is_inner, w{v});"
            if self._is_vector(dtype)
            else ""
        )
