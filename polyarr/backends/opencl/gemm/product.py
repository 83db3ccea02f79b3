"""A matrix product as kernels see it: strided batches of matrices, an epilogue, and a plan that awaits its arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.runtime.commands import Kernel
from polyarr.backends.opencl.runtime.layout import Shape, broadcast_strides, joined
from polyarr.backends.opencl.runtime.program import Program, types
from polyarr.core.spec import FLOATS, Spec, float32

Arrays = tuple[object, ...]  # the memory of x, y, bias, sums, out and saved; None for those that are absent


def terms_of(dtype: np.dtype, precision: str) -> int:
    """Return the number of 16-bit terms into which matrix units' operands of this dtype are split."""
    return 1 if dtype != float32 else 3 if precision == "highest" else 2


class Operand(NamedTuple):
    """The strides of a batch of matrices, along the kept axis (rows or columns), k, and two batch axes."""

    kept: int
    deep: int
    outer: int
    inner: int

    @property
    def along_k(self) -> bool:
        """Return whether the operand is contiguous along k."""
        return self.deep == 1

    @property
    def step(self) -> int:
        """The stride that need not be 1."""
        return self.kept if self.along_k else self.deep


class Axes(NamedTuple):
    """A row-major walk of four axes: their lengths and strides."""

    lengths: Shape
    steps: Shape

    def fields(self) -> list[np.ndarray]:
        """Return the fields of Axes in im2col.cl."""
        shifts = [(length - 1).bit_length() for length in self.lengths]
        magic = [((1 << 32) * ((1 << s) - n)) // n + 1 for n, s in zip(self.lengths, shifts, strict=True)]
        return [np.array((*self.lengths, *magic, *shifts), np.uint32), np.array(self.steps, np.int64)]


class Im2col(NamedTuple):
    """The im2col view of an operand: an element's address is the sum of an offset for i (m or n) and one for k.

    The view is contiguous along k if it is x, along i if it is y.
    """

    kept: Axes
    deep: Axes

    @property
    def structure(self) -> bytes:
        """The bytes that kernels take."""
        return b"".join(field.tobytes() for axes in self for field in axes.fields())

    def has_runs_of(self, count: int, along_k: bool) -> bool:
        """Return whether `count` neighbors lie side by side everywhere, and start at multiples of count."""
        along, other = (self.deep, self.kept) if along_k else (self.kept, self.deep)
        numbers = (along.lengths[-1], *along.steps[:-1], *other.steps)
        return along.steps[-1] == 1 and not any(number % count for number in numbers)


class Problem(NamedTuple):
    """A batched product without its arrays: out (batch, m, n) = x (batch, m, k) @ y (batch, k, n).

    Attributes:
        im2col: The im2col view of x, or of y if of_y, whose strides then only say which axis is contiguous and how far
            apart matrices are; None if strides describe both operands.
    """

    batch: int
    inner: int
    m: int
    n: int
    k: int
    x: Operand
    y: Operand
    im2col: Im2col | None = None
    of_y: bool = False

    @property
    def batch_strides(self) -> tuple[int, ...]:
        """The length of the inner batch axis, and the operands' strides along both: a kernel's arguments."""
        return self.inner, self.x.outer, self.x.inner, self.y.outer, self.y.inner

    @property
    def macros(self) -> dict[str, int]:
        """The macros for how kernels read the operands."""
        with_im2col = 0 if self.im2col is None else 2 if self.of_y else 1
        return {"X_ALONG_K": int(self.x.along_k), "Y_ALONG_K": int(self.y.along_k), "IM2COL": with_im2col}


class Epilogue(NamedTuple):
    """Operations on a sum before it is written, and the precision of float32 sums.

    Attributes:
        pads: Whether rows of the result may be padded; the caller must then read the result by its strides.
    """

    bias: bool = False
    activation: str = "none"
    save: bool = False
    precision: str = "highest"
    pads: bool = False

    def macros(self, dtype: np.dtype) -> dict[str, Any]:
        """Return the macros that all product kernels share."""
        flags = {"BIAS": int(self.bias), "SAVE": int(self.save), "ACTIVATION": self.activation}
        return {**types(dtype), "FLOATING": int(dtype in FLOATS), **flags}


PLAIN = Epilogue()


def blocks_in(length: int, size: int) -> int:
    """Return the number of blocks of this size that cover a length."""
    return -(-length // size)


class Copies(NamedTuple):
    """Returned in the place of a plan: which operands must first be copied into rows of whole 16 bytes."""

    x: bool
    y: bool


class Plan(NamedTuple):
    """A launch that awaits its arrays and the offsets of x and y.

    Attributes:
        sums: The workspace, or None if out serves as one.
        pitch: The distance between rows of the result; 0 if the result is dense.
    """

    launch: Callable[[Arrays, int, int], None]
    sums: Spec | None
    pitch: int = 0


def problem_of(out: Shape, x: Shape, x_strides: Shape, y: Shape, y_strides: Shape) -> Problem | None:
    """Return the product with as few batch axes as possible; None if more than two are left."""
    m, n, k = out[-2], out[-1], x[-1]
    if k == 0:  # nothing is read, whatever the strides
        x_strides, y_strides = (0,) * len(x_strides), (0,) * len(y_strides)
    batch = out[:-2]
    steps = (broadcast_strides(s[:-2], t[:-2], len(batch)) for s, t in ((x, x_strides), (y, y_strides)))
    axes = joined(zip(batch, zip(*steps, strict=True), strict=True))
    row = x_strides[-2]
    # Rows of a batch that are multiplied by the same y are rows of one taller matrix.
    while axes and axes[-1][1][1] == 0 and (m == 1 or axes[-1][1][0] == row * m):
        length, (stride, _) = axes.pop()
        row = stride if m == 1 else row
        m *= length
    if len(axes) > 2:
        return None
    (outer, (x_outer, y_outer)), (inner, (x_inner, y_inner)) = [(1, (0, 0))] * (2 - len(axes)) + axes
    left = _operand(row, x_strides[-1], m, k)
    right = _operand(y_strides[-1], y_strides[-2], n, k)
    return Problem(
        outer * inner, inner, m, n, k, Operand(*left, x_outer, x_inner), Operand(*right, y_outer, y_inner)
    )  # fmt: skip


def _operand(kept: int, deep: int, length: int, k: int) -> tuple[int, int]:
    """Return the strides along the kept axis and along k; an axis of length 1 gets the one that kernels prefer."""
    if k <= 1 and kept != 1:
        return kept, 1
    if length == 1:
        return (1, deep) if deep != 1 else (k, 1)
    return kept, deep


def kernel_of(program: Program, p: Problem) -> tuple[Kernel, tuple[bytes, ...]]:
    """Return the kernel for strided operands or for an im2col view, and its last arguments."""
    return (program.matmul_im2col, (p.im2col.structure,)) if p.im2col else (program.matmul, ())
