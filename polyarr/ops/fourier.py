"""Discrete Fourier transforms of complex numbers along axes, and of real ones; polyarr.fft is made of them."""

import math

import numpy as np

from polyarr.core.errors import ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import Spec, check_kind, complex_of, float32, float64, int64, real_of
from polyarr.ops.create import fill, iota
from polyarr.ops.decompositions import product
from polyarr.ops.elementwise import astype, complex, conj, multiply, negative, real_part, remainder, where
from polyarr.ops.functions import cos, sin
from polyarr.ops.joining import concat, pad
from polyarr.ops.logic import equal, less
from polyarr.ops.shape import flip, matrix_transpose, moveaxis, one_axis, part_of, reshape
from polyarr.ops.validation import wholes

MAX_MATRIX = 64  # longest transform that is one product with a matrix


def roots(numerators: np.ndarray, n: int) -> np.ndarray:
    """Return exp(2 pi i k / n) for integers k as a complex128 array of NumPy, for tables of backends."""
    rest, quarters = _reduced(np.asarray(numerators, np.int64), n)
    angles = rest * (math.pi / (2 * n))
    return (np.cos(angles) + 1j * np.sin(angles)) * np.array([1, 1j, -1, -1j])[quarters]


def _reduced(k, n: int):
    """Return integers r and q with k / n = q / 4 + r / (4 n) turns, up to whole turns: an angle below 1/8 and quarters.

    Then only the conversion of a small angle to radians is rounded.
    """
    k = k % n
    quarters = (k * 8 + n) // (2 * n)
    return k * 4 - quarters * n, quarters % 4


# ---- shape rules -------------------------------------------------------------------------------------------------


def _checked(op: str, x: Spec, axis: int, kind: str) -> int:
    check_kind(op, "x", x, kind)
    axis = one_axis(op, x, axis)
    if not x.shape[axis]:
        raise ShapeError(f"{op}: x is {x}; it must have an element along axis {axis}")
    return axis


def _resized(x: Spec, axis: int, n: int, dtype: np.dtype) -> Spec:
    return Spec((*x.shape[:axis], n, *x.shape[axis + 1 :]), dtype)


def _dft_rule(x, *, axis, inverse, scale):
    axes = tuple(sorted(_checked("dft", x, a, "complex") for a in wholes("dft", "axis", axis)))
    if not axes or len({*axes}) < len(axes):
        raise ShapeError(f"dft: x is {x}, axis is {axis}; it must be an axis, or a tuple of distinct axes")
    return x, {"axis": axes, "inverse": bool(inverse), "scale": float(scale)}


def _dft_of_real_rule(x, *, axis, inverse, scale):
    axis = _checked("dft_of_real", x, axis, "floating")
    out = _resized(x, axis, x.shape[axis] // 2 + 1, complex_of(x.dtype))
    return out, {"axis": axis, "inverse": bool(inverse), "scale": float(scale)}


def _dft_to_real_rule(x, *, n, axis, inverse, scale):
    axis = _checked("dft_to_real", x, axis, "complex")
    if x.shape[axis] != n // 2 + 1:
        raise ShapeError(f"dft_to_real: x is {x}, n is {n}; x must have n // 2 + 1 elements along axis {axis}")
    return _resized(x, axis, n, real_of(x.dtype)), {"axis": axis, "inverse": bool(inverse), "scale": float(scale)}


# ---- the ops -----------------------------------------------------------------------------------------------------


@composed(infer=_dft_rule, group="complex")
def dft(x, *, axis=(-1,), inverse=False, scale=1.0):
    """Return the discrete Fourier transform along an axis: y[k] = scale * sum of x[j] exp(-2 pi i j k / n) over j.

    Along several axes it is the transform along each of them in turn.

    Args:
        x: Complex array with n >= 1 elements along axis.
        axis: Int, or tuple of distinct ints. Kernels get a tuple, sorted.
        inverse: Whether the exponent is positive.
        scale: Factor of the result.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        AxisError: x lacks an axis.
        DtypeError: x is not complex.
        ShapeError: x has no element along an axis, or an axis is there twice.

    Examples:
        >>> import polyarr as pa
        >>> pa.ops.dft(pa.asarray([1 + 0j, 2, 3, 4])).tolist()
        [(10+0j), (-2+2j), (-2+0j), (-2-2j)]

    Gradients: x

    Source: Cooley, Tukey 1965, doi:10.2307/2003354; Bluestein 1970, doi:10.1109/TAU.1970.1162132
    """
    for a in axis:
        moved = moveaxis(x, source=a, destination=-1)
        found = _transformed(reshape(moved, shape=(1, *moved.shape)), 1 if inverse else -1)
        x = moveaxis(reshape(found, shape=moved.shape), source=-1, destination=a)
    return multiply(x, scale)


@composed(infer=_dft_of_real_rule, group="complex")
def dft_of_real(x, *, axis=-1, inverse=False, scale=1.0):
    """Return the first n // 2 + 1 elements of the discrete Fourier transform of a real array; the others mirror them.

    Args:
        x: Floating-point array with n >= 1 elements along axis.
        axis: Int.
        inverse: Whether the exponent is positive, as in dft.
        scale: Factor of the result.

    Returns:
        Complex array with n // 2 + 1 elements along axis.

    Raises:
        AxisError: x lacks the axis.
        DtypeError: x is not floating-point.
        ShapeError: x has no element along the axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.ops.dft_of_real(pa.asarray([1.0, 2.0, 3.0, 4.0])).tolist()
        [(10+0j), (-2+2j), (-2+0j)]

    Gradients: x
    """
    return part_of(dft(complex(x, 0.0), axis=axis, inverse=inverse, scale=scale), axis, 0, x.shape[axis] // 2 + 1)


@composed(infer=_dft_to_real_rule, group="complex")
def dft_to_real(x, *, n, axis=-1, inverse=True, scale=1.0):
    """Return the discrete Fourier transform, which is real, of n elements of which the second half mirrors the first.

    Element n - j is the conjugate of element j. The imaginary part of element 0, and of element n / 2, is ignored.

    Args:
        x: Complex array with n // 2 + 1 elements along axis, the first ones.
        n: Int: elements of the result along axis.
        axis: Int.
        inverse: Whether the exponent is positive, as in dft.
        scale: Factor of the result.

    Returns:
        Real array with n elements along axis, of the precision of x.

    Raises:
        AxisError: x lacks the axis.
        DtypeError: x is not complex.
        ShapeError: x does not have n // 2 + 1 elements along the axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.ops.dft_to_real(pa.asarray([10 + 0j, -2 + 2j, -2]), n=4, scale=0.25)
        Array([1., 2., 3., 4.], float32, 'numpy')

    Gradients: x
    """
    x = moveaxis(x, source=axis, destination=-1)
    mirrored = conj(flip(part_of(x, -1, 0, (n + 1) // 2), axis=-1))
    whole = concat((x, part_of(mirrored, -1, 0, (n - 1) // 2)), axis=-1)
    return moveaxis(real_part(dft(whole, axis=-1, inverse=inverse, scale=scale)), source=-1, destination=axis)


# ---- their gradients: the matrix of a transform is symmetric -----------------------------------------------------


def _counted(x, n: int, axis: int, middle: float):
    """Return x, the first half of n elements, with those that have a mirror image multiplied by `middle`."""
    axis %= len(x.shape)
    each = iota(0, 2, x, size=n // 2 + 1, dtype=int64)
    one = fill(1.0, x, shape=(), dtype=real_of(x.dtype))
    factors = where(equal(remainder(each, n), 0), one, middle)
    return multiply(x, reshape(factors, shape=(n // 2 + 1, *(1,) * (len(x.shape) - 1 - axis))))


dft.vjp(x=lambda g, axis, inverse, scale: dft(g, axis=axis, inverse=inverse, scale=scale))
dft_of_real.vjp(
    x=lambda g, x_spec, axis, inverse, scale: dft_to_real(
        _counted(g, x_spec.shape[axis], axis, 0.5), n=x_spec.shape[axis], axis=axis, inverse=inverse, scale=scale
    )
)
dft_to_real.vjp(
    x=lambda g, n, axis, inverse, scale: _counted(
        dft_of_real(g, axis=axis, inverse=inverse, scale=scale), n, axis, 2.0
    )
)


# ---- decomposition of dft ----------------------------------------------------------------------------------------


def _roots(k, n: int, like):
    """Return exp(2 pi i k / n) for an int64 array k in the dtype of `like`, computed in float64 if there is one."""
    rest, quarters = _reduced(k, n)
    angles = astype(rest, dtype=float64 if float64 in like.backend.dtypes else float32)
    angles = multiply(angles, math.pi / (2 * n))
    x, y = (astype(fn(angles), dtype=real_of(like.dtype)) for fn in (cos, sin))
    is_odd, is_turned = equal(remainder(quarters, 2), 1), less(1, quarters)
    x, y = where(is_odd, negative(y), x), where(is_odd, x, y)
    return complex(*(where(is_turned, negative(a), a) for a in (x, y)))


def _numbers(n: int, step: int, like):
    return iota(0, step, like, size=n, dtype=int64)


def _table(rows: int, columns: int, n: int, sign: int, like):
    """Return the matrix (rows, columns) of exp(2 pi i j k / n), with an exponent of this sign."""
    return _roots(multiply(reshape(_numbers(rows, sign, like), shape=(rows, 1)), _numbers(columns, 1, like)), n, like)


def _transformed(x, sign: int):
    """Return the transform of x (..., n) along its last axis, which is not its only one."""
    *lead, n = x.shape
    if n <= MAX_MATRIX:
        return product(x, _table(n, n, n, sign, x))
    rows = next((d for d in range(MAX_MATRIX, 1, -1) if n % d == 0), None)
    if rows is None:
        return _by_convolution(x, sign)
    # Element j = (j // columns, j % columns) contributes to element k = (k % rows, k // rows).
    columns = n // rows
    x = product(_table(rows, rows, rows, sign, x), reshape(x, shape=(*lead, rows, columns)))
    x = _transformed(multiply(x, _table(rows, columns, n, sign, x)), sign)
    return reshape(matrix_transpose(x), shape=(*lead, n))


def _by_convolution(x, sign: int):
    """Transform as a convolution with a chirp, as 2 j k = j^2 + k^2 - (k - j)^2."""
    n = x.shape[-1]
    size = 1 << (2 * n - 2).bit_length()
    j = _numbers(n, 1, x)
    chirp = _roots(multiply(multiply(j, j), sign), 2 * n, x)
    back = reshape(conj(chirp), shape=(1, n))
    gap = fill(0, x, shape=(1, size - 2 * n + 1), dtype=x.dtype)
    spectrum = _transformed(concat((back, gap, part_of(flip(back, axis=-1), -1, 0, n - 1)), axis=-1), -1)
    padded = pad(multiply(x, chirp), pad_width=(*((0, 0),) * (len(x.shape) - 1), (0, size - n)))
    found = _transformed(multiply(_transformed(padded, -1), spectrum), 1)
    return multiply(part_of(found, -1, 0, n), multiply(chirp, 1 / size))
