"""Functions of the array API standard that call ops: other ways to call one, and short compositions.

polyarr.reshape is a function of this file; it calls the op polyarr.ops.reshape, for which backends have kernels. The
same holds for astype, concat, cumulative_sum, repeat and where, whose functions take what the op takes, and more. Every
other public op is one object under both names.

The parameter `copy` of the standard has little effect: a buffer never changes, so a copy cannot be told from the
original.
"""

from typing import Any

import numpy as np

from polyarr.core.array import Array, from_numpy, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.keywords import explained
from polyarr.core.number import FloatNumber, IntNumber
from polyarr.core.spec import NARROW, Spec, as_dtype, float32
from polyarr.ops import elementwise, index, joining, reduce
from polyarr.ops import shape as shapes
from polyarr.ops.create import NATURAL, fill
from polyarr.ops.elementwise import subtract
from polyarr.ops.shape import one_axis, part_of
from polyarr.ops.validation import check_array, check_fits, whole


def astype(x: Array, dtype: Any, *, copy: bool = True, device: Any = None) -> Array:
    """Convert x to a dtype. Floats lose their fraction in integer dtypes; bool tells whether an element is not 0.

    What nan, an infinity or a float out of range becomes in an integer dtype differs between backends and devices.

    Args:
        x: Array of any dtype and shape.
        dtype: Dtype of the result, or its name.
        copy: With False, x itself is returned if it has the dtype already.
        device: Backend to move the result to, or its name; None to stay.

    Returns:
        Array of the shape of x and the given dtype.

    Raises:
        DtypeError: There is no such dtype.

    Examples:
        >>> import polyarr as pa
        >>> pa.astype(pa.asarray([1.7, -1.7]), "int32")
        Array([ 1, -1], int32, 'numpy')

    Gradients: x, if both dtypes are floating-point and the device stays the same
    """
    found = x if not copy and as_dtype(dtype) == getattr(x, "dtype", None) else elementwise.astype(x, dtype=dtype)
    return found if device is None else found.to(device)


def reshape(x: Array, shape: Any, *, copy: bool | None = None) -> Array:
    """Return the elements of x, in row-major order, in another shape.

    Args:
        x: Array of any dtype and shape.
        shape: Int or tuple of ints; one of them may be -1, which stands for what is left.
        copy: Has no effect.

    Returns:
        Array of that shape and the dtype of x.

    Raises:
        ShapeError: shape holds another number of elements.

    Examples:
        >>> import polyarr as pa
        >>> pa.reshape(pa.asarray([1, 2, 3, 4]), (2, -1))
        Array([[1, 2],
               [3, 4]], int64, 'numpy')

    Gradients: x
    """
    return shapes.reshape(x, shape=shape)


@explained
def where(condition: Array, x: Any, y: Any) -> Array:
    """Return x where condition is true, y elsewhere.

    Args:
        condition: bool array.
        x: Array of any dtype, or a Python number.
        y: Array of any dtype, or a Python number.

    Returns:
        Array of the broadcast shape and the promoted dtype of x and y; bool, int64 or float32 for two numbers.

    Raises:
        DtypeError: condition is not bool.
        TypeError: condition is not an array.
        ShapeError: The inputs do not broadcast.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.asarray([-1.0, 2.0])
        >>> pa.where(x > 0, x, 0)
        Array([0., 2.], float32, 'numpy')

    Gradients: x, y
    """
    given = {type(a.item() if isinstance(a, np.generic) else a) for a in (x, y)}
    if given <= NATURAL.keys():
        check_array("where", "condition", condition)
    if type(condition) in (Array, Spec) and given <= NATURAL.keys():
        kind = [k for k in NATURAL if k in given][-1]
        python_number = {IntNumber: int, FloatNumber: float}.get(kind, kind)
        x, y = (a if type(a) in (IntNumber, FloatNumber) else python_number(a) for a in (x, y))
        check_fits("where", "x", x, NATURAL[kind])
        x = fill(x, condition, shape=(), dtype=NATURAL[kind])
    return elementwise.where(condition, x, y)


@explained
def concat(arrays: list[Array] | tuple[Array, ...], axis: int | None = 0) -> Array:
    """Return the arrays joined along an axis.

    Args:
        arrays: List of at least one array; all agree on every other axis.
        axis: Axis along which the arrays follow each other; None to flatten them first.

    Returns:
        Array of the promoted dtype, whose length along axis is the sum of theirs.

    Raises:
        ShapeError: Other axes differ.
        TypeError: arrays is no list of arrays, or an empty one.

    Examples:
        >>> import polyarr as pa
        >>> pa.concat([pa.asarray([1, 2]), pa.asarray([3])])
        Array([1, 2, 3], int64, 'numpy')

    Gradients: arrays
    """
    if axis is None and isinstance(arrays, (list, tuple)):
        arrays, axis = [shapes.reshape(a, shape=(-1,)) for a in arrays], 0
    return joining.concat(arrays, axis=axis)


@explained
def repeat(x: Array, repeats: int | Array, axis: int | None = None) -> Array:
    """Return x with each element repeated along an axis.

    Args:
        x: Array of any dtype.
        repeats: Int: how often. Or an integer array with a number for each element along the axis, which is then read
            by the host.
        axis: Int; None for the flattened x.

    Returns:
        Array of length n * repeats along the axis, or of the sum of repeats.

    Raises:
        AxisError: x lacks the axis.
        ShapeError: A number is negative, or repeats has another length than x.

    Examples:
        >>> import polyarr as pa
        >>> pa.repeat(pa.asarray([1, 2]), 2)
        Array([1, 1, 2, 2], int64, 'numpy')

    Gradients: x
    """
    if not isinstance(repeats, Array):
        return joining.repeat(x, repeats=repeats, axis=axis)
    check_array("repeat", "x", x)
    x, axis = (shapes.reshape(x, shape=(-1,)), 0) if axis is None else (x, one_axis("repeat", x, axis))
    n, times = x.shape[axis], repeats.numpy()
    if times.dtype.kind not in "iu" or times.shape not in ((), (1,), (n,)) or (times < 0).any():
        raise ShapeError(f"repeat: x is {x.spec}, repeats is {repeats.spec}; it must be {n} integers, none negative")
    return index.take(x, from_numpy(np.repeat(np.arange(n), times.astype(np.int64)), x.backend), axis=axis)


# ---- running totals and differences ------------------------------------------------------------------------------


@explained
def cumulative_sum(x: Array, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the prefix sums along an axis.

    Args:
        x: Array of any dtype, of length n along axis.
        axis: Int; None only for an x with one axis.
        dtype: Dtype to add up in and of the result; None for the default.
        include_initial: Whether the result starts with a 0.

    Returns:
        Array of length n along axis, or n + 1 with include_initial. Its dtype is that of x if floating-point; int64 or
        uint64 for integers and bool.

    Raises:
        DtypeError: dtype is bool, or real-valued for a complex x.
        ShapeError: x lacks the axis, or has several axes and none is given.

    Examples:
        >>> import polyarr as pa
        >>> pa.cumulative_sum(pa.asarray([1, 2, 3]))
        Array([1, 3, 6], int64, 'numpy')

    Gradients: x
    """
    found = reduce.cumulative_sum(x, axis=axis, dtype=dtype)
    return _prepended(0, found, axis) if include_initial else found


@explained
def cumulative_prod(x: Array, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the prefix products along an axis.

    Neighbors are multiplied first, then pairs of them, and so on: if these overflow, a 0 before them gives nan. Of n
    factors near 1, the rounding errors may add up to 1e-8 n in float32; dtype=pa.float64 avoids that.

    Args:
        x: Array of any dtype, of length n along axis.
        axis: Int; None only for an x with one axis.
        dtype: Dtype to multiply in and of the result; None for the default.
        include_initial: Whether the result starts with a 1.

    Returns:
        Array of length n along axis, or n + 1 with include_initial. Its dtype is that of x if floating-point; int64 or
        uint64 for integers and bool.

    Raises:
        DtypeError: dtype is bool, or real-valued for a complex x.
        ShapeError: x lacks the axis, or has several axes and none is given.

    Examples:
        >>> import polyarr as pa
        >>> pa.cumulative_prod(pa.asarray([1, 2, 3]))
        Array([1, 2, 6], int64, 'numpy')

    Gradients: x
    """
    check_array("cumulative_prod", "x", x)
    if axis is None and x.ndim != 1:
        raise ShapeError(f"cumulative_prod: x is {spec_of(x)}; axis must be given unless x has one axis")
    at = one_axis("cumulative_prod", x, 0 if axis is None else axis)
    due = reduce.prod(spec_of(x), dtype=dtype).dtype
    found = reduce.running_products(elementwise.astype(x, dtype=float32 if due in NARROW else due), at)
    found = found if found.dtype == due else elementwise.astype(found, dtype=due)
    return _prepended(1, found, at) if include_initial else found


@explained
def diff(x: Array, n: int = 1, axis: int = -1, prepend: Array | None = None, append: Array | None = None) -> Array:
    """Return the differences of neighbors along an axis.

    Args:
        x: Integer or floating-point array, of length m along axis.
        n: How often differences are taken; with 0, x itself is returned.
        axis: Axis of the neighbors.
        prepend: Array that is joined to x in front along axis; None for none.
        append: Array that is joined to x behind along axis; None for none.

    Returns:
        Array of length m - n along axis, but not below 0. Unsigned integers wrap around.

    Raises:
        AxisError: x lacks the axis.
        ValueError: n is negative.

    Examples:
        >>> import polyarr as pa
        >>> pa.diff(pa.asarray([1, 4, 9]))
        Array([3, 5], int64, 'numpy')

    Gradients: x, prepend, append
    """
    check_array("diff", "x", x)
    at, n = one_axis("diff", x, axis), whole("diff", "n", n)
    if n < 0:
        raise ValueError(f"diff: n is {n}; it must not be negative")
    for name, a in (("prepend", prepend), ("append", append)):
        if a is not None:
            check_array("diff", name, a)
    if n == 0:
        return x.snapshot() if type(x) is Array else x  # x without prepend and append, as in NumPy
    parts = [a for a in (prepend, x, append) if a is not None]
    found = joining.concat(parts, axis=at) if len(parts) > 1 else x
    for _ in range(min(n, found.shape[at])):
        count = max(found.shape[at] - 1, 0)
        found = subtract(part_of(found, at, found.shape[at] - count, count), part_of(found, at, 0, count))
    return found


@explained
def count_nonzero(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Return the number of nonzero elements over axes.

    Args:
        x: Array of any dtype and shape.
        axis: Int or tuple of ints; None for all axes.
        keepdims: Whether reduced axes stay, with length 1.

    Returns:
        int64 array without the reduced axes.

    Raises:
        ShapeError: x lacks an axis, or an axis is named twice.

    Examples:
        >>> import polyarr as pa
        >>> pa.count_nonzero(pa.asarray([[1, 0], [2, 3]]), axis=1)
        Array([1, 2], int64, 'numpy')

    Gradients: none
    """
    check_array("count_nonzero", "x", x)
    return reduce.sum(reduce.nonzero_mask(x), axis=axis, keepdims=keepdims)


def _prepended(number: int, x: Array, axis: int | None) -> Array:
    """Return x with one more element, a number, in front of it along axis."""
    at = one_axis("concat", x, 0 if axis is None else axis)
    first = fill(number, x, shape=(*x.shape[:at], 1, *x.shape[at + 1 :]), dtype=x.dtype)
    return joining.concat([first, x], axis=at)
