"""Functions of the array API standard that are calls of ops: other ways to call one, and short compositions.

polyarr.reshape is a function of this file, polyarr.ops.reshape the op that it calls: what a backend has a kernel for,
and what a table of kernels names. So it is with astype, concat, cumulative_sum, repeat and where, whose functions take
more than the op does, and with arange and full of creation.py. Every other public op is one object under both names.

The standard's `copy` says little here: a buffer never changes, so nobody can tell a copy from the original.
"""

from typing import Any

import numpy as np

from polyarr.core.array import Array, from_numpy, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.spec import NARROW, Spec, as_dtype, float32
from polyarr.ops import elementwise, index, reduce
from polyarr.ops import shape as shapes
from polyarr.ops.create import NATURAL, full
from polyarr.ops.elementwise import multiply, subtract
from polyarr.ops.shape import one_axis
from polyarr.ops.validation import check_array, check_fits, whole


def astype(x: Array, dtype: Any, *, copy: bool = True, device: Any = None) -> Array:
    """x converted to dtype, and brought to device if one is given. Without copy, x itself where nothing changes.

    Of floats, an integer dtype gets what is before the point, and bool whether they are not 0. What nan, an infinity or
    any float beyond an integer dtype becomes differs between backends and devices: some integer.

    Shapes:  any -> the same
    Dtypes:  any -> dtype
    Errors:  DtypeError for an unknown dtype
    Grads:   x, if both dtypes are floating-point and x stays where it is
    """
    found = x if not copy and as_dtype(dtype) == getattr(x, "dtype", None) else elementwise.astype(x, dtype=dtype)
    return found if device is None else found.to(device)


def reshape(x: Array, shape: Any, *, copy: bool | None = None) -> Array:
    """The same elements, in row-major order, in another shape; one length may be -1. `copy` makes no difference.

    Shapes:  any -> shape
    Dtypes:  any -> the same
    Errors:  ShapeError if shape holds another number of elements
    Grads:   x
    """
    return shapes.reshape(x, shape=shape)


def where(condition: Array, x: Any, y: Any) -> Array:
    """x where condition holds, y elsewhere. Two Python numbers give what asarray makes of them.

    Shapes:  the three inputs broadcast
    Dtypes:  condition bool; x and y any, promoted; of Python numbers alone bool, int64 or float32
    Errors:  ShapeError if they do not broadcast, DtypeError if condition is not bool
    Grads:   x, y
    """
    given = {type(a.item() if isinstance(a, np.generic) else a) for a in (x, y)}
    if given <= NATURAL.keys():
        check_array("where", "condition", condition)
    if type(condition) in (Array, Spec) and given <= NATURAL.keys():
        kind = [k for k in NATURAL if k in given][-1]
        x, y = kind(x), kind(y)
        check_fits("where", "x", x, NATURAL[kind])
        x = full(x, condition, shape=(), dtype=NATURAL[kind])
    return elementwise.where(condition, x, y)


def concat(arrays: list[Array] | tuple[Array, ...], *, axis: int | None = 0) -> Array:
    """The arrays, one after the other along axis (None: flattened first).

    Shapes:  a list of arrays that agree on every other axis -> the sum of their lengths along axis
    Dtypes:  any, promoted
    Errors:  ShapeError if other axes differ; TypeError for an empty list
    Grads:   arrays
    """
    if axis is None and isinstance(arrays, (list, tuple)):
        arrays, axis = [shapes.reshape(a, shape=(-1,)) for a in arrays], 0
    return shapes.concat(arrays, axis=axis)


def repeat(x: Array, repeats: int | Array, *, axis: int | None = None) -> Array:
    """x with each element repeated in place along axis (None: in the flattened x); an array says how often for each.

    Shapes:  n -> n * repeats along axis, or the sum of repeats, which is then read by the host
    Dtypes:  any -> the same
    Errors:  ShapeError for an axis that x lacks, a negative number, or repeats of another length than x
    Grads:   x
    """
    if not isinstance(repeats, Array):
        return shapes.repeat(x, repeats=repeats, axis=axis)
    x, axis = (shapes.reshape(x, shape=(-1,)), 0) if axis is None else (x, one_axis("repeat", x, axis))
    n, times = x.shape[axis], repeats.numpy()
    if times.dtype.kind not in "iu" or times.shape not in ((), (1,), (n,)) or (times < 0).any():
        raise ShapeError(f"repeat: x is {x.spec}, repeats is {repeats.spec}; it must be {n} integers, none negative")
    return index.take(x, from_numpy(np.repeat(np.arange(n), times.astype(np.int64)), x.backend), axis=axis)


# ---- running totals and differences ------------------------------------------------------------------------------


def cumulative_sum(x: Array, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """The running sum along axis, which may be omitted for one-dimensional x; after a 0 with include_initial.

    Shapes:  n along axis -> n, or n + 1 with include_initial
    Dtypes:  floating -> the same; integer, bool -> int64 or uint64; dtype overrules
    Errors:  ShapeError for an axis that x lacks, or an axis left out where x has several
    Grads:   x
    """
    found = reduce.cumulative_sum(x, axis=axis, dtype=dtype)
    return _led_by(0, found, axis) if include_initial else found


def cumulative_prod(x: Array, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """The running product along axis, which may be omitted for one-dimensional x; after a 1 with include_initial.

    Neighbours are multiplied first, then pairs of them, and so on: where these overflow, a 0 before them gives nan.

    Shapes:  n along axis -> n, or n + 1 with include_initial
    Dtypes:  floating -> the same; integer, bool -> int64 or uint64; dtype overrules
    Errors:  ShapeError for an axis that x lacks, or an axis left out where x has several
    Grads:   x
    """
    check_array("cumulative_prod", "x", x)
    if axis is None and x.ndim != 1:
        raise ShapeError(f"cumulative_prod: x is {spec_of(x)}; axis must be given unless x has one axis")
    at = one_axis("cumulative_prod", x, 0 if axis is None else axis)
    due = reduce.prod(spec_of(x), dtype=dtype).dtype
    found = elementwise.astype(x, dtype=float32 if due in NARROW else due)
    reach = 1
    while reach < x.shape[at]:  # after a step, each element is the product of twice as many
        ones = full(1, x, shape=_with_length(x, at, reach), dtype=found.dtype)
        found = multiply(found, shapes.concat([ones, _part(found, at, 0, x.shape[at] - reach)], axis=at))
        reach *= 2
    found = found if found.dtype == due else elementwise.astype(found, dtype=due)
    return _led_by(1, found, at) if include_initial else found


def diff(x: Array, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None) -> Array:
    """The differences of neighbours along axis, taken n times, of x with prepend before and append behind it.

    Shapes:  m along axis -> m - n, but not below 0
    Dtypes:  real -> the same, which wraps around in unsigned integers
    Errors:  ShapeError for an axis that x lacks; ValueError for a negative n
    Grads:   x, prepend, append
    """
    check_array("diff", "x", x)
    at, n = one_axis("diff", x, axis), whole("diff", "n", n)
    if n < 0:
        raise ValueError(f"diff: n is {n}; it must not be negative")
    for name, a in (("prepend", prepend), ("append", append)):
        if a is not None:
            check_array("diff", name, a)
    if n == 0:
        return x.snapshot() if type(x) is Array else x  # itself, without prepend and append, as in NumPy
    parts = [a for a in (prepend, x, append) if a is not None]
    found = shapes.concat(parts, axis=at) if len(parts) > 1 else x
    for _ in range(min(n, found.shape[at])):
        count = max(found.shape[at] - 1, 0)
        found = subtract(_part(found, at, found.shape[at] - count, count), _part(found, at, 0, count))
    return found


def count_nonzero(x: Array, *, axis: Any = None, keepdims: bool = False) -> Array:
    """How many elements over axis (None: all axes) are not 0.

    Shapes:  the reduced axes go, or become 1 with keepdims
    Dtypes:  any -> int64
    Errors:  ShapeError for an axis that x lacks
    Grads:   none
    """
    check_array("count_nonzero", "x", x)
    return reduce.sum(reduce.hits(x), axis=axis, keepdims=keepdims)


def _with_length(x: Array, axis: int, length: int) -> tuple[int, ...]:
    return (*x.shape[:axis], length, *x.shape[axis + 1 :])


def _part(x: Array, axis: int, start: int, length: int) -> Array:
    """length elements of x along axis."""
    starts = tuple(start if i == axis and length else 0 for i in range(x.ndim))
    return shapes.slice(x, starts=starts, steps=(1,) * x.ndim, shape=_with_length(x, axis, length))


def _led_by(number: int, x: Array, axis: int | None) -> Array:
    """x with one more element, a number, in front of it along axis."""
    at = one_axis("concat", x, 0 if axis is None else axis)
    return shapes.concat([full(number, x, shape=_with_length(x, at, 1), dtype=x.dtype), x], axis=at)
