"""Reductions over axes, and cumulative sums."""

import builtins
import math
from collections.abc import Callable

import numpy as np

from polyarr.core.array import spec_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.op import composed, primitive
from polyarr.core.spec import COMPLEX, INTEGERS, UNSIGNED, Spec, as_dtype, check_kind, int64, uint64
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import fill
from polyarr.ops.elementwise import add, astype, divide, isfinite, like, multiply, square, subtract, where
from polyarr.ops.functions import exp, log, sqrt
from polyarr.ops.joining import concat
from polyarr.ops.logic import equal, not_equal
from polyarr.ops.shape import broadcast_to, flip, part_of, permute_dims, reshape, squeeze
from polyarr.ops.validation import number, whole, wholes


def axes_of(op: str, x, axis) -> tuple[int, ...]:
    """Return the axes that `axis` (None for all, an int or a tuple of ints) names, non-negative and sorted.

    Raises:
        ShapeError: x lacks an axis, or an axis is named twice.
    """
    if axis is None:
        return tuple(range(len(x.shape)))
    given = wholes(op, "axis", axis)
    ndim = len(x.shape)
    found = tuple(sorted(a + ndim if a < 0 else +a for a in given))  # + makes an int of a bool
    if builtins.any(not 0 <= a < ndim for a in found) or len(set(found)) < len(found):
        raise ShapeError(
            f"{op}: x is {x if type(x) is Spec else x.spec}; axis {axis} does not name distinct axes of it"
        )
    return found


def axis_of(op: str, x, axis: int) -> int:
    """Return the one axis that the int `axis` names, as a non-negative int."""
    return axes_of(op, x, whole(op, "axis", axis))[0]


def kept_shape(x, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of x with the reduced axes as 1."""
    return tuple(1 if i in axes else n for i, n in enumerate(x.shape))


def _reduced(op: str, x: Spec, axis, keepdims: bool, dtype) -> tuple[Spec, dict]:
    if x.is_number:
        raise TypeError(f"{op}: x is {x}; it must be an array")
    axes = axes_of(op, x, axis)
    shape = kept_shape(x, axes) if keepdims else tuple(n for i, n in enumerate(x.shape) if i not in axes)
    return Spec(shape, dtype), {"axis": axes, "keepdims": bool(keepdims)}


def _accumulated(op: str, x: Spec, dtype) -> np.dtype:
    """Return the dtype of a sum or product: the given one, else int64 or uint64 for integers and bools."""
    if dtype is not None:
        if (found := as_dtype(dtype)) == bool_:
            raise DtypeError(f"{op}: dtype is bool; it must be numeric (see polyarr.any and polyarr.all)")
        if x.dtype in COMPLEX and found not in COMPLEX:
            raise DtypeError(f"{op}: x is {x}, and dtype {found} has no imaginary part; take real, imag or abs first")
        return found
    if x.dtype == bool_ or x.dtype in INTEGERS:
        return uint64 if x.dtype in UNSIGNED else int64
    return x.dtype


@primitive
def sum(x, *, axis=None, keepdims=False, dtype=None):
    """Return the sum of the elements over axes.

    Args:
        x: Array of any dtype and shape.
        axis: Int or tuple of ints; None for all axes.
        keepdims: Whether reduced axes stay, with length 1.
        dtype: Dtype to add up in and of the result; None for the default.

    Returns:
        Array without the reduced axes. Its dtype is that of x if floating-point; int64 or uint64 for integers and bool.

    Raises:
        DtypeError: dtype is bool, or real-valued for a complex x.
        ShapeError: x lacks an axis, or an axis is named twice.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.asarray([[1.0, 2.0], [3.0, 4.0]])
        >>> pa.sum(x, axis=0)
        Array([4., 6.], float32, 'numpy')

    Gradients: x
    """
    out, params = _reduced("sum", x, axis, keepdims, _accumulated("sum", x, dtype))
    return out, {**params, "dtype": out.dtype}


@primitive(widen=True)
def prod(x, *, axis=None, keepdims=False, dtype=None):
    """Return the product of the elements over axes.

    Args:
        x: Array of any dtype and shape.
        axis: Int or tuple of ints; None for all axes.
        keepdims: Whether reduced axes stay, with length 1.
        dtype: Dtype to multiply in and of the result; None for the default.

    Returns:
        Array without the reduced axes. Its dtype is that of x if floating-point; int64 or uint64 for integers and bool.

    Raises:
        DtypeError: dtype is bool, or real-valued for a complex x.
        ShapeError: x lacks an axis, or an axis is named twice.

    Examples:
        >>> import polyarr as pa
        >>> pa.prod(pa.asarray([[1.0, 2.0], [3.0, 4.0]]), axis=1)
        Array([ 2., 12.], float32, 'numpy')

    Gradients: x; where one element of a product is zero, only that element has a gradient
    """
    out, params = _reduced("prod", x, axis, keepdims, _accumulated("prod", x, dtype))
    return out, {**params, "dtype": out.dtype}


@primitive(widen=True)
def max(x, *, axis=None, keepdims=False):
    """Return the largest element over axes; nan if there is a nan.

    Args:
        x: Integer, floating-point or bool array.
        axis: Int or tuple of ints; None for all axes.
        keepdims: Whether reduced axes stay, with length 1.

    Returns:
        Array without the reduced axes, of the dtype of x.

    Raises:
        ShapeError: x lacks an axis, or a reduced axis has length 0.

    Examples:
        >>> import polyarr as pa
        >>> pa.max(pa.asarray([[1.0, 4.0], [3.0, 2.0]]), axis=1)
        Array([4., 3.], float32, 'numpy')

    Gradients: x; equal largest elements share the gradient equally
    """
    return _extreme("max", x, axis, keepdims)


@primitive(widen=True)
def min(x, *, axis=None, keepdims=False):
    """Return the smallest element over axes; nan if there is a nan.

    Args:
        x: Integer, floating-point or bool array.
        axis: Int or tuple of ints; None for all axes.
        keepdims: Whether reduced axes stay, with length 1.

    Returns:
        Array without the reduced axes, of the dtype of x.

    Raises:
        ShapeError: x lacks an axis, or a reduced axis has length 0.

    Examples:
        >>> import polyarr as pa
        >>> pa.min(pa.asarray([[1.0, 4.0], [3.0, 2.0]]), axis=1)
        Array([1., 2.], float32, 'numpy')

    Gradients: x; equal smallest elements share the gradient equally
    """
    return _extreme("min", x, axis, keepdims)


def _extreme(op: str, x: Spec, axis, keepdims: bool) -> tuple[Spec, dict]:
    check_kind(op, "x", x, "real or bool")
    for a in axes_of(op, x, axis):
        _check_not_empty(op, x, a)
    return _reduced(op, x, axis, keepdims, x.dtype)


def _check_not_empty(op: str, x: Spec, axis: int) -> None:
    if x.shape[axis] == 0:
        raise ShapeError(f"{op}: x is {x}; axis {axis} has no element to choose from")


@primitive
def argmax(x, *, axis=None, keepdims=False):
    """Return the index of the first largest element along an axis; a nan counts as the largest.

    Args:
        x: Integer, floating-point or bool array.
        axis: Int; None for the index into the flattened x.
        keepdims: Whether the reduced axis stays, with length 1.

    Returns:
        int64 array without the axis.

    Raises:
        ShapeError: x lacks the axis, or it has length 0.

    Examples:
        >>> import polyarr as pa
        >>> pa.argmax(pa.asarray([[1.0, 4.0], [3.0, 2.0]]), axis=1)
        Array([1, 0], int64, 'numpy')

    Gradients: none
    """
    return _arg_extreme("argmax", x, axis, keepdims)


@primitive
def argmin(x, *, axis=None, keepdims=False):
    """Return the index of the first smallest element along an axis; a nan counts as the smallest.

    Args:
        x: Integer, floating-point or bool array.
        axis: Int; None for the index into the flattened x.
        keepdims: Whether the reduced axis stays, with length 1.

    Returns:
        int64 array without the axis.

    Raises:
        ShapeError: x lacks the axis, or it has length 0.

    Examples:
        >>> import polyarr as pa
        >>> pa.argmin(pa.asarray([[1.0, 4.0], [3.0, 2.0]]), axis=1)
        Array([0, 1], int64, 'numpy')

    Gradients: none
    """
    return _arg_extreme("argmin", x, axis, keepdims)


def _arg_extreme(op: str, x: Spec, axis, keepdims: bool) -> tuple[Spec, dict]:
    check_kind(op, "x", x, "real or bool")
    at = None if axis is None else axis_of(op, x, axis)
    for a in axes_of(op, x, at):
        _check_not_empty(op, x, a)
    out, params = _reduced(op, x, at, keepdims, int64)
    return out, {**params, "axis": at}


@primitive
def cumulative_sum(x, *, axis=None, dtype=None):
    """Return the prefix sums along an axis.

    Args:
        x: Array of any dtype.
        axis: Int; None only for an x with one axis.
        dtype: Dtype to add up in and of the result; None for the default.

    Returns:
        Array of the shape of x. Its dtype is that of x if floating-point; int64 or uint64 for integers and bool.

    Raises:
        DtypeError: dtype is bool, or real-valued for a complex x.
        ShapeError: x lacks the axis, or has several axes and none is given.

    Gradients: x
    """
    if axis is None and x.ndim != 1:
        raise ShapeError(f"cumulative_sum: x is {x}; axis must be given unless x has one axis")
    dtype = _accumulated("cumulative_sum", x, dtype)
    return Spec(x.shape, dtype), {"axis": axis_of("cumulative_sum", x, 0 if axis is None else axis), "dtype": dtype}


def _broadcast_back(g, x_spec: Spec, axis: tuple[int, ...]):
    """Return g broadcast back to the shape before the reduction."""
    kept = kept_shape(x_spec, axis)
    return broadcast_to(g if g.shape == kept else reshape(g, shape=kept), shape=x_spec.shape)


def _extreme_grad(g, x, out, axis):
    hits = astype(equal(x, reshape(out, shape=kept_shape(x, axis))), dtype=g.dtype)
    return multiply(_broadcast_back(g, x, axis), divide(hits, sum(hits, axis=axis, keepdims=True)))


def _prod_grad(g, x, axis):
    """Return g times the product of all other elements, by prefix products from both ends: correct for zeros in x."""
    moved = [i for i in range(x.ndim) if i not in axis] + list(axis)
    lead = tuple(x.shape[i] for i in moved[: x.ndim - len(axis)])
    flat = reshape(permute_dims(x, axes=tuple(moved)), shape=(*lead, math.prod(x.shape[i] for i in axis)))
    others = multiply(_prefix_products(flat), flip(_prefix_products(flip(flat, axis=-1)), axis=-1))
    back = permute_dims(
        reshape(others, shape=tuple(x.shape[i] for i in moved)), axes=tuple(moved.index(i) for i in range(x.ndim))
    )
    return multiply(_broadcast_back(g, x, axis), back)


def _prefix_products(x):
    """Return the product of all earlier elements along the last axis."""
    axis = x.ndim - 1
    return running_products(_after_ones(x, axis, 1), axis) if x.size else x


def running_products(x, axis: int):
    """Return the product of the elements up to each one along an axis, in log2(n) steps that double their number."""
    reach = 1
    while reach < x.shape[axis]:
        x = multiply(x, _after_ones(x, axis, reach))
        reach *= 2
    return x


def _after_ones(x, axis: int, count: int):
    """Return x moved back along an axis by `count` elements, with ones in front."""
    front = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    ones = broadcast_to(fill(1, x, shape=(1,), dtype=x.dtype), shape=front)
    return concat([ones, part_of(x, axis, 0, x.shape[axis] - count)], axis=axis)


def _reversed_sum(g, axis: int):
    """Return the suffix sums along axis."""
    return flip(cumulative_sum(flip(g, axis=axis), axis=axis), axis=axis)


sum.vjp(x=lambda g, x_spec, axis: _broadcast_back(like(g, x_spec), x_spec, axis))
prod.vjp(x=lambda g, x, axis: _prod_grad(like(g, x), x, axis))
max.vjp(x=lambda g, x, out, axis: _extreme_grad(g, x, out, axis))
min.vjp(x=lambda g, x, out, axis: _extreme_grad(g, x, out, axis))
argmax.vjp(x=None)
argmin.vjp(x=None)
cumulative_sum.vjp(x=lambda g, x_spec, axis: like(_reversed_sum(g, axis), x_spec))


# ---- made of the above -----------------------------------------------------------------------------------------


@composed(widen=False)
def any(x, *, axis=None, keepdims=False):
    """Return whether any element over axes is nonzero.

    Args:
        x: Array of any dtype and shape.
        axis: Int or tuple of ints; None for all axes.
        keepdims: Whether reduced axes stay, with length 1.

    Returns:
        bool array without the reduced axes.

    Raises:
        ShapeError: x lacks an axis, or an axis is named twice.

    Examples:
        >>> import polyarr as pa
        >>> pa.any(pa.asarray([[True, False], [False, False]]), axis=1)
        Array([ True, False], bool, 'numpy')

    Gradients: none
    """
    axis = axes_of("any", x, axis)
    return not_equal(sum(nonzero_mask(x), axis=axis, keepdims=keepdims), 0)  # accumulates in int64


@composed(widen=False)
def all(x, *, axis=None, keepdims=False):
    """Return whether all elements over axes are nonzero.

    Args:
        x: Array of any dtype and shape.
        axis: Int or tuple of ints; None for all axes.
        keepdims: Whether reduced axes stay, with length 1.

    Returns:
        bool array without the reduced axes.

    Raises:
        ShapeError: x lacks an axis, or an axis is named twice.

    Examples:
        >>> import polyarr as pa
        >>> pa.all(pa.asarray([[True, True], [True, False]]), axis=1)
        Array([ True, False], bool, 'numpy')

    Gradients: none
    """
    axis = axes_of("all", x, axis)
    return equal(sum(equal(x, False if x.dtype == bool_ else 0), axis=axis, keepdims=keepdims), 0)


def nonzero_mask(x):
    """Return whether elements are nonzero, as a bool array."""
    return x if x.dtype == bool_ else not_equal(x, 0)


@composed(floats="x")
def mean(x, *, axis=None, keepdims=False):
    """Return the arithmetic mean over axes; nan for no elements.

    Args:
        x: Floating-point or complex array; integers and bools are cast to float32.
        axis: Int or tuple of ints; None for all axes.
        keepdims: Whether reduced axes stay, with length 1.

    Returns:
        Array without the reduced axes, of the dtype of x.

    Raises:
        ShapeError: x lacks an axis, or an axis is named twice.

    Examples:
        >>> import polyarr as pa
        >>> pa.mean(pa.asarray([[1.0, 2.0], [3.0, 5.0]]), axis=1)
        Array([1.5, 4. ], float32, 'numpy')

    Gradients: x
    """
    check_kind("mean", "x", spec_of(x), "inexact")
    axis = axes_of("mean", x, axis)
    return divide(sum(x, axis=axis, keepdims=keepdims), float(_count(x, axis)))


@composed(floats="x")
def var(x, *, axis=None, correction=0.0, keepdims=False):
    """Return the variance over axes: the mean of the squared distances from the mean.

    Args:
        x: Floating-point array; integers and bools are cast to float32.
        axis: Int or tuple of ints; None for all axes.
        correction: Number subtracted from the number of elements in the divisor; 1 for the unbiased estimate.
        keepdims: Whether reduced axes stay, with length 1.

    Returns:
        Array without the reduced axes, of the dtype of x; nan or inf where the divisor is not positive.

    Raises:
        DtypeError: x is complex.
        ShapeError: x lacks an axis, or an axis is named twice.

    Examples:
        >>> import polyarr as pa
        >>> pa.var(pa.asarray([1.0, 2.0, 3.0]), correction=1)
        Array(1., float32, 'numpy')

    Gradients: x
    """
    check_kind("var", "x", spec_of(x), "floating")
    axis = axes_of("var", x, axis)
    correction = number("var", "correction", correction)
    centred = subtract(x, mean(x, axis=axis, keepdims=True))
    # The mean of equal numbers has a rounding error; subtract the mean of the remainders, which has none.
    centred = subtract(centred, mean(centred, axis=axis, keepdims=True))
    # A divisor that is not positive gives nan or inf, as in NumPy.
    return divide(
        sum(square(centred), axis=axis, keepdims=keepdims), float(builtins.max(_count(x, axis) - correction, 0))
    )


@composed
def std(x, *, axis=None, correction=0.0, keepdims=False):
    """Return the standard deviation over axes, the square root of the variance.

    Args:
        x: Floating-point array; integers and bools are cast to float32.
        axis: Int or tuple of ints; None for all axes.
        correction: Number subtracted from the number of elements in the divisor; 1 for the unbiased variance.
        keepdims: Whether reduced axes stay, with length 1.

    Returns:
        Array without the reduced axes, of the dtype of x.

    Raises:
        DtypeError: x is complex.
        ShapeError: x lacks an axis, or an axis is named twice.

    Examples:
        >>> import polyarr as pa
        >>> pa.std(pa.asarray([1.0, 2.0, 3.0]), correction=1)
        Array(1., float32, 'numpy')

    Gradients: x; 0 where the standard deviation is 0
    """
    return root(var(x, axis=axes_of("std", x, axis), correction=correction, keepdims=keepdims), sqrt)


def root(total, fn: Callable):
    """Return fn of a total, and 0 where the total is 0: the slope of a root is infinite there."""
    zero = equal(total, 0)
    return where(zero, 0, fn(where(zero, 1, total)))


@composed
def logsumexp(x, *, axis=None, keepdims=False):
    """Return log(sum(exp(x))) over axes, without overflow; -inf if all elements are -inf.

    Args:
        x: Floating-point array.
        axis: Int or tuple of ints; None for all axes.
        keepdims: Whether reduced axes stay, with length 1.

    Returns:
        Array without the reduced axes, of the dtype of x.

    Raises:
        ShapeError: x lacks an axis, or a reduced axis has length 0.

    Examples:
        >>> import polyarr as pa
        >>> pa.logsumexp(pa.asarray([[1000.0, 1000.0]]), axis=1)
        Array([1000.6932], float32, 'numpy')

    Gradients: x; 0 where all elements are -inf
    """
    axes = axes_of("logsumexp", x, axis)
    top = max(x, axis=axes, keepdims=True)
    shift = where(isfinite(top), top, 0)  # inf - inf would be nan
    total = add(log(sum(exp(subtract(x, shift)), axis=axes, keepdims=True)), shift)
    return total if keepdims else squeeze(total, axis=axes)


logsumexp.vjp(x=lambda g, x, axis: _softmax_times(g, x, axis))


def _softmax_times(g, x, axis):
    """Return g times the softmax of x. exp(x - out) would multiply the rounding error of a large out."""
    axes = axes_of("logsumexp", x, axis)
    return multiply(_broadcast_back(g, x, axes), masked_softmax(x, axes))


def masked_softmax(x, axis):
    """Return softmax over axes, and zeros where all elements along them are -inf."""
    top = max(x, axis=axis, keepdims=True)
    e = exp(subtract(x, where(isfinite(top), top, 0)))
    total = sum(e, axis=axis, keepdims=True)
    return divide(e, where(equal(total, 0), 1, total))


def _count(x, axis) -> int:
    return math.prod(x.shape[a] for a in axes_of("mean", x, axis))
