"""Transforms of whole rows in one launch, from and to complex or real numbers."""

from math import prod

import numpy as np

from polyarr.backends.opencl.fft.launches import Launch, launch_of
from polyarr.backends.opencl.fft.stages import fits, is_smooth, stages, vector
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import Table
from polyarr.core.spec import Spec, complex_of
from polyarr.ops.fourier import roots

COMPLEX, REAL, HALF, HALF_OF_PAIRS = range(4)  # forms of rows: see forms.cl
MULTIPLES = (8, 5, 6, 7)  # lengths of convolutions are these times a power of two


def rows_at_once(device: Device, out: Spec, n: int, inverse: bool, source: int, result: int) -> Launch | None:
    """Plan transforms of n complex numbers, or return None if they do not fit into local memory."""
    rows, dtype, length = prod(out.shape[:-1]), complex_of(out.dtype), n if is_smooth(n) else length_of(2 * n - 1)
    each = vector(device, dtype)
    if not fits(device, dtype, length, 1) or not (rows >= each or length < 4 * each):
        return None
    here, is_convolved = stages(device, dtype, length, rows, 1), length != n
    macros = here.macros_for(read_by_lane=False, write_by_lane=False)
    program = device.build(
        f"whole_rows{here.suffix}", SOURCE=source, RESULT=result, CONVOLVED=int(is_convolved), **macros
    )
    tables = (
        device.plans[Table](*here.roots),
        device.plans[Table](halves_of, 2 * n, dtype) if HALF_OF_PAIRS in (source, result) else None,
        device.plans[Table](chirp_of, n, dtype) if is_convolved else None,
        device.plans[Table](spectrum_of, n, length, dtype) if is_convolved else None,
    )
    numbers = *here.numbers, int(inverse), n, length_in(source, n), length_in(result, n), rows
    count = -(-rows // here.lanes)
    return launch_of(device, program.kernels["transform_rows"], count, here.items, tables, numbers, out)


def length_in(form: int, n: int) -> int:
    """Return the elements of a row of n numbers in a form."""
    return {HALF: n // 2 + 1, HALF_OF_PAIRS: n + 1}.get(form, n)


def length_of(least: int) -> int:
    """Return a length with small factors that is at least this large, and less than 5/4 of it."""
    power = max(least.bit_length() - 4, 0)
    return min(m << k for m in MULTIPLES for k in range(power, power + 3) if m << k >= least)


def halves_of(device: Device, n: int, dtype: np.dtype) -> tuple[Buffer]:
    """Return the first half of the roots of n and the one after it, for a Table."""
    return (device.upload(roots(-np.arange(n // 2 + 1), n).astype(dtype)),)


def chirp_of(device: Device, n: int, dtype: np.dtype) -> tuple[Buffer]:
    """Return factors of x and of the result of a transform that is a convolution with their conjugates, for a Table.

    It is one since 2 j k = j^2 + k^2 - (k - j)^2.
    """
    return (device.upload(_chirp(n).astype(dtype)),)


def spectrum_of(device: Device, n: int, size: int, dtype: np.dtype) -> tuple[Buffer]:
    """Return the spectrum to multiply by between the two transforms of this size of a convolution, for a Table."""
    factors, around = _chirp(n), np.zeros(size, np.complex128)
    around[:n] = factors.conj()
    around[size - n + 1 :] = factors[:0:-1].conj()
    return (device.upload((np.fft.fft(around) / size).astype(dtype)),)


def _chirp(n: int) -> np.ndarray:
    return roots(-(np.arange(n) ** 2), 2 * n)
