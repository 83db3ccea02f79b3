"""The table of kernels, for NumPy or any library with NumPy's names."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from polyarr import ops
from polyarr.backends.numpy.philox import random_bits
from polyarr.core.spec import FLOATS, NARROW, Spec, float32, float64
from polyarr.core.spec import bool as bool_

DEPTH = 512  # up to as many products are summed in their own dtype
BLOCK = 64  # numbers that a running sum adds one by one


def wide(dtype: np.dtype) -> np.dtype:
    """The dtype in which arithmetic on dtype is done."""
    return float32 if dtype in NARROW else dtype


def elementwise(xp: Any, fn: Callable) -> Callable:
    """A kernel out of a function of arrays: numbers take the arrays' dtype, narrow floats are widened and rounded."""

    def kernel(out: Spec, *bufs: Any) -> np.ndarray:
        stored = next(b.dtype for b in reversed(bufs) if hasattr(b, "dtype"))
        dtype = wide(stored)
        number = stored if out.dtype == bool_ else dtype  # what is compared is compared as it is stored
        with np.errstate(all="ignore"):
            wider = (b if hasattr(b, "dtype") else xp.asarray(b, number) for b in bufs)
            found = fn(*(b if b.dtype == dtype else b.astype(dtype) for b in wider))
            return xp.asarray(found).astype(out.dtype, copy=False)

    return kernel


def reduction(xp: Any, fn: Callable) -> Callable:
    """A kernel out of a reduction that takes axis, keepdims and dtype; narrow floats accumulate in float32."""

    def kernel(out: Spec, x: np.ndarray, *, axis: Any, keepdims: bool, dtype: Any = None) -> np.ndarray:
        with np.errstate(all="ignore"):
            more = {} if dtype is None else {"dtype": wide(out.dtype)}
            found = fn(x.astype(wide(x.dtype), copy=False), axis=axis, keepdims=keepdims, **more)
            return xp.asarray(found).astype(out.dtype, copy=False)

    return kernel


def long_sum(xp: Any, fn: Callable) -> Callable:
    """A kernel out of sum or prod in which floats lose no digits, however many there are.

    They accumulate in float64, and as rows side by side: only there NumPy adds in pairs, and not one by one.
    """
    plain = reduction(xp, fn)

    def kernel(out: Spec, x: np.ndarray, *, axis: tuple, keepdims: bool, dtype: Any) -> np.ndarray:
        if out.dtype not in FLOATS:
            return plain(out, x, axis=axis, keepdims=keepdims, dtype=dtype)
        kept = tuple(i for i in range(x.ndim) if i not in axis)
        rows = x.transpose((*kept, *axis)).astype(wide(x.dtype)).copy()
        rows = rows.reshape(*(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axis))
        with np.errstate(all="ignore"):
            return xp.asarray(fn(rows, axis=-1, dtype=float64)).reshape(out.shape).astype(out.dtype, copy=False)

    return kernel


def _reductions(xp: Any) -> dict:
    return {
        **{op: long_sum(xp, fn) for op, fn in ((ops.sum, xp.sum), (ops.prod, xp.prod))},
        **{op: reduction(xp, fn) for op, fn in ((ops.max, xp.max), (ops.min, xp.min))},
        **{op: reduction(xp, fn) for op, fn in ((ops.argmax, xp.argmax), (ops.argmin, xp.argmin))},
    }


def _binary(xp: Any, bound: Callable) -> dict:
    return {
        ops.add: xp.add, ops.subtract: xp.subtract, ops.multiply: xp.multiply, ops.divide: xp.divide,
        ops.floor_divide: bound(floor_divide), ops.remainder: bound(remainder), ops.pow: bound(power),
        ops.maximum: xp.maximum, ops.minimum: xp.minimum, ops.atan2: xp.arctan2, ops.hypot: xp.hypot,
        ops.copysign: xp.copysign, ops.logaddexp: xp.logaddexp, ops.equal: xp.equal, ops.not_equal: xp.not_equal,
        ops.less: xp.less, ops.less_equal: xp.less_equal, ops.greater: xp.greater, ops.greater_equal: xp.greater_equal,
        ops.bitwise_and: xp.bitwise_and, ops.bitwise_or: xp.bitwise_or, ops.bitwise_xor: xp.bitwise_xor,
        ops.bitwise_left_shift: xp.left_shift, ops.bitwise_right_shift: xp.right_shift,
    }  # fmt: skip


def make_kernels(xp: Any, erf: Callable | None = None) -> dict:
    """Op -> kernel, from the functions of xp, a library with NumPy's names; erf is its own, for NumPy has none.

    Its arrays have dtype, shape, ndim, size, astype, reshape, transpose, min, max, operators and slices as NumPy's do.
    They are assigned to, and then xp.add.at adds to them; or they have at[...].set, add and max, as JAX's do.
    """
    bound = functools.partial(functools.partial, xp=xp)  # a function of this module, with xp
    unary = {
        ops.negative: xp.negative, ops.abs: xp.abs, ops.sign: xp.sign, ops.floor: xp.floor, ops.ceil: xp.ceil,
        ops.trunc: xp.trunc, ops.round: xp.round, ops.exp: xp.exp, ops.expm1: xp.expm1, ops.log: xp.log,
        ops.log1p: xp.log1p, ops.log2: xp.log2, ops.log10: xp.log10, ops.sqrt: xp.sqrt, ops.square: xp.square,
        ops.sin: xp.sin, ops.cos: xp.cos, ops.tan: xp.tan, ops.asin: xp.arcsin, ops.acos: xp.arccos,
        ops.atan: xp.arctan, ops.sinh: xp.sinh, ops.cosh: xp.cosh, ops.tanh: xp.tanh, ops.asinh: xp.arcsinh,
        ops.acosh: xp.arccosh, ops.atanh: xp.arctanh, ops.erf: erf or ERF, ops.isnan: xp.isnan, ops.isinf: xp.isinf,
        ops.isfinite: xp.isfinite, ops.signbit: xp.signbit, ops.bitwise_invert: xp.invert,
    }  # fmt: skip
    return {
        **{op: elementwise(xp, fn) for op, fn in (unary | _binary(xp, bound)).items()},
        **_reductions(xp),
        ops.nextafter: bound(nextafter),
        ops.where: bound(where),
        ops.astype: astype,
        ops.cumulative_sum: bound(cumulative_sum),
        ops.full: lambda out, value, like, *, shape, dtype: xp.full(shape, value, dtype),
        ops.arange: bound(arange),
        ops.reshape: lambda out, x, *, shape: x.reshape(shape),
        ops.permute_dims: lambda out, x, *, axes: x.transpose(axes),
        ops.broadcast_to: lambda out, x, *, shape: xp.broadcast_to(x, shape),
        ops.slice: lambda out, x, *, starts, steps, shape: x[window(starts, steps, shape)],
        ops.slice_update: bound(slice_update),
        ops.concat: lambda out, arrays, *, axis: xp.concatenate(arrays, axis=axis),
        ops.take: bound(take),
        ops.scatter: bound(scatter),
        ops.scatter_add: bound(scatter_add),
        ops.argsort: bound(argsort),
        ops.matrix_product: elementwise(xp, bound(matrix_product)),
        ops.random_bits: bound(random_bits),
    }


ERF = np.frompyfunc(math.erf, 1, 1)  # for NumPy's arrays; the elementwise kernel restores the dtype


def floor_divide(x: np.ndarray, y: np.ndarray, *, xp: Any) -> np.ndarray:
    """x // y; with an infinity it is the floor of the quotient, as the standard asks, where NumPy takes a remainder."""
    found = xp.floor_divide(x, y)
    if x.dtype.kind in "iu":
        return found * (y != 0)  # what an integer divided by zero is, libraries do not agree on
    return xp.where(xp.isinf(x) | xp.isinf(y), xp.floor(x / y), found)


def remainder(x: np.ndarray, y: np.ndarray, *, xp: Any) -> np.ndarray:
    """x modulo y, with the sign of y; 0 for an integer modulo zero."""
    found = xp.remainder(x, y)
    return found * (y != 0) if x.dtype.kind in "iu" else found


def power(x: np.ndarray, y: np.ndarray, *, xp: Any) -> np.ndarray:
    """x**y; for integers a negative exponent gives 0 unless the base is 1 or -1, where NumPy would raise."""
    if x.dtype.kind not in "iu":  # where all exponents are 0.5, NumPy takes a square root, which is nan
        return xp.where((x == -math.inf) & (y == 0.5), math.inf, xp.power(x, y))
    reciprocal = xp.where(x == 1, 1, xp.where((x == -1) if x.dtype.kind == "i" else False, 1 - 2 * (y & 1), 0))
    return xp.where(y < 0, reciprocal, xp.power(x, xp.maximum(y, 0))).astype(x.dtype)


def nextafter(out: Spec, x: Any, y: Any, *, xp: Any) -> np.ndarray:
    """The neighbour in the dtype itself: nothing is widened."""
    with np.errstate(all="ignore"):
        return xp.asarray(xp.nextafter(xp.asarray(x, out.dtype), xp.asarray(y, out.dtype)), out.dtype)


def where(out: Spec, condition: Any, x: Any, y: Any, *, xp: Any) -> np.ndarray:
    """A choice moves values and computes nothing, so the dtype stays."""
    return xp.where(condition, xp.asarray(x, out.dtype), xp.asarray(y, out.dtype))


def astype(out: Spec, x: np.ndarray, *, dtype: np.dtype) -> np.ndarray:
    """NumPy's conversion; what a float outside an integer's range becomes is undefined."""
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def matrix_product(x: np.ndarray, y: np.ndarray, *, xp: Any) -> np.ndarray:
    """The product; one of great depth in parts, which are added in float64: BLAS adds up in the dtype itself."""
    depth = x.shape[-1]
    if depth <= DEPTH or x.dtype not in FLOATS:
        return xp.matmul(x, y)
    total = 0.0
    for start in range(0, depth, DEPTH):
        part = slice(start, start + DEPTH)
        total = total + xp.matmul(x[..., part], y[..., part, :]).astype(float64)
    return total


def cumulative_sum(out: Spec, x: np.ndarray, *, axis: int, dtype: np.dtype, xp: Any) -> np.ndarray:
    """Floats are accumulated in float64, by blocks."""
    with np.errstate(all="ignore"):
        if dtype not in FLOATS:
            return xp.cumsum(x, axis=axis, dtype=dtype)
        rows = xp.moveaxis(x, axis, -1).astype(float64)
        return xp.moveaxis(running_sums(rows, xp), -1, axis).astype(dtype, copy=False)


def running_sums(x: np.ndarray, xp: Any) -> np.ndarray:
    """Those along the last axis: within blocks, plus that of all blocks before, which is a running sum itself."""
    *lead, length = x.shape
    if length <= BLOCK:
        return xp.cumsum(x, axis=-1)
    blocks = -(-length // BLOCK)
    x = xp.concatenate([x, xp.zeros((*lead, blocks * BLOCK - length), x.dtype)], axis=-1)
    within = xp.cumsum(x.reshape(*lead, blocks, BLOCK), axis=-1)
    until = running_sums(within[..., -1], xp)
    before = xp.concatenate([xp.zeros((*lead, 1), x.dtype), until[..., :-1]], axis=-1)
    return (within + before[..., None]).reshape(*lead, blocks * BLOCK)[..., :length]


def arange(out: Spec, start: float, step: float, like: Any, *, size: int, dtype: np.dtype, xp: Any) -> np.ndarray:
    """Computed in the widest dtype of the kind."""
    exact = np.int64 if dtype.kind in "iub" else np.float64
    if dtype == np.uint64:
        exact = np.uint64
    return (exact(start) + exact(step) * xp.arange(size, dtype=exact)).astype(dtype)


def window(starts: tuple, steps: tuple, shape: tuple) -> tuple[slice, ...]:
    """The Python slices of a window; a negative step may end before the first element, which only None says."""
    ends = [start + count * step for start, step, count in zip(starts, steps, shape, strict=True)]
    return tuple(
        slice(start, None if end < 0 else end, step) if count else slice(0, 0)
        for start, end, step, count in zip(starts, ends, steps, shape, strict=True)
    )


def slice_update(out: Spec, x: np.ndarray, value: np.ndarray, *, starts: tuple, steps: tuple, xp: Any) -> np.ndarray:
    """A copy of x with the window filled."""
    places = window(starts, steps, value.shape)
    if _is_immutable(x):
        return x.at[places].set(value)
    new = xp.array(x)
    new[places] = value
    return new


def _is_immutable(x: Any) -> bool:
    """True where elements cannot be assigned to, and x.at makes changed copies instead, as JAX has it."""
    return hasattr(x, "at")


def _along(axis: int, indices: np.ndarray) -> tuple:
    return (*(slice(None),) * axis, indices)


def check_indices(op: str, indices: np.ndarray, n: int) -> None:
    """Raise IndexError for an index out of range, also where nothing is to be moved: there NumPy does not look."""
    for index in (int(indices.min()), int(indices.max())) if indices.size else ():
        if not -n <= index < n:
            raise IndexError(f"{op}: index {index} is out of range for an axis of length {n}")


def take(out: Spec, x: np.ndarray, indices: np.ndarray, *, axis: int, xp: Any) -> np.ndarray:
    """The elements at indices."""
    check_indices("take", indices, x.shape[axis])
    return xp.asarray(xp.take(x, indices, axis=axis)) if out.size else xp.empty(out.shape, out.dtype)


def scatter(out: Spec, x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int, xp: Any) -> np.ndarray:
    """A copy of x with the places filled; NumPy assigns in memory order, so the last one counts in row-major copies."""
    check_indices("scatter", indices, x.shape[axis])
    if _is_immutable(x):
        return _scatter_last(x, indices, updates, axis, xp)
    new = xp.array(x)
    new[_along(axis, xp.array(indices, order="C"))] = xp.array(updates, order="C")
    return new


def _scatter_last(x: Any, indices: Any, updates: Any, axis: int, xp: Any) -> Any:
    """scatter by x.at, which does not say which of several updates for a place counts: so look for the last of each."""
    if not updates.size:
        return x
    last = xp.full(x.shape[axis], -1).at[indices.reshape(-1)].max(xp.arange(indices.size))
    flat = updates.reshape((*x.shape[:axis], -1, *x.shape[axis + 1 :]))
    found = xp.take(flat, xp.maximum(last, 0), axis=axis)
    return xp.where((last >= 0).reshape((-1,) + (1,) * (x.ndim - axis - 1)), found, x)


def scatter_add(
    out: Spec, x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int, xp: Any
) -> np.ndarray:
    """A copy of x with the updates added, one after the other: floats in float64, for there may be many."""
    check_indices("scatter_add", indices, x.shape[axis])
    new = x.astype(float64 if x.dtype in FLOATS else x.dtype)
    places, more = _along(axis, indices), updates.astype(new.dtype, copy=False)
    with np.errstate(all="ignore"):
        if _is_immutable(x):
            new = new.at[places].add(more)
        else:
            xp.add.at(new, places, more)
        return new.astype(out.dtype, copy=False)


def argsort(out: Spec, x: np.ndarray, *, axis: int, descending: bool, stable: bool, xp: Any) -> np.ndarray:
    """Stable both ways: descending is the ascending order of the reversed array, read backwards."""
    x = x.astype(wide(x.dtype), copy=False)
    ascending = functools.partial(xp.argsort, axis=axis, stable=True)
    if not descending:
        return ascending(x)
    return x.shape[axis] - 1 - xp.flip(ascending(xp.flip(x, axis)), axis)
