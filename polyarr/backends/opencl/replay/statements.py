"""A group of steps as C source: one statement per op, from the op's own expression."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from polyarr import ops
from polyarr.backends.opencl.elementwise import elements
from polyarr.backends.opencl.elementwise.elementwise import (
    CONJUGATE,
    COPY,
    EXPRESSIONS,
    IMAGINARY_PART,
    INT64,
    REAL_PART,
    WHERE,
    arithmetic,
    conversion,
    for_dtype,
    joined_parts,
    to_argument,
)
from polyarr.backends.opencl.runtime.program import types
from polyarr.backends.opencl.runtime.source import passed_as
from polyarr.core.program import Program, Step
from polyarr.core.spec import COMPLEX, Spec, complex64, complex_of, float32, float64
from polyarr.core.spec import bool as bool_

OPS = {getattr(ops, name): expression for name, expression in EXPRESSIONS.items()} | {
    ops.where: WHERE, ops.conj: CONJUGATE, ops.real_part: REAL_PART, ops.imaginary_part: IMAGINARY_PART,
}  # fmt: skip
SETTLED = {float32: "SETTLED", complex64: "SETTLED_COMPLEX"}  # macros of elementwise.cl
NAMES = {1: ("x",), 2: ("x", "y"), 3: ("c", "x", "y")}  # of an op's operands in its expression
# Dtypes by the C type in which their functions compute; those of complex numbers compute with the parts.
ARITHMETIC = {"float": float32, "double": float64, "float2": float32, "double2": float64}


class Operand(NamedTuple):
    """A scalar argument: the value's index, its conversion to an argument, and the argument's C type."""

    value: int
    argument: Callable[[Any], Any]
    type: str


def expression_of(step: Step, specs: tuple[Spec, ...]) -> str | None:
    """Return what a step computes, in C; None if it is not elementwise. specs are those of its inputs."""
    if step.op is ops.astype:
        return conversion(specs[0].dtype, step.params["dtype"])
    if step.op is ops.complex:
        return joined_parts(complex_of(dtype_of(specs, specs[0])))
    dtype = dtype_of(specs, specs[0]) if specs else None
    if step.op is ops.conj and dtype not in COMPLEX:
        return COPY
    found = OPS.get(step.op)
    return found if found is None or dtype is None or dtype not in COMPLEX else for_dtype(found, dtype)


def dtype_of(specs: tuple[Spec, ...], out: Spec) -> np.dtype:
    """Return the dtype of an expression's x and y."""
    return next((s.dtype for s in specs[-2:] if not s.is_number), out.dtype)


class Statements:
    """The statements of a group, and the loads and stores of its arrays' elements.

    Attributes:
        names: C names of the values: elements of arrays, and results.
        arrays: The inputs that are arrays.
        numbers: The scalars, which are the kernel's first arguments.
    """

    def __init__(self, group: Program, calls: str) -> None:
        self.group, self.numbers, self._dtype = group, list[Operand](), ARITHMETIC.get(calls, float32)
        self._is_complex = calls.endswith("2")
        self.arrays = [v for v in group.inputs if v in group.specs]
        self.names = {v: f"v{i}" for i, v in enumerate((*self.arrays, *(step.outputs for step in group.steps)))}
        computing = [step for step in group.steps if step.op is not ops.concat]
        elementwise = [step for step in computing if expression_of(step, self._specs(step)) is not None]
        self.links = {step.outputs: self._link(step) for step in elementwise}

    def _specs(self, step: Step) -> tuple[Spec, ...]:
        return tuple([self.group.spec(v) for v in step.inputs[1:]])  # type: ignore[misc]

    def _link(self, step: Step) -> str:
        """Return the statement of one op. A result that another step reads is rounded to the stored dtype."""
        specs, v, out = self._specs(step), step.outputs, self.group.specs[step.outputs]
        dtype, names = dtype_of(specs, out), NAMES[len(specs)]
        operands = {
            name: ("int" if name == "c" else types(dtype)["ACC"], self._operand(operand, dtype, out))
            for name, operand in zip(names, step.inputs[1:], strict=True)
        }
        kind, value = out.dtype.name, expression_of(step, specs) or ""
        if any(v in other.inputs[1:] for other in self.group.steps):
            if out.dtype in SETTLED and ("(" in value or "/" in value):
                value = f"{SETTLED[out.dtype]}({value})"
            value = f"widen_{kind}(narrow_{kind}({value}))"
        return elements.statement(self.names[v], value, operands, out.dtype)

    def _operand(self, v: int, dtype: np.dtype, out: Spec) -> str:
        if v in self.names:
            return self.names[v]
        argument = to_argument(dtype, is_compared=out.dtype == bool_)
        self.numbers.append(Operand(v, argument, types(dtype)["ACC"]))
        return f"n{len(self.numbers) - 1}"

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The types of scalars, inputs and outputs."""
        pointers = (None, INT64) * len(self.arrays) + (None,) * len(self.group.outputs)
        return *(passed_as(n.type) for n in self.numbers), *pointers

    def macros(self, strides: list[int]) -> dict[str, Any]:
        """Return the kernel's parameters and the functions that statements call; strides has an index for each array.
        """
        stored = types(self._dtype)
        numbers = [f"const {n.type} n{i}," for i, n in enumerate(self.numbers)]
        return {
            "T": stored["T"], "ACC": stored["ACC"], "LOAD": stored["LOAD"], "OUT_T": stored["T"],
            "DTYPE": self._dtype.name, **arithmetic(self._dtype), "COMPLEX": int(self._is_complex),
            "PARAMETERS": " ".join((*numbers, *self._pointers())), "BASES": elements.bases(strides),
        }  # fmt: skip

    def _pointers(self) -> Iterator[str]:
        for i, v in enumerate(self.arrays):
            yield f"__global const {self.types(v)['T']} *restrict p{i}, const long o{i},"
        for i, v in enumerate(self.group.outputs):
            yield f"__global {self.types(v)['T']} *restrict q{i},"

    def types(self, v: int) -> dict[str, str]:
        """Return the macros of a value's dtype."""
        return types(self.group.specs[v].dtype)

    def input(self, v: int, strides: int, kind: str) -> elements.Operand:
        """Return an input; `strides` is the index of its strides in the layout."""
        i = self.arrays.index(v)
        return elements.array(self.group.specs[v].dtype, self.names[v], f"p{i}", f"o{i}", strides, kind)

    def output(self, v: int, at: str) -> elements.Operand:
        """Return an output, whose rows begin at `at`."""
        i = self.group.outputs.index(v)
        return elements.Operand(self.group.specs[v].dtype, self.names[v], f"q{i}", (at,), "DENSE")

    def concatenated(
        self, v: int, pieces: tuple[int, ...], strides: int, kind: str, length: int
    ) -> list[elements.Operand]:
        """Return the windows of an output into which pieces of this length are written, one beside the other."""
        whole = elements.array(self.group.specs[v].dtype, "", self.output(v, "i").pointer, "0", strides, kind)
        return [
            whole._replace(value=self.names[piece], start=(f"{k * length}L", *whole.start[1:]), part=k)
            for k, piece in enumerate(pieces)
        ]

    def load(self, v: int, strides: int, kind: str) -> str:
        """Return the declaration of element j of an input."""
        return self.input(v, strides, kind).load

    def store(self, v: int, at: str) -> str:
        """Return the statement that writes an output's element."""
        return self.output(v, at)._replace(kind="REPEATED").store
