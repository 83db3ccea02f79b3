"""Parts of all decompositions: workspace for matrices, moves between arrays, and faults."""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise import elementwise
from polyarr.backends.opencl.gemm.matmul import matmul
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, spec_of, swapped, view, window
from polyarr.backends.opencl.runtime.program import Program, types
from polyarr.backends.opencl.runtime.source import SCALARS
from polyarr.core.spec import COMPLEX, Spec, float32, float64, real_of

INT32 = np.dtype("int32")
GROUP = {"cpu": 1, "gpu": 128}  # work-items that share a matrix
TALL_GROUP = {"cpu": 1, "gpu": 512}  # work-items that share a panel of a matrix of at least TALL rows
TALL = 256
TILE_GROUP = 512  # work-items that share a tile on GPUs
PANEL = {"cpu": 64, "gpu": 32}  # columns that a work-group eliminates before the rest is updated by a product
EPS = {float32: "1.1920929e-7f", float64: "2.220446049250313e-16"}  # distance from 1 to the next number
MAX_SCALE = {"float": "0x1p126f", "double": "0x1p1022"}
EVERYTHING, LOWER, UPPER = 0, -1, 1  # triangles to keep


def matrices_of(device: Device, x: Buffer) -> Buffer:
    """Return x with its leading axes joined: dense, (matrices, rows, columns)."""
    return reshaped(dense(device, x), (prod(x.shape[:-2]), *x.shape[-2:]))


def block(x: Buffer, rows: slice, columns: slice) -> Buffer:
    """Return a view of rows and columns of matrices."""
    (top, bottom, _), (left, right, _) = rows.indices(x.shape[1]), columns.indices(x.shape[2])
    return window(x, (x.shape[0], bottom - top, right - left), (0, top, left), (1, 1, 1))


def diagonal(x: Buffer, across: bool) -> Buffer:
    """Return the diagonals of matrices, repeated as rows (if across) or as columns."""
    step = x.strides[1] + x.strides[2]
    return view(x, x.shape, (x.strides[0], 0, step) if across else (x.strides[0], step, 0), x.offset)


class Call:
    """A call of a decomposition: workspace in the dtype of arithmetic, kernels on it, and faults of the matrix x.

    Attributes:
        acc: The dtype of elements in arithmetic: float32, float64, complex64 or complex128.
        count: The number of matrices.
        fault: Arguments with which kernels note a fault.
        not_finite, singular: Numbers of the messages of errors about x.
    """

    def __init__(self, device: Device, op: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.device, self.dtype, self.kind = device, dtype, device.geometry.kind
        self.group, self.panel = GROUP[self.kind], PANEL[self.kind]
        self.acc = dtype if dtype in COMPLEX else SCALARS[types(dtype)["ACC"]]
        self.count = prod(shape[:-2])
        self.fault = device.faults.call(op)
        self._given = f"{op}: x is {Spec(shape, dtype)}"
        self.not_finite = self.message(" and holds nan or infinity; it must be finite")
        self.singular = self.message("; it must have an inverse")

    def message(self, text: str) -> int:
        """Return the number of an error about x."""
        return self.device.faults.message(self._given + text)

    def program(self, stem: str, **macros: Any) -> Program:
        """Return the program of a file for this dtype."""
        return self.device.plans[_program](stem, self.acc, self.group, *macros.items())

    def for_panels(self, stem: str, rows: int) -> tuple[Program, tuple[tuple[int], tuple[int]]]:
        """Return the program of a file for panels of so many rows, and the global and local size of its work-groups."""
        limit = self.device.features.max_work_group
        group = self.group if rows < TALL else max(self.group, min(TALL_GROUP[self.kind], limit))
        if rows <= self.panel:
            group = min(self.group, 1 << (self.panel - 1).bit_length())
        macros = stem, self.acc, group, ("PANEL", self.panel)
        return self.device.plans[_program](*macros), ((self.count * group,), (group,))

    def for_tiles(self, stem: str, out: np.dtype, side: int) -> tuple[Program, int]:
        """Return the program of a file for tiles of this side and results of dtype out; its work-items per group."""
        written, group = types(out), min(TILE_GROUP, side * side, self.device.features.max_work_group)
        macros = ("OUT_T", written["T"]), ("STORE", written["STORE"]), ("TILE", side)
        return self.device.plans[_program](stem, self.acc, group, *macros), group

    def _mover(self, source: np.dtype, target: np.dtype) -> Program:
        return self.device.plans[_mover](source, target, self.group)

    def empty(self, *shape: int) -> Buffer:
        """Return an uninitialized workspace: for each matrix an array of this shape."""
        return self.device.empty(Spec((self.count, *shape), self.acc))

    def reals(self, *shape: int) -> Buffer:
        """Return an uninitialized workspace of real numbers."""
        return self.device.empty(Spec((self.count, *shape), real_of(self.acc)))

    def zeros(self, *shape: int) -> Buffer:
        """Return a workspace of zeros."""
        found = self.empty(*shape)
        self.device.fill_zero(found)
        return found

    def per_matrix(self, parts: int = 1) -> tuple[tuple[int], tuple[int]]:
        """Return the global and local size of work-groups: `parts` of them for each matrix."""
        return (self.count * parts * self.group,), (self.group,)

    def _by_rows(self, rows: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]:
        """Return the global and local size of work-groups that share all rows; the rows in all, and of each group."""
        total = self.count * rows
        if self.group > 1:
            return (total * self.group,), (self.group,), (total, 1)
        work, group, each = self.device.geometry.items(total, least=1)
        return work, group, (total, each)

    def scales(self, x: Buffer) -> Buffer:
        """Return powers of two that scale the largest magnitude of each matrix of a dense x to about 1."""
        found, program = self.reals(), self._mover(x.dtype, self.acc)
        program.measure(
            *self.per_matrix(), x.memory, found.memory, *self.fault, self.not_finite, prod(x.shape[1:])
        )  # fmt: skip
        return found

    def move(
        self, target: Buffer, source: Buffer, *, keep: int = EVERYTHING, hermitian: bool = False,
        scales: Buffer | None = None, divide: bool = False, conjugate: bool = False, signs: Buffer | None = None,
        back: bool = False, message: int = -1,
    ) -> Buffer:  # fmt: skip
        """Copy matrices, and return target, a view of the same shape (matrices, rows, columns).

        Args:
            target: Where to.
            source: Where from.
            keep: EVERYTHING, or the triangle LOWER or UPPER; the rest of target becomes 0.
            hermitian: Whether the Hermitian part is copied.
            scales: A factor for each matrix.
            divide: Whether scales are divisors.
            conjugate: Whether elements are conjugated.
            signs: Array of the same shape: elements are multiplied by its signs, for complex numbers their phases.
            back: Whether the conjugates of these are the factors.
            message: Number of the error for elements that are not finite; -1 for none.
        """
        if not target.size:
            return target
        work, group, total = self._by_rows(target.shape[1])
        scaling, signs_at = 0 if scales is None else -1 if divide else 1, signs or target
        signed_by = 0 if signs is None else -1 if back else 1
        self._mover(source.dtype, target.dtype).move(
            work, group, source.memory, target.memory, (scales or target).memory, signs_at.memory, *self.fault, message,
            source.offset, *source.strides, target.offset, *target.strides, signs_at.offset, *signs_at.strides,
            keep, int(hermitian), scaling, int(conjugate), signed_by, *target.shape[1:], *total,
        )  # fmt: skip
        return target

    def load(self, x: Buffer, **options: Any) -> Buffer:
        """Return a copy of x as workspace; matrices that are not finite are faults."""
        return self.move(self.empty(*x.shape[1:]), x, message=self.not_finite, **options)

    def store(self, out: Spec, source: Buffer, **options: Any) -> Buffer:
        """Return a workspace as a result."""
        target = self.device.empty(out)
        self.move(reshaped(target, source.shape), source, **options)
        return target

    def set_identity(self, target: Buffer) -> Buffer:
        """Set matrices that are 0 to identities, and return them."""
        one = self.device.plans[_one](self.acc)
        n, (step, row, column) = min(target.shape[1:]), target.strides
        ones = view(target, (self.count, n, 1), (step, row + column, 1), target.offset)
        self.move(ones, view(one, ones.shape, (0, 0, 0), 0))
        return target

    def adjoint(self, x: Buffer) -> Buffer:
        """Return the conjugate transpose of matrices; a view if they are real."""
        return elementwise.conj(self.device, spec_of(swapped(x)), swapped(x))

    def subtract_product(self, c: Buffer, x: Buffer, y: Buffer) -> None:
        """Subtract x @ y from c, a view of matrices with contiguous rows."""
        if not c.size:
            return
        p = matmul(self.device, Spec(c.shape, c.dtype), x, y)
        work, group, total = self._by_rows(c.shape[1])
        program = self._mover(self.acc, self.acc)
        program.subtract(work, group, c.memory, p.memory, c.offset, *c.strides[:2], *c.shape[1:], *total)

    def signs(self, x: Buffer) -> Buffer:
        """Return the element of largest magnitude of each column; x is dense."""
        found, chunks = self.empty(x.shape[2]), -(-x.shape[2] // self.group)
        program = self._mover(self.acc, self.acc)
        program.find_signs(*self.per_matrix(chunks), x.memory, found.memory, *x.shape[1:], chunks)
        return found


def _one(device: Device, dtype: np.dtype) -> Buffer:
    return device.upload(np.ones((1, 1, 1), dtype))


def _program(device: Device, stem: str, acc: np.dtype, group: int, *macros: tuple[str, Any]) -> Program:
    return device.build(stem, **{**_arithmetic(acc), "WG": group, **dict(macros)})


def _arithmetic(dtype: np.dtype) -> dict[str, Any]:
    """Return the macros of elements.cl."""
    return {"ACC": types(real_of(dtype))["ACC"], "COMPLEX": int(dtype in COMPLEX)}


def _mover(device: Device, source: np.dtype, target: np.dtype, group: int) -> Program:
    """Return the program of matrices.cl that moves from one dtype to the other; both have the same arithmetic."""
    read, written, macros = types(source), types(target), _arithmetic(source)
    return device.build(
        "matrices", T=read["T"], LOAD=read["LOAD"], OUT_T=written["T"], STORE=written["STORE"], **macros,
        MAX_SCALE=MAX_SCALE[macros["ACC"]], WG=group,
    )  # fmt: skip
