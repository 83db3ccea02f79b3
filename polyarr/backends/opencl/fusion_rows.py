"""One kernel for several steps that go through the same rows, some of which reduce them: softmax and norms, say.

A row is gone through in phases. What a step needs of a row's reductions decides in which phase it computes; at the end
of a phase the rows of the next reductions are there and are joined, as reduce.cl does it. What a reduction joins is
kept for later phases, in memory that stays in the cache; anything else that they need is computed again.
"""

from math import prod

import numpy as np

from polyarr import ops
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.elementwise import STEPS
from polyarr.backends.opencl.groups import Group, Layouts, Plan
from polyarr.backends.opencl.layout import broadcast_strides, collapse, is_gapless
from polyarr.backends.opencl.program import types
from polyarr.backends.opencl.reduce import is_by_rows
from polyarr.backends.opencl.source import STRUCTURE
from polyarr.backends.opencl.statements import ARITHMETIC, Statements
from polyarr.core.program import Kind, Program, Step
from polyarr.core.spec import Spec

JOINS = {ops.sum: "ADDED", ops.max: "GREATEST", ops.min: "SMALLEST"}
WORTH = 16384  # elements that are worth a group


def kind_of_reduction(device: Device, step: Step, specs: tuple[Spec, ...]) -> Kind | None:
    """The kind of a reduction of the last axes, whose sums are of the dtype that is stored; None for all else."""
    if step.op not in JOINS or not device.geometry.joins_rows:
        return None
    (x,), axes = specs, step.params["axis"]
    is_last = axes == tuple(range(x.ndim - len(axes), x.ndim)) and step.params["keepdims"]
    accumulator = types(x.dtype)["ACC"]
    is_exact = ARITHMETIC.get(accumulator) == x.dtype == step.params.get("dtype", x.dtype)
    if not axes or not is_last or not is_exact or not is_by_rows(device, x, axes):
        return None
    return Kind(x.shape, accumulator, len(axes))


class RowGroup(Group):
    """Steps of which some reduce the last axes: see fusion_rows.cl."""

    def __init__(self, device: Device, group: Program, kind: Kind) -> None:
        super().__init__(device, group, kind)
        self._phases = _Phases(group, kind, self.statements)

    def plan(self, layouts: Layouts) -> Plan | None:
        """As in Group; None where what is reduced at once is not dense, for then eager calls add in another order."""
        shape, reduced, text = self.kind.shape, self.kind.reduced, self.statements
        arrays = dict(zip(text.arrays, layouts, strict=True))
        strides = [broadcast_strides(own, steps, len(shape)) for own, _, steps in layouts]
        outer, outer_steps = collapse(shape[:-reduced], [s[:-reduced] for s in strides])
        (*more, columns), last_steps = collapse(shape[-reduced:], [s[-reduced:] for s in strides])
        if more or not all(is_gapless(arrays[v][0], arrays[v][2]) for v in self._phases.direct if v in arrays):
            return None
        steps = [(*s, last) for s, (last,) in zip(outer_steps, last_steps, strict=True)]
        unique = list(dict.fromkeys(steps))
        loads = {
            v: text.load(v, unique.index(s), STEPS.get(s[-1], "STRIDED"))
            for v, s in zip(text.arrays, steps, strict=True)
        }
        rows, geometry = prod(outer), self.device.geometry
        groups = max(1, min(rows, geometry.row_groups(rows, True), -(-rows * columns // WORTH)))
        layout = np.array([*outer, columns, *(n for s in unique for n in s), rows, -(-rows // groups)], np.int64)
        if not self.fits(layout):
            return None
        kernel = self.device.build(
            "fusion_rows",
            **text.macros([unique.index(s) for s in steps]),
            PHASES=self._phases.text(loads, {v: unique.index(s) for v, s in zip(text.arrays, steps, strict=True)}),
            A=types(self._phases.dtype)["ACC"], VECTORS=int(geometry.has_vectors), STRIDE=1, LANES=1,
            PARTIALS=geometry.partials, KEPT=len(self._phases.kept), NDIM=len(outer) + 1, ARRAYS=len(unique),
            INDEX="uint" if rows * columns < 1 << 31 else "ulong",
        ).fusion_rows  # fmt: skip
        kernel.arguments = *text.arguments, None, STRUCTURE
        room = Spec((max(groups * len(self._phases.kept) * columns, 1),), self._phases.dtype)
        return Plan(kernel, (groups,), (1,), layout.tobytes(), room)


class _Phases:
    """The phases of a group.

    kept    the values that are joined, and for that kept: each has a row of its own in the kernel's memory
    direct  the inputs that are joined
    dtype   of what is joined
    """

    def __init__(self, group: Program, kind: Kind, statements: Statements) -> None:
        self._group, self._reduced, self._text = group, kind.reduced, statements
        self._makers = {step.gives: step for step in group.steps}
        self._phase = self._phases()
        joined = dict.fromkeys(step.takes[1] for step in group.steps if step.op in JOINS)
        self.kept = [v for v in joined if v in self._makers]
        self.direct = [v for v in joined if v not in self._makers]
        self.dtype = group.specs[next(iter(joined))].dtype

    def _phases(self) -> dict[int, int]:
        """The phase in which a value is computed. An input is there in the first."""
        found: dict[int, int] = {}
        for step in self._group.steps:
            found[step.gives] = max(found.get(v, 0) for v in step.takes[1:]) + (step.op in JOINS)
        return found

    def _is_of_rows(self, v: int) -> bool:
        """True for a value that is the same along a row."""
        return all(n == 1 for n in self._group.specs[v].shape[-self._reduced :])

    def text(self, loads: dict[int, str], strides: dict[int, int]) -> str:
        """All phases. loads: what declares an input's element j."""
        rows = [v for v in loads if self._is_of_rows(v)]
        found = [loads[v].replace("(j)", "0") for v in rows]
        for phase in range(max(self._phase.values()) + 1):
            steps = [step for step in self._group.steps if self._phase[step.gives] == phase]
            found += [self._text.links[s.gives] for s in steps if s.op not in JOINS and self._is_of_rows(s.gives)]
            joins = [s for s in self._group.steps if s.op in JOINS and self._phase[s.gives] == phase + 1]
            found += self._through_the_row(phase, [s.takes[1] for s in joins], loads)
            found += [self._join(step, strides) for step in joins]
        found += [self._text.store(v, "row") for v in self._group.outputs if self._makers[v].op in JOINS]
        return " ".join(found)

    def _through_the_row(self, phase: int, joined: list[int], loads: dict[int, str]) -> list[str]:
        """The loop over a row's elements, in which what is joined next and what is computed first now is written."""
        due = [s.gives for s in self._group.steps if self._phase[s.gives] == phase and not self._is_of_rows(s.gives)]
        stored = [v for v in due if v in self._group.outputs]
        kept = [v for v in dict.fromkeys(joined) if v in self.kept and self._phase[v] == phase]
        if not stored and not kept:
            return []
        statements = self._declared([*kept, *stored], phase, loads)
        statements += [f"KEEP({self.kept.index(v)}, j, {self._text.names[v]});" for v in kept]
        statements += [self._text.store(v, "i + j") for v in stored]
        return ["for (long j = 0; j < columns; j++) {", *statements, "}"]

    def _declared(self, wanted: list[int], phase: int, loads: dict[int, str]) -> list[str]:
        """What declares the elements of these values and of all that they are made of, in a phase."""
        found: dict[int, str] = {}

        def declare(v: int) -> None:
            if v in found or v not in self._text.names or self._is_of_rows(v):
                return
            if v in loads:
                found[v] = loads[v]
            elif v in self.kept and self._phase[v] < phase:
                found[v] = f"const T {self._text.names[v]} = KEPT_AT({self.kept.index(v)}, j);"
            else:
                for operand in self._makers[v].takes[1:]:
                    declare(operand)
                found[v] = self._text.links[v]

        for v in wanted:
            declare(v)
        return [*found.values()]

    def _join(self, step: Step, strides: dict[int, int]) -> str:
        x, how = step.takes[1], JOINS[step.op]
        if x in self.kept:
            source = f"kept, KEPT_FROM({self.kept.index(x)})"
        else:
            i = self._text.arrays.index(x)
            source = f"p{i}, o{i} + b{strides[x]}"
        return f"const A {self._text.names[step.gives]} = join_row({source}, 1, 0, columns, 0, lanes, {how});"
