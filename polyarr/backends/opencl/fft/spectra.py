"""The Fourier transforms of any length: of complex numbers, from real numbers and to real numbers.

A real transform of even length is a complex one of half the length: neighbors are the parts of complex numbers. A
length with a prime factor above 13 is a convolution with a chirp, by transforms of a length with small factors. Rows
that fit into local memory take one launch; those of longer ones have other forms before and after their passes.
"""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import conversion, launch
from polyarr.backends.opencl.fft.passes import transform
from polyarr.backends.opencl.fft.stages import is_smooth
from polyarr.backends.opencl.fft.whole_rows import (
    COMPLEX,
    HALF,
    HALF_OF_PAIRS,
    REAL,
    chirp_of,
    halves_of,
    length_of,
    rows_at_once,
)
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import (
    Buffer,
    moved,
    of_parts,
    part_of,
    permuted,
    reshaped,
    spec_of,
    window,
    with_axis,
    with_parts,
)
from polyarr.backends.opencl.runtime.plans import Table
from polyarr.backends.opencl.runtime.program import Program
from polyarr.core.spec import Spec, complex_of, real_of

GROUP = {"cpu": 1, "gpu": 128}
CHUNK = {"cpu": 8192, "gpu": 512}  # elements of a row for a work-group
SWAP_X, SWAP_Y = 1, 2


def dft(device: Device, out: Spec, x: Buffer, *, axis: int, inverse: bool, scale: float) -> Buffer:
    """Transform along an axis, in whatever order the axes lie in memory."""
    if not out.size:
        return device.empty(out)
    if not is_smooth(out.shape[axis]):
        x = _in_rows(device, x, axis)
        return moved(_transformed(device, spec_of(x), x, x.shape[-1], inverse, scale), -1, axis)
    if x.is_dense:
        return _along(device, x, axis, inverse, scale)
    order = sorted(range(x.ndim), key=lambda a: -x.strides[a])
    found = _along(device, dense(device, permuted(x, order)), order.index(axis), inverse, scale)
    return permuted(found, sorted(range(x.ndim), key=order.__getitem__))


def dft_of_real(device: Device, out: Spec, x: Buffer, *, axis: int, inverse: bool, scale: float) -> Buffer:
    """Return the first half of the transform of real numbers, of which the others are the conjugates."""
    if not out.size:
        return device.empty(out)
    n, real, last = x.shape[axis], real_of(out.dtype), x.ndim - 1
    x = moved(x, axis, last)
    if x.dtype != real:
        x = launch(device, Spec(x.shape, real), x, expression=conversion(x.dtype, real))
    x, rows = dense(device, x), Spec(with_axis(x.shape, last, n // 2 + 1), out.dtype)
    if n % 2:
        found = _transformed(device, rows, x, n, inverse, scale, REAL, HALF)
    else:
        pairs = of_parts(reshaped(x, (*x.shape[:-1], n // 2, 2)))
        found = _transformed(device, rows, pairs, n // 2, inverse, scale, COMPLEX, HALF_OF_PAIRS)
    return moved(found, last, axis)


def dft_to_real(device: Device, out: Spec, x: Buffer, *, n: int, axis: int, inverse: bool, scale: float) -> Buffer:
    """Return the transform of numbers of which the second half are the conjugates of the first."""
    if not out.size:
        return device.empty(out)
    x = _in_rows(device, x, axis)
    lead = x.shape[:-1]
    if n % 2:
        found = _transformed(device, Spec((*lead, n), out.dtype), x, n, inverse, scale, HALF, REAL)
    else:
        z = _transformed(device, Spec((*lead, n // 2), x.dtype), x, n // 2, inverse, scale, HALF_OF_PAIRS, COMPLEX)
        found = reshaped(with_parts(z), (*lead, n))
    return moved(found, len(lead), axis)


def _in_rows(device: Device, x: Buffer, axis: int) -> Buffer:
    """Return x dense, with an axis as the last."""
    return dense(device, moved(x, axis, x.ndim - 1))


def _along(device: Device, x: Buffer, axis: int, inverse: bool, scale: float) -> Buffer:
    """Return the transform of a dense complex array along an axis, whose length is smooth."""
    count, n = prod(x.shape[:axis]), x.shape[axis]
    is_last = count * n == x.size
    rows = device.plans[rows_at_once](x.dtype, count, n, COMPLEX, COMPLEX) if is_last else None
    if rows is None:
        return transform(device, x, axis, inverse=inverse, scale=scale)
    y = device.empty(spec_of(x))
    rows.run(x, y, inverse, scale)
    return y


def _transformed(
    device: Device, out: Spec, x: Buffer, n: int, inverse: bool, scale: float,
    source: int = COMPLEX, result: int = COMPLEX,
) -> Buffer:  # fmt: skip
    """Return the transform of n complex numbers of each row, dense in the form `source`, in the form `result`."""
    dtype = complex_of(out.dtype)
    rows = device.plans[rows_at_once](dtype, prod(out.shape[:-1]), n, source, result)
    if rows is not None:
        y = device.empty(out)
        rows.run(x, y, inverse, scale)
        return y
    z = _complex_from(device, x, Spec((*out.shape[:-1], n), dtype), inverse, source)
    z = _long_rows(device, z, source == HALF_OF_PAIRS or (inverse and result != HALF_OF_PAIRS), scale)
    if result == REAL:
        return part_of(z, 0)
    if result == HALF_OF_PAIRS:
        y = device.empty(out)
        halves = device.plans[Table](halves_of, 2 * n, dtype).buffers()
        _launch(device, "untangle", (z, *halves), y, int(inverse), n)
        return y
    return window(z, out.shape, (0,) * z.ndim, (1,) * z.ndim)


def _complex_from(device: Device, x: Buffer, out: Spec, inverse: bool, source: int) -> Buffer:
    """Return rows of the form `source` as complex numbers."""
    if source == COMPLEX:
        return x
    if source == REAL:
        return launch(device, out, x, expression=conversion(x.dtype, out.dtype))
    z = device.empty(out)
    if source == HALF:
        _launch(device, "mirror", (x,), z, x.shape[-1])
    else:
        halves = device.plans[Table](halves_of, 2 * out.shape[-1], out.dtype).buffers()
        _launch(device, "tangle", (x, *halves), z, int(not inverse), x.shape[-1])
    return z


def _long_rows(device: Device, x: Buffer, inverse: bool, scale: float) -> Buffer:
    """Return the transform of dense rows by passes over the array."""
    n, axis = x.shape[-1], x.ndim - 1
    if is_smooth(n):
        return transform(device, x, axis, inverse=inverse, scale=scale)
    size = length_of(2 * n - 1)
    chirp, spectrum = device.plans[Table](chirp_of, n, size, x.dtype).buffers()
    padded, spread, result = (device.empty(Spec((*x.shape[:-1], length), x.dtype)) for length in (size, size, n))
    _launch(device, "weigh", (x, chirp), padded, 1.0, SWAP_X if inverse else 0, n)
    found = transform(device, padded, axis, inverse=False, scale=1.0)
    _launch(device, "weigh", (found, spectrum), spread, 1.0, 0, size)
    found = transform(device, spread, axis, inverse=True, scale=1.0)
    _launch(device, "weigh", (found, chirp), result, scale, SWAP_Y if inverse else 0, size)
    return result


def _launch(device: Device, kernel: str, inputs: tuple[Buffer, ...], y: Buffer, *numbers: Any) -> None:
    """Run a kernel of spectra.cl on the rows of y."""
    kind, (*lead, length) = device.geometry.kind, y.shape
    chunks = -(-length // CHUNK[kind])
    work = (prod(lead) * chunks * GROUP[kind],), (GROUP[kind],)
    memories = (buf.memory for buf in (*inputs, y))
    device.plans[_program](y.dtype).kernels[kernel](*work, *memories, *numbers, length, chunks)


def _program(device: Device, dtype: np.dtype) -> Program:
    kind, real = device.geometry.kind, "float" if dtype.itemsize == 8 else "double"
    return device.build("spectra", REAL=real, PAIR=f"{real}2", WG=GROUP[kind], CHUNK=CHUNK[kind])
