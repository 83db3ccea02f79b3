"""Gaussian elimination by panels of columns: solve, inv, slogdet.

A work-group eliminates a panel; the rest of the matrix is updated by matrix products. Right sides of equations are
further columns of the matrix, so that elimination transforms them, too.
"""

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import launch
from polyarr.backends.opencl.linalg.matrices import INT32, Call, block, matrices_of
from polyarr.backends.opencl.linalg.triangular import substitute
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, broadcast, permuted, reshaped, spec_of
from polyarr.core.spec import Spec


def solve(device: Device, out: Spec, x: Buffer, b: Buffer) -> Buffer:
    """Return the solution y of x y = b; leading axes broadcast."""
    if not out.size:
        return device.empty(out)
    # Matrices that are broadcast are decomposed once: these axes of b become columns.
    lead = len(out.shape) - 2
    x_lead = (1,) * (lead + 2 - x.ndim) + x.shape[:-2]
    kept = [a for a in range(lead) if x_lead[a] == out.shape[a]]
    order = [*kept, lead, *(a for a in range(lead) if a not in kept), lead + 1]
    columns = dense(device, permuted(broadcast(b, out.shape), order))
    call = Call(device, "solve", x.shape, x.dtype)
    n, sides = x.shape[-1], reshaped(columns, (call.count, x.shape[-1], columns.size // (call.count * x.shape[-1])))
    w = call.empty(n, n + sides.shape[2])
    call.move(block(w, slice(n), slice(n, None)), sides)
    found = _solution(call, w, matrices_of(device, x))
    result = call.store(spec_of(columns), found)
    return permuted(result, sorted(range(lead + 2), key=order.__getitem__))


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
    for first in range((n - 1) // call.panel * call.panel, -1, -call.panel):
        last = min(first + call.panel, n)
        solved = block(sides, slice(first, last), slice(None))
        substitute(call, block(w, slice(first, last), slice(first, last)), solved, upward=True)
        above = slice(first)
        call.subtract_product(block(sides, above, slice(None)), block(w, above, slice(first, last)), solved)
    return sides


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


