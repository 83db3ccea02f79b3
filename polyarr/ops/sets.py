"""Searching sorted arrays, membership and distinct elements: functions of the array API standard made of ops.

How many distinct elements there are is read by the host: a shape depends on it.
"""

from typing import Any, NamedTuple

from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.spec import FLOATS, Spec, check_kind, described, int64, promote
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import NATURAL, full
from polyarr.ops.elementwise import add, astype, subtract, where
from polyarr.ops.getitem import true_positions
from polyarr.ops.index import argsort, scatter, take
from polyarr.ops.logic import bitwise_and, bitwise_or, bitwise_xor, equal, isnan, less, less_equal, not_equal
from polyarr.ops.reduce import cumulative_sum
from polyarr.ops.shape import concat, reshape
from polyarr.ops.validation import check_array, check_fits

# ---- searching -----------------------------------------------------------------------------------------------------


def searchsorted(x1: Array, x2: Any, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """Where elements of x2 belong in x1, which is sorted, or is by `sorter`; nan counts as larger than all numbers.

    The element of x1 at the position found is the first that is not below (side "left") or that is above ("right").

    Shapes:  x1 (n,), x2 any, sorter (n,) -> x2's
    Dtypes:  real, promoted; sorter integer -> int64
    Errors:  ShapeError unless x1 has one axis and sorter its shape; ValueError for another side
    Grads:   none
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side is {side!r}; it must be 'left' or 'right'")
    x1, x2 = _together("searchsorted", x1, x2, "real")
    if len(x1.shape) != 1:
        raise ShapeError(f"searchsorted: x1 is {spec_of(x1)}; it must have one axis")
    if sorter is not None:
        check_array("searchsorted", "sorter", sorter)
        if sorter.shape != x1.shape:
            raise ShapeError(f"searchsorted: sorter is {spec_of(sorter)}, x1 is {spec_of(x1)}; it must have x1's shape")
        x1 = take(x1, sorter, axis=0)
    return _position(x1, x2, side == "right")


def _position(ordered: Array, x: Array, after: bool) -> Array:
    """How many elements of `ordered` stand before each of x, with it too if after; all at once, bit by bit."""
    n = ordered.shape[0]
    found = full(0, x, shape=x.shape, dtype=int64)
    for bit in reversed(range(n.bit_length())):
        tried = add(found, 1 << bit)
        reached = less_equal(tried, n)
        at = take(ordered, where(reached, subtract(tried, 1), 0), axis=0)
        stands = bitwise_xor(_before(x, at), True) if after else _before(at, x)
        found = where(bitwise_and(reached, stands), tried, found)
    return found


def _before(x: Array, y: Array) -> Array:
    """x < y, where nan is larger than all numbers."""
    if x.dtype not in FLOATS:
        return less(x, y)
    return bitwise_or(less(x, y), bitwise_and(isnan(y), equal(x, x)))


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """True where an element of x1 is among those of x2 (with invert: is not); nan is equal to nothing.

    Shapes:  any -> x1's
    Dtypes:  any, promoted; at least one must be an array -> bool
    Errors:  DtypeError where the two do not promote
    Grads:   none
    """
    x1, x2 = _together("isin", x1, x2, "any")
    x1, pool = _ordered_kind(x1), reshape(_ordered_kind(x2), shape=(-1,))
    n = pool.shape[0]
    if not n:
        return full(invert, x1, shape=x1.shape, dtype=bool_)
    pool = take(pool, argsort(pool), axis=0)
    at = _position(pool, x1, False)
    nearest = take(pool, where(less(at, n), at, n - 1), axis=0)
    return not_equal(nearest, x1) if invert else equal(nearest, x1)


def _together(op: str, x1: Any, x2: Any, kind: str) -> tuple[Array, Array]:
    """Two inputs, of which one may be a Python number, as arrays of one dtype."""
    given = {"x1": x1, "x2": x2}
    arrays = {name: a for name, a in given.items() if type(a) in (Array, Spec)}
    for name, a in given.items():
        if name not in arrays and (type(a) not in NATURAL or not arrays):
            raise TypeError(f"{op}: {name} is {described(a)}; one input must be an array, the other may be a number")
        check_kind(op, name, spec_of(a), kind)
    dtype, like = promote(op, [spec_of(a) for a in given.values()]), next(iter(arrays.values()))
    for name in given.keys() - arrays.keys():
        check_fits(op, name, given[name], dtype)
        given[name] = full(given[name], like, shape=(), dtype=dtype)
    x1, x2 = (a if a.dtype == dtype else astype(a, dtype=dtype) for a in given.values())
    return x1, x2


# ---- distinct elements ---------------------------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """What unique_all gives."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What unique_counts gives."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What unique_inverse gives."""

    values: Array
    inverse_indices: Array


def unique_values(x: Array, /) -> Array:
    """The distinct elements of x in ascending order; every nan is distinct.

    Shapes:  any -> one axis, whose length is read by the host
    Dtypes:  any -> the same
    Errors:  TypeError unless x is an array
    Grads:   x; the first of equal elements has it
    """
    flat, order, first = _groups("unique_values", x)
    return take(flat, take(order, true_positions(first), axis=0), axis=0)


def unique_counts(x: Array, /) -> UniqueCounts:
    """The distinct elements of x, and how often each occurs. As unique_values.

    Shapes:  any -> two arrays of one axis
    Dtypes:  any -> the same, and int64
    Errors:  TypeError unless x is an array
    Grads:   x, through the values
    """
    found = _unique("unique_counts", x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Array, /) -> UniqueInverse:
    """The distinct elements of x, and where each element of x is among them. As unique_values.

    Shapes:  any -> one axis, and x's shape
    Dtypes:  any -> the same, and int64
    Errors:  TypeError unless x is an array
    Grads:   x, through the values
    """
    found = _unique("unique_inverse", x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_all(x: Array, /) -> UniqueAll:
    """The distinct elements of x, where each first occurs in the flattened x, where each element of x is among them,
    and how often each occurs. As unique_values.

    Shapes:  any -> one axis, one axis, x's shape, one axis
    Dtypes:  any -> the same, and three times int64
    Errors:  TypeError unless x is an array
    Grads:   x, through the values
    """
    return _unique("unique_all", x)


def _unique(op: str, x: Array) -> UniqueAll:
    flat, order, first = _groups(op, x)
    starts: Any = true_positions(first)
    ends = concat([starts[1:], full(flat.shape[0], starts, shape=(min(starts.shape[0], 1),), dtype=int64)], axis=0)
    indices = take(order, starts, axis=0)
    group = subtract(cumulative_sum(astype(first, dtype=int64), axis=0), 1)  # of each element in order
    inverse = scatter(full(0, order, shape=order.shape, dtype=int64), order, group, axis=0)
    return UniqueAll(take(flat, indices, axis=0), indices, reshape(inverse, shape=x.shape), subtract(ends, starts))


def _groups(op: str, x: Array) -> tuple[Array, Array, Array]:
    """x flattened, the order that sorts it, and True in that order where an element differs from the one before."""
    if type(x) is not Array:
        raise TypeError(f"{op}: x is {described(x)}; it must be a polyarr array, whose values decide the shape")
    flat = reshape(x, shape=(-1,))
    order = argsort(_ordered_kind(flat))
    ordered = take(flat, order, axis=0)
    one = full(True, flat, shape=(min(flat.shape[0], 1),), dtype=bool_)
    return flat, order, concat([one, not_equal(ordered[1:], ordered[:-1])], axis=0)


def _ordered_kind(x: Array) -> Array:
    """x in a dtype that has an order: bool as 0 and 1."""
    return astype(x, dtype="uint8") if x.dtype == bool_ else x
