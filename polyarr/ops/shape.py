"""Ops that move elements and do not change them: views, windows, joining and splitting, triangles."""

import builtins
import itertools
import math
from collections.abc import Callable
from typing import Any

from polyarr.core.array import Array, spec_of
from polyarr.core.errors import AxisError, ShapeError
from polyarr.core.op import composed, primitive
from polyarr.core.spec import INTEGERS, Spec, broadcast, described
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import arange, full, shape_of
from polyarr.ops.elementwise import where
from polyarr.ops.logic import less_equal
from polyarr.ops.validation import check_array, whole, wholes


def one_axis(op: str, x, axis: int, extra: int = 0) -> int:
    """axis as a number from 0 to ndim + extra - 1.

    Errors:  AxisError if x has no such axis, TypeError unless axis is an int
    """
    axis, ndim = whole(op, "axis", axis), len(x.shape) + extra
    if not -ndim <= axis < ndim:
        raise AxisError(f"{op}: x is {spec_of(x)}; axis {axis} must be from {-ndim} to {ndim - 1}")
    return axis % ndim


# ---- views -----------------------------------------------------------------------------------------------------


@primitive
def reshape(x, *, shape):
    """The same elements, in row-major order, in another shape; one length may be -1.

    Shapes:  any -> shape
    Dtypes:  any -> the same
    Errors:  ShapeError if shape holds another number of elements
    Grads:   x
    """
    given = wholes("reshape", "shape", shape)
    rest = math.prod(n for n in given if n != -1)
    found = tuple(x.size // rest if n == -1 and rest else n for n in given)
    if given.count(-1) > 1 or any(n < 0 for n in found) or math.prod(found) != x.size:
        raise ShapeError(f"reshape: x is {x}, {x.size} elements; {list(given)} does not hold as many")
    return Spec(found, x.dtype), {"shape": found}


@primitive
def permute_dims(x, *, axes):
    """x with its axes in another order: axis i of the result is axis axes[i] of x.

    Shapes:  any -> permuted
    Dtypes:  any -> the same
    Errors:  ShapeError if axes does not name every axis once
    Grads:   x
    """
    axes = wholes("permute_dims", "axes", axes)
    found = tuple(one_axis("permute_dims", x, a) for a in axes)
    if sorted(found) != list(range(x.ndim)):
        raise ShapeError(f"permute_dims: x is {x}; axes {list(axes)} must name each of its axes once")
    return Spec(tuple(x.shape[a] for a in found), x.dtype), {"axes": found}


@primitive
def broadcast_to(x, *, shape):
    """x stretched to shape: axes of length 1, and new ones in front, are repeated.

    Shapes:  broadcastable -> shape
    Dtypes:  any -> the same
    Errors:  ShapeError if x does not broadcast to shape
    Grads:   x
    """
    shape = shape_of("broadcast_to", shape)
    lead = len(shape) - x.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[builtins.max(lead, 0) :], strict=False)):
        raise ShapeError(f"broadcast_to: x is {x}; it does not broadcast to {list(shape)}")
    return Spec(shape, x.dtype), {"shape": shape}


def _check_number(op: str, name: str, a) -> None:
    """Raise unless a Spec is that of an integer."""
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
    """What raises if the window leaves x, as far as its starts, which are input number `at`, are known here."""
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
    """The window of x with element i * step + start along each axis; steps may be negative.

    This is what `x[2:, ::-1]` runs. Parameters are per axis, and lie within x.

    Shapes:  any -> shape
    Dtypes:  any -> the same
    Errors:  ShapeError if the window leaves x; IndexError, at the next read, if a start that is an array says so
    Grads:   x
    """
    _check_starts("slice", x, starts, steps, shape)
    return Spec(shape, x.dtype)


@primitive(
    numbers="starts",
    checks=lambda x, value, starts, *, steps: _checked_window("slice_update", x, 2, steps, value.shape),
)
def slice_update(x, value, starts, *, steps):
    """x with a window replaced by value: what `x[2:, ::-1] = value` runs.

    Shapes:  x any, value the window's shape -> x's
    Dtypes:  any, one for both -> the same
    Errors:  ShapeError if the window leaves x; IndexError, at the next read, if a start that is an array says so
    Grads:   x, value
    """
    _check_starts("slice_update", x, starts, steps, value.shape)
    return Spec(x.shape, x.dtype)


@composed(widen=False)
def expand_dims(x, *, axis=0):
    """x with a new axis of length 1 at position axis.

    Shapes:  any -> one axis more
    Dtypes:  any -> the same
    Errors:  ShapeError if there is no such position
    Grads:   x
    """
    at = one_axis("expand_dims", x, axis, extra=1)
    return reshape(x, shape=(*x.shape[:at], 1, *x.shape[at:]))


@composed(widen=False)
def squeeze(x, *, axis=None):
    """x without the axes named (None: all of length 1), which must have length 1.

    Shapes:  any -> fewer axes
    Dtypes:  any -> the same
    Errors:  ShapeError if an axis is longer than 1
    Grads:   x
    """
    axis = tuple(i for i, n in enumerate(x.shape) if n == 1) if axis is None else axis
    gone = {one_axis("squeeze", x, a) for a in wholes("squeeze", "axis", axis)}
    if any(x.shape[a] != 1 for a in gone):
        raise ShapeError(f"squeeze: x is {spec_of(x)}; axis {axis} must have length 1")
    return reshape(x, shape=tuple(n for i, n in enumerate(x.shape) if i not in gone))


@composed(widen=False)
def matrix_transpose(x):
    """x with its last two axes swapped.

    Shapes:  (..., m, n) -> (..., n, m)
    Dtypes:  any -> the same
    Errors:  ShapeError if x has fewer than two axes
    Grads:   x
    """
    if len(x.shape) < 2:
        raise ShapeError(f"matrix_transpose: x is {spec_of(x)}; it must have at least two axes")
    n = len(x.shape)
    return permute_dims(x, axes=(*range(n - 2), n - 1, n - 2))


@composed(widen=False)
def moveaxis(x, *, source, destination):
    """x with the axes source moved to the positions destination.

    Shapes:  any -> permuted
    Dtypes:  any -> the same
    Errors:  ShapeError for an axis that x lacks
    Grads:   x
    """
    places = wholes("moveaxis", "source", source), wholes("moveaxis", "destination", destination)
    if len(places[0]) != len(places[1]):
        raise ShapeError(f"moveaxis: source is {source}, destination is {destination}; they must name as many axes")
    moved = {one_axis("moveaxis", x, d): one_axis("moveaxis", x, s) for s, d in zip(*places, strict=True)}
    rest = iter(a for a in range(len(x.shape)) if a not in moved.values())
    return permute_dims(x, axes=tuple(moved[i] if i in moved else next(rest) for i in range(len(x.shape))))


@composed(widen=False)
def flip(x, *, axis=None):
    """x with the order of its elements along axis (None: all axes) reversed.

    Shapes:  any -> the same
    Dtypes:  any -> the same
    Errors:  ShapeError for an axis that x lacks
    Grads:   x
    """
    given = range(len(x.shape)) if axis is None else wholes("flip", "axis", axis)
    turned = {one_axis("flip", x, a) for a in given}
    starts = tuple(builtins.max(n - 1, 0) if i in turned else 0 for i, n in enumerate(x.shape))
    return slice(x, starts=starts, steps=tuple(-1 if i in turned else 1 for i in range(len(x.shape))), shape=x.shape)


reshape.vjp(x=lambda g, x_spec: reshape(g, shape=x_spec.shape))
permute_dims.vjp(x=lambda g, axes: permute_dims(g, axes=tuple(axes.index(i) for i in range(len(axes)))))
broadcast_to.vjp(x=lambda g: g)
slice.vjp(
    x=lambda g, x_spec, starts, steps: slice_update(
        full(0, g, shape=x_spec.shape, dtype=g.dtype), g, starts=starts, steps=steps
    ),
    starts=None,
)
slice_update.vjp(
    x=lambda g, value_spec, starts, steps: slice_update(
        g, full(0, g, shape=value_spec.shape, dtype=g.dtype), starts=starts, steps=steps
    ),
    value=lambda g, value_spec, starts, steps: slice(g, starts=starts, steps=steps, shape=value_spec.shape),
    starts=None,
)


# ---- joining and splitting ---------------------------------------------------------------------------------------


@primitive(promote="arrays")
def concat(arrays, *, axis=0):
    """The arrays, one after the other along axis.

    Shapes:  a list of arrays that agree on every other axis -> the sum of their lengths along axis
    Dtypes:  any, promoted
    Errors:  ShapeError if other axes differ; TypeError for an empty list
    Grads:   arrays
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
    """g cut along axis into windows of these lengths."""
    found, start = [], 0
    for length in lengths:
        shape = (*g.shape[:axis], length, *g.shape[axis + 1 :])
        starts = tuple(start if i == axis and length else 0 for i in range(len(g.shape)))
        found.append(slice(g, starts=starts, steps=(1,) * len(g.shape), shape=shape))
        start += length
    return tuple(found)


concat.vjp(arrays=lambda g, arrays_spec, axis: _parts(g, [s.shape[axis] for s in arrays_spec], axis))


@composed(promote="arrays", widen=False)
def stack(arrays, *, axis=0):
    """The arrays, side by side along a new axis.

    Shapes:  a list of n arrays of one shape -> that shape with an axis of length n
    Dtypes:  any, promoted
    Errors:  ShapeError if the shapes differ; TypeError for an empty list
    Grads:   arrays
    """
    _check_list("stack", arrays)
    if any(a.shape != arrays[0].shape for a in arrays):
        raise ShapeError(f"stack: arrays are {', '.join(str(spec_of(a)) for a in arrays)}; they must share one shape")
    at = one_axis("stack", arrays[0], axis, extra=1)
    return concat(tuple(expand_dims(a, axis=at) for a in arrays), axis=at)


@composed(widen=False)
def unstack(x, *, axis=0):
    """The slices of x along axis, as a tuple of arrays without it.

    Shapes:  n along axis -> n arrays of one axis fewer
    Dtypes:  any -> the same
    Errors:  ShapeError for an axis that x lacks
    Grads:   x
    """
    at = one_axis("unstack", x, axis)
    return tuple(squeeze(part, axis=at) for part in _parts(x, [1] * x.shape[at], at))


unstack.vjp(x=lambda g, axis: stack(g, axis=axis))


@composed(widen=False)
def split(x, *, indices_or_sections, axis=0):
    """x cut along axis: into so many equal parts (an int), or before each of the positions (a tuple).

    Shapes:  any -> a tuple of arrays
    Dtypes:  any -> the same
    Errors:  ShapeError if the parts would not be equal
    Grads:   x
    """
    at = one_axis("split", x, axis)
    n = x.shape[at]
    if isinstance(indices_or_sections, int):
        if indices_or_sections < 1 or n % indices_or_sections:
            raise ShapeError(
                f"split: x is {spec_of(x)}; axis {at} does not divide into {indices_or_sections} equal parts"
            )
        return _parts(x, [n // indices_or_sections] * indices_or_sections, at)
    places = wholes("split", "indices_or_sections", indices_or_sections)
    cuts = [0, *(builtins.min(c if c >= 0 else c + n, n) for c in places), n]
    return _parts(x, [builtins.max(b - a, 0) for a, b in itertools.pairwise(cuts)], at)


@composed(widen=False)
def pad(x, *, pad_width, constant_values=0):
    """x with constant_values around it: pad_width is (before, after) for all axes, or one such pair per axis.

    Shapes:  n -> before + n + after, per axis
    Dtypes:  any -> the same
    Errors:  ShapeError for a negative width or a wrong number of pairs
    Grads:   x
    """
    nested = isinstance(pad_width, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in pad_width)
    pairs = tuple(wholes("pad", "pad_width", p) for p in (pad_width if nested else (pad_width,)))
    pairs = pairs if nested else (pairs[0] * (3 - len(pairs[0])),) * len(x.shape)  # one width counts for both sides
    if len(pairs) != len(x.shape) or any(len(p) != 2 or builtins.min(p) < 0 for p in pairs):
        raise ShapeError(f"pad: x is {spec_of(x)}, pad_width is {pad_width}; it must be one (before, after) per axis")
    shape = tuple(before + n + after for n, (before, after) in zip(x.shape, pairs, strict=True))
    around = full(constant_values, x, shape=shape, dtype=x.dtype)
    starts = tuple(before if n else 0 for n, (before, _) in zip(x.shape, pairs, strict=True))
    return slice_update(around, x, starts=starts, steps=(1,) * len(shape))


@composed(widen=False)
def roll(x, *, shift, axis=None):
    """x with its elements moved by shift along axis (None: in the flattened x); what leaves at the end comes in front.

    Shapes:  any -> the same
    Dtypes:  any -> the same
    Errors:  ShapeError for an axis that x lacks
    Grads:   x
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
    """x repeated as a whole along each axis.

    Shapes:  n -> n * repetitions, per axis; the shorter of the two is filled up with 1 in front
    Dtypes:  any -> the same
    Errors:  ShapeError for a negative number
    Grads:   x
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
    """x with each element repeated in place along axis (None: in the flattened x).

    Shapes:  n -> n * repeats along axis
    Dtypes:  any -> the same
    Errors:  ShapeError for an axis that x lacks or a negative number
    Grads:   x
    """
    if axis is None:
        return repeat(reshape(x, shape=(-1,)), repeats=repeats, axis=0)
    at, times = one_axis("repeat", x, axis), whole("repeat", "repeats", repeats)
    shape_of("repeat", times, "repeats")
    spread = (*x.shape[: at + 1], times, *x.shape[at + 1 :])
    stretched = broadcast_to(expand_dims(x, axis=at + 1), shape=spread)
    return reshape(stretched, shape=(*x.shape[:at], x.shape[at] * times, *x.shape[at + 1 :]))


# ---- triangles ---------------------------------------------------------------------------------------------------


@composed(widen=False)
def tril(x, *, k=0):
    """x with zeros above the k-th diagonal.

    Shapes:  (..., m, n) -> the same
    Dtypes:  any -> the same
    Errors:  ShapeError if x has fewer than two axes
    Grads:   x
    """
    return where(_below("tril", x, whole("tril", "k", k)), x, False if x.dtype.kind == "b" else 0)


@composed(widen=False)
def triu(x, *, k=0):
    """x with zeros below the k-th diagonal.

    Shapes:  (..., m, n) -> the same
    Dtypes:  any -> the same
    Errors:  ShapeError if x has fewer than two axes
    Grads:   x
    """
    return where(_below("triu", x, whole("triu", "k", k) - 1), False if x.dtype.kind == "b" else 0, x)


def _below(op: str, x, k: int):
    """A bool matrix of x's last two lengths, True on the k-th diagonal and below."""
    if len(x.shape) < 2:
        raise ShapeError(f"{op}: x is {spec_of(x)}; it must have at least two axes")
    m, n = x.shape[-2:]
    k = builtins.max(-m, builtins.min(k, n))  # beyond these all is on one side, and k may be too large for int64
    rows = reshape(arange(k, 1, x, size=m, dtype="int64"), shape=(m, 1))
    return less_equal(arange(0, 1, x, size=n, dtype="int64"), rows)


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """The arrays, each stretched to the shape they share, as a list."""
    for a in arrays:
        check_array("broadcast_arrays", "an input", a)
    shape = broadcast("broadcast_arrays", *map(spec_of, arrays)) if arrays else ()
    return [broadcast_to(a, shape=shape) for a in arrays]


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to.

    Errors:  ShapeError if two lengths differ and neither is 1, or for a negative one; TypeError for what is no shape
    """
    given = [shape_of("broadcast_shapes", shape) for shape in shapes]
    try:
        return broadcast("broadcast_shapes", *(Spec(shape, bool_) for shape in given)) if given else ()
    except ShapeError:
        raise ShapeError(f"broadcast_shapes: cannot broadcast {' with '.join(map(str, given))}") from None
