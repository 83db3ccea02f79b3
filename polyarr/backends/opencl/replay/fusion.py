"""Fuses several elementwise steps of a program, and reductions over rows, into one kernel."""

import math
from functools import partial

import numpy as np

from polyarr import ops
from polyarr.backends.opencl.elementwise.elements import kernel_of
from polyarr.backends.opencl.elementwise.elementwise import kind_of, others_of, usual, vector_of
from polyarr.backends.opencl.replay.fusion_rows import SerialRows, kind_of_reduction
from polyarr.backends.opencl.replay.fusion_rows_gpu import CooperativeRows
from polyarr.backends.opencl.replay.groups import Group, Layouts, Plan
from polyarr.backends.opencl.replay.statements import dtype_of, expression_of
from polyarr.backends.opencl.runtime.commands import InPlace
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import broadcast_strides, collapse, row_major, steps_of
from polyarr.backends.opencl.runtime.program import types
from polyarr.backends.opencl.runtime.source import STRUCTURE
from polyarr.core.program import Fusion, Kind, Program, Step
from polyarr.core.spec import COMPLEX, FLOATS, Spec

ROW_GROUPS = {"cpu": SerialRows, "gpu": CooperativeRows}
MAX_ARRAYS = 16  # arrays that a kernel reads and writes
TYPED = ("NEXTAFTER", "TO_INTEGER")  # expressions that depend on how operands or results are stored


def fusion_of(device: Device) -> Fusion:
    """Return the rules by which steps of a program are fused on a device."""
    return Fusion(partial(_kind, device), partial(_made, device), MAX_ARRAYS, concat=True)


def _made(device: Device, group: Program, kind: Kind) -> Group:
    return (ROW_GROUPS[device.geometry.kind] if kind.reduced else ElementGroup)(device, group, kind)


def _kind(device: Device, step: Step, specs: tuple[Spec, ...], out: Spec) -> Kind | None:
    """Return the kind of an elementwise step or a reduction of rows; None if it cannot be fused.

    `calls` of the kind is the type in which the functions of the expression compute, "" if it calls none.
    """
    expression = expression_of(step, specs)
    if expression is None:
        return kind_of_reduction(device, step, specs)
    dtype = dtype_of(specs, out)
    if found := [d for d in (dtype, out.dtype) if d in COMPLEX]:  # they are fused among themselves
        return Kind(out.shape, types(found[0])["ACC"])
    if "(" not in expression:
        return Kind(out.shape)
    accumulator = types(dtype)["ACC"]
    if dtype not in FLOATS or expression.startswith(TYPED) or usual(device, expression, accumulator):
        return None
    return Kind(out.shape, accumulator)


class ElementGroup(Group):
    """A group of elementwise steps, and of steps that concatenate their results: see elementwise.cl."""

    def __init__(self, device: Device, group: Program, kind: Kind) -> None:
        super().__init__(device, group, kind)
        self.concatenated = {step.outputs: step for step in group.steps if step.op is ops.concat}

    def plan(self, layouts: Layouts) -> Plan | None:
        """Plan a launch, as Group does."""
        shape, size, geometry = self.kind.shape, math.prod(self.kind.shape), self.device.geometry
        strides = [broadcast_strides(own, steps, len(shape)) for own, _, steps in layouts]
        strides += [steps_of(shape, row_major(self.group.specs[v].shape)) for v in self.concatenated]
        lengths, (*steps, out) = collapse(shape, [*strides, steps_of(shape, row_major(shape))])
        dtypes = [dtype for _, dtype, _ in layouts] + [spec.dtype for spec in self.specs]
        vector = vector_of(geometry.vector(max(dtype.itemsize for dtype in dtypes)), lengths, (*steps, out))
        work, group, block = geometry.elements(size, vector)
        unique = list(dict.fromkeys(steps)) or [out]
        layout = np.array([*lengths, *(n for s in unique for n in s), size, block], np.int64)
        if not self.fits(layout):
            return None
        arrays, text = [(unique.index(s), kind_of(s)) for s in steps], self.statements
        inputs = [text.input(v, *found) for v, found in zip(text.arrays, arrays, strict=False)]
        outputs = [text.output(v, "i") for v in self.group.outputs if v not in self.concatenated]
        for (v, step), found in zip(self.concatenated.items(), arrays[len(inputs) :], strict=True):
            outputs += text.concatenated(v, step.inputs[1], *found, length=shape[-1])
        kernel = kernel_of(
            self.device, inputs, outputs, lengths, len(unique), size, group, vector,
            **text.macros([at for at, _ in arrays]), LINKS=" ".join(text.links.values()),
        )  # fmt: skip
        kernel.arguments = (*text.arguments, STRUCTURE)
        kernel.in_place = self._in_place(lengths, arrays)
        return Plan(kernel, work, group, layout.tobytes())

    def _in_place(self, lengths: tuple[int, ...], arrays: list[tuple[int, str]]) -> tuple[InPlace, ...]:
        """Return the inputs that the result may overwrite; with several results, one may be written before all is read.
        """
        if len(lengths) > 1 or len(self.specs) > 1 or self.concatenated:
            return ()
        first, size = len(self.statements.numbers), self.specs[0].dtype.itemsize
        fits = [self.group.specs[v].dtype.itemsize == size for v in self.statements.arrays]
        named = [(first + 2 * i, kind) for i, (_, kind) in enumerate(arrays)]
        at = [i for (i, kind), is_fitting in zip(named, fits, strict=True) if kind == "DENSE" and is_fitting]
        return tuple(InPlace(i, first + 2 * len(arrays), (i + 1,), others=others_of(named)) for i in at)
