"""Reductions over axes, and cumulative sums."""

import builtins
import math

import numpy as np

from polyarr.core.errors import ShapeError
from polyarr.core.op import composed, primitive
from polyarr.core.spec import INTEGERS, UNSIGNED, Spec, as_dtype, check_kind, int64, uint64
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import full
from polyarr.ops.elementwise import (
    add,
    astype,
    divide,
    exp,
    isfinite,
    like,
    log,
    multiply,
    sqrt,
    square,
    subtract,
    where,
)
from polyarr.ops.logic import equal, not_equal
from polyarr.ops.shape import broadcast_to, concat, flip, permute_dims, reshape, slice, squeeze
from polyarr.ops.validation import number, whole, wholes


def axes_of(op: str, x, axis) -> tuple[int, ...]:
    """The axes that `axis` (None for all, an int or a tuple) names, non-negative and in order.

    Errors:  ShapeError for an axis that x lacks or that is named twice
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
    """The one axis that `axis` names, non-negative."""
    return axes_of(op, x, whole(op, "axis", axis))[0]


def kept_shape(x, axes: tuple[int, ...]) -> tuple[int, ...]:
    """x's shape with the reduced axes as 1."""
    return tuple(1 if i in axes else n for i, n in enumerate(x.shape))


def _reduced(op: str, x: Spec, axis, keepdims: bool, dtype) -> tuple[Spec, dict]:
    if x.is_number:
        raise TypeError(f"{op}: x is {x}; it must be an array")
    axes = axes_of(op, x, axis)
    shape = kept_shape(x, axes) if keepdims else tuple(n for i, n in enumerate(x.shape) if i not in axes)
    return Spec(shape, dtype), {"axis": axes, "keepdims": bool(keepdims)}


def _accumulated(x: Spec, dtype) -> np.dtype:
    """The dtype of a sum or product: the given one, else int64 or uint64 for integers and bools."""
    if dtype is not None:
        return as_dtype(dtype)
    if x.dtype == bool_ or x.dtype in INTEGERS:
        return uint64 if x.dtype in UNSIGNED else int64
    return x.dtype


@primitive
def sum(x, *, axis=None, keepdims=False, dtype=None):
    """The sum over axis (None: all axes).

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  floating -> the same; integer, bool -> int64 or uint64; dtype overrules
    Errors:  ShapeError for an axis that x lacks
    Grads:   x
    """
    out, params = _reduced("sum", x, axis, keepdims, _accumulated(x, dtype))
    return out, {**params, "dtype": out.dtype}


@primitive(widen=True)
def prod(x, *, axis=None, keepdims=False, dtype=None):
    """The product over axis (None: all axes).

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  floating -> the same; integer, bool -> int64 or uint64; dtype overrules
    Errors:  ShapeError for an axis that x lacks
    Grads:   x; products that hold one zero have the gradient of that element alone
    """
    out, params = _reduced("prod", x, axis, keepdims, _accumulated(x, dtype))
    return out, {**params, "dtype": out.dtype}


@primitive(widen=True)
def max(x, *, axis=None, keepdims=False):
    """The largest element over axis; nan if there is one.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  real -> the same
    Errors:  ShapeError for an axis that x lacks or that has length 0
    Grads:   x; ties share it equally
    """
    return _extreme("max", x, axis, keepdims)


@primitive(widen=True)
def min(x, *, axis=None, keepdims=False):
    """The smallest element over axis; nan if there is one.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  real -> the same
    Errors:  ShapeError for an axis that x lacks or that has length 0
    Grads:   x; ties share it equally
    """
    return _extreme("min", x, axis, keepdims)


def _extreme(op: str, x: Spec, axis, keepdims: bool) -> tuple[Spec, dict]:
    check_kind(op, "x", x, "real")
    for a in axes_of(op, x, axis):
        _check_not_empty(op, x, a)
    return _reduced(op, x, axis, keepdims, x.dtype)


def _check_not_empty(op: str, x: Spec, axis: int) -> None:
    if x.shape[axis] == 0:
        raise ShapeError(f"{op}: x is {x}; axis {axis} has no element to choose from")


@primitive
def argmax(x, *, axis=None, keepdims=False):
    """The index of the first largest element along axis (None: in the flattened x); a nan counts as largest.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  real -> int64
    Errors:  ShapeError for an axis that x lacks or that has length 0
    Grads:   none
    """
    return _arg_extreme("argmax", x, axis, keepdims)


@primitive
def argmin(x, *, axis=None, keepdims=False):
    """The index of the first smallest element along axis (None: in the flattened x); a nan counts as smallest.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  real -> int64
    Errors:  ShapeError for an axis that x lacks or that has length 0
    Grads:   none
    """
    return _arg_extreme("argmin", x, axis, keepdims)


def _arg_extreme(op: str, x: Spec, axis, keepdims: bool) -> tuple[Spec, dict]:
    check_kind(op, "x", x, "real")
    at = None if axis is None else axis_of(op, x, axis)
    for a in axes_of(op, x, at):
        _check_not_empty(op, x, a)
    out, params = _reduced(op, x, at, keepdims, int64)
    return out, {**params, "axis": at}


@primitive
def cumulative_sum(x, *, axis=None, dtype=None):
    """The running sum along axis, which may be omitted for one-dimensional x.

    Shapes:  any -> the same
    Dtypes:  floating -> the same; integer, bool -> int64 or uint64; dtype overrules
    Errors:  ShapeError for an axis that x lacks, or an axis left out where x has several
    Grads:   x
    """
    if axis is None and x.ndim != 1:
        raise ShapeError(f"cumulative_sum: x is {x}; axis must be given unless x has one axis")
    dtype = _accumulated(x, dtype)
    return Spec(x.shape, dtype), {"axis": axis_of("cumulative_sum", x, 0 if axis is None else axis), "dtype": dtype}


def _spread(g, x_spec: Spec, axis: tuple[int, ...]):
    """g, with the reduced axes back at their length."""
    return broadcast_to(reshape(g, shape=kept_shape(x_spec, axis)), shape=x_spec.shape)


def _extreme_grad(g, x, out, axis):
    hits = astype(equal(x, reshape(out, shape=kept_shape(x, axis))), dtype=g.dtype)
    return multiply(_spread(g, x, axis), divide(hits, sum(hits, axis=axis, keepdims=True)))


def _prod_grad(g, x, axis):
    """g times the product of the other elements, by running products from both ends, so that zeros are no trouble."""
    moved = [i for i in range(x.ndim) if i not in axis] + list(axis)

    lead = tuple(x.shape[i] for i in moved[: x.ndim - len(axis)])
    flat = reshape(permute_dims(x, axes=tuple(moved)), shape=(*lead, math.prod(x.shape[i] for i in axis)))
    others = multiply(_running_before(flat), flip(_running_before(flip(flat, axis=-1)), axis=-1))
    back = permute_dims(
        reshape(others, shape=tuple(x.shape[i] for i in moved)), axes=tuple(moved.index(i) for i in range(x.ndim))
    )
    return multiply(_spread(g, x, axis), back)


def _running_before(x):
    """The product of all earlier elements along the last axis, in log2(n) doubling steps."""
    n = x.shape[-1]
    lead = x.shape[:-1]
    one = broadcast_to(_one_like(x), shape=(*lead, 1)) if n else x
    found = (
        concat([one, slice(x, starts=(0,) * x.ndim, steps=(1,) * x.ndim, shape=(*lead, n - 1))], axis=-1) if n else x
    )
    reach = 1
    while reach < n:
        earlier = slice(found, starts=(0,) * x.ndim, steps=(1,) * x.ndim, shape=(*lead, n - reach))
        ones = broadcast_to(_one_like(x), shape=(*lead, reach))
        found = multiply(found, concat([ones, earlier], axis=-1))
        reach *= 2
    return found


def _one_like(x):

    return full(1, x, shape=(1,), dtype=x.dtype)


def _reversed_sum(g, axis: int):
    """The running sum from the end."""
    return flip(cumulative_sum(flip(g, axis=axis), axis=axis), axis=axis)


sum.vjp(x=lambda g, x_spec, axis: _spread(like(g, x_spec), x_spec, axis))
prod.vjp(x=lambda g, x, axis: _prod_grad(like(g, x), x, axis))
max.vjp(x=lambda g, x, out, axis: _extreme_grad(g, x, out, axis))
min.vjp(x=lambda g, x, out, axis: _extreme_grad(g, x, out, axis))
argmax.vjp(x=None)
argmin.vjp(x=None)
cumulative_sum.vjp(x=lambda g, x_spec, axis: like(_reversed_sum(g, axis), x_spec))


# ---- made of the above -----------------------------------------------------------------------------------------


@composed(widen=False)
def any(x, *, axis=None, keepdims=False):
    """True where some element over axis is not 0.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  any -> bool
    Errors:  ShapeError for an axis that x lacks
    Grads:   none
    """
    axis = axes_of("any", x, axis)
    return not_equal(sum(hits(x), axis=axis, keepdims=keepdims), 0)  # which adds up bytes, to an int64


@composed(widen=False)
def all(x, *, axis=None, keepdims=False):
    """True where no element over axis is 0.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  any -> bool
    Errors:  ShapeError for an axis that x lacks
    Grads:   none
    """
    axis = axes_of("all", x, axis)
    return equal(sum(equal(x, False if x.dtype == bool_ else 0), axis=axis, keepdims=keepdims), 0)


def hits(x):
    """Where x is not 0, as bools."""
    return x if x.dtype == bool_ else not_equal(x, 0)


@composed
def mean(x, *, axis=None, keepdims=False):
    """The arithmetic mean over axis (None: all axes); nan of nothing.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  floating -> the same
    Errors:  DtypeError unless x is floating-point, ShapeError for an axis that x lacks
    Grads:   x
    """
    check_kind("mean", "x", _spec(x), "floating")
    axis = axes_of("mean", x, axis)
    return divide(sum(x, axis=axis, keepdims=keepdims), float(_count(x, axis)))


@composed
def var(x, *, axis=None, correction=0.0, keepdims=False):
    """The variance over axis: the mean square distance from the mean, with n - correction as the divisor.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  floating -> the same
    Errors:  DtypeError unless x is floating-point, ShapeError for an axis that x lacks
    Grads:   x
    """
    axis = axes_of("var", x, axis)
    correction = number("var", "correction", correction)
    centred = subtract(x, mean(x, axis=axis, keepdims=True))
    # The mean of equal numbers is off by a rounding; that of what is left of them is not.
    centred = subtract(centred, mean(centred, axis=axis, keepdims=True))
    # A divisor below 1 gives nan or inf, as in NumPy, and not an error.
    return divide(
        sum(square(centred), axis=axis, keepdims=keepdims), float(builtins.max(_count(x, axis) - correction, 0))
    )


@composed
def std(x, *, axis=None, correction=0.0, keepdims=False):
    """The square root of the variance over axis.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  floating -> the same
    Errors:  DtypeError unless x is floating-point, ShapeError for an axis that x lacks
    Grads:   x
    """
    return sqrt(var(x, axis=axes_of("std", x, axis), correction=correction, keepdims=keepdims))


@composed
def logsumexp(x, *, axis=None, keepdims=False):
    """log(sum(exp(x))) over axis, without overflow; -inf of nothing but -inf.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  floating -> the same
    Errors:  ShapeError for an axis that x lacks or that has length 0
    Grads:   x
    """
    axes = axes_of("logsumexp", x, axis)
    top = max(x, axis=axes, keepdims=True)
    shift = where(isfinite(top), top, 0)  # inf - inf would be nan
    total = add(log(sum(exp(subtract(x, shift)), axis=axes, keepdims=True)), shift)
    return total if keepdims else squeeze(total, axis=axes)


logsumexp.vjp(x=lambda g, x, axis: _softmax_times(g, x, axis))


def _softmax_times(g, x, axis):
    """g times the softmax of x. Not exp(x - out): of a large out, the rounding alone is a factor."""
    axes = axes_of("logsumexp", x, axis)
    top = max(x, axis=axes, keepdims=True)
    e = exp(subtract(x, where(isfinite(top), top, 0)))
    total = sum(e, axis=axes, keepdims=True)
    return multiply(_spread(g, x, axes), divide(e, where(equal(total, 0), 1, total)))


def _count(x, axis) -> int:
    return math.prod(x.shape[a] for a in axes_of("mean", x, axis))


def _spec(x) -> Spec:
    return x if type(x) is Spec else x.spec
