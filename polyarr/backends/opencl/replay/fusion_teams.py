"""Groups of steps that go through the same rows, which work-items share: the kernels for GPUs.

A work-item goes along its share of a row once in each phase. What it needs again of an earlier phase it holds in
registers, if its share is short enough; otherwise that is read and computed again.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from polyarr import ops
from polyarr.backends.opencl.elementwise import LAYOUT
from polyarr.backends.opencl.reduce import team_of
from polyarr.backends.opencl.replay.fusion_rows import RowGroup, Rows
from polyarr.backends.opencl.replay.groups import Layouts, Plan
from polyarr.backends.opencl.runtime.layout import ALIGNMENT, Buffer, is_aligned
from polyarr.backends.opencl.runtime.program import types, vector_types
from polyarr.backends.opencl.runtime.source import STRUCTURE

HOW = {ops.sum: "ADD", ops.max: "LARGEST", ops.min: "LEAST"}
LONGEST = 1 << 30  # places in a row are ints
READ = 6  # values of an input that are in registers besides what is held


class TeamRows(RowGroup):
    """Rows that work-items share: see fusion_rows_gpu.cl."""

    def layouts(self, arrays: list[Buffer]) -> Layouts:
        """As in Group, and whether an array begins with a vector."""
        return tuple([(*b[LAYOUT], is_aligned(b)) for b in arrays])

    def plan_of(self, rows: Rows, layouts: Layouts) -> Plan | None:
        """As in RowGroup; None, too, where what is reduced at once does not begin with a vector, as results do."""
        columns, layout, text = rows.columns, rows.layout(), self.statements
        aligned = {v for v, (*_, begins) in zip(text.arrays, layouts, strict=True) if begins}
        if not self.fits(layout) or columns > LONGEST or not aligned.issuperset(self.phases.direct):
            return None
        group, vector, lanes = team_of(self.device, self.phases.dtype, columns)
        step, is_even = vector * lanes, columns % vector == 0
        slots, whole = -(-(columns + (0 if is_even else vector - 1)) // step), columns // step
        writer = Writer(self, rows, vector, aligned & (_even(rows, vector) if is_even else rows.dense))
        body, held = writer.text(holds=True)
        read = READ * sum(not self.phases.is_of_rows(v) for v in text.arrays)
        if slots * vector * max(1, len(held)) + read > self.device.geometry.most_values:
            slots, whole, (body, held) = 0, 0, writer.text(holds=False)
        kernel = self.device.build(
            "fusion_rows_gpu",
            **text.macros([*rows.at.values()]), **rows.macros, PHASES=body, VECTOR=vector,
            FUNCTIONS=" ".join(writer.functions()), HELD=" ".join(held),
            A=types(self.phases.dtype)["ACC"], WG=group, LANES=lanes, SLOTS=slots, WHOLE=whole, EVEN=int(is_even),
        ).fusion_rows_gpu  # fmt: skip
        kernel.arguments = *text.arguments, STRUCTURE
        work = -(-rows.count // (group // lanes)) * group
        return Plan(kernel, (work,), (group,), layout.tobytes())


def _even(rows: Rows, vector: int) -> set[int]:
    """The arrays whose rows all begin with a vector if the first one does."""
    return {v for v, i in rows.at.items() if not any(step % vector for step in rows.steps[i][:-1])}


class Writer:
    """Writes what a work-item does with its share of a row. aligned are the inputs whose slots lie in vectors."""

    def __init__(self, group: TeamRows, rows: Rows, vector: int, aligned: set[int]) -> None:
        self._group, self._rows, self._vector = group, rows, vector
        self._phases, self._text, self._loads = group.phases, group.statements, group.loads(rows)
        self._specs, self._outputs = group.group.specs, group.group.outputs
        dense = {v for v in aligned if rows.along[v] == "DENSE"}
        self._read_at_once = {v for v in dense if self._is_vector(self._specs[v].dtype)}

    def functions(self) -> Iterator[str]:
        """What moves vectors, for each dtype of which there are some."""
        for dtype in dict.fromkeys(self._specs[v].dtype for v in (*self._text.arrays, *self._outputs)):
            if self._is_vector(dtype):
                found: dict[str, Any] = {**types(dtype), **vector_types(dtype, self._vector)}
                yield "DEFINE_MOVES({DTYPE}, {T}, {RAW}, {ACC}, {WORD})".format(**found)

    def text(self, *, holds: bool) -> tuple[str, list[str]]:
        """All phases, and the declarations of what is held, if something is to be."""
        plans, held = self._plans() if holds else ([self._needed(p, {}) for p in range(self._phases.count)], {})
        found = self._group.of_rows(self._loads)
        for phase, needed in enumerate(plans):
            found += self._group.links(self._phases.of_rows(phase))
            found += self._along_the_row(phase, needed, held)
        found += [f"if (me == 0 && end) {self._text.store(v, 'row')}" for v in self._phases.reduced]
        rooms = sorted({(i, self._acc(v)) for v, i in held.items()})
        return " ".join(found), [f"{acc} h{i}[SLOTS][VECTOR];" for i, acc in rooms]

    # ---- which elements a phase needs ------------------------------------------------------------------------

    def _plans(self) -> tuple[list[dict[int, bool]], dict[int, int]]:
        """What each phase needs, and what is held from one to another, by value and number.

        A value takes the room of one that is needed for the last time where it is computed.
        """
        there, plans = dict[int, bool](), []
        for phase in range(self._phases.count):
            plans.append(self._needed(phase, there))
            there.update(plans[-1])
        held, rooms = dict[int, int](), list[tuple[str, int]]()  # types, and the phases in which they are free again
        for v in [v for v in there if any(needed.get(v) for needed in plans)]:  # in the order of their first phases
            first, *_, last = [phase for phase, needed in enumerate(plans) if v in needed]
            free = [i for i, (acc, until) in enumerate(rooms) if acc == self._acc(v) and until <= first]
            held[v] = free[0] if free else len(rooms)
            rooms[held[v] : held[v] + 1] = [(self._acc(v), last)]
        return plans, held

    def _needed(self, phase: int, there: dict[int, bool]) -> dict[int, bool]:
        """The values of which a phase needs elements, in an order to declare them, and whether they are there."""
        found = dict[int, bool]()

        def need(v: int) -> None:
            if v in found or v not in self._text.names or self._phases.is_of_rows(v):
                return
            if v not in there and v not in self._loads:
                for operand in self._phases.makers[v].takes[1:]:
                    need(operand)
            found[v] = v in there

        for v in (*(step.takes[1] for step in self._phases.joins(phase)), *self._phases.stored(phase)):
            need(v)
        return found

    # ---- a phase ---------------------------------------------------------------------------------------------

    def _along_the_row(self, phase: int, needed: dict[int, bool], held: dict[int, int]) -> list[str]:
        """Each slot's elements are read, or are there; what they are made into is held, joined and written."""
        if not needed:
            return []
        stored, names = self._phases.stored(phase), self._text.names
        joins = [(names[step.takes[1]], names[step.gives], HOW[step.op]) for step in self._phases.joins(phase)]
        new = [v for v, is_there in needed.items() if not is_there]
        each = [self._declared(v, f"h{held[v]}[s][k]" if is_there else "") for v, is_there in needed.items()]
        return [
            *(f"A all_{v} = EMPTY_{how};" for _, v, how in joins),
            "EACH_RUN {",
            *(f"A some_{v}[VECTOR]; EACH_OF_VECTOR some_{v}[k] = EMPTY_{how};" for _, v, how in joins),
            "EACH_SLOT { SLOT",
            *(self._read(v) for v in new if v in self._read_at_once),
            *(self._room(v) for v in stored),
            "EACH_OF_VECTOR { PLACE",
            *each,
            *(f"h{held[v]}[s][k] = {names[v]};" for v in new if v in held),
            *(f"JOIN_OWN({how}, some_{v}[k], {x})" for x, v, how in joins),
            *(self._given(v) for v in stored),
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
        place = f"o{i} + b{self._rows.at[v]}, first"
        return f"{self._acc(v)} r{v}[VECTOR]; {take}(p{i}, {place}, columns, is_inner, r{v});"

    def _declared(self, v: int, held: str) -> str:
        """One element of a value: which is held, or read, or computed."""
        source = held or (f"r{v}[k]" if v in self._read_at_once else "")
        if source:
            return f"const {self._acc(v)} {self._text.names[v]} = {source};"
        return self._loads[v] if v in self._loads else self._text.links[v]

    def _room(self, v: int) -> str:
        return f"{self._acc(v)} w{v}[VECTOR];"

    def _given(self, v: int) -> str:
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
