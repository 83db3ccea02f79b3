"""Kernels of the NumPy backend: those of make_kernels, with faster or more precise versions where NumPy has them."""
# To pyright, NumPy's stubs have no real and imag for an array of any dtype. mypy checks attributes here.
# pyright: reportAttributeAccessIssue=false

import math
from collections.abc import Callable
from contextvars import Context
from types import EllipsisType
from typing import Any

import numpy as np

from polyarr import ops
from polyarr.backends.kernels import (
    SAME_NAME,
    Library,
    argsort,
    column_phases,
    elementwise,
    floor_divide,
    forward_slices,
    long_sum,
    make_kernels,
    matrix_product,
    normalized_indices,
    of_matrices,
    reduction,
    with_flat_indices,
)
from polyarr.core.op import Op
from polyarr.core.spec import FLOATS, INEXACT, INTEGERS, Spec

BLOCK = 64  # largest number of terms summed sequentially
NUMPY = Library(np)
_idle: list[Context] = []  # unused contexts in which NumPy's warnings are off


def quietly(fn: Callable, *args: Any, **params: Any) -> Any:
    """Call fn without warnings on overflow, in a reused context: entering np.errstate is slow."""
    try:
        context = _idle.pop()
    except IndexError:  # all are in use by other threads
        context = Context()
        context.run(np.seterr, all="ignore")
    try:
        return context.run(fn, *args, **params)
    finally:
        _idle.append(context)


def quiet(kernel: Callable) -> Callable:
    """Return a kernel that is called without warnings."""
    return lambda *args, **params: quietly(kernel, *args, **params)


def ufunc(fn: Callable) -> Callable:
    """Make a kernel from a function that treats Python numbers as weakly typed, as polyarr does."""
    widened, wide = quiet(elementwise(NUMPY, fn)), NUMPY.wide

    def kernel(out: Spec, *bufs: Any) -> np.ndarray:
        x = bufs[0] if type(bufs[0]) is np.ndarray else bufs[-1]
        if x.dtype in wide:
            return widened(out, *bufs)
        found = quietly(fn, *bufs)
        return found if type(found) is np.ndarray and found.dtype is out.dtype else np.asarray(found, dtype=out.dtype)

    return kernel


def expm1(x: np.ndarray) -> np.ndarray:
    """Return exp(x) - 1, with the standard's values for complex infinities and zeros, for which NumPy has others."""
    if x.dtype.kind != "c":
        return np.expm1(x)
    found = np.where(np.isfinite(x), np.expm1(x), np.exp(x) - 1)
    found.real += 0.0  # -0 becomes 0
    return found


def log1p(x: np.ndarray) -> np.ndarray:
    """Return log(1 + x); NumPy loses the real part of small complex numbers, and overflows for large ones."""
    if x.dtype.kind != "c":
        return np.log1p(x)
    sum_ = np.array(x)
    sum_.real += 1
    found = np.asarray(np.log(sum_))
    over = x.real * (2 + x.real) + np.square(x.imag)  # |1 + x|^2 - 1
    near = (np.abs(x.real) < 2) & (np.abs(x.imag) < 2) & (over > -0.5)
    found.real = np.where(near, 0.5 * np.log1p(over), found.real)
    return found


def sign(x: np.ndarray) -> np.ndarray:
    """Return x / |x|, and 0 for 0; the magnitude of large complex numbers, which are scaled, would overflow."""
    return np.sign(x if x.dtype.kind != "c" else _times(x, _factor(x, *_scales(x.dtype))))


def divide(x: Any, y: Any) -> np.ndarray:
    """Return x / y; complex numbers near the limits of the exponent, with which NumPy overflows, are scaled first."""
    found = np.divide(x, y)
    if found.dtype.kind != "c" or (np.isfinite(found).all() and found.all()):
        return found
    limit, scale = _scales(found.dtype)
    x, y = (np.asarray(a, found.dtype) for a in (x, y))
    by_x, by_y = (_factor(a, limit, scale) for a in (x, y))
    return _times(_times(np.divide(_times(x, by_x), _times(y, by_y)), by_y), 1 / by_x)


def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x @ y; BLAS multiplies some complex results by 1 + 0j, which makes infinities nan in one shape only."""
    found = matrix_product(NUMPY, x, y)
    if found.dtype.kind != "c" or np.isfinite(found).all():
        return found
    (a, b), (c, d) = ((np.ascontiguousarray(z.real), np.ascontiguousarray(z.imag)) for z in (x, y))
    whole, finite = np.empty_like(found), np.isfinite(found)
    whole.real = np.where(finite, found.real, matrix_product(NUMPY, a, c) - matrix_product(NUMPY, b, d))
    whole.imag = np.where(finite, found.imag, matrix_product(NUMPY, a, d) + matrix_product(NUMPY, b, c))
    return whole


def _scales(dtype: np.dtype) -> tuple[float, float]:
    """Return the magnitude above which complex numbers are scaled, and the inverse of the factor."""
    return (2.0**100, 2.0**40) if dtype == np.complex64 else (2.0**900, 2.0**100)


def _factor(z: np.ndarray, limit: float, scale: float) -> np.ndarray:
    """Return a power of two for each number, which brings it between 1 / limit and limit."""
    size = np.maximum(np.abs(z.real), np.abs(z.imag))
    return np.where(size > limit, 1 / scale, np.where(size < 1 / limit, scale, 1.0)).astype(size.dtype)


def _times(z: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return complex numbers times real ones, part by part: a complex product of an infinity would be nan."""
    found = np.empty(np.broadcast_shapes(z.shape, by.shape), z.dtype)
    found.real, found.imag = z.real * by, z.imag * by
    return found


def short_sum(fn: Callable) -> Callable:
    """Make a kernel from np.sum or np.prod that reduces short axes, and integers, without reordering."""
    long = long_sum(NUMPY, fn)

    def kernel(out: Spec, x: np.ndarray, *, axis: tuple, keepdims: bool, dtype: np.dtype) -> np.ndarray:
        if dtype in INTEGERS and x.dtype.kind in "biu":
            return np.asarray(fn(x, axis=axis, keepdims=keepdims, dtype=dtype))
        if dtype != x.dtype or math.prod(x.shape[i] for i in axis) > BLOCK:
            return long(out, x, axis=axis, keepdims=keepdims, dtype=dtype)
        added = fn(x, axis=axis, keepdims=keepdims, dtype=NUMPY.sum_dtype(dtype))
        return np.asarray(added, dtype=dtype)

    return kernel


def arg_extreme(extreme: Callable, plain: Callable) -> Callable:
    """Make a kernel for argmax or argmin from np.max or np.min, and from np.argmax or np.argmin for the last axis.

    For short axes other than the last, on which NumPy is slow, count the elements before the first extreme or nan.
    """
    along = reduction(NUMPY, plain)

    def kernel(out: Spec, x: np.ndarray, *, axis: int | None, keepdims: bool) -> np.ndarray:
        if axis in (None, x.ndim - 1) or x.shape[axis] > BLOCK or not out.size:
            return along(out, x, axis=axis, keepdims=keepdims)
        rows = np.moveaxis(NUMPY.widened(x), axis, 0)
        found = extreme(rows, axis=0)
        count, before = np.zeros(found.shape, np.uint8), np.ones(found.shape, np.bool_)
        for row in rows:
            before &= row != found
            before &= row == row
            count += before
        return count.astype(out.dtype).reshape(out.shape)

    return kernel


def complex_of_parts(out: Spec, x: Any, y: Any) -> np.ndarray:
    """Return x + iy with the bits of both, which arithmetic would not keep for infinities and -0."""
    found = np.empty(out.shape, out.dtype)
    found.real, found.imag = x, y
    return found


def dft(out: Spec, x: np.ndarray, *, axis: tuple[int, ...], inverse: bool, scale: float) -> np.ndarray:
    """Transform; norm="forward" leaves the inverse without a factor."""
    found = np.fft.ifftn(x, axes=axis, norm="forward") if inverse else np.fft.fftn(x, axes=axis)
    return scaled(found, scale)


def dft_of_real(out: Spec, x: np.ndarray, *, axis: int, inverse: bool, scale: float) -> np.ndarray:
    """Transform real numbers, those of 16 bits in float32."""
    found = np.fft.rfft(NUMPY.widened(x), axis=axis)
    return scaled(np.conj(found) if inverse else found, scale)


def dft_to_real(out: Spec, x: np.ndarray, *, n: int, axis: int, inverse: bool, scale: float) -> np.ndarray:
    """Transform to real numbers."""
    return scaled(np.fft.irfft(x if inverse else np.conj(x), n=n, axis=axis, norm="forward"), scale)


def scaled(x: np.ndarray, scale: float) -> np.ndarray:
    """Return x times a factor, in place."""
    if scale != 1:
        x *= scale
    return x


def quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x // y; for integers NumPy's is 0 if y is 0."""
    return floor_divide(NUMPY, x, y) if x.dtype in FLOATS else np.floor_divide(x, y)


def slice_(out: Spec, x: np.ndarray, starts: tuple, *, steps: tuple, shape: tuple) -> np.ndarray:
    """Return a strided slice as a view."""
    if min(steps, default=1) < 0:  # a slice that ends at element 0 going backwards would need a stop of None
        forward, flipped = forward_slices(starts, steps, shape)
        return np.flip(x[forward], flipped)
    places: list[slice | EllipsisType] = [
        slice(at, at + step * n, step) for at, step, n in zip(starts, steps, shape, strict=True)
    ]
    return x[(*places, ...)]


def cumulative_sum(out: Spec, x: np.ndarray, *, axis: int, dtype: np.dtype) -> np.ndarray:
    """Return the cumulative sum, with floats accumulated in float64, by blocks."""
    if dtype not in INEXACT:
        return np.cumsum(x, axis=axis, dtype=dtype)
    rows = np.moveaxis(x, axis, -1).astype(NUMPY.sum_dtype(dtype))
    return np.moveaxis(blocked_cumsum(rows), -1, axis).astype(dtype, copy=False)


def blocked_cumsum(x: np.ndarray) -> np.ndarray:
    """Return the cumulative sums along the last axis: within blocks, plus the cumulative sum of the blocks."""
    *lead, length = x.shape
    if length <= BLOCK:
        return np.cumsum(x, axis=-1)
    blocks = -(-length // BLOCK)
    x = np.concatenate([x, np.zeros((*lead, blocks * BLOCK - length), x.dtype)], axis=-1)
    within = np.cumsum(x.reshape(*lead, blocks, BLOCK), axis=-1)
    until = blocked_cumsum(within[..., -1])
    before = np.concatenate([np.zeros((*lead, 1), x.dtype), until[..., :-1]], axis=-1)
    return (within + before[..., None]).reshape(*lead, blocks * BLOCK)[..., :length]


def slice_update(out: Spec, x: np.ndarray, value: np.ndarray, starts: tuple, *, steps: tuple) -> np.ndarray:
    """Return a copy of x with value in the strided slice."""
    slices, flipped = forward_slices(starts, steps, value.shape)
    new = np.array(x)
    new[slices] = np.flip(value, flipped)
    return new


def scatter(out: Spec, x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int) -> np.ndarray:
    """Return a copy of x with the updates; NumPy assigns in row-major order, so the last update of an index remains."""
    new, at = np.array(x), normalized_indices(NUMPY, "scatter", indices, x.shape[axis])
    new[(*(slice(None),) * axis, at)] = with_flat_indices(NUMPY, np.array(updates, order="C"), at, x, axis)
    return new


def scatter_add(out: Spec, x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int) -> np.ndarray:
    """Return a copy of x with the updates added one after the other, floats in float64."""
    normalized_indices(NUMPY, "scatter_add", indices, x.shape[axis])
    new = x.astype(NUMPY.sum_dtype(x.dtype))
    at: Any = (*(slice(None),) * axis, indices)  # of `at`, NumPy's types do not have tuples
    np.add.at(new, at, updates.astype(new.dtype, copy=False))
    return new.astype(out.dtype, copy=False)


def argtopk(out: Spec, x: np.ndarray, *, k: int, axis: int) -> np.ndarray:
    """Return the indices of the k largest, found by a partition if k is small; the first of equal elements."""
    rows = np.moveaxis(NUMPY.widened(x), axis, -1)
    length = rows.shape[-1]
    if not out.size or 4 * k > length or (rows.dtype.kind == "f" and np.isnan(rows).any()):
        return np.moveaxis(_descending(out, rows)[..., :k], -1, axis)
    least = np.partition(rows, length - k, axis=-1)[..., length - k, None]
    above, equal = rows > least, rows == least
    found = above | (equal & (np.cumsum(equal, axis=-1) <= k - np.sum(above, axis=-1, keepdims=True)))
    at = np.nonzero(found)[-1].reshape(*rows.shape[:-1], k)  # ascending: stable for equal elements
    order = _descending(out, np.take_along_axis(rows, at, axis=-1))
    return np.moveaxis(np.take_along_axis(at, order, axis=-1), -1, axis)


def _descending(out: Spec, rows: np.ndarray) -> np.ndarray:
    return argsort(NUMPY, out, rows, axis=rows.ndim - 1, descending=True, stable=True)


def eig(lib: Library, x: np.ndarray) -> tuple:
    """Return NumPy's eigenvalues and eigenvectors, with the order and phases of ops.eig."""
    w, v = np.linalg.eig(x)
    order = np.lexsort((w.imag, w.real))
    v = np.take_along_axis(v, order[..., None, :], axis=-1)
    return np.take_along_axis(w, order, axis=-1), v * np.conj(column_phases(lib, v))


def eigvals(lib: Library, x: np.ndarray) -> np.ndarray:
    """Return NumPy's eigenvalues, in the order of ops.eig."""
    w = np.linalg.eigvals(x)
    return np.take_along_axis(w, np.lexsort((w.imag, w.real)), axis=-1)


def windows(out: Spec, x: np.ndarray, *, kernel: tuple, stride: tuple, dilation: tuple) -> np.ndarray:
    """Return the sliding windows as a read-only view."""
    if not out.size:
        return np.empty(out.shape, out.dtype)
    first, *along, last = x.strides
    between, within = ([n * by for n, by in zip(along, steps, strict=True)] for steps in (stride, dilation))
    strides = (first, *between, *within, last)
    return np.lib.stride_tricks.as_strided(x, out.shape, strides, writeable=False)


def sum_windows(out: Spec, x: np.ndarray, *, shape: tuple, stride: tuple, dilation: tuple) -> np.ndarray:
    """Add one element of all windows at a time; no two of them overlap."""
    total, axes = np.zeros(out.shape, NUMPY.wide.get(out.dtype, out.dtype)), len(shape)
    count, kernel = x.shape[1 : 1 + axes], x.shape[1 + axes : -1]
    for place in np.ndindex(kernel):
        each = zip(place, count, stride, dilation, strict=True)
        there = [slice(j * d, j * d + (n - 1) * s + 1, s) for j, n, s, d in each]
        total[(slice(None), *there)] += x[(*(slice(None),) * (axes + 1), *place)]
    return total.astype(out.dtype, copy=False)


def max_pool(
    out: Spec, x: np.ndarray, *, kernel: tuple, stride: tuple, padding: tuple, dilation: tuple, ceil_mode: bool
) -> np.ndarray:
    """Compare one element of all windows at a time, skipping those in the padding."""
    x = NUMPY.widened(x)
    total = np.full(out.shape, -np.inf, x.dtype)
    for place in np.ndindex(kernel):
        into, of = [slice(None)], [slice(None)]
        for j, length, windows, s, d, (before, _) in zip(
            place, x.shape[1:-1], out.shape[1:-1], stride, dilation, padding, strict=True
        ):
            at = j * d - before  # index in the first window
            first, end = max(0, -(at // s)), min(windows, (length - 1 - at) // s + 1)  # windows where it lies in x
            into.append(slice(first, max(first, end)))
            of.append(slice(first * s + at, max(first, end) * s + at, s))
        there = total[tuple(into)]
        if there.size:
            np.maximum(there, x[tuple(of)], out=there)
    return total.astype(out.dtype, copy=False)


KERNELS: dict[Op, Callable] = {
    **make_kernels(np, np.frompyfunc(math.erf, 1, 1)),
    **{op: ufunc(getattr(np, op.name)) for op in SAME_NAME},
    ops.divide: ufunc(divide),
    ops.expm1: ufunc(expm1),
    ops.log1p: ufunc(log1p),
    ops.sign: ufunc(sign),
    ops.sum: quiet(short_sum(np.sum)),
    ops.prod: quiet(short_sum(np.prod)),
    ops.argmax: quiet(arg_extreme(np.max, np.argmax)),
    ops.argmin: quiet(arg_extreme(np.min, np.argmin)),
    ops.floor_divide: quiet(elementwise(NUMPY, quotient)),
    ops.remainder: quiet(elementwise(NUMPY, np.remainder)),
    ops.matrix_product: quiet(elementwise(NUMPY, product)),
    ops.real_part: lambda out, x: np.asarray(x.real),
    ops.imaginary_part: lambda out, x: np.asarray(x.imag),
    ops.complex: complex_of_parts,
    ops.dft: quiet(dft),
    ops.dft_of_real: quiet(dft_of_real),
    ops.dft_to_real: quiet(dft_to_real),
    ops.eig: quiet(of_matrices(NUMPY, ops.eig, eig)),
    ops.eigvals: quiet(of_matrices(NUMPY, ops.eigvals, eigvals)),
    ops.reshape: lambda out, x, *, shape: x.reshape(shape),
    ops.permute_dims: lambda out, x, *, axes: x.transpose(axes),
    ops.slice: slice_,
    ops.cumulative_sum: quiet(cumulative_sum),
    ops.slice_update: slice_update,
    ops.argtopk: argtopk,
    ops.scatter: scatter,
    ops.scatter_add: quiet(scatter_add),
    ops.windows: windows,
    ops.sum_windows: quiet(sum_windows),
    ops.max_pool: quiet(max_pool),
}
