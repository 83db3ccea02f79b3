"""QR decomposition by Householder reflections, in panels of columns.

The reflections of a panel, with vectors v, are one product: I - v t v^H, where t^-1 is the upper triangle of v^H v with
half of its diagonal. So matrix products and triangular systems apply them.

Source: Joffrain, Low, Quintana-Orti, van de Geijn, Van Zee 2006, doi:10.1145/1141885.1141886
"""

from polyarr.backends.opencl.gemm.matmul import matmul
from polyarr.backends.opencl.linalg.matrices import UPPER, Call, block, diagonal, matrices_of
from polyarr.backends.opencl.linalg.triangular import substitute
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.spec import Spec


def qr(device: Device, out: tuple[Spec, Spec], x: Buffer) -> tuple[Buffer, Buffer]:
    """Return q with orthonormal columns, and the upper triangle r with a nonnegative diagonal, of x = q r."""
    if 0 in x.shape:
        return device.empty(out[0]), device.empty(out[1])
    call, n = Call(device, "qr", x.shape, x.dtype), x.shape[-1]
    w = call.load(matrices_of(device, x))
    v = factorize(call, w)
    q, r = call.set_identity(call.zeros(*w.shape[1:])), block(w, slice(n), slice(n))
    multiply(call, v, q)
    return (
        call.store(out[0], q, signs=diagonal(w, True)),
        call.store(out[1], r, keep=UPPER, signs=diagonal(r, False), back=True),
    )


def factorize(call: Call, w: Buffer) -> Buffer:
    """Write R, whose diagonal may have any signs, into the upper triangle of w; return the vectors of the reflections.

    w and the vectors are dense (matrices, rows, columns), with at least as many rows as columns.
    """
    v, (_, m, n) = call.zeros(*w.shape[1:]), w.shape
    program, work = call.for_panels("qr", m)
    for first, last in _panels(call, n):
        rows = slice(first, m)
        here = block(w, rows, slice(first, last))
        program.reflect(
            *work, w.memory, v.memory, here.offset, *w.strides[:2], m - first, last - first
        )  # fmt: skip
        if last < n:
            _reflect(call, block(v, rows, slice(first, last)), block(w, rows, slice(last, n)), last_first=False)
    return v


def multiply(call: Call, v: Buffer, c: Buffer) -> None:
    """Replace c by Q c, where Q is the product of the reflections with these vectors."""
    _, m, n = v.shape
    for first, last in reversed(_panels(call, n)):
        rows = slice(first, m)
        _reflect(call, block(v, rows, slice(first, last)), block(c, rows, slice(None)), last_first=True)


def orthonormal(call: Call, x: Buffer) -> Buffer:
    """Return orthonormal columns near those of x, a square matrix whose columns are nearly orthonormal or 0.

    A column is only changed by those before it. x is overwritten.
    """
    reflections = factorize(call, x)
    q = call.set_identity(call.zeros(*x.shape[1:]))
    multiply(call, reflections, q)
    return call.move(call.empty(*x.shape[1:]), q, signs=diagonal(x, True))


def _panels(call: Call, n: int) -> list[tuple[int, int]]:
    return [(first, min(first + call.panel, n)) for first in range(0, n, call.panel)]


def _reflect(call: Call, v: Buffer, c: Buffer, *, last_first: bool) -> None:
    """Apply the reflections of a panel to c, the last one first or the first one first."""
    width, adjoint = v.shape[2], call.adjoint(v)
    gram = matmul(call.device, Spec((call.count, width, width), v.dtype), adjoint, v)
    inner = matmul(call.device, Spec((call.count, width, c.shape[2]), v.dtype), adjoint, c)
    substitute(call, gram, inner, upward=last_first, divisor=2)
    call.subtract_product(c, v, inner)
