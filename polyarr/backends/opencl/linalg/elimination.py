"""Gaussian elimination by panels of columns: solve, inv, slogdet; and solve_triangular.

A work-group eliminates a panel; the rest of the matrix is updated by matrix products. Right sides of equations are
further columns of the matrix, so that elimination transforms them, too.
"""

from collections.abc import Callable

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import launch, launcher
from polyarr.backends.opencl.linalg.matrices import INT32, LOWER, UPPER, Call, block, matrices_of
from polyarr.backends.opencl.linalg.triangular import substitute
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, broadcast, permuted, reshaped, spec_of, view
from polyarr.core.spec import Spec


def solve(device: Device, out: Spec, x: Buffer, b: Buffer) -> Buffer:
    """Return the solution y of x y = b; leading axes broadcast."""
    if not out.size:
        return device.empty(out)
    call, n = Call(device, "solve", x.shape, x.dtype), x.shape[-1]
    sides, finish = _sides(call, out, x, b)
    w = call.empty(n, n + sides.shape[2])
    call.move(block(w, slice(n), slice(n, None)), sides)
    return finish(_solution(call, w, matrices_of(device, x)))


def solve_triangular(device: Device, out: Spec, x: Buffer, b: Buffer, *, upper: bool) -> Buffer:
    """Return the solution y of x y = b for triangular matrices x; leading axes broadcast."""
    if not out.size:
        return device.empty(out)
    call = Call(device, "solve_triangular", x.shape, x.dtype)
    given, finish = _sides(call, out, x, b)
    m = call.load(matrices_of(device, x), keep=UPPER if upper else LOWER)
    pivots = view(m, (call.count, 1, m.shape[1]), (m.strides[0], 0, m.strides[1] + m.strides[2]), m.offset)
    ones = launcher("divide")(device, Spec(pivots.shape, m.dtype), pivots, pivots)  # nan where a pivot is 0
    call.move(ones, ones, message=call.singular)
    sides = call.move(call.empty(*given.shape[1:]), given)
    _substitute_panels(call, m, sides, upward=upper)
    return finish(sides)


def _sides(call: Call, out: Spec, x: Buffer, b: Buffer) -> tuple[Buffer, Callable[[Buffer], Buffer]]:
    """Return the right sides (matrices, n, columns) of equations, and what makes the result of their solutions.

    Matrices that are broadcast are decomposed once: these axes of b become columns.
    """
    lead, n = len(out.shape) - 2, x.shape[-1]
    x_lead = (1,) * (lead + 2 - x.ndim) + x.shape[:-2]
    kept = [a for a in range(lead) if x_lead[a] == out.shape[a]]
    order = [*kept, lead, *(a for a in range(lead) if a not in kept), lead + 1]
    columns = dense(call.device, permuted(broadcast(b, out.shape), order))

    def finish(found: Buffer) -> Buffer:
        result = call.store(spec_of(columns), found)
        return permuted(result, sorted(range(lead + 2), key=order.__getitem__))

    return reshaped(columns, (call.count, n, columns.size // (call.count * n))), finish


def inv(device: Device, out: Spec, x: Buffer) -> Buffer:
    """Return the inverses of matrices."""
    if not out.size:
        return device.empty(out)
    call, n = Call(device, "inv", x.shape, x.dtype), x.shape[-1]
    w = call.zeros(n, 2 * n)
    call.set_identity(block(w, slice(n), slice(n, None)))
    return call.store(out, _solution(call, w, matrices_of(device, x)), message=call.singular)


def slogdet(device: Device, out: tuple[Spec, Spec], x: Buffer) -> tuple[Buffer, Buffer]:
    """Return the signs of determinants and the logarithms of their magnitudes."""
    if 0 in x.shape:
        return launch(device, out[0], 1.0), launch(device, out[1], 0.0)
    call, n = Call(device, "slogdet", x.shape, x.dtype), x.shape[-1]
    w = call.load(matrices_of(device, x))
    pivots = _eliminate(call, w, -1)
    sign, size = call.empty(1, 1), call.reals(1, 1)
    group = (1,) if device.geometry.kind == "cpu" else None  # PoCL compiles a kernel anew for each size of groups
    call.for_panels("elimination", n)[0].determinant(
        (call.count,), group, w.memory, pivots.memory, sign.memory, size.memory, *w.strides[:2], n, call.panel
    )  # fmt: skip
    return call.store(out[0], sign), call.store(out[1], size)


def _solution(call: Call, w: Buffer, x: Buffer) -> Buffer:
    """Solve the equations with matrices x, and right sides in the columns of w after the first n; return these."""
    n = x.shape[1]
    call.move(block(w, slice(n), slice(n)), x, message=call.not_finite)
    _eliminate(call, w, call.singular)
    sides = block(w, slice(n), slice(n, None))
    _substitute_panels(call, w, sides, upward=True)
    return sides


def _substitute_panels(call: Call, m: Buffer, sides: Buffer, *, upward: bool) -> None:
    """Replace sides (matrices, n, columns) by the solutions of equations with a triangle of m: if upward, the upper."""
    n, everything = sides.shape[1], slice(None)
    starts = range(0, n, call.panel)
    for first in reversed(starts) if upward else starts:
        last = min(first + call.panel, n)
        panel, rest = slice(first, last), slice(first) if upward else slice(last, n)
        solved = block(sides, panel, everything)
        substitute(call, block(m, panel, panel), solved, upward=upward)
        call.subtract_product(block(sides, rest, everything), block(m, rest, panel), solved)


def _eliminate(call: Call, w: Buffer, message: int) -> Buffer:
    """Eliminate the first n columns of w (matrices, n, columns), and return the pivots (matrices, n) of each panel.

    Singular matrices are faults unless message is -1. L is left as elimination found it, without later exchanges.
    """
    _, n, columns = w.shape
    pivots = call.device.empty(Spec((call.count, n), INT32))
    program, work = call.for_panels("elimination", n)
    for first in range(0, n, call.panel):
        last = min(first + call.panel, n)
        panel = slice(first, last)
        square, right = block(w, panel, panel), block(w, slice(first, n), slice(last, columns))
        program.eliminate(
            *work, w.memory, pivots.memory, *call.fault, message, square.offset, *w.strides[:2],
            n - first, last - first, first, n,
        )  # fmt: skip
        if last < columns:
            own = block(pivots._replace(shape=(call.count, 1, n), strides=(n, n, 1)), slice(1), panel)
            substitute(call, square, right, divisor=0, pivots=own)
            below, solved = slice(last, n), block(w, panel, slice(last, columns))
            call.subtract_product(block(w, below, slice(last, columns)), block(w, below, panel), solved)
    return pivots


