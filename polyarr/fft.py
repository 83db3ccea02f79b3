"""Fourier transforms: the extension `fft` of the array API standard 2025.12.

All functions run on every backend with complex dtypes, and have gradients of every order. Integers and bools are cast
to float32 or complex64.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from polyarr import ops
from polyarr.core.array import Array, spec_of
from polyarr.core.backend import Backend
from polyarr.core.errors import ShapeError
from polyarr.core.keywords import explained
from polyarr.core.names import answering
from polyarr.core.spec import COMPLEX, INEXACT, Spec, as_dtype, check_kind, complex_of, float32, shown
from polyarr.creation import asarray
from polyarr.ops.shape import one_axis, part_of
from polyarr.ops.validation import check_array, number, whole, wholes, within

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]


# ---- complex transforms ------------------------------------------------------------------------------------------


@explained
def fft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the discrete Fourier transform along an axis: y[k] = sum of x[j] exp(-2 pi i j k / n) over j.

    Args:
        x: Complex or floating-point array.
        n: Length of the transform: x is cut there, or continued by zeros. None for the length of x along axis.
        axis: Int.
        norm: Which transform has the factor 1 / n: "backward" the inverse one, "forward" this one; "ortho" gives
            both 1 / sqrt(n).

    Returns:
        Complex array with n elements along axis, of the precision of x.

    Raises:
        AxisError: x lacks the axis.
        ShapeError: x has no element along axis, and n is None.
        ValueError: n is less than 1, or there is no such norm.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.fft(pa.asarray([1.0, 2.0, 3.0, 4.0])).tolist()
        [(10+0j), (-2+2j), (-2+0j), (-2-2j)]

    Gradients: x
    """
    return _complex("fft", x, n, axis, norm)


@explained
def ifft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the inverse of fft along an axis: y[k] = sum of x[j] exp(2 pi i j k / n) / n over j.

    Args:
        x: Complex or floating-point array.
        n: Length of the transform, as in fft.
        axis: Int.
        norm: Which transform has the factor 1 / n, as in fft: "backward" this one.

    Returns:
        Complex array with n elements along axis, of the precision of x.

    Raises:
        AxisError, DtypeError, ShapeError, ValueError: As of fft.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.ifft(pa.asarray([10, -2 + 2j, -2, -2 - 2j])).tolist()
        [(1+0j), (2+0j), (3+0j), (4+0j)]

    Gradients: x
    """
    return _complex("ifft", x, n, axis, norm, inverse=True)


@explained
def fftn(
    x: Array, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Array:
    """Return the discrete Fourier transform along several axes.

    Args:
        x: Complex or floating-point array.
        s: Lengths of the transform along the axes, each as n of fft; None for those of x.
        axes: Ints; None for the last axes, as many as s has, or else for all.
        norm: Which transform has the factor 1 / n, as in fft, for each axis.

    Returns:
        Complex array with these lengths along the axes, of the precision of x.

    Raises:
        AxisError: x lacks an axis.
        ShapeError: s and axes differ in length, an axis is repeated, or x has no element along an axis.
        ValueError: A length is less than 1, or there is no such norm.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.fftn(pa.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [[(10+0j), (-2+0j)], [(-4+0j), 0j]]

    Gradients: x
    """
    return _along_several("fftn", x, _axes("fftn", x, s, axes), norm)


@explained
def ifftn(
    x: Array, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Array:
    """Return the inverse of fftn along several axes.

    Args:
        x: Complex or floating-point array.
        s: Lengths of the transform, as in fftn.
        axes: Ints, as in fftn.
        norm: Which transform has the factor 1 / n, as in ifft, for each axis.

    Returns:
        Complex array with these lengths along the axes, of the precision of x.

    Raises:
        AxisError, DtypeError, ShapeError, ValueError: As of fftn.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.ifftn(pa.asarray([[10.0, -2.0], [-4.0, 0.0]])).tolist()
        [[(1+0j), (2+0j)], [(3+0j), (4+0j)]]

    Gradients: x
    """
    return _along_several("ifftn", x, _axes("ifftn", x, s, axes), norm, inverse=True)


# ---- real input or real output -----------------------------------------------------------------------------------


@explained
def rfft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the first n // 2 + 1 elements of the Fourier transform of a real array; the others mirror them.

    Args:
        x: Floating-point array.
        n: Length of the transform, as in fft.
        axis: Int.
        norm: Which transform has the factor 1 / n, as in fft.

    Returns:
        Complex array with n // 2 + 1 elements along axis, of the precision of x.

    Raises:
        DtypeError: x is complex.
        AxisError, ShapeError, ValueError: As of fft.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.rfft(pa.asarray([1.0, 2.0, 3.0, 4.0])).tolist()
        [(10+0j), (-2+2j), (-2+0j)]

    Gradients: x
    """
    return _of_real("rfft", x, n, axis, norm)


@explained
def irfft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the inverse of rfft.

    Args:
        x: Complex or floating-point array: the first half of a spectrum, the rest of which mirrors it. Imaginary parts
            of element 0, and of element n / 2, are ignored.
        n: Length of the result along axis: x is cut, or continued by zeros, to n // 2 + 1 elements. None for
            2 (m - 1), where m is the length of x.
        axis: Int.
        norm: Which transform has the factor 1 / n, as in ifft.

    Returns:
        Real array with n elements along axis, of the precision of x.

    Raises:
        ShapeError: x has less than two elements along axis, and n is None.
        AxisError, DtypeError, ValueError: As of fft.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.irfft(pa.asarray([10, -2 + 2j, -2]))
        Array([1., 2., 3., 4.], float32, 'numpy')

    Gradients: x
    """
    return _to_real("irfft", x, n, axis, norm, inverse=True)


@explained
def rfftn(
    x: Array, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Array:
    """Return the Fourier transform of a real array along several axes, with half of the elements along the last one.

    Args:
        x: Floating-point array.
        s: Lengths of the transform, as in fftn.
        axes: Ints, as in fftn, at least one.
        norm: Which transform has the factor 1 / n, as in fft, for each axis.

    Returns:
        Complex array with these lengths along the axes, n // 2 + 1 instead of n along the last of them.

    Raises:
        DtypeError: x is complex.
        AxisError, ShapeError, ValueError: As of fftn.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.rfftn(pa.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [[(10+0j), (-2+0j)], [(-4+0j), 0j]]

    Gradients: x
    """
    *others, (axis, n) = _axes("rfftn", x, s, axes, least=1)
    return _along_several("rfftn", _of_real("rfftn", x, n, axis, norm), (*others,), norm)


@explained
def irfftn(
    x: Array, /, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Array:
    """Return the inverse of rfftn.

    Args:
        x: Complex or floating-point array: half of a spectrum along the last of the axes, as in irfft.
        s: Lengths of the result along the axes; None for those of x, but 2 (m - 1) instead of m for the last.
        axes: Ints, as in fftn, at least one.
        norm: Which transform has the factor 1 / n, as in ifft, for each axis.

    Returns:
        Real array with these lengths along the axes, of the precision of x.

    Raises:
        AxisError, DtypeError, ShapeError, ValueError: As of fftn.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.irfftn(pa.asarray([[10.0, -2.0], [-4.0, 0.0]]))
        Array([[1., 2.],
               [3., 4.]], float32, 'numpy')

    Gradients: x
    """
    *others, (last, length) = _axes("irfftn", x, s, axes, least=1)
    x = _along_several("irfftn", x, (*others,), norm, inverse=True)
    return _to_real("irfftn", x, length, last, norm, inverse=True)


def hfft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the Fourier transform, which is real, of an array whose second half mirrors the first.

    Args:
        x: Complex or floating-point array, the first half, as in irfft.
        n: Length of the result, as in irfft.
        axis: Int.
        norm: Which transform has the factor 1 / n, as in fft.

    Returns:
        Real array with n elements along axis, of the precision of x.

    Raises:
        AxisError, DtypeError, ShapeError, ValueError: As of irfft.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.hfft(pa.asarray([2.5, -0.5 - 0.5j, -0.5]))
        Array([1., 2., 3., 4.], float32, 'numpy')

    Gradients: x
    """
    return _to_real("hfft", x, n, axis, norm)


def ihfft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the inverse of hfft.

    Args:
        x: Floating-point array.
        n: Length of the transform, as in fft.
        axis: Int.
        norm: Which transform has the factor 1 / n, as in ifft.

    Returns:
        Complex array with n // 2 + 1 elements along axis, of the precision of x.

    Raises:
        AxisError, DtypeError, ShapeError, ValueError: As of rfft.

    Examples:
        >>> import polyarr as pa
        >>> pa.real(pa.fft.ihfft(pa.asarray([1.0, 2.0, 3.0, 4.0])))
        Array([ 2.5, -0.5, -0.5], float32, 'numpy')

    Gradients: x
    """
    return _of_real("ihfft", x, n, axis, norm, inverse=True)


def _complex(op: str, x: Array, n: int | None, axis: int, norm: str, *, inverse: bool = False) -> Array:
    axis, n, scale = _checked(op, x, n, axis, norm, inverse, "any")
    return ops.dft(_fitted(_as_complex(op, x), axis, n), axis=axis, inverse=inverse, scale=scale)


def _along_several(
    op: str, x: Array, axes: tuple[tuple[int, int | None], ...], norm: str, *, inverse: bool = False
) -> Array:
    """Return the transform along axes, each with its length; of none of them, x with a complex dtype."""
    x = _as_complex(op, x)
    names, lengths, scale = _known(_transforms_of, op, spec_of(x), axes, norm, inverse)
    for axis, n in zip(names, lengths, strict=True):
        x = _fitted(x, axis, n)
    return ops.dft(x, axis=names, inverse=inverse, scale=scale) if names else x


def _of_real(op: str, x: Array, n: int | None, axis: int, norm: str, *, inverse: bool = False) -> Array:
    check_array(op, "x", x)
    if x.dtype not in INEXACT:
        x = ops.astype(x, dtype=float32)
    axis, n, scale = _checked(op, x, n, axis, norm, inverse, "floating")
    return ops.dft_of_real(_fitted(x, axis, n), axis=axis, inverse=inverse, scale=scale)


def _to_real(op: str, x: Array, n: int | None, axis: int, norm: str, *, inverse: bool = False) -> Array:
    axis, n, scale = _checked(op, x, n, axis, norm, inverse, "any", is_half=True)
    x = _fitted(_as_complex(op, x), axis, n // 2 + 1)
    return ops.dft_to_real(x, n=n, axis=axis, inverse=inverse, scale=scale)


def _checked(
    op: str, x: Array, n: int | None, axis: int, norm: str, inverse: bool, kind: str, is_half: bool = False
) -> tuple[int, int, float]:
    """Return the axis of a transform as a non-negative int, its length, and its factor.

    is_half: whether x has the first half of the numbers to transform.
    """
    check_array(op, "x", x)
    return _known(_transform_of, op, spec_of(x), n, axis, norm, inverse, kind, is_half)


def _known(checked: Any, *given: Any) -> Any:
    """Return what a cached function has found for arguments, of which some may lack a hash."""
    try:
        return checked(*given)
    except TypeError:  # the function itself says what is wrong
        return checked.__wrapped__(*given)


@lru_cache(maxsize=4096, typed=True)
def _transform_of(
    op: str, x: Spec, n: int | None, axis: int, norm: str, inverse: bool, kind: str, is_half: bool
) -> tuple[int, int, float]:
    check_kind(op, "x", x, kind)
    axis = one_axis(op, x, axis)
    if n is not None:
        n = int(within(op, "n", whole(op, "n", n), 1))
    elif (n := 2 * (x.shape[axis] - 1) if is_half else x.shape[axis]) < 1:
        raise ShapeError(f"{op}: x is {x}; it has too few elements along axis {axis}, so n must be given")
    return axis, n, _scale(op, norm, n, inverse)


@lru_cache(maxsize=4096, typed=True)
def _transforms_of(
    op: str, x: Spec, axes: tuple[tuple[int, int | None], ...], norm: str, inverse: bool
) -> tuple[tuple[int, ...], tuple[int, ...], float]:
    found = [_known(_transform_of, op, x, n, axis, norm, inverse, "any", False) for axis, n in axes]
    return tuple(axis for axis, _, _ in found), tuple(n for _, n, _ in found), math.prod(scale for _, _, scale in found)


def _as_complex(op: str, x: Array) -> Array:
    """Return x with a complex dtype of the same precision."""
    return x if x.dtype in COMPLEX else ops.astype(x, dtype=complex_of(x.dtype))


def _fitted(x: Array, axis: int, n: int) -> Array:
    """Return x cut, or continued by zeros, to n elements along an axis."""
    more = n - x.shape[axis]
    if not more:
        return x
    if more > 0:
        return ops.pad(x, pad_width=tuple((0, more if a == axis else 0) for a in range(x.ndim)))
    return part_of(x, axis, 0, n)


def _scale(op: str, norm: str, n: int, inverse: bool) -> float:
    """Return the factor of a transform of length n."""
    if norm == "ortho":
        return n**-0.5
    if norm not in ("backward", "forward"):
        raise ValueError(f"{op}: norm is {shown(norm)}; it must be 'backward', 'ortho' or 'forward'")
    return 1 / n if inverse == (norm == "backward") else 1.0


def _axes(op: str, x: Array, s: Any, axes: Any, least: int = 0) -> tuple[tuple[int, int | None], ...]:
    """Return the axes of a transform, and its length along each; None for that of x."""
    check_array(op, "x", x)
    lengths = None if s is None else wholes(op, "s", s)
    if axes is None:
        axes = range(len(x.shape)) if lengths is None else range(-len(lengths), 0)
    return _axes_of(op, spec_of(x), lengths, wholes(op, "axes", axes), least)


@lru_cache(maxsize=4096)
def _axes_of(
    op: str, x: Spec, lengths: tuple[int, ...] | None, axes: tuple[int, ...], least: int
) -> tuple[tuple[int, int | None], ...]:
    found = _distinct(op, x, axes)
    if len(found) < least:
        raise ShapeError(f"{op}: x is {x}, axes is {found}; there must be at least {least}")
    if lengths is not None and len(lengths) != len(found):
        raise ShapeError(f"{op}: s is {lengths}, axes is {found}; there must be one length per axis")
    return tuple(zip(found, lengths or (None,) * len(found), strict=True))


def _distinct(op: str, x: Array | Spec, axes: Any) -> tuple[int, ...]:
    """Return axes as non-negative ints, in the order given."""
    found = tuple(one_axis(op, x, a) for a in wholes(op, "axes", axes))
    if len({*found}) < len(found):
        raise ShapeError(f"{op}: x is {spec_of(x)}, axes is {axes}; they must be distinct")
    return found


# ---- frequencies -------------------------------------------------------------------------------------------------


@explained
def fftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: str | Backend | None = None) -> Array:
    """Return the frequency of each element of fft: 0, 1, ... and then the negative ones up to -1, divided by n d.

    Args:
        n: Length of the transform.
        d: Distance of neighboring samples, not 0.
        dtype: Real floating-point dtype of the result; None for float32.
        device: Backend of the result, or its name; None for the current backend.

    Returns:
        Array (n,).

    Raises:
        DtypeError: dtype is not a real floating-point dtype.
        ValueError: n is less than 1, or d is 0.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.fftfreq(4, d=0.5)
        Array([ 0. ,  0.5, -1. , -0.5], float32, 'numpy')
    """
    return _frequencies("fftfreq", np.fft.fftfreq, n, d, dtype, device)


@explained
def rfftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: str | Backend | None = None) -> Array:
    """Return the frequency of each element of rfft: 0, 1, ... up to n // 2, divided by n d.

    Args:
        n: Length of the transform.
        d: Distance of neighboring samples, not 0.
        dtype: Real floating-point dtype of the result; None for float32.
        device: Backend of the result, or its name; None for the current backend.

    Returns:
        Array (n // 2 + 1,).

    Raises:
        DtypeError, ValueError: As of fftfreq.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.rfftfreq(4, d=0.5)
        Array([0. , 0.5, 1. ], float32, 'numpy')
    """
    return _frequencies("rfftfreq", np.fft.rfftfreq, n, d, dtype, device)


def _frequencies(op: str, fn: Any, n: int, d: float, dtype: Any, device: Any) -> Array:
    n, d = int(within(op, "n", whole(op, "n", n), 1)), number(op, "d", d)
    if d == 0:
        raise ValueError(f"{op}: d is 0; it must not be")
    dtype = float32 if dtype is None else as_dtype(dtype)
    check_kind(op, "the result", Spec((n,), dtype), "floating")
    return asarray(fn(n, d), dtype=dtype, device=device)


@explained
def fftshift(x: Array, /, axes: int | Sequence[int] | None = None) -> Array:
    """Return x with frequency 0, which fft puts first, in the middle.

    Args:
        x: Array of any dtype.
        axes: Int or ints; None for all axes.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        AxisError: x lacks an axis.
        ShapeError: An axis is repeated.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.fftshift(pa.fft.fftfreq(4))
        Array([-0.5 , -0.25,  0.  ,  0.25], float32, 'numpy')

    Gradients: x
    """
    return _shifted("fftshift", x, axes, 1)


@explained
def ifftshift(x: Array, /, axes: int | Sequence[int] | None = None) -> Array:
    """Return the inverse of fftshift.

    Args:
        x: Array of any dtype.
        axes: Int or ints; None for all axes.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        AxisError, ShapeError: As of fftshift.

    Examples:
        >>> import polyarr as pa
        >>> pa.fft.ifftshift(pa.asarray([-1, 0, 1]))
        Array([ 0,  1, -1], int64, 'numpy')

    Gradients: x
    """
    return _shifted("ifftshift", x, axes, -1)


def _shifted(op: str, x: Array, axes: Any, sign: int) -> Array:
    check_array(op, "x", x)
    found = _distinct(op, x, range(x.ndim) if axes is None else axes)
    return ops.roll(x, shift=tuple(sign * (x.shape[a] // 2) for a in found), axis=found)


if not TYPE_CHECKING:  # to a type checker, every name would seem to be there
    __getattr__ = answering(__name__, __all__)
