"""Float32 operands of a product as two of float16 each, or three of bfloat16, for matrix units.

Halves: x 2^shift = high + low / 2^11. One shift for a tensor brings its largest finite magnitude to 2^14. What is 2^-28
of that, or more, keeps 22 bits; what is less keeps an error of 2^-50 of the largest. Where an operand is infinite the
product may be nan.

Thirds: x = high + middle + low, with all 24 bits and float32's range. Products of parts that are left out make at most
2^-24 of a product of numbers, as rounding it would; and what is not finite is told to who multiplies.
"""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.products.product import Operand, Problem
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.spec import Spec, bfloat16, float16, uint32

GROUP, ITEMS = (64, 4, 1), 256
FOUR, WHOLE = 4, 8  # columns of a work-item; 16-bit elements in 16 bytes
HOPPER = 90
GROUPS_PER_UNIT = 16
MOST_KEPT = 256  # parts of the device's memory, of which an operand's may take one from forward to backward
BESIDE_PER_UNIT = 4  # groups of those who divide beside each other, all at once: each reads what all have found
MOST_MATRICES = 65535  # groups along the third axis
HALVES, THIRDS = 2, 3
DTYPES = {HALVES: float16, THIRDS: bfloat16}
WALKS = {1: 1, HALVES: 3, THIRDS: 6}  # along k, of numbers in so many parts
PEAKS = Spec((2,), uint32)

Pair = tuple[int, int]


class Whole(NamedTuple):
    """A dense operand to be divided: what a call names it, and by four how many numbers it has, and in a row."""

    name: str
    memory: Any
    fours: int
    row: int


Divide = Callable[[tuple[Any, Any], tuple[int, int]], tuple[Any, Any, Any]]


def divided(
    device: Device, p: Problem, aligned: tuple[bool, bool], parts: int = HALVES
) -> tuple[Problem, Divide]:
    """The product of the parts, whose outermost axis is theirs, and what writes them: it gives x's, y's, the peaks.

    Of thirds, the first of the peaks is not 0 if a number is not finite.
    """
    operands = zip((p.x, p.y), (p.m, p.n), aligned, strict=True)
    sides = [_side(device, p, op, kept, each, parts) for op, kept, each in operands]

    def divide(memories: tuple[Any, Any], starts: tuple[int, int]) -> tuple[Any, Any, Any]:
        peaks = device.empty(PEAKS).memory  # of this call alone: another thread's may come between its kernels
        device.commands.fill((8,), None, peaks)
        written = (run(which, memories[which], starts[which], peaks) for which, (_, run) in enumerate(sides))
        return *written, peaks

    return p._replace(inner=p.batch, x=sides[0][0], y=sides[1][0]), divide


def _side(
    device: Device, p: Problem, op: Operand, kept: int, aligned: bool, parts: int
) -> tuple[Operand, Callable[..., Any]]:
    """One operand's parts as a kernel walks them, and what writes them."""
    rows, columns = (kept, p.k) if op.along_k else (p.k, kept)
    batch, pitch = p.batch if op.outer or op.inner else 1, in_whole(columns)
    vector = int(aligned and not any(step % FOUR for step in (op.step, op.inner, op.outer)))
    wide = -(-pitch // (FOUR * GROUP[0]))
    high = min(-(-rows // GROUP[1]), max(1, GROUPS_PER_UNIT * device.features.compute_units // (wide * batch)))
    work, numbers = (wide * GROUP[0], high * GROUP[1], batch), (rows, columns, op.step, p.inner, op.inner, op.outer)
    spec = Spec((parts, batch, rows, pitch), DTYPES[parts])
    write = {HALVES: _halves, THIRDS: _thirds}[parts](device, vector)

    def run(which: int, memory: Any, start: int, peaks: Any) -> Any:
        to = device.empty(spec).memory
        write(work, memory, peaks, to, which, (start, *numbers), pitch)
        return to

    each = rows * pitch
    strides = (pitch, 1) if op.along_k else (1, pitch)
    return Operand(*strides, batch * each, each if batch > 1 else 0), run


def _halves(device: Device, vector: int) -> Callable[..., None]:
    program = device.build("matmul_parts", KIND="f16", VECTOR=vector)

    def write(work: Any, memory: Any, peaks: Any, to: Any, which: int, numbers: Any, pitch: int) -> None:
        program.find_peak(work, GROUP, memory, peaks, which, *numbers)
        program.divide(work, GROUP, memory, peaks, to, which, *numbers, pitch)

    return write


def _thirds(device: Device, vector: int) -> Callable[..., None]:
    program = device.build("matmul_thirds", VECTOR=vector)

    def write(work: Any, memory: Any, told: Any, to: Any, which: int, numbers: Any, pitch: int) -> None:
        program.divide(work, GROUP, memory, told, to, *numbers, pitch)

    return write


class InParts(NamedTuple):
    """A dense operand's parts, beside each other in every row, and what a product must know of them.

    parts: None where nobody divided it so far, though its peak was found
    told: words. Of halves the first two are the peak's bits, and behind them are those of which it is the largest; of
    thirds both are 1 if a number is not finite, here or in what was divided at once, else 0
    """

    parts: Buffer | None
    told: Buffer


Known = dict[str, InParts]  # operands that were divided, by the names that they have in a call


def divided_beside(device: Device, operands: tuple[Whole, ...], parts: int, known: Known) -> tuple[InParts, ...]:
    """One or two operands in parts; known has those that need not be divided, and then all."""
    new = [each for each in operands if each.name not in known or known[each.name].parts is None]
    if new:
        found = [known[each.name].told if each.name in known else None for each in new]
        known |= zip((each.name for each in new), _divided_beside(device, new, parts, found), strict=True)
    return tuple(known[each.name] for each in operands)


def _divided_beside(device: Device, new: list[Whole], parts: int, found: list[Buffer | None]) -> list[InParts]:
    """One or two, by the same launches."""
    written = [device.empty(Spec((parts * FOUR * each.fours,), DTYPES[parts])) for each in new]
    x, y, left, right = new[0], new[-1], written[0].memory, written[-1].memory
    y_fours = y.fours if len(new) == 2 else 0
    groups = _groups_beside(device, max(x.fours, y_fours), x.row if x.fours > y_fours else y.row)
    work, numbers = (groups * ITEMS,), (x.fours, x.row, y_fours, y.row)
    if parts == THIRDS:
        told = [device.empty(PEAKS)] * 2
        device.commands.fill((8,), None, told[0].memory)
        program = device.build("matmul_thirds", VECTOR=1)
        to = told[0].memory, left, right
    else:
        told = [device.empty(Spec((2 + groups,), uint32)) if each is None else each for each in found]
        program = device.build("matmul_parts", KIND="f16", VECTOR=1)
        peaks, lacking = (told[0].memory, told[-1].memory), [i for i, each in enumerate(found) if each is None]
        if lacking:
            first, last = new[lacking[0]], new[lacking[-1]]
            lengths = first.fours, last.fours if len(lacking) == 2 else 0
            both = (told[i].memory for i in (lacking[0], lacking[-1]))
            program.find_peaks(work, (ITEMS,), first.memory, last.memory, *both, *lengths)
        to = *peaks, told[0].size - 2, told[-1].size - 2, left, right
    program.divide_beside(work, (ITEMS,), x.memory, y.memory, *to, *numbers)
    return [*map(InParts, written, told)]


def _groups_beside(device: Device, fours: int, row: int) -> int:
    """No more than run at once, of which all together take whole rows of the larger operand, if they can."""
    most, whole = BESIDE_PER_UNIT * device.features.compute_units, row // gcd(row, ITEMS)
    groups = min(-(-fours // ITEMS), most)
    return groups // whole * whole or groups


def divides(device: Device) -> bool:
    """True where products of "high" have operands in parts, so that who writes an array had better tell its peak."""
    return device.features.architecture == HOPPER


def known_of(**arrays: Buffer) -> Known:
    """Of operands by their names, the peaks that their makers told."""
    return {name: InParts(None, buf.peaks) for name, buf in arrays.items() if buf.peaks is not None}


def kept(device: Device, known: Known) -> tuple[tuple[str, Buffer, Buffer], ...]:
    """What a pair saves of operands in parts, for known_again: halves, which take the room of the operand once more."""
    most = device.features.global_memory // MOST_KEPT
    divided = ((name, each) for name, each in known.items() if each.parts is not None)
    halves = ((name, each) for name, each in divided if each.parts.dtype == DTYPES[HALVES])
    return tuple((name, *each) for name, each in halves if 2 * each.parts.size <= most)


def known_again(saved: tuple[tuple[str, Buffer, Buffer], ...]) -> Known:
    """What was kept."""
    return {name: InParts(parts, told) for name, parts, told in saved}


def in_whole(columns: int) -> int:
    """The pitch of rows of parts."""
    return -(-columns // WHOLE) * WHOLE


def room(p: Problem, parts: int) -> int:
    """Bytes that the parts of both operands take."""
    return sum(
        2 * parts * (p.batch if op.outer or op.inner else 1) * kept * p.k for op, kept in ((p.x, p.m), (p.y, p.n))
    )


def bound(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far the product of two float32 matrices by halves may be from the exact one, element by element."""
    x, y = np.abs(x).astype(np.float64), np.abs(y).astype(np.float64)
    largest = [a[np.isfinite(a)].max(initial=0) for a in (x, y)]
    lost = [2.0**-50 * most for most in largest]
    across = x.sum(-1, keepdims=True) * lost[1] + lost[0] * y.sum(-2, keepdims=True)
    left_out = 2.0**-78 * x.shape[-1] * largest[0] * largest[1]
    return 2.0**-20 * (x @ y) + across + left_out
