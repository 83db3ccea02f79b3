"""The Fourier transforms of any length: of complex numbers, from real numbers and to real numbers.

A real transform of even length is a complex one of half the length: neighbors are the parts of complex numbers. A
length with a prime factor above 13 is a convolution with a chirp, by transforms of a length with small factors.
"""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import conversion, launch
from polyarr.backends.opencl.fft.passes import is_smooth, transform
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import (
    Buffer,
    moved,
    of_parts,
    part_of,
    permuted,
    reshaped,
    window,
    with_axis,
    with_parts,
)
from polyarr.backends.opencl.runtime.plans import Table
from polyarr.backends.opencl.runtime.program import Program
from polyarr.core.spec import Spec, real_of
from polyarr.ops.fourier import roots

GROUP = {"cpu": 1, "gpu": 128}
CHUNK = {"cpu": 8192, "gpu": 512}  # elements of a row for a work-group
SWAP_X, SWAP_Y = 1, 2
MULTIPLES = (8, 5, 6, 7)  # lengths of convolutions are these times a power of two


def dft(device: Device, out: Spec, x: Buffer, *, axis: int, inverse: bool, scale: float) -> Buffer:
    """Transform along an axis, in whatever order the axes lie in memory."""
    if not out.size:
        return device.empty(out)
    if not is_smooth(out.shape[axis]):
        return moved(_transformed(device, _in_rows(device, x, axis), inverse, scale), -1, axis)
    if x.is_dense:
        return transform(device, x, axis, inverse=inverse, scale=scale)
    order = sorted(range(x.ndim), key=lambda a: -x.strides[a])
    found = transform(device, dense(device, permuted(x, order)), order.index(axis), inverse=inverse, scale=scale)
    return permuted(found, sorted(range(x.ndim), key=order.__getitem__))


def dft_of_real(device: Device, out: Spec, x: Buffer, *, axis: int, inverse: bool, scale: float) -> Buffer:
    """Return the first half of the transform of real numbers, of which the others are the conjugates."""
    if not out.size:
        return device.empty(out)
    n, real = x.shape[axis], real_of(out.dtype)
    x = moved(x, axis, x.ndim - 1)
    if x.dtype != real:
        x = launch(device, Spec(x.shape, real), x, expression=conversion(x.dtype, real))
    if n % 2:
        whole = launch(device, Spec(x.shape, out.dtype), x, expression=conversion(real, out.dtype))
        found = _first(_transformed(device, whole, inverse, scale), n // 2 + 1)
    else:
        x = dense(device, x)
        pairs = of_parts(reshaped(x, (*x.shape[:-1], n // 2, 2)))
        z = _transformed(device, pairs, False, scale)
        found = device.empty(Spec(with_axis(x.shape, x.ndim - 1, n // 2 + 1), out.dtype))
        halves = device.plans[Table](_halves, n, out.dtype).buffers()
        _launch(device, "untangle", (z, *halves), found, int(inverse), n // 2)
    return moved(found, x.ndim - 1, axis)


def dft_to_real(device: Device, out: Spec, x: Buffer, *, n: int, axis: int, inverse: bool, scale: float) -> Buffer:
    """Return the transform of numbers of which the second half are the conjugates of the first."""
    if not out.size:
        return device.empty(out)
    x = _in_rows(device, x, axis)
    lead = x.shape[:-1]
    if n % 2:
        whole = device.empty(Spec((*lead, n), x.dtype))
        _launch(device, "mirror", (x,), whole, x.shape[-1])
        found = part_of(_transformed(device, whole, inverse, scale), 0)
    else:
        z = device.empty(Spec((*lead, n // 2), x.dtype))
        halves = device.plans[Table](_halves, n, x.dtype).buffers()
        _launch(device, "tangle", (x, *halves), z, int(not inverse), n // 2 + 1)
        found = reshaped(with_parts(_transformed(device, z, True, scale)), (*lead, n))
    return moved(found, len(lead), axis)


# ---- parts of them -----------------------------------------------------------------------------------------------


def _in_rows(device: Device, x: Buffer, axis: int) -> Buffer:
    """Return x dense, with an axis as the last."""
    return dense(device, moved(x, axis, x.ndim - 1))


def _first(x: Buffer, n: int) -> Buffer:
    """Return a view of the first n elements of rows."""
    return window(x, (*x.shape[:-1], n), (0,) * x.ndim, (1,) * x.ndim)


def _transformed(device: Device, x: Buffer, inverse: bool, scale: float) -> Buffer:
    """Return the transform of dense rows."""
    n, axis = x.shape[-1], x.ndim - 1
    if is_smooth(n):
        return transform(device, x, axis, inverse=inverse, scale=scale)
    size = _length(2 * n - 1)
    factors, spectrum = device.plans[Table](_chirp, n, size, x.dtype).buffers()
    padded, spread, result = (device.empty(Spec((*x.shape[:-1], length), x.dtype)) for length in (size, size, n))
    _launch(device, "weigh", (x, factors), padded, 1.0, SWAP_X if inverse else 0, n)
    found = transform(device, padded, axis, inverse=False, scale=1.0)
    _launch(device, "weigh", (found, spectrum), spread, 1.0, 0, size)
    found = transform(device, spread, axis, inverse=True, scale=1.0)
    _launch(device, "weigh", (found, factors), result, scale, SWAP_Y if inverse else 0, size)
    return result


def _length(least: int) -> int:
    """Return a length with small factors that is at least this large, and less than 5/4 of it."""
    power = max(least.bit_length() - 4, 0)
    return min(m << k for m in MULTIPLES for k in range(power, power + 3) if m << k >= least)


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


def _halves(device: Device, n: int, dtype: np.dtype) -> tuple[Buffer]:
    return (device.upload(roots(-np.arange(n // 2 + 1), n).astype(dtype)),)


def _chirp(device: Device, n: int, size: int, dtype: np.dtype) -> tuple[Buffer, Buffer]:
    """Return factors of x and of the result, and the spectrum to multiply by between two transforms of this size.

    As 2 j k = j^2 + k^2 - (k - j)^2, a transform is a convolution with the conjugates of the factors.
    """
    factors, around = roots(-(np.arange(n) ** 2), 2 * n), np.zeros(size, np.complex128)
    around[:n] = factors.conj()
    around[size - n + 1 :] = factors[:0:-1].conj()
    return device.upload(factors.astype(dtype)), device.upload((np.fft.fft(around) / size).astype(dtype))
