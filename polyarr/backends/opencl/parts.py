"""Float32 operands of a product as two of float16 each, or three of bfloat16, for matrix units.

Halves: x 2^shift = high + low / 2^11. One shift for a tensor brings its largest finite magnitude to 2^14. What is 2^-28
of that, or more, keeps 22 bits; what is less keeps an error of 2^-50 of the largest. Where an operand is infinite the
product may be nan.

Thirds: x = high + middle + low, with all 24 bits and float32's range. Products of parts that are left out make at most
2^-24 of a product of numbers, as rounding it would; and what is not finite is told to who multiplies.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.product import Operand, Problem
from polyarr.core.spec import Spec, bfloat16, float16, uint32

GROUP, ITEMS = (64, 4, 1), 256
FOUR, WHOLE = 4, 8  # columns of a work-item; 16-bit elements in 16 bytes
GROUPS_PER_UNIT = 16
MOST_MATRICES = 65535  # groups along the third axis
HALVES, THIRDS = 2, 3
DTYPES = {HALVES: float16, THIRDS: bfloat16}
WALKS = {1: 1, HALVES: 3, THIRDS: 6}  # along k, of numbers in so many parts
PEAKS = Spec((2,), uint32)

Pair = tuple[int, int]
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


class Divided(NamedTuple):
    """Two dense operands, their parts, and the peaks."""

    x: Any
    y: Any
    left: Any
    right: Any
    peaks: Any


def divided_beside(
    device: Device, x: Any, y: Any, fours: tuple[Pair, Pair], parts: int, before: Divided | None
) -> Divided:
    """The parts of two dense operands, beside each other in every row.

    fours: of each operand, how many numbers by four there are, and in a row. before: what may be taken from there.
    """
    if before is not None and before.x is x and before.y is y:
        return before
    peaks = device.empty(PEAKS).memory
    device.commands.fill((8,), None, peaks)
    (x_fours, x_row), y_side = fours
    rooms = [Spec((parts * FOUR * count,), DTYPES[parts]) for count, _ in fours]
    if before is not None and before.x is x:
        left, x_fours = before.left, 0
        device.commands.copy((4,), None, peaks, before.peaks)
    else:
        left = device.empty(rooms[0]).memory
    right = device.empty(rooms[1]).memory
    groups = min(-(-max(x_fours, y_side[0]) // ITEMS), GROUPS_PER_UNIT * device.features.compute_units)
    work, group = (groups * ITEMS,), (ITEMS,)
    if parts == THIRDS:
        program = device.build("matmul_thirds", VECTOR=1)
    else:
        program = device.build("matmul_parts", KIND="f16", VECTOR=1)
        program.find_peaks(work, group, x, y, peaks, x_fours, y_side[0])
    program.divide_beside(work, group, x, y, peaks, left, right, x_fours, x_row, *y_side)
    return Divided(x, y, left, right, peaks)


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
