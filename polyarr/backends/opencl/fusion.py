"""One kernel for several elementwise ops, out of the expressions that each has of its own: see Fusion and fusion.cl."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from polyarr import ops
from polyarr.backends.opencl.device import Device, room_of
from polyarr.backends.opencl.elementwise import (
    EXPRESSIONS,
    INT64,
    LAYOUT,
    PLACE,
    STEPS,
    WHERE,
    arithmetic,
    conversion,
    to_argument,
    usual,
    vector_of,
)
from polyarr.backends.opencl.layout import Buffer, broadcast_strides, collapse, row_major, steps_of
from polyarr.backends.opencl.program import types, vector_types
from polyarr.backends.opencl.source import SCALARS, STRUCTURE
from polyarr.core.number import evaluate
from polyarr.core.program import Fusion, Program, Step
from polyarr.core.spec import FLOATS, Spec, float32, float64
from polyarr.core.spec import bool as bool_

MOST = 16  # arrays: OpenCL promises 1024 bytes for a kernel's arguments
OPS = {getattr(ops, name): expression for name, expression in EXPRESSIONS.items()} | {ops.where: WHERE}
NAMES = {1: ("x",), 2: ("x", "y"), 3: ("c", "x", "y")}
ARITHMETIC = {"float": float32, "double": float64}  # the dtype whose functions a group of this kind calls
TYPED = ("NEXTAFTER", "TO_INTEGER")  # what depends on how operands or results are stored


class Plan(NamedTuple):
    """What one combination of layouts needs at every launch."""

    kernel: Any
    work: tuple[int, ...]
    group: tuple[int, ...]
    layout: bytes


class Operand(NamedTuple):
    """A number that a kernel takes: which value it is, how it becomes an argument, and the argument's C type."""

    value: int
    argument: Callable[[Any], Any]
    type: str


def fusion_of(device: Device) -> Fusion:
    """What of programs becomes one kernel on a device."""
    return Fusion(partial(_kind, device), partial(Group, device), MOST)


def _kind(device: Device, step: Step, specs: tuple[Spec, ...], out: Spec) -> str | None:
    """The type in which the functions compute that a step's expression calls; "" if it calls none."""
    expression = _expression(step, specs)
    if expression is None or "(" not in expression:
        return None if expression is None else ""
    dtype = _operands(specs, out)
    accumulator = types(dtype)["ACC"]
    if dtype not in FLOATS or expression.startswith(TYPED) or usual(device, expression, accumulator):
        return None
    return accumulator


def _expression(step: Step, specs: tuple[Spec, ...]) -> str | None:
    if step.op is ops.astype:
        return conversion(specs[0].dtype, step.params["dtype"])
    return OPS.get(step.op)


def _operands(specs: tuple[Spec, ...], out: Spec) -> np.dtype:
    """The dtype of x and y."""
    return next((s.dtype for s in specs[-2:] if not s.is_number), out.dtype)


class Group:
    """Several elementwise steps as one kernel, built for each combination of layouts."""

    def __init__(self, device: Device, group: Program) -> None:
        self._device, self._group = device, group
        self._specs = [group.specs[v] for v in group.outputs]
        self._rooms = [device.plans[room_of](spec) for spec in self._specs]
        self._arrays = [i for i, v in enumerate(group.inputs) if v in group.specs]
        self._kernel = _Text(group)
        self._plans: dict[Any, Plan] = {}

    def __call__(self, outs: tuple[Spec, ...], *inputs: Any) -> tuple[Buffer, ...]:
        """The outputs, of arrays in any layout, and numbers."""
        device = self._device
        device.faults.follow(inputs)
        arrays = [inputs[i] for i in self._arrays]
        layouts = tuple([b[LAYOUT] for b in arrays])
        plan = self._plans.get(layouts)
        if plan is None:
            plan = self._plans[layouts] = self._plan(layouts)
        values = {**self._group.constants, **dict(zip(self._group.inputs, inputs, strict=True))}
        numbers = [evaluate(n.argument, values[n.value]) for n in self._kernel.numbers]
        results = device.fresh_all(self._specs, self._rooms)
        places = [part for b in arrays for part in b[PLACE]]
        plan.kernel(plan.work, plan.group, *numbers, *places, *[r.memory for r in results], plan.layout)
        return tuple(results)

    def _plan(self, layouts: tuple) -> Plan:
        shape, geometry = self._specs[0].shape, self._device.geometry
        strides = [broadcast_strides(own, steps, len(shape)) for own, _, steps in layouts]
        lengths, (*steps, out) = collapse(shape, [*strides, steps_of(shape, row_major(shape))])
        dtypes = [dtype for _, dtype, _ in layouts] + [spec.dtype for spec in self._specs]
        vector = vector_of(geometry.vector(max(dtype.itemsize for dtype in dtypes)), lengths, (*steps, out))
        size = self._specs[0].size
        work, group, block = geometry.elements(size, vector)
        unique = list(dict.fromkeys(steps))
        program = self._device.build(
            "fusion",
            **self._kernel.macros([(unique.index(s), STEPS.get(s[-1], "STRIDED")) for s in steps], vector),
            NDIM=len(lengths),
            ARRAYS=max(len(unique), 1),
            INDEX="uint" if size < 1 << 31 else "ulong",
            WG=group[0],
            PER_ITEM=geometry.per_item(vector),
            VECTOR=vector,
        )
        layout = np.array([*lengths, *(n for s in unique or [out] for n in s), size, block], np.int64)
        program.fusion.arguments = self._kernel.arguments
        return Plan(program.fusion, work, group, layout.tobytes())


class _Text:
    """A group as C.

    numbers    the numbers that the kernel takes first
    arguments  the types of all that it takes
    """

    def __init__(self, group: Program) -> None:
        self._group, self.numbers = group, list[Operand]()
        self._arrays = [v for v in group.inputs if v in group.specs]
        self._names = {v: f"v{i}" for i, v in enumerate((*self._arrays, *(step.gives for step in group.steps)))}
        self._links = [*map(self._link, group.steps)]
        self._dtype = float32
        for step in group.steps:
            specs = self._specs(step)
            if "(" in (_expression(step, specs) or ""):
                self._dtype = ARITHMETIC[types(_operands(specs, group.specs[step.gives]))["ACC"]]
        places = (None, INT64) * len(self._arrays) + (None,) * len(group.outputs)
        self.arguments = *(SCALARS[n.type] for n in self.numbers), *places, STRUCTURE

    def _specs(self, step: Step) -> tuple[Spec, ...]:
        return tuple([self._group.spec(v) for v in step.takes[1:]])  # type: ignore[misc]

    def _link(self, step: Step) -> str:
        """One op: a statement of its own, and its result rounded to what it is stored as."""
        specs, out = self._specs(step), self._group.specs[step.gives]
        dtype = _operands(specs, out)
        names = NAMES[len(specs)]
        parts = [
            f"const {'int' if name == 'c' else types(dtype)['ACC']} {name} = {self._operand(v, dtype, out)};"
            for name, v in zip(names, step.takes[1:], strict=True)
        ]
        kind, result = out.dtype.name, self._names[step.gives]
        assign = f"{result} = widen_{kind}(narrow_{kind}({_expression(step, specs)}));"
        return f"{types(out.dtype)['ACC']} {result}; {{ {' '.join(parts)} {assign} }}"

    def _operand(self, v: int, dtype: np.dtype, out: Spec) -> str:
        if v in self._names:
            return self._names[v]
        is_compared, accumulator = out.dtype == bool_, types(dtype)["ACC"]
        key = v, to_argument(dtype, is_compared=is_compared), accumulator
        self.numbers.append(Operand(*key))
        return f"n{len(self.numbers) - 1}"

    def macros(self, steps: list[tuple[int, str]], vector: int) -> dict[str, Any]:
        """What spells the group out. steps: of each array, which strides it has, and what its last one is called."""
        stored = types(self._dtype)
        bases = [f"const long b{i} = distance_to(place, layout.steps[{i}]);" for i in {*(at for at, _ in steps)}]
        numbers = [f"const {n.type} n{i}," for i, n in enumerate(self.numbers)]
        return {
            "T": stored["T"], "ACC": stored["ACC"], "OUT_T": stored["T"], "DTYPE": self._dtype.name,
            **arithmetic(self._dtype),
            "PARAMETERS": " ".join((*numbers, *self._pointers())),
            "BASES": " ".join(bases),
            "LINKS": " ".join(self._links),
            **self._moves(steps),
            **self._vector_moves(steps, vector),
        }  # fmt: skip

    def _pointers(self) -> Iterator[str]:
        for i, v in enumerate(self._arrays):
            yield f"__global const {types(self._group.specs[v].dtype)['T']} *restrict p{i}, const long o{i},"
        for i, v in enumerate(self._group.outputs):
            yield f"__global {types(self._group.specs[v].dtype)['T']} *restrict q{i},"

    def _moves(self, steps: list[tuple[int, str]]) -> dict[str, str]:
        """One element at a time."""
        loads = []
        for i, (v, (at, kind)) in enumerate(zip(self._arrays, steps, strict=True)):
            along = {"REPEATED": "", "DENSE": " + (j)"}.get(kind, f" + (j) * layout.steps[{at}][NDIM - 1]")
            dtype = types(self._group.specs[v].dtype)
            loads.append(f"const {dtype['ACC']} v{i} = {dtype['LOAD']}(p{i}, o{i} + b{at}{along});")
        stores = [
            f"{types(self._group.specs[v].dtype)['STORE']}(q{i}, i + (j), {self._names[v]});"
            for i, v in enumerate(self._group.outputs)
        ]
        return {"LOADS(j)": " ".join(loads), "STORES(j)": " ".join(stores)}

    def _vector_moves(self, steps: list[tuple[int, str]], vector: int) -> dict[str, str]:
        """VECTOR elements at a time."""
        specs, outputs = self._group.specs, [*enumerate(self._group.outputs)]
        inputs = [(i, specs[v].dtype, *step) for i, (v, step) in enumerate(zip(self._arrays, steps, strict=True))]
        each = {dtype: None for _, dtype, *_ in inputs} | {specs[v].dtype: None for _, v in outputs}
        reads = [
            f"{types(d)['ACC']} r{i}[VECTOR]; "
            + (
                f"read_{d.name}(p{i}, o{i} + b{at}, o{i} + b{at} + count, r{i});" if kind == "DENSE"
                else f"EACH_OF_VECTOR r{i}[k] = {types(d)['LOAD']}(p{i}, o{i} + b{at});"
            )
            for i, d, at, kind in inputs
        ]  # fmt: skip
        rooms = [f"{types(specs[v].dtype)['ACC']} w{i}[VECTOR];" for i, v in outputs]
        return {
            "FUNCTIONS": " ".join(_vector(dtype, vector) for dtype in each) if vector > 1 else "",
            "OFFSETS": " | ".join(["0", *(f"o{i}" for i, *_ in inputs)]),
            "READS": " ".join(reads + rooms),
            "PICK": " ".join(f"const {types(d)['ACC']} v{i} = r{i}[k];" for i, d, *_ in inputs),
            "PUT": " ".join(f"w{i}[k] = {self._names[v]};" for i, v in outputs),
            "WRITES": " ".join(f"write_{specs[v].dtype.name}(q{i}, i, i + count, w{i});" for i, v in outputs),
        }


def _vector(dtype: np.dtype, count: int) -> str:
    found = {**types(dtype), **vector_types(dtype, count)}
    return "DEFINE_VECTOR({DTYPE}, {DTYPE}, {T}, {RAW}, {ACC}, {WORD})".format(**found)
