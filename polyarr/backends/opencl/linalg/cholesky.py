"""Cholesky decomposition: by panels and matrix products on CPUs, by tiles with one launch per step on GPUs."""

from polyarr.backends.opencl.linalg.matrices import LOWER, Call, block, matrices_of
from polyarr.backends.opencl.linalg.triangular import substitute
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, swapped
from polyarr.core.spec import Spec

GROUPS_PER_UNIT = 1  # work-groups on a GPU, each of which factorizes the diagonal tile


def cholesky(device: Device, out: Spec, x: Buffer) -> Buffer:
    """Return the lower triangle L of L L^H = (x + x^H) / 2."""
    if not out.size:
        return device.empty(out)
    call = Call(device, "cholesky", x.shape, x.dtype)
    w = call.load(matrices_of(device, x), hermitian=True)
    steps = _by_tiles if call.kind == "gpu" else _by_panels
    return steps(call, out, w, call.message("; it must be positive definite"))


def _by_panels(call: Call, out: Spec, w: Buffer, message: int) -> Buffer:
    """Decompose panels of rows; matrix products update the rest."""
    n = w.shape[1]
    program, work = call.for_panels("elimination", call.panel)
    for first in range(0, n, call.panel):
        last = min(first + call.panel, n)
        square, right = block(w, slice(first, last), slice(first, last)), block(w, slice(first, last), slice(last, n))
        program.eliminate_hermitian(
            *work, w.memory, *call.fault, message, square.offset, *w.strides[:2], last - first
        )  # fmt: skip
        if last < n:
            substitute(call, swapped(square), right, conjugate=True)
            call.subtract_product(block(w, slice(last, n), slice(last, n)), call.adjoint(right), right)
    return call.store(out, swapped(w), keep=LOWER, conjugate=True)


def _by_tiles(call: Call, out: Spec, w: Buffer, message: int) -> Buffer:
    """Decompose with a launch per panel, as GPUs compute many tiles at once but wait for each launch."""
    n, widest = w.shape[1], call.panel if call.acc.itemsize <= 8 else call.panel // 2
    side = min(widest, 1 << (n - 1).bit_length())
    found, (program, group) = call.device.empty(out), call.for_tiles("cholesky", out.dtype, side)
    useful = max(GROUPS_PER_UNIT * call.device.features.compute_units // call.count, 1)
    for first in range(0, n, side):
        rest = -(-n // side) - first // side - 1  # tiles right of the diagonal one
        tiles = rest * (rest + 1) // 2
        groups = max(min(tiles, useful), 1)
        work = (call.count * groups * group,), (group,)
        program.factorize_step(*work, w.memory, found.memory, *call.fault, message, first, n, tiles, groups)
    return found
