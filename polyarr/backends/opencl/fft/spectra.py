"""The Fourier transforms of any length: of complex numbers, from real numbers and to real numbers.

A real transform of even length is a complex one of half the length: neighbors are the parts of complex numbers. A
length with a prime factor above 13 is a convolution with a chirp, by transforms of a length with small factors. Rows
that fit into local memory take one launch; those of longer ones have one more where a spectrum is of pairs.
"""

from math import prod

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import conversion, launch
from polyarr.backends.opencl.fft.launches import Launch, launch_of, run
from polyarr.backends.opencl.fft.passes import AFTER_WEIGHTS, BOTH, ON_READ, End, passes
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
    spectrum_of,
)
from polyarr.backends.opencl.runtime.device import Device, allocation_of
from polyarr.backends.opencl.runtime.layout import Buffer, moved, permuted, spec_of, with_axis
from polyarr.backends.opencl.runtime.plans import Table
from polyarr.backends.opencl.runtime.program import Program
from polyarr.core.spec import Spec, complex_of, real_of

GROUP = {"cpu": 1, "gpu": 128}
CHUNK = {"cpu": 8192, "gpu": 512}  # elements of a row for a work-group


def dft(device: Device, out: Spec, x: Buffer, *, axis: tuple[int, ...], inverse: bool, scale: float) -> Buffer:
    """Transform along axes, in whatever order they lie in memory."""
    if not out.size:
        return device.empty(out)
    if x.is_dense and (launches := device.plans[_along](out, axis, inverse)):
        return run(device, launches, x, scale)
    for a in axis:
        is_last = a == axis[-1]
        if is_smooth(x.shape[a]):
            order = sorted(range(x.ndim), key=lambda a: -x.strides[a])
        else:
            order = [*(b for b in range(x.ndim) if b != a), a]
        found = dense(device, permuted(x, order))
        launches = device.plans[_along](spec_of(found), (order.index(a),), inverse)
        found = run(device, launches, found, scale if is_last else 1.0)
        x = permuted(found, sorted(range(x.ndim), key=order.__getitem__))
    return x


def dft_of_real(device: Device, out: Spec, x: Buffer, *, axis: int, inverse: bool, scale: float) -> Buffer:
    """Return the first half of the transform of real numbers, of which the others are the conjugates."""
    if not out.size:
        return device.empty(out)
    n, real, last = x.shape[axis], real_of(out.dtype), x.ndim - 1
    x = x if axis == last else moved(x, axis, last)
    if x.dtype != real:
        x = launch(device, Spec(x.shape, real), x, expression=conversion(x.dtype, real))
    x, rows = dense(device, x), out if axis == last else Spec(with_axis(x.shape, last, n // 2 + 1), out.dtype)
    numbers, source, result = (n, REAL, HALF) if n % 2 else (n // 2, COMPLEX, HALF_OF_PAIRS)
    found = run(device, device.plans[_between](rows, numbers, inverse, source, result), x, scale)
    return found if axis == last else moved(found, last, axis)


def dft_to_real(device: Device, out: Spec, x: Buffer, *, n: int, axis: int, inverse: bool, scale: float) -> Buffer:
    """Return the transform of numbers of which the second half are the conjugates of the first."""
    if not out.size:
        return device.empty(out)
    last = x.ndim - 1
    x = dense(device, x if axis == last else moved(x, axis, last))
    rows = out if axis == last else Spec(with_axis(x.shape, last, n), out.dtype)
    numbers, source, result = (n, HALF, REAL) if n % 2 else (n // 2, HALF_OF_PAIRS, COMPLEX)
    found = run(device, device.plans[_between](rows, numbers, inverse, source, result), x, scale)
    return found if axis == last else moved(found, last, axis)


def _along(device: Device, out: Spec, axes: tuple[int, ...], inverse: bool) -> tuple[Launch, ...]:
    """Plan the transform of a dense complex array along axes; none if one but the last is of a length not smooth."""
    found: list[Launch] = []
    for axis in axes:
        if axis == len(out.shape) - 1:
            found += _between(device, out, out.shape[axis], inverse, COMPLEX, COMPLEX)
        elif is_smooth(out.shape[axis]):
            found += passes(device, out, axis, BOTH if inverse else 0)
        else:
            return ()
    return tuple(found)


def _between(device: Device, out: Spec, n: int, inverse: bool, source: int, result: int) -> tuple[Launch, ...]:
    """Plan the transforms of n complex numbers of each row, dense in the form `source`, to the form `result`."""
    if (rows := rows_at_once(device, out, n, inverse, source, result)) is not None:
        return (rows,)
    numbers, found = Spec((*out.shape[:-1], n), complex_of(out.dtype)), list[Launch]()
    swapped = source == HALF_OF_PAIRS or (inverse and result != HALF_OF_PAIRS)
    if source == HALF_OF_PAIRS:
        found.append(_of_pairs(device, "tangle", numbers, n, inverse))
    before, after = (End(COMPLEX if form == HALF_OF_PAIRS else form, n) for form in (source, result))
    if is_smooth(n):
        found += passes(device, numbers, len(out.shape) - 1, BOTH if swapped else 0, before, after)
    else:
        found += _convolution(device, numbers, swapped, before, after)
    if result == HALF_OF_PAIRS:
        found.append(_of_pairs(device, "untangle", out, n, inverse))
    found[-1] = found[-1]._replace(out=out, room=device.plans[allocation_of](out))
    return tuple(found)


def _convolution(device: Device, out: Spec, swapped: bool, before: End, after: End) -> list[Launch]:
    """Plan the transforms of rows by a convolution with a chirp."""
    n, dtype, axis = out.shape[-1], out.dtype, len(out.shape) - 1
    size = length_of(2 * n - 1)
    padded, chirp = Spec((*out.shape[:-1], size), dtype), (chirp_of, n, dtype)
    spectrum, first = End(COMPLEX, size, (spectrum_of, n, size, dtype)), ON_READ if swapped else 0
    return [
        *passes(device, padded, axis, first, before._replace(weights=chirp), spectrum),
        *passes(device, padded, axis, BOTH | (AFTER_WEIGHTS if swapped else 0), None, after._replace(weights=chirp)),
    ]


def _of_pairs(device: Device, kernel: str, out: Spec, n: int, inverse: bool) -> Launch:
    """Return a launch of spectra.cl for rows of n numbers."""
    kind, (*lead, length), dtype = device.geometry.kind, out.shape, complex_of(out.dtype)
    chunks, tables = -(-length // CHUNK[kind]), (device.plans[Table](halves_of, 2 * n, dtype),)
    found, count = device.plans[_program](dtype).kernels[kernel], prod(lead) * chunks
    return launch_of(device, found, count, GROUP[kind], tables, (int(inverse), n, chunks), out)


def _program(device: Device, dtype: np.dtype) -> Program:
    kind, real = device.geometry.kind, "float" if dtype.itemsize == 8 else "double"
    forms = {"SOURCE": HALF_OF_PAIRS, "RESULT": HALF_OF_PAIRS}
    return device.build("spectra", REAL=real, PAIR=f"{real}2", **forms, WG=GROUP[kind], CHUNK=CHUNK[kind])
