"""Indexing: `x[key]` and `x[key] = value` in terms of slice, slice_update, take and scatter."""

import builtins
import math
import operator
from typing import Any

import numpy as np

from polyarr.core.array import Array, from_numpy, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.number import NUMBERS, IntNumber, evaluate
from polyarr.core.spec import INTEGERS, Spec, broadcast, described, int64
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import fill, iota
from polyarr.ops.elementwise import add, astype, floor_divide, multiply, remainder, where
from polyarr.ops.index import checked_positions, scatter, take
from polyarr.ops.logic import not_equal
from polyarr.ops.reduce import cumulative_sum
from polyarr.ops.shape import broadcast_to, permute_dims, reshape, slice, slice_update
from polyarr.ops.validation import ARRAY, check_fits, stands_for_array

SLICE = builtins.slice
ALL = SLICE(None)
INT_KEYS = {int, IntNumber}
PLAIN_KEYS = {type(None), SLICE, *INT_KEYS}  # types of keys that are not index arrays


def get_item(x: Array, key: Any) -> Array:
    """Return x[key], for ints, slices, ..., None, integer arrays and one boolean mask.

    Args:
        x: Array of any dtype and shape.
        key: Key, or tuple of keys.

    Returns:
        Array of the dtype of x. With a boolean mask, its length is read by the host.

    Raises:
        IndexError: x does not have the key, or the key has a wrong type.
    """
    if (mask := _mask(x, key)) is not None:
        return take(_masked_rows(x, mask), _positions_in(x, mask), axis=0)
    window, arrays, shape = _parse(x, key)
    if window["shape"] != x.shape or window["steps"] != (1,) * x.ndim:
        x = _sliced(x, window)
    if not arrays:
        return x.snapshot() if x.shape == shape and type(x) is Array else reshape(x, shape=shape)
    lead = _lead(shape, arrays)
    x, flat = _flattened(x, arrays, lead)
    found = take(x, flat, axis=lead)
    return reshape(found, shape=_gathered_shape(shape, flat.shape))


def _sliced(x: Array, window: dict[str, Any]) -> Array:
    return slice(x, window["starts"], steps=window["steps"], shape=window["shape"])  # by position: faster


def set_item(x: Array, key: Any, value: Any) -> Array:
    """Return a copy of x with x[key] replaced by value.

    Args:
        x: Array of any dtype and shape.
        key: Key, or tuple of keys, as in get_item.
        value: Array or Python number that broadcasts to x[key] and is converted to the dtype of x.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        IndexError: x does not have the key, or the key has a wrong type.
        ShapeError: value does not broadcast to x[key].
    """
    if (mask := _mask(x, key)) is not None:
        return _masked_update(x, mask, value)
    window, arrays, shape = _parse(x, key)
    if not arrays:
        value = _value(x, value, shape)
        return slice_update(x, reshape(value, shape=window["shape"]), window["starts"], steps=window["steps"])
    part, lead = _sliced(x, window), _lead(shape, arrays)
    view, flat = _flattened(part, arrays, lead)
    window_shape = (*view.shape[:lead], *flat.shape, *view.shape[lead + 1 :])
    value = reshape(_value(x, value, _gathered_shape(shape, flat.shape)), shape=window_shape)
    order = _joining_order(part.ndim, arrays, lead)
    placed = reshape(scatter(view, flat, value, axis=lead), shape=tuple(part.shape[i] for i in order))
    placed = permute_dims(placed, axes=tuple(order.index(i) for i in range(part.ndim)))
    return slice_update(x, placed, window["starts"], steps=window["steps"])


def _value(x: Array, value: Any, shape: tuple[int, ...]) -> Any:
    if type(value) in (Array, Spec) or stands_for_array(value):
        found = value if value.dtype == x.dtype else astype(value, dtype=x.dtype)
    else:
        number = value.item() if isinstance(value, np.generic) else value
        if not isinstance(number, NUMBERS):
            raise TypeError(f"x[key] = value: value is {described(value)}; {ARRAY} or a Python number")
        check_fits("x[key] = value", "value", number, x.dtype)
        found = fill(number, x, shape=(), dtype=x.dtype)
    while len(found.shape) > len(shape) and found.shape[0] == 1:  # NumPy drops leading axes of length 1
        found = reshape(found, shape=found.shape[1:])
    try:
        return broadcast_to(found, shape=shape)
    except ShapeError:
        raise ShapeError(f"x[key] = value: value is {spec_of(value)}; it must broadcast to {list(shape)}") from None


def _mask(x: Array, key: Any) -> Array | np.ndarray | None:
    """Return the boolean mask that a key is, on the host if it is a list or a NumPy array; None for another key."""
    if type(key) in (SLICE, int):
        return None
    key = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if isinstance(key, (list, np.ndarray)) and (host := _on_host(key)).dtype == bool_:
        key = host
    if isinstance(key, (Array, np.ndarray)) and key.dtype == bool_:
        covered = x.shape[: key.ndim]
        if key.shape != covered:
            if key.ndim <= x.ndim and all(n in (m, 0) for n, m in zip(key.shape, covered, strict=True)):
                return np.zeros(covered, bool_)  # in the standard, a mask without elements selects nothing
            given = f"x is {x.spec}, the mask is {spec_of(key)}"
            raise IndexError(f"indexing: {given}; the mask must have x's leading axes")
        return key
    return None


def _on_host(key: Any) -> np.ndarray:
    try:
        return np.asarray(key)
    except ValueError:
        raise IndexError("indexing: an index is a list of rows of several lengths; they must be alike") from None


def _masked_rows(x: Array, mask: Array | np.ndarray) -> Any:
    """Return x with the axes that the mask covers joined into one."""
    return reshape(x, shape=(mask.size, *x.shape[mask.ndim :]))


def _positions_in(x: Array, mask: Array | np.ndarray) -> Array:
    """Return the flat positions of the true elements of a mask of x."""
    return true_positions(mask) if isinstance(mask, Array) else from_numpy(np.flatnonzero(mask), x.backend)


def true_positions(mask: Array) -> Array:
    """Return the flat positions of the true elements. Their number is read by the host, since a shape depends on it."""
    flat = reshape(mask, shape=(-1,))
    if not flat.size:
        return fill(0, flat, shape=(0,), dtype=int64)
    rank = cumulative_sum(astype(flat, dtype=int64), axis=0)
    count = int(rank[-1].numpy())
    # Each True element writes its position at its rank; the False ones write to an extra element at the end.
    where_to = where(flat, add(rank, -1), count)
    positions = iota(0, 1, flat, size=flat.size, dtype=int64)
    return slice(
        scatter(fill(0, flat, shape=(count + 1,), dtype=int64), where_to, positions, axis=0),
        starts=(0,),
        steps=(1,),
        shape=(count,),
    )


def nonzero(x: Array) -> tuple[Array, ...]:
    """Return the indices of the nonzero elements. Their number is read by the host.

    Args:
        x: Array of any dtype with at least one axis.

    Returns:
        Tuple of int64 arrays with one axis, one for each axis of x.

    Raises:
        ShapeError: x has no axis.
        TypeError: x is not an array with values.

    Examples:
        >>> import polyarr as pa
        >>> pa.nonzero(pa.asarray([[1, 0], [0, 2]]))
        (Array([0, 1], int64, 'numpy'), Array([0, 1], int64, 'numpy'))
    """
    if type(x) is not Array:
        raise TypeError(f"nonzero: x is {described(x)}; it must be a polyarr array, whose values decide the shape")
    if not x.shape:
        raise ShapeError(f"nonzero: x is {x.spec}; it must have at least one axis")
    flat = true_positions(not_equal(x, False if x.dtype == bool_ else 0))
    strides = [math.prod(x.shape[i + 1 :]) for i in range(x.ndim)]
    return tuple(remainder(floor_divide(flat, s), n) for s, n in zip(strides, x.shape, strict=True))


def _masked_update(x: Array, mask: Array | np.ndarray, value: Any) -> Array:
    rest = x.shape[mask.ndim :]
    if type(value) is Array and value.ndim > len(rest):
        positions = _positions_in(x, mask)
        value = _value(x, value, (*positions.shape, *rest))
        return reshape(scatter(_masked_rows(x, mask), positions, value, axis=0), shape=x.shape)
    mask = mask if isinstance(mask, Array) else from_numpy(mask, x.backend)
    spread = reshape(mask, shape=(*mask.shape, *(1,) * len(rest)))
    return where(broadcast_to(spread, shape=x.shape), _value(x, value, x.shape), x)


# Index arrays by axis. An int beside an array counts as one, as in NumPy: None, since the slice has cut its axis.
Indices = list[tuple[int, Array | None]]


def _parse(x: Array, key: Any) -> tuple[dict, Indices, tuple]:
    """Return the slice that the key makes, its index arrays, and the result's shape.

    The shape has "array" for each index array, all in one place as in NumPy: first, if they are not adjacent in key.
    """
    given = [_as_key(x, k) for k in (key if isinstance(key, tuple) else (key,))]
    keys = _complete(x, given)
    has_arrays = not PLAIN_KEYS.issuperset(map(type, keys))
    starts, steps, lengths, axis = [], [], [], 0
    arrays: Indices = []
    shape: list[Any] = []
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        n = x.shape[axis]
        if type(k) is SLICE:
            start, stop, step = k.indices(n)
            count = len(range(start, stop, step))
            shape.append(count)
        elif type(k) in INT_KEYS:
            start, step, count = _position(x, axis, k), 1, 1
            if has_arrays:
                arrays.append((axis, None))
                shape.append("array")
        else:
            start, step, count = 0, 1, n
            arrays.append((axis, k))
            shape.append("array")
        starts.append(start if count else 0)
        steps.append(step)
        lengths.append(count)
        axis += 1
    if arrays and not _adjacent(given):
        shape = ["array"] * len(arrays) + [n for n in shape if n != "array"]
    return {"starts": tuple(starts), "steps": tuple(steps), "shape": tuple(lengths)}, arrays, tuple(shape)


def _adjacent(keys: list) -> bool:
    """Return whether no slice, None or ellipsis lies between index arrays and ints, even if it stands for no axis."""
    places = [i for i, k in enumerate(keys) if not (k is None or k is Ellipsis or type(k) is SLICE)]
    return places[-1] - places[0] == len(places) - 1


def _complete(x: Array, found: list) -> list:
    """Return the keys with the ellipsis replaced and every axis named."""
    ellipses = [i for i, k in enumerate(found) if k is Ellipsis]
    used = len([k for k in found if k is not None]) - len(ellipses)
    if used > x.ndim or len(ellipses) > 1:
        raise IndexError(f"indexing: x is {spec_of(x)}; the key names {used} axes")
    fill = [ALL] * (x.ndim - used)
    return [*found[: ellipses[0]], *fill, *found[ellipses[0] + 1 :]] if ellipses else found + fill


def _as_key(x: Array, k: Any) -> Any:
    if type(k) in PLAIN_KEYS or k is Ellipsis:
        return k
    if isinstance(k, (list, np.ndarray)):
        host = _on_host(k)
        if host.dtype.newbyteorder("=") in INTEGERS:  # files hold big-endian numbers
            host = host.astype(host.dtype.newbyteorder("="), copy=False)
        elif isinstance(k, list) and not host.size:  # [] names no dtype
            host = host.astype(np.int64)
        else:
            raise IndexError(_no_index(host))
        k = from_numpy(host, x.backend)
    if isinstance(k, Array) or stands_for_array(k):
        if k.dtype not in INTEGERS:
            raise IndexError(_no_index(k))
        return k
    try:
        if isinstance(k, bool):  # a subclass of int that looks like a mask
            raise TypeError
        return int(operator.index(k))
    except TypeError:
        raise IndexError(
            f"indexing: an index is {type(k).__name__}; it must be an int, a slice, ..., None or an integer array"
        ) from None


def _no_index(k: Any) -> str:
    """Return the error message for an array that is neither integers nor a mask alone."""
    beside = "; beside other indices write pa.nonzero(mask)[0]" if k.dtype == bool_ and len(k.shape) == 1 else ""
    given = Spec(k.shape, k.dtype)
    return f"indexing: an index is {given}; it must be an integer array, or one bool mask alone{beside}"


def _position(x: Array, axis: int, k: int) -> int:
    if type(k) is int:
        return _within(spec_of(x), axis, k)
    spec = spec_of(x)

    def position(k: int) -> int:
        return _within(spec, axis, k)

    return evaluate(position, k)


def _within(spec: Spec, axis: int, k: int) -> int:
    n = spec.shape[axis]
    if not -n <= k < n:
        raise IndexError(f"indexing: x is {spec}; index {k} is out of range for axis {axis}")
    return k % n


def _lead(shape: tuple, arrays: Indices) -> int:
    """Return the axis of x at which its indexed axes are joined: that of the first if all are adjacent, else 0."""
    return 0 if shape[0] == "array" else arrays[0][0]


def _flattened(x: Array, arrays: Indices, lead: int) -> tuple[Array, Array]:
    """Return x with the indexed axes joined into one at lead, and the positions along it."""
    given = [(x.shape[axis], a) for axis, a in arrays if a is not None]
    try:
        shape = broadcast("indexing", *(spec_of(a) for _, a in given))
    except ShapeError as error:  # NumPy raises IndexError for such a key
        raise IndexError(*error.args) from None
    flat = None
    for n, a in given:
        place = checked_positions(a, n) if len(given) > 1 else a
        flat = place if flat is None else add(multiply(flat, n), place)
    x = permute_dims(x, axes=_joining_order(x.ndim, arrays, lead)) if len(arrays) > 1 else x
    joined = math.prod(x.shape[lead : lead + len(arrays)])
    x = reshape(x, shape=(*x.shape[:lead], joined, *x.shape[lead + len(arrays) :]))
    return x, broadcast_to(flat, shape=shape)


def _joining_order(ndim: int, arrays: Indices, lead: int) -> tuple[int, ...]:
    axes = [axis for axis, _ in arrays]
    rest = [i for i in range(ndim) if i not in axes]
    return (*rest[:lead], *axes, *rest[lead:])


def _gathered_shape(shape: tuple, indices: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the result, with the shape of the index arrays in its place."""
    at = shape.index("array")
    rest = [n for n in shape if n != "array"]
    return (*rest[:at], *indices, *rest[at:])
