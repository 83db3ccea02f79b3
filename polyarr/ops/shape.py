"""Ops that move elements without changing them: views, strided slices, triangles. Those that join are in joining.py."""

import builtins
import math
from collections.abc import Callable
from typing import Any

from polyarr.core.array import Array, spec_of
from polyarr.core.errors import AxisError, ShapeError
from polyarr.core.op import composed, primitive
from polyarr.core.spec import INTEGERS, Spec, broadcast
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import fill, iota, shape_of
from polyarr.ops.elementwise import where
from polyarr.ops.logic import less_equal
from polyarr.ops.validation import check_array, whole, wholes


def one_axis(op: str, x, axis: int, extra: int = 0) -> int:
    """Return axis as an int from 0 to ndim + extra - 1.

    Raises:
        AxisError: x has no such axis.
        TypeError: axis is not an int.
    """
    axis, ndim = whole(op, "axis", axis), len(x.shape) + extra
    if not -ndim <= axis < ndim:
        allowed = f"axis {axis} must be from {-ndim} to {ndim - 1}" if ndim else f"it has no axis {axis}, or any other"
        raise AxisError(f"{op}: x is {spec_of(x)}; {allowed}")
    return axis % ndim


# ---- views -----------------------------------------------------------------------------------------------------


@primitive
def reshape(x, *, shape):
    """Return the elements of x, in row-major order, in another shape.

    Args:
        x: Array of any dtype and shape.
        shape: Int or tuple of ints; one of them may be -1, which stands for what is left.

    Returns:
        Array of that shape and the dtype of x.

    Raises:
        ShapeError: shape holds another number of elements.

    Gradients: x
    """
    given = wholes("reshape", "shape", shape)
    rest = math.prod(n for n in given if n != -1)
    found = tuple(x.size // rest if n == -1 and rest else n for n in given)
    if given.count(-1) > 1:
        raise ShapeError(f"reshape: shape is {list(given)}; at most one length may be -1")
    if any(n < 0 for n in found) or math.prod(found) != x.size:
        raise ShapeError(f"reshape: x is {x}, {x.size} elements; {list(given)} does not hold as many")
    return Spec(found, x.dtype), {"shape": found}


@primitive
def permute_dims(x, *, axes):
    """Return x with its axes in another order.

    Args:
        x: Array of any dtype and shape.
        axes: Tuple of ints: axis i of the result is axis axes[i] of x. Negative ints count from the last axis.

    Returns:
        Array with the permuted axes.

    Raises:
        ShapeError: axes does not name every axis once.

    Examples:
        >>> import polyarr as pa
        >>> pa.permute_dims(pa.zeros((2, 3, 4)), axes=(2, 0, 1)).shape
        (4, 2, 3)

    Gradients: x
    """
    axes = wholes("permute_dims", "axes", axes)
    found = tuple(one_axis("permute_dims", x, a) for a in axes)
    if sorted(found) != list(range(x.ndim)):
        raise ShapeError(f"permute_dims: x is {x}; axes {list(axes)} must name each of its axes once")
    return Spec(tuple(x.shape[a] for a in found), x.dtype), {"axes": found}


@primitive
def broadcast_to(x, *, shape):
    """Return x broadcast to a shape: axes of length 1, and new axes in front, are repeated.

    Args:
        x: Array of any dtype.
        shape: Int or tuple of ints.

    Returns:
        Array of that shape and the dtype of x.

    Raises:
        ShapeError: x does not broadcast to the shape.

    Examples:
        >>> import polyarr as pa
        >>> pa.broadcast_to(pa.asarray([1, 2]), shape=(2, 2))
        Array([[1, 2],
               [1, 2]], int64, 'numpy')

    Gradients: x
    """
    shape = shape_of("broadcast_to", shape)
    lead = len(shape) - x.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[builtins.max(lead, 0) :], strict=False)):
        raise ShapeError(f"broadcast_to: x is {x}; it does not broadcast to {list(shape)}")
    return Spec(shape, x.dtype), {"shape": shape}


def _check_number(op: str, name: str, a) -> None:
    """Raise TypeError unless a is the Spec of an int or of an integer array without axes."""
    if type(a) is not Spec or a.shape or a.dtype not in (int, *INTEGERS):
        raise TypeError(f"{op}: {name} is {a}; it must be an int, or an array of integers without axes")


def _check_starts(op: str, x: Spec, starts, steps, shape) -> None:
    steps, shape = wholes(op, "steps", steps), wholes(op, "shape", shape)
    if type(starts) is not tuple or not len(starts) == len(steps) == len(shape) == x.ndim:
        raise ShapeError(f"{op}: x is {x}; starts, steps and the window's shape must have {x.ndim} entries")
    for start in starts:
        _check_number(op, "one of starts", start)
    if any(n and (not step or abs((n - 1) * step) >= m) for n, step, m in zip(shape, steps, x.shape, strict=True)):
        raise ShapeError(f"{op}: x is {x}; a window of {list(shape)} by {list(steps)} leaves it, wherever it starts")


def _checked_window(op: str, x: Spec, at: int, steps, shape) -> Callable[..., None]:
    """Return a function that raises if the slice leaves x, as far as its starts, input number `at`, are Python ints."""
    bounds = []
    for step, count, length in zip(steps, shape, x.shape, strict=True):
        reach = (count - 1) * step
        first, last = builtins.max(0, -reach), length - 1 - builtins.max(0, reach)
        bounds.append((first, last) if count else (-math.inf, math.inf))

    def check(*args: Any) -> None:
        for start, (first, last) in zip(args[at], bounds, strict=True):
            if type(start) is int and not first <= start <= last:
                window = f"the window {list(args[at])} by {list(steps)}, {list(shape)}"
                raise ShapeError(f"{op}: x is {x}; {window} leaves it")

    return check


@primitive(
    numbers="starts",
    checks=lambda x, starts, *, steps, shape: _checked_window("slice", x, 1, steps, shape),
)
def slice(x, starts, *, steps, shape):
    """Return the strided slice of x whose element i is element start + i * step of x, along each axis.

    This op runs `x[2:, ::-1]`.

    Args:
        x: Array of any dtype.
        starts: Tuple with an int per axis, not negative, or an integer array without axes.
        steps: Tuple with an int per axis, which may be negative.
        shape: Tuple of ints: the shape of the result.

    Returns:
        Array of that shape and the dtype of x.

    Raises:
        ShapeError: The slice leaves x.
        IndexError: A start that is an array leaves x; raised at the next read of a result.

    Gradients: x
    """
    _check_starts("slice", x, starts, steps, shape)
    return Spec(shape, x.dtype)


@primitive(
    numbers="starts",
    checks=lambda x, value, starts, *, steps: _checked_window("slice_update", x, 2, steps, value.shape),
)
def slice_update(x, value, starts, *, steps):
    """Return x with a strided slice replaced by value.

    This op runs `x[2:, ::-1] = value`.

    Args:
        x: Array of any dtype.
        value: Array of the dtype of x and the shape of the slice.
        starts: Tuple with an int per axis, not negative, or an integer array without axes.
        steps: Tuple with an int per axis, which may be negative.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: The slice leaves x.
        IndexError: A start that is an array leaves x; raised at the next read of a result.

    Gradients: x, value
    """
    _check_starts("slice_update", x, starts, steps, value.shape)
    return Spec(x.shape, x.dtype)


@composed(widen=False)
def expand_dims(x, *, axis=0):
    """Return x with new axes of length 1.

    Args:
        x: Array of any dtype and shape.
        axis: Int or tuple of ints: positions of the new axes in the result.

    Returns:
        Array with one axis more for each position.

    Raises:
        AxisError: The result has no such position, or a position is named twice.

    Examples:
        >>> import polyarr as pa
        >>> pa.expand_dims(pa.zeros((2, 3)), axis=1).shape
        (2, 1, 3)
        >>> pa.expand_dims(pa.zeros((2, 3)), axis=(0, -1)).shape
        (1, 2, 3, 1)

    Gradients: x
    """
    axes = wholes("expand_dims", "axis", axis)
    new = {one_axis("expand_dims", x, a, extra=len(axes)) for a in axes}
    if len(new) < len(axes):
        raise AxisError(f"expand_dims: x is {spec_of(x)}; axis {axis} must name each position once")
    lengths = iter(x.shape)
    return reshape(x, shape=tuple(1 if i in new else next(lengths) for i in range(len(x.shape) + len(axes))))


@composed(widen=False)
def squeeze(x, *, axis=None):
    """Return x without axes of length 1.

    Args:
        x: Array of any dtype and shape.
        axis: Int or tuple of ints; None for all axes of length 1.

    Returns:
        Array without these axes.

    Raises:
        AxisError: x lacks an axis.
        ShapeError: An axis is longer than 1.

    Examples:
        >>> import polyarr as pa
        >>> pa.squeeze(pa.zeros((2, 1, 3, 1)), axis=1).shape
        (2, 3, 1)

    Gradients: x
    """
    axis = tuple(i for i, n in enumerate(x.shape) if n == 1) if axis is None else axis
    gone = {one_axis("squeeze", x, a) for a in wholes("squeeze", "axis", axis)}
    if any(x.shape[a] != 1 for a in gone):
        raise ShapeError(f"squeeze: x is {spec_of(x)}; axis {axis} must have length 1")
    return reshape(x, shape=tuple(n for i, n in enumerate(x.shape) if i not in gone))


@composed(widen=False)
def matrix_transpose(x):
    """Return x with its last two axes swapped.

    Args:
        x: Array (..., m, n) of any dtype.

    Returns:
        Array (..., n, m).

    Raises:
        ShapeError: x has fewer than two axes.

    Examples:
        >>> import polyarr as pa
        >>> pa.matrix_transpose(pa.asarray([[1, 2], [3, 4]]))
        Array([[1, 3],
               [2, 4]], int64, 'numpy')

    Gradients: x
    """
    if len(x.shape) < 2:
        raise ShapeError(f"matrix_transpose: x is {spec_of(x)}; it must have at least two axes")
    n = len(x.shape)
    return permute_dims(x, axes=(*range(n - 2), n - 1, n - 2))


@composed(widen=False)
def moveaxis(x, *, source, destination):
    """Return x with axes moved to other positions; the other axes keep their order.

    Args:
        x: Array of any dtype and shape.
        source: Int or tuple of ints: the axes to move.
        destination: Int or tuple of as many ints: their positions in the result.

    Returns:
        Array with the permuted axes.

    Raises:
        AxisError: x lacks an axis.
        ShapeError: source and destination differ in length.

    Examples:
        >>> import polyarr as pa
        >>> pa.moveaxis(pa.zeros((2, 3, 4)), source=0, destination=-1).shape
        (3, 4, 2)

    Gradients: x
    """
    places = wholes("moveaxis", "source", source), wholes("moveaxis", "destination", destination)
    if len(places[0]) != len(places[1]):
        raise ShapeError(f"moveaxis: source is {source}, destination is {destination}; they must name as many axes")
    moved = {one_axis("moveaxis", x, d): one_axis("moveaxis", x, s) for s, d in zip(*places, strict=True)}
    rest = iter(a for a in range(len(x.shape)) if a not in moved.values())
    return permute_dims(x, axes=tuple(moved[i] if i in moved else next(rest) for i in range(len(x.shape))))


@composed(widen=False)
def flip(x, *, axis=None):
    """Return x with the order of its elements reversed along axes.

    Args:
        x: Array of any dtype and shape.
        axis: Int or tuple of ints; None for all axes.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        AxisError: x lacks an axis, or an axis is named twice.

    Examples:
        >>> import polyarr as pa
        >>> pa.flip(pa.asarray([[1, 2], [3, 4]]), axis=1)
        Array([[2, 1],
               [4, 3]], int64, 'numpy')

    Gradients: x
    """
    given = range(len(x.shape)) if axis is None else wholes("flip", "axis", axis)
    turned = {one_axis("flip", x, a) for a in given}
    if len(turned) < len(given):
        raise AxisError(f"flip: x is {spec_of(x)}; axis {axis} must name each axis once")
    starts = tuple(builtins.max(n - 1, 0) if i in turned else 0 for i, n in enumerate(x.shape))
    return slice(x, starts=starts, steps=tuple(-1 if i in turned else 1 for i in range(len(x.shape))), shape=x.shape)


reshape.vjp(x=lambda g, x_spec: reshape(g, shape=x_spec.shape))
permute_dims.vjp(x=lambda g, axes: permute_dims(g, axes=tuple(axes.index(i) for i in range(len(axes)))))
broadcast_to.vjp(x=lambda g: g)
slice.vjp(
    x=lambda g, x_spec, starts, steps: slice_update(
        fill(0, g, shape=x_spec.shape, dtype=g.dtype), g, starts=starts, steps=steps
    ),
    starts=None,
)
slice_update.vjp(
    x=lambda g, value_spec, starts, steps: slice_update(
        g, fill(0, g, shape=value_spec.shape, dtype=g.dtype), starts=starts, steps=steps
    ),
    value=lambda g, value_spec, starts, steps: slice(g, starts=starts, steps=steps, shape=value_spec.shape),
    starts=None,
)


def part_of(x, axis: int, start: int, length: int):
    """Return `length` elements of x along an axis, from `start` on."""
    n, axis = len(x.shape), axis % len(x.shape)
    starts = tuple(start if i == axis and length else 0 for i in range(n))
    return slice(x, starts=starts, steps=(1,) * n, shape=(*x.shape[:axis], length, *x.shape[axis + 1 :]))


# ---- triangles ---------------------------------------------------------------------------------------------------


@composed(widen=False)
def tril(x, *, k=0):
    """Return the lower triangle of x: zeros above the k-th diagonal.

    Args:
        x: Array (..., m, n) of any dtype.
        k: Diagonal: 0 is the main one, positive numbers are above it.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: x has fewer than two axes.

    Examples:
        >>> import polyarr as pa
        >>> pa.tril(pa.asarray([[1, 2], [3, 4]]))
        Array([[1, 0],
               [3, 4]], int64, 'numpy')

    Gradients: x
    """
    return where(_below("tril", x, whole("tril", "k", k)), x, False if x.dtype.kind == "b" else 0)


@composed(widen=False)
def triu(x, *, k=0):
    """Return the upper triangle of x: zeros below the k-th diagonal.

    Args:
        x: Array (..., m, n) of any dtype.
        k: Diagonal: 0 is the main one, positive numbers are above it.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: x has fewer than two axes.

    Examples:
        >>> import polyarr as pa
        >>> pa.triu(pa.asarray([[1, 2], [3, 4]]))
        Array([[1, 2],
               [0, 4]], int64, 'numpy')

    Gradients: x
    """
    return where(_below("triu", x, whole("triu", "k", k) - 1), False if x.dtype.kind == "b" else 0, x)


def _below(op: str, x, k: int):
    """Return a bool matrix of the last two lengths of x, true on the k-th diagonal and below."""
    if len(x.shape) < 2:
        raise ShapeError(f"{op}: x is {spec_of(x)}; it must have at least two axes")
    m, n = x.shape[-2:]
    k = builtins.max(-m, builtins.min(k, n))  # clamp: k may be too large for int64
    rows = reshape(iota(k, 1, x, size=m, dtype="int64"), shape=(m, 1))
    return less_equal(iota(0, 1, x, size=n, dtype="int64"), rows)


def broadcast_arrays(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays broadcast against each other.

    Args:
        *arrays: Arrays of any dtypes.

    Returns:
        Tuple of arrays of one shape, each with its dtype.

    Raises:
        ShapeError: The arrays do not broadcast.

    Examples:
        >>> import polyarr as pa
        >>> x, y = pa.broadcast_arrays(pa.zeros((2, 1)), pa.zeros(3))
        >>> x.shape, y.shape
        ((2, 3), (2, 3))
    """
    for a in arrays:
        check_array("broadcast_arrays", "an input", a)
    shape = broadcast("broadcast_arrays", *map(spec_of, arrays)) if arrays else ()
    return tuple(broadcast_to(a, shape=shape) for a in arrays)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return the shape that arrays of these shapes broadcast to.

    Args:
        *shapes: Ints or tuples of ints.

    Returns:
        Tuple of ints.

    Raises:
        ShapeError: Two lengths differ and neither is 1, or a length is negative.
        TypeError: An argument is no shape.

    Examples:
        >>> import polyarr as pa
        >>> pa.broadcast_shapes((2, 1), (3,))
        (2, 3)
    """
    given = [shape_of("broadcast_shapes", shape) for shape in shapes]
    try:
        return broadcast("broadcast_shapes", *(Spec(shape, bool_) for shape in given)) if given else ()
    except ShapeError:
        raise ShapeError(f"broadcast_shapes: cannot broadcast {' with '.join(map(str, given))}") from None
