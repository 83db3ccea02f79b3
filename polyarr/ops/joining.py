"""Ops that join, split, pad and repeat arrays."""

import builtins
import itertools

from polyarr.core.array import spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.op import composed, primitive
from polyarr.core.spec import Spec, described, int64
from polyarr.ops.create import fill, iota, shape_of
from polyarr.ops.elementwise import clip, minimum, multiply, remainder, subtract
from polyarr.ops.index import take
from polyarr.ops.shape import broadcast_to, expand_dims, one_axis, part_of, reshape, slice_update, squeeze
from polyarr.ops.validation import whole, wholes


@primitive(promote="arrays")
def concat(arrays, *, axis=0):
    """Return the arrays joined along an axis.

    Args:
        arrays: List of at least one array; all agree on every other axis.
        axis: Axis along which the arrays follow each other.

    Returns:
        Array of the promoted dtype, whose length along axis is the sum of theirs.

    Raises:
        ShapeError: Other axes differ.
        TypeError: arrays is no list of arrays, or an empty one.

    Gradients: arrays
    """
    _check_list("concat", arrays)
    at = one_axis("concat", arrays[0], axis)
    for a in arrays[1:]:
        if a.ndim != arrays[0].ndim or any(
            n != m for i, (n, m) in enumerate(zip(a.shape, arrays[0].shape, strict=True)) if i != at
        ):
            listed = ", ".join(map(str, arrays))
            raise ShapeError(f"concat: arrays are {listed}; they must agree on every axis but {at}")
    total = builtins.sum(a.shape[at] for a in arrays)
    return Spec((*arrays[0].shape[:at], total, *arrays[0].shape[at + 1 :]), arrays[0].dtype), {"axis": at}


def _check_list(op: str, arrays) -> None:
    if not isinstance(arrays, (tuple, list)) or not arrays:
        raise TypeError(f"{op}: got {'no arrays' if arrays in ((), []) else 'one array'}; it needs a list of arrays")
    for a in arrays:
        if not hasattr(a, "ndim") or (type(a) is Spec and a.is_number):
            raise TypeError(f"{op}: arrays holds {described(a)}; it must be a list of arrays")


def _parts(g, lengths, axis: int):
    """Return g split along axis into slices of these lengths."""
    found, start = [], 0
    for length in lengths:
        found.append(part_of(g, axis, start, length))
        start += length
    return tuple(found)


concat.vjp(arrays=lambda g, arrays_spec, axis: _parts(g, [s.shape[axis] for s in arrays_spec], axis))


@composed(promote="arrays", widen=False)
def stack(arrays, *, axis=0):
    """Return the arrays joined along a new axis.

    Args:
        arrays: List of n arrays of one shape.
        axis: Position of the new axis in the result.

    Returns:
        Array of the promoted dtype and that shape, with an axis of length n.

    Raises:
        ShapeError: The shapes differ.
        TypeError: arrays is no list of arrays, or an empty one.

    Examples:
        >>> import polyarr as pa
        >>> pa.stack([pa.asarray([1, 2]), pa.asarray([3, 4])], axis=1)
        Array([[1, 3],
               [2, 4]], int64, 'numpy')

    Gradients: arrays
    """
    _check_list("stack", arrays)
    if any(a.shape != arrays[0].shape for a in arrays):
        raise ShapeError(f"stack: arrays are {', '.join(str(spec_of(a)) for a in arrays)}; they must share one shape")
    at = one_axis("stack", arrays[0], axis, extra=1)
    return concat(tuple(expand_dims(a, axis=at) for a in arrays), axis=at)


@composed(widen=False)
def unstack(x, *, axis=0):
    """Return the slices of x along an axis.

    Args:
        x: Array of any dtype, of length n along axis.
        axis: Axis that the results lack.

    Returns:
        Tuple of n arrays of one axis fewer.

    Raises:
        AxisError: x lacks the axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.unstack(pa.asarray([[1, 2], [3, 4]]))
        (Array([1, 2], int64, 'numpy'), Array([3, 4], int64, 'numpy'))

    Gradients: x
    """
    at = one_axis("unstack", x, axis)
    return tuple(squeeze(part, axis=at) for part in _parts(x, [1] * x.shape[at], at))


unstack.vjp(x=lambda g, axis: stack(g, axis=axis))


@composed(widen=False)
def split(x, *, indices_or_sections, axis=0):
    """Return x cut into parts along an axis.

    Args:
        x: Array of any dtype.
        indices_or_sections: Int: the number of equal parts. Tuple of ints: the positions before which x is cut.
        axis: Axis to cut.

    Returns:
        Tuple of arrays.

    Raises:
        AxisError: x lacks the axis.
        ShapeError: The parts would not be equal.

    Examples:
        >>> import polyarr as pa
        >>> pa.split(pa.asarray([1, 2, 3, 4]), indices_or_sections=(1, 3))
        (Array([1], int64, 'numpy'), Array([2, 3], int64, 'numpy'), Array([4], int64, 'numpy'))

    Gradients: x
    """
    at = one_axis("split", x, axis)
    n = x.shape[at]
    places = wholes("split", "indices_or_sections", indices_or_sections)
    if not isinstance(indices_or_sections, (tuple, list, range)):
        (count,) = places
        if count < 1 or n % count:
            raise ShapeError(f"split: x is {spec_of(x)}; axis {at} does not divide into {count} equal parts")
        return _parts(x, [n // count] * count, at)
    cuts = [0, *(builtins.min(c if c >= 0 else c + n, n) for c in places), n]
    return _parts(x, [builtins.max(b - a, 0) for a, b in itertools.pairwise(cuts)], at)


split.vjp(x=lambda g, axis: concat(g, axis=axis))


@composed(widen=False)
def pad(x, *, pad_width, mode="constant", constant_values=0):
    """Return x with elements around it.

    Args:
        x: Array of any dtype.
        pad_width: Tuple with a pair (before, after) per axis; one pair, or one int, counts for all axes.
        mode: What the new elements hold: "constant"; "edge", the nearest element of x; "reflect", x mirrored at its
            first and last elements; "symmetric", mirrored beside them; or "wrap", x over again.
        constant_values: Number that they hold with "constant".

    Returns:
        Array of lengths before + n + after and the dtype of x.

    Raises:
        ShapeError: A width is negative, or there are not as many pairs as axes; or an axis without elements is
            continued.
        ValueError: mode is unknown, or not "constant" with constant_values.

    Examples:
        >>> import polyarr as pa
        >>> pa.pad(pa.asarray([1, 2]), pad_width=(1, 2))
        Array([0, 1, 2, 0, 0], int64, 'numpy')
        >>> pa.pad(pa.asarray([1, 2, 3]), pad_width=2, mode="reflect")
        Array([3, 2, 1, 2, 3, 2, 1], int64, 'numpy')

    Gradients: x
    """
    nested = isinstance(pad_width, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in pad_width)
    pairs = tuple(wholes("pad", "pad_width", p) for p in (pad_width if nested else (pad_width,)))
    pairs = pairs if nested else (pairs[0] * (3 - len(pairs[0])),) * len(x.shape)  # one width is for both sides
    if len(pairs) != len(x.shape) or any(len(p) != 2 or builtins.min(p) < 0 for p in pairs):
        raise ShapeError(f"pad: x is {spec_of(x)}, pad_width is {pad_width}; it must be one (before, after) per axis")
    if mode != "constant":
        return _continued(x, pairs, mode, constant_values)
    shape = tuple(before + n + after for n, (before, after) in zip(x.shape, pairs, strict=True))
    around = fill(constant_values, x, shape=shape, dtype=x.dtype)
    starts = tuple(before if n else 0 for n, (before, _) in zip(x.shape, pairs, strict=True))
    return slice_update(around, x, starts=starts, steps=(1,) * len(shape))


def _continued(x, pairs, mode, constant_values):
    """Return x with elements of its own around it, by axis: those at the places that a rule of pad names."""
    if mode not in _PLACES:
        raise ValueError(f"pad: mode is {mode!r}; it must be one of constant, {', '.join(_PLACES)}")
    if constant_values:
        raise ValueError(f"pad: constant_values is {constant_values} and mode {mode!r}; they are for mode 'constant'")
    for axis, (before, after) in enumerate(pairs):
        n = x.shape[axis]
        if before or after:
            if not n:
                raise ShapeError(f"pad: x is {spec_of(x)}, mode is {mode!r}; axis {axis} has no elements to continue")
            places = iota(-before, 1, x, size=before + n + after, dtype=int64)
            x = take(x, _PLACES[mode](places, n), axis=axis)
    return x


def _mirrored(places, last, period):
    """Return places of elements that go from 0 to last and back in each period."""
    at = remainder(places, period)
    return minimum(at, subtract(last, at))


_PLACES = {
    "edge": lambda places, n: clip(places, 0, n - 1),
    "reflect": lambda places, n: _mirrored(places, 2 * n - 2, 2 * n - 2) if n > 1 else multiply(places, 0),
    "symmetric": lambda places, n: _mirrored(places, 2 * n - 1, 2 * n),
    "wrap": lambda places, n: remainder(places, n),
}


@composed(widen=False)
def roll(x, *, shift, axis=None):
    """Return x with its elements shifted along axes; elements shifted out at the end come in at the beginning.

    Args:
        x: Array of any dtype and shape.
        shift: Int, or tuple with an int per axis.
        axis: Int or tuple of ints; None for the flattened x.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        AxisError: x lacks an axis.
        ShapeError: shift and axis differ in length.

    Examples:
        >>> import polyarr as pa
        >>> pa.roll(pa.asarray([1, 2, 3, 4]), shift=1)
        Array([4, 1, 2, 3], int64, 'numpy')

    Gradients: x
    """
    if axis is None:
        return reshape(roll(reshape(x, shape=(-1,)), shift=shift, axis=0), shape=x.shape)
    axes, shifts = wholes("roll", "axis", axis), wholes("roll", "shift", shift)
    shifts = shifts if isinstance(shift, (tuple, list)) else shifts * len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: shift is {shift}, axis is {axis}; there must be one shift per axis")
    for by, a in zip(shifts, axes, strict=True):
        at = one_axis("roll", x, a)
        n = x.shape[at]
        if n and by % n:
            before, after = _parts(x, [n - by % n, by % n], at)
            x = concat((after, before), axis=at)
    return x


@composed(widen=False)
def tile(x, *, repetitions):
    """Return x repeated as a whole along each axis.

    Args:
        x: Array of any dtype.
        repetitions: Int or tuple of ints, one per axis. The shorter of it and the shape of x is filled with 1 in front.

    Returns:
        Array of lengths n * repetitions and the dtype of x.

    Raises:
        ShapeError: A number is negative.

    Examples:
        >>> import polyarr as pa
        >>> pa.tile(pa.asarray([1, 2]), repetitions=2)
        Array([1, 2, 1, 2], int64, 'numpy')

    Gradients: x
    """
    times = shape_of("tile", repetitions)
    ndim = builtins.max(len(times), len(x.shape))
    times = (1,) * (ndim - len(times)) + times
    lengths = (1,) * (ndim - len(x.shape)) + tuple(x.shape)
    between = reshape(x, shape=tuple(m for n in lengths for m in (1, n)))
    spread = broadcast_to(between, shape=tuple(m for t, n in zip(times, lengths, strict=True) for m in (t, n)))
    return reshape(spread, shape=tuple(t * n for t, n in zip(times, lengths, strict=True)))


@composed(widen=False)
def repeat(x, *, repeats, axis=None):
    """Return x with each element repeated along an axis.

    Args:
        x: Array of any dtype.
        repeats: Int: how often.
        axis: Int; None for the flattened x.

    Returns:
        Array of length n * repeats along the axis.

    Raises:
        AxisError: x lacks the axis.
        ShapeError: repeats is negative.

    Gradients: x
    """
    if axis is None:
        return repeat(reshape(x, shape=(-1,)), repeats=repeats, axis=0)
    at, times = one_axis("repeat", x, axis), whole("repeat", "repeats", repeats)
    shape_of("repeat", times, "repeats")
    spread = (*x.shape[: at + 1], times, *x.shape[at + 1 :])
    stretched = broadcast_to(expand_dims(x, axis=at + 1), shape=spread)
    return reshape(stretched, shape=(*x.shape[:at], x.shape[at] * times, *x.shape[at + 1 :]))
