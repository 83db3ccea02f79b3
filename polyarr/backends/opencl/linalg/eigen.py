"""Eigenvalues of Hermitian matrices and singular values: selects the method."""

from types import ModuleType

from polyarr.backends.opencl.linalg import jacobi, tridiagonal
from polyarr.backends.opencl.linalg.matrices import Call, matrices_of
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, swapped, view
from polyarr.core.spec import Spec

# Rows from which on CPUs are faster with tridiagonal matrices than with Jacobi's method, also for batches.
MIN_TRIDIAGONAL = {"eigh": 9, "svd": 17}


def eigh(device: Device, out: tuple[Spec, Spec], x: Buffer) -> tuple[Buffer, Buffer]:
    """Return the eigenvalues, ascending, and the eigenvectors of the Hermitian parts of matrices."""
    if 0 in x.shape:
        return device.empty(out[0]), device.empty(out[1])
    call, n, x = Call(device, "eigh", x.shape, x.dtype), x.shape[-1], matrices_of(device, x)
    scales = call.scales(x)
    x = call.move(call.empty(n, n), x, hermitian=True, scales=scales)
    values, vectors = _method(call, "eigh", n).eigh(call, x)
    return (
        call.store(out[0], values, scales=scales, divide=True),
        call.store(out[1], vectors, signs=_by_column(call.signs(vectors), vectors), back=True),
    )


def svd(device: Device, out: tuple[Spec, Spec, Spec], x: Buffer) -> tuple[Buffer, Buffer, Buffer]:
    """Return u, the singular values, descending, and vh of matrices."""
    if 0 in x.shape:
        return device.empty(out[0]), device.empty(out[1]), device.empty(out[2])
    call, x = Call(device, "svd", x.shape, x.dtype), matrices_of(device, x)
    scales, is_wide = call.scales(x), x.shape[1] < x.shape[2]
    x = swapped(x) if is_wide else x
    _, m, n = x.shape
    x = call.move(call.empty(m, n), x, scales=scales, conjugate=is_wide)
    left, values, right = _method(call, "svd", n).svd(call, x)
    u, v = (right, left) if is_wide else (left, right)
    signs = call.signs(u)
    return (
        call.store(out[0], u, signs=_by_column(signs, u), back=True),
        call.store(out[1], values, scales=scales, divide=True),
        call.store(out[2], swapped(v), conjugate=True, signs=swapped(_by_column(signs, v))),
    )


def _method(call: Call, op: str, n: int) -> ModuleType:
    return tridiagonal if call.kind == "cpu" and n >= MIN_TRIDIAGONAL[op] else jacobi


def _by_column(signs: Buffer, like: Buffer) -> Buffer:
    """Return a view of signs (matrices, columns) repeated for each row of like."""
    return view(signs, like.shape, (like.shape[2], 0, 1), 0)
