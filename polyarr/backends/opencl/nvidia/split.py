"""Split precision: float32 operands as 2 or 3 bfloat16 terms, for matrix units that multiply 16-bit floats.

Two terms, for precision "high": x = high + low, off by at most 2^-17 of x; low @ low is left out, at most 2^-16 of a
product. Three terms, for "highest": x = high + middle + low, with all 24 bits; the products of terms that are left out
amount to at most 2^-24 of a product, as rounding does.

Terms have the range of float32, so operands need no scale. A flag reports numbers that are not finite, which are then
multiplied in float32 arithmetic.
"""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

from polyarr.backends.opencl.gemm.product import Operand, Problem
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.spec import Spec, bfloat16, uint32

GROUP, ITEMS = (64, 4, 1), 256
FOUR, WHOLE = 4, 8  # columns per work-item; 16-bit elements in 16 bytes
GROUPS_PER_UNIT = 16
KEPT_FRACTION = 256  # a split operand up to this fraction of the device's memory (1 / 256) is kept for backward
RESIDENT_GROUPS_PER_UNIT = 4  # work-groups per unit that split side by side, all resident
MAX_MATRICES = 65535  # work-groups along the third axis
KEPT_TERMS = 2  # operands of so many terms are kept: they need no more memory than their numbers
FLAG = Spec((1,), uint32)


def passes(terms: int) -> int:
    """Return the passes along k of a product whose operands have this many terms."""
    return terms * (terms + 1) // 2


class DenseOperand(NamedTuple):
    """A dense operand to split: its name in a call, and its elements and row length in units of 4."""

    name: str
    memory: Any
    fours: int
    row: int


SplitLauncher = Callable[[tuple[Any, Any], tuple[int, int]], tuple[Any, Any, Any]]


def split_product(device: Device, p: Problem, aligned: tuple[bool, bool], terms: int) -> tuple[Problem, SplitLauncher]:
    """Return the product of the split terms, whose outermost axis counts terms, and a function that writes them.

    The function returns the split x, the split y, and the flag that is not 0 if a number is not finite.
    """
    operands = zip((p.x, p.y), (p.m, p.n), aligned, strict=True)
    sides = [_side(device, p, op, kept, each, terms) for op, kept, each in operands]

    def split(memories: tuple[Any, Any], starts: tuple[int, int]) -> tuple[Any, Any, Any]:
        flag = _cleared_flag(device).memory  # of this call alone: another thread's call may come between its kernels
        written = (run(memories[which], starts[which], flag) for which, (_, run) in enumerate(sides))
        return *written, flag

    return p._replace(inner=p.batch, x=sides[0][0], y=sides[1][0]), split


def _cleared_flag(device: Device) -> Buffer:
    flag = device.empty(FLAG)
    device.commands.fill((FLAG.dtype.itemsize,), None, flag.memory)
    return flag


def _side(
    device: Device, p: Problem, op: Operand, kept: int, aligned: bool, terms: int
) -> tuple[Operand, Callable[..., Any]]:
    """Return one operand's split terms as a kernel reads them, and the function that writes them."""
    rows, columns = (kept, p.k) if op.along_k else (p.k, kept)
    batch, pitch = p.batch if op.outer or op.inner else 1, split_pitch(columns)
    vector = int(aligned and not any(step % FOUR for step in (op.step, op.inner, op.outer)))
    wide = -(-pitch // (FOUR * GROUP[0]))
    high = min(-(-rows // GROUP[1]), max(1, GROUPS_PER_UNIT * device.features.compute_units // (wide * batch)))
    work, numbers = (wide * GROUP[0], high * GROUP[1], batch), (rows, columns, op.step, p.inner, op.inner, op.outer)
    spec = Spec((terms, batch, rows, pitch), bfloat16)
    kernel = device.build("split", VECTOR=vector, TERMS=terms).split_matrix

    def run(memory: Any, start: int, flag: Any) -> Any:
        to = device.empty(spec).memory
        kernel(work, GROUP, memory, flag, to, start, *numbers, pitch)
        return to

    each = rows * pitch
    strides = (pitch, 1) if op.along_k else (1, pitch)
    return Operand(*strides, batch * each, each if batch > 1 else 0), run


class SplitOperand(NamedTuple):
    """A dense operand's split terms, side by side in every row.

    Attributes:
        terms: The split terms.
        flag: Not 0 if a number is not finite, here or in the other operand split by the same launch.
    """

    terms: Buffer
    flag: Buffer


SplitOperands = dict[str, SplitOperand]  # split operands, by their names in a call


def split_side_by_side(
    device: Device, operands: tuple[DenseOperand, ...], terms: int, known: SplitOperands
) -> tuple[SplitOperand, ...]:
    """Return one or two operands split; those in `known` are reused, and the others are added to it."""
    new = [each for each in operands if each.name not in known]
    if new:
        known |= zip((each.name for each in new), _split_side_by_side(device, new, terms), strict=True)
    return tuple(known[each.name] for each in operands)


def _split_side_by_side(device: Device, new: list[DenseOperand], terms: int) -> list[SplitOperand]:
    """Split one or two operands by the same launch."""
    flag, written = _cleared_flag(device), [device.empty(Spec((terms * FOUR * each.fours,), bfloat16)) for each in new]
    x, y = new[0], new[-1]
    y_fours = y.fours if len(new) == 2 else 0
    groups = _resident_groups(device, max(x.fours, y_fours), x.row if x.fours > y_fours else y.row)
    device.build("split", VECTOR=1, TERMS=terms).split_rows(
        (groups * ITEMS,), (ITEMS,), x.memory, y.memory, flag.memory, written[0].memory, written[-1].memory,
        x.fours, x.row, y_fours, y.row,
    )  # fmt: skip
    return [SplitOperand(each, flag) for each in written]


def _resident_groups(device: Device, fours: int, row: int) -> int:
    """Return a number of work-groups that are all resident, and together take whole rows if possible."""
    most, whole = RESIDENT_GROUPS_PER_UNIT * device.features.compute_units, row // gcd(row, ITEMS)
    groups = min(-(-fours // ITEMS), most)
    return groups // whole * whole or groups


def saved_operands(device: Device, known: SplitOperands, terms: int) -> SplitOperands | tuple[()]:
    """Return the split operands that a forward pass saves: two-term ones that are not too large. Others save none."""
    if terms != KEPT_TERMS:
        return ()
    most = device.features.global_memory // KEPT_FRACTION
    return {name: each for name, each in known.items() if 2 * each.terms.size <= most}


def split_pitch(columns: int) -> int:
    """Return the pitch of rows of split terms: columns rounded up to 16 bytes."""
    return -(-columns // WHOLE) * WHOLE


def split_bytes(p: Problem, terms: int) -> int:
    """Return the bytes that the split terms of both operands take."""
    return sum(
        2 * terms * (p.batch if op.outer or op.inner else 1) * kept * p.k for op, kept in ((p.x, p.m), (p.y, p.n))
    )
