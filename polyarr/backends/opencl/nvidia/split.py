"""Split precision: float32 operands as 2 float16 or 3 bfloat16 terms, for matrix units that multiply 16-bit floats.

Two float16 terms: x 2^shift = high + low / 2^11. One shift per tensor brings its largest finite magnitude to 2^14.
Elements of at least 2^-28 of it keep 22 bits; smaller ones keep an error of 2^-50 of it. If an operand has an infinity,
the product may be nan.

Three bfloat16 terms: x = high + middle + low, with all 24 bits and the range of float32. The products of terms that are
left out amount to at most 2^-24 of a product, as rounding does; a flag reports values that are not finite.
"""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.gemm.product import BFLOAT16_TERMS, FLOAT16_TERMS, Operand, Problem
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.spec import Spec, bfloat16, float16, uint32

GROUP, ITEMS = (64, 4, 1), 256
FOUR, WHOLE = 4, 8  # columns per work-item; 16-bit elements in 16 bytes
HOPPER = 90
GROUPS_PER_UNIT = 16
KEPT_FRACTION = 256  # a split operand up to this fraction of the device's memory (1 / 256) is kept for backward
RESIDENT_GROUPS_PER_UNIT = 4  # work-groups per unit that split side by side, all resident: each reads the amax of all
MAX_MATRICES = 65535  # work-groups along the third axis
DTYPES = {FLOAT16_TERMS: float16, BFLOAT16_TERMS: bfloat16}
PASSES = {1: 1, FLOAT16_TERMS: 3, BFLOAT16_TERMS: 6}  # passes along k, by the number of terms
AMAX = Spec((2,), uint32)

Pair = tuple[int, int]


class DenseOperand(NamedTuple):
    """A dense operand to split: its name in a call, and its elements and row length in units of 4."""

    name: str
    memory: Any
    fours: int
    row: int


SplitLauncher = Callable[[tuple[Any, Any], tuple[int, int]], tuple[Any, Any, Any]]


def split_product(
    device: Device, p: Problem, aligned: tuple[bool, bool], terms: int = FLOAT16_TERMS
) -> tuple[Problem, SplitLauncher]:
    """Return the product of the split terms, whose outermost axis counts terms, and a function that writes them.

    The function returns the split x, the split y and the amax words. With three terms, the first word is not 0 if a
    value is not finite.
    """
    operands = zip((p.x, p.y), (p.m, p.n), aligned, strict=True)
    sides = [_side(device, p, op, kept, each, terms) for op, kept, each in operands]

    def split(memories: tuple[Any, Any], starts: tuple[int, int]) -> tuple[Any, Any, Any]:
        amax = device.empty(AMAX).memory  # of this call alone: another thread's call may come between its kernels
        device.commands.fill((8,), None, amax)
        written = (run(which, memories[which], starts[which], amax) for which, (_, run) in enumerate(sides))
        return *written, amax

    return p._replace(inner=p.batch, x=sides[0][0], y=sides[1][0]), split


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
    spec = Spec((terms, batch, rows, pitch), DTYPES[terms])
    write = {FLOAT16_TERMS: _split_to_float16, BFLOAT16_TERMS: _split_to_bfloat16}[terms](device, vector)

    def run(which: int, memory: Any, start: int, amax: Any) -> Any:
        to = device.empty(spec).memory
        write(work, memory, amax, to, which, (start, *numbers), pitch)
        return to

    each = rows * pitch
    strides = (pitch, 1) if op.along_k else (1, pitch)
    return Operand(*strides, batch * each, each if batch > 1 else 0), run


def _split_to_float16(device: Device, vector: int) -> Callable[..., None]:
    program = device.build("split_to_float16", KIND="f16", VECTOR=vector)

    def write(work: Any, memory: Any, amax: Any, to: Any, which: int, numbers: Any, pitch: int) -> None:
        program.find_amax(work, GROUP, memory, amax, which, *numbers)
        program.divide(work, GROUP, memory, amax, to, which, *numbers, pitch)

    return write


def _split_to_bfloat16(device: Device, vector: int) -> Callable[..., None]:
    program = device.build("split_to_bfloat16", VECTOR=vector)

    def write(work: Any, memory: Any, words: Any, to: Any, which: int, numbers: Any, pitch: int) -> None:
        program.divide(work, GROUP, memory, words, to, *numbers, pitch)

    return write


class SplitOperand(NamedTuple):
    """A dense operand's split terms, side by side in every row, and the words that a product needs with them.

    Attributes:
        terms: The split terms, or None if only the amax is known so far.
        words: uint32 words. Two terms: the first two are the bits of the amax, and those behind are partial maxima.
            Three terms: both are 1 if a value is not finite, here or in the other operand split by the same launch,
            else 0.
    """

    terms: Buffer | None
    words: Buffer


SplitOperands = dict[str, SplitOperand]  # split operands, by their names in a call


def split_side_by_side(
    device: Device, operands: tuple[DenseOperand, ...], terms: int, known: SplitOperands
) -> tuple[SplitOperand, ...]:
    """Return one or two operands split; those in `known` are reused, and the others are added to it."""
    new = [each for each in operands if each.name not in known or known[each.name].terms is None]
    if new:
        found = [known[each.name].words if each.name in known else None for each in new]
        known |= zip((each.name for each in new), _split_side_by_side(device, new, terms, found), strict=True)
    return tuple(known[each.name] for each in operands)


def _split_side_by_side(
    device: Device, new: list[DenseOperand], terms: int, found: list[Buffer | None]
) -> list[SplitOperand]:
    """Split one or two operands by the same launches."""
    written = [device.empty(Spec((terms * FOUR * each.fours,), DTYPES[terms])) for each in new]
    x, y, left, right = new[0], new[-1], written[0].memory, written[-1].memory
    y_fours = y.fours if len(new) == 2 else 0
    groups = _resident_groups(device, max(x.fours, y_fours), x.row if x.fours > y_fours else y.row)
    work, numbers = (groups * ITEMS,), (x.fours, x.row, y_fours, y.row)
    if terms == BFLOAT16_TERMS:
        words = [device.empty(AMAX)] * 2
        device.commands.fill((8,), None, words[0].memory)
        program = device.build("split_to_bfloat16", VECTOR=1)
        to = words[0].memory, left, right
    else:
        words = [device.empty(Spec((2 + groups,), uint32)) if each is None else each for each in found]
        program = device.build("split_to_float16", KIND="f16", VECTOR=1)
        amax, lacking = (words[0].memory, words[-1].memory), [i for i, each in enumerate(found) if each is None]
        if lacking:
            first, last = new[lacking[0]], new[lacking[-1]]
            lengths = first.fours, last.fours if len(lacking) == 2 else 0
            both = (words[i].memory for i in (lacking[0], lacking[-1]))
            program.find_amax_of_two(work, (ITEMS,), first.memory, last.memory, *both, *lengths)
        to = *amax, words[0].size - 2, words[-1].size - 2, left, right
    program.divide_beside(work, (ITEMS,), x.memory, y.memory, *to, *numbers)
    return [*map(SplitOperand, written, words)]


def _resident_groups(device: Device, fours: int, row: int) -> int:
    """Return a number of work-groups that are all resident, and together take whole rows if possible."""
    most, whole = RESIDENT_GROUPS_PER_UNIT * device.features.compute_units, row // gcd(row, ITEMS)
    groups = min(-(-fours // ITEMS), most)
    return groups // whole * whole or groups


def uses_amax(device: Device) -> bool:
    """Return whether split products on this device use amax, so that kernels should report it of what they write."""
    return device.features.architecture == HOPPER


def reported_amax(**arrays: Buffer) -> SplitOperands:
    """Return the operands, by their names, whose amax the kernels that wrote them have reported."""
    return {name: SplitOperand(None, buf.amax) for name, buf in arrays.items() if buf.amax is not None}


def saved_operands(device: Device, known: SplitOperands) -> tuple[tuple[str, Buffer, Buffer], ...]:
    """Return the split operands that a forward pass saves: two-term ones that are not too large."""
    most = device.features.global_memory // KEPT_FRACTION
    split = ((name, each) for name, each in known.items() if each.terms is not None)
    float16_terms = ((name, each) for name, each in split if each.terms.dtype == DTYPES[FLOAT16_TERMS])
    return tuple((name, *each) for name, each in float16_terms if 2 * each.terms.size <= most)


def restored_operands(saved: tuple[tuple[str, Buffer, Buffer], ...]) -> SplitOperands:
    """Return the operands that a forward pass saved."""
    return {name: SplitOperand(terms, words) for name, terms, words in saved}


def split_pitch(columns: int) -> int:
    """Return the pitch of rows of split terms: columns rounded up to 16 bytes."""
    return -(-columns // WHOLE) * WHOLE


def split_bytes(p: Problem, terms: int) -> int:
    """Return the bytes that the split terms of both operands take."""
    return sum(
        2 * terms * (p.batch if op.outer or op.inner else 1) * kept * p.k for op, kept in ((p.x, p.m), (p.y, p.n))
    )


def error_bound(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the error bound, element by element, of the product of two float32 matrices in two float16 terms."""
    x, y = np.abs(x).astype(np.float64), np.abs(y).astype(np.float64)
    largest = [a[np.isfinite(a)].max(initial=0) for a in (x, y)]
    lost = [2.0**-50 * most for most in largest]
    across = x.sum(-1, keepdims=True) * lost[1] + lost[0] * y.sum(-2, keepdims=True)
    left_out = 2.0**-78 * x.shape[-1] * largest[0] * largest[1]
    return 2.0**-20 * (x @ y) + across + left_out
