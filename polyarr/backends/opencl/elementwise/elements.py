"""The source of elementwise kernels: how elements are loaded, computed and stored, for one op or for a fused group."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.program import types, vector_types

STEPS = {0: "REPEATED", 1: "DENSE"}  # kinds of an array, by its last stride


class Operand(NamedTuple):
    """An array that a kernel reads or writes, in C.

    Attributes:
        value: Name of an element's value.
        pointer: Name of the array.
        start: Offset of the array, and of the row within it: terms that are added.
        kind: Kind of the last stride: REPEATED (0), DENSE (1) or STRIDED.
        step: The last stride, if STRIDED.
        part: Number of the operand among those of one pointer.
    """

    dtype: np.dtype
    value: str
    pointer: str
    start: tuple[str, ...]
    kind: str
    step: str = ""
    part: int = 0

    @property
    def types(self) -> dict[str, str]:
        """The macros of the dtype."""
        return types(self.dtype)

    def element(self, j: str = "(j)") -> str:
        """Return the pointer and the offset of element j of the row."""
        along = {"REPEATED": (), "DENSE": (j,)}.get(self.kind, (f"{j} * {self.step}",))
        return f"{self.pointer}, {' + '.join((*self.start, *along))}"

    @property
    def load(self) -> str:
        """The declaration of the value of element j."""
        return f"const {self.types['ACC']} {self.value} = {self.types['LOAD']}({self.element()});"

    @property
    def store(self) -> str:
        """The statement that writes element j."""
        return f"{self.types['STORE']}({self.element()}, {self.value});"

    @property
    def vector(self) -> str:
        """Name of the value of a vector."""
        return f"{self.pointer}_{self.part}_vector"

    @property
    def read(self) -> str:
        """The declaration of a vector of `count` elements, read at once if DENSE."""
        declared, at = f"{self.types['ACC']} {self.vector}[VECTOR];", " + ".join(self.start)
        if self.kind == "DENSE":
            return f"{declared} read_{self.dtype.name}({self.pointer}, {at}, {at} + count, {self.vector});"
        return f"{declared} EACH_OF_VECTOR {self.vector}[k] = {self.types['LOAD']}({self.pointer}, {at});"

    @property
    def write(self) -> str:
        """The statement that writes a vector of `count` elements."""
        at = " + ".join(self.start)
        return f"write_{self.dtype.name}({self.pointer}, {at}, {at} + count, {self.vector});"


def array(dtype: np.dtype, value: str, pointer: str, offset: str, strides: int, kind: str) -> Operand:
    """Return a view of an array; `strides` is the index of its strides in the kernel's layout."""
    return Operand(dtype, value, pointer, (offset, f"b{strides}"), kind, f"layout.steps[{strides} * NDIM + NDIM - 1]")


def bases(strides: Iterable[int]) -> str:
    """Return the declarations of the offsets of a row, for each of these strides."""
    return " ".join(f"const long b{i} = distance_to(index, layout.steps + {i} * NDIM);" for i in sorted({*strides}))


def statement(result: str, expression: str, operands: Mapping[str, tuple[str, str]], out: np.dtype) -> str:
    """Return the declaration of a result; operands are C types and values by their names in the expression."""
    return f"{types(out)['ACC']} {result}; {{ {declared(operands)} {result} = {expression}; }}"


def declared(operands: Mapping[str, tuple[str, str]]) -> str:
    """Return the declarations of the operands of an expression."""
    return " ".join(f"const {kind} {name} = {value};" for name, (kind, value) in operands.items())


def kernel_of(
    device: Device, inputs: Sequence[Operand], outputs: Sequence[Operand], lengths: tuple[int, ...], strides: int,
    size: int, group: tuple[int, ...], vector: int, **macros: Any,
) -> Any:  # fmt: skip
    """Return the elementwise kernel of `strides` layouts of these lengths, for arrays of `size` elements."""
    dtypes = dict.fromkeys(operand.dtype for operand in (*inputs, *outputs))
    return device.build(
        "elementwise",
        **macros,
        **{
            "LOADS(j)": " ".join(x.load for x in inputs),
            "STORES(j)": " ".join(out.store for out in outputs),
            "FUNCTIONS": " ".join(_vector(dtype, vector) for dtype in dtypes) if vector > 1 else "",
            "OFFSETS": " | ".join(["0", *(x.start[0] for x in (*inputs, *outputs) if x.start[0] != "i")]),
            "READS": " ".join([x.read for x in inputs] + [f"{y.types['ACC']} {y.vector}[VECTOR];" for y in outputs]),
            "PICK": " ".join(f"const {x.types['ACC']} {x.value} = {x.vector}[k];" for x in inputs),
            "PUT": " ".join(f"{y.vector}[k] = {y.value};" for y in outputs),
            "WRITES": " ".join(y.write for y in outputs),
        },
        NDIM=len(lengths),
        ARRAYS=strides,
        INDEX="uint" if size < 1 << 31 else "ulong",
        WG=group[0],
        PER_ITEM=device.geometry.per_item(vector),
        VECTOR=vector,
    ).elementwise


def _vector(dtype: np.dtype, count: int) -> str:
    found: dict[str, Any] = {**types(dtype), **vector_types(dtype, count)}
    return "DEFINE_VECTOR({DTYPE}, {DTYPE}, {T}, {RAW}, {ACC}, {WORD})".format(**found)
