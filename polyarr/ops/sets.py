"""Searching sorted arrays, membership, and distinct elements: functions of the array API standard composed of ops.

The number of distinct elements is read by the host, since a shape depends on it.
"""

from typing import Any, NamedTuple

from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.keywords import explained
from polyarr.core.spec import COMPLEX, FLOATS, Spec, check_kind, described, int64, promote
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import NATURAL, fill
from polyarr.ops.elementwise import add, astype, imag, real, subtract, where
from polyarr.ops.getitem import true_positions
from polyarr.ops.index import argsort, scatter, take
from polyarr.ops.joining import concat
from polyarr.ops.logic import bitwise_and, bitwise_or, bitwise_xor, equal, isnan, less, less_equal, not_equal
from polyarr.ops.reduce import cumulative_sum
from polyarr.ops.shape import reshape
from polyarr.ops.validation import check_array, check_fits

# ---- searching -----------------------------------------------------------------------------------------------------


@explained
def searchsorted(x1: Array, x2: Any, /, side: str = "left", sorter: Array | None = None) -> Array:
    """Return the positions at which elements of x2 would be inserted in the sorted x1. nan is larger than all numbers.

    Args:
        x1: Integer or floating-point array (n,), sorted, or sorted by `sorter`.
        x2: Integer or floating-point array or number, promoted with x1.
        side: "left" for the position of the first element that is not less, "right" for the first that is greater.
        sorter: Integer array (n,), as argsort returns it; None if x1 is sorted.

    Returns:
        int64 array of the shape of x2, from 0 to n.

    Raises:
        ShapeError: x1 does not have one axis, or sorter has another shape.
        ValueError: There is no such side.

    Examples:
        >>> import polyarr as pa
        >>> pa.searchsorted(pa.asarray([1.0, 3.0, 5.0]), pa.asarray([3.0, 4.0]))
        Array([1, 2], int64, 'numpy')
        >>> pa.vmap(pa.searchsorted)(pa.asarray([[1.0, 3.0], [2.0, 4.0]]), pa.asarray([[2.0], [5.0]]))  # row by row
        Array([[1],
               [2]], int64, 'numpy')

    Gradients: none
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side is {side!r}; it must be 'left' or 'right'")
    x1, x2 = _promoted("searchsorted", x1, x2, "real")
    if len(x1.shape) != 1:
        raise ShapeError(f"searchsorted: x1 is {spec_of(x1)}; it must have one axis; pa.vmap maps over rows")
    if sorter is not None:
        check_array("searchsorted", "sorter", sorter)
        if sorter.shape != x1.shape:
            raise ShapeError(f"searchsorted: sorter is {spec_of(sorter)}, x1 is {spec_of(x1)}; it must have x1's shape")
        x1 = take(x1, sorter, axis=0)
    return _position(x1, x2, side == "right")


def _position(ordered: Array, x: Array, after: bool) -> Array:
    """Return how many elements of `ordered` are less than each of x (or equal, if `after`): a search bit by bit."""
    n = ordered.shape[0]
    found = fill(0, x, shape=x.shape, dtype=int64)
    for bit in reversed(range(n.bit_length())):
        tried = add(found, 1 << bit)
        reached = less_equal(tried, n)
        at = take(ordered, where(reached, subtract(tried, 1), 0), axis=0)
        stands = bitwise_xor(_before(x, at), True) if after else _before(at, x)
        found = where(bitwise_and(reached, stands), tried, found)
    return found


def _before(x: Array, y: Array) -> Array:
    """Return whether x < y, where nan is larger than all numbers."""
    if x.dtype in COMPLEX:
        rest = bitwise_and(equal(real(x), real(y)), _before(imag(x), imag(y)))
        return bitwise_or(_before(real(x), real(y)), rest)
    if x.dtype not in FLOATS:
        return less(x, y)
    return bitwise_or(less(x, y), bitwise_and(isnan(y), equal(x, x)))


@explained
def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Return whether elements of x1 are among those of x2. nan equals nothing.

    Args:
        x1: Array of any dtype, or a Python number.
        x2: Array of any dtype, or a Python number; x1 and x2 are not both numbers.
        invert: Whether to return the negation.

    Returns:
        bool array of the shape of x1.

    Raises:
        DtypeError: The dtypes do not promote.

    Examples:
        >>> import polyarr as pa
        >>> pa.isin(pa.asarray([1, 2, 3]), pa.asarray([3, 1]))
        Array([ True, False,  True], bool, 'numpy')

    Gradients: none
    """
    x1, x2 = _promoted("isin", x1, x2, "any")
    x1, pool = _ordered_kind(x1), reshape(_ordered_kind(x2), shape=(-1,))
    n = pool.shape[0]
    if not n:
        return fill(invert, x1, shape=x1.shape, dtype=bool_)
    pool = take(pool, _order(pool), axis=0)
    at = _position(pool, x1, False)
    nearest = take(pool, where(less(at, n), at, n - 1), axis=0)
    return not_equal(nearest, x1) if invert else equal(nearest, x1)


def _promoted(op: str, x1: Any, x2: Any, kind: str) -> tuple[Array, Array]:
    """Return two inputs, of which one may be a Python number, as arrays of one dtype."""
    given = {"x1": x1, "x2": x2}
    arrays = {name: a for name, a in given.items() if type(a) in (Array, Spec)}
    for name, a in given.items():
        if name not in arrays and (type(a) not in NATURAL or not arrays):
            raise TypeError(f"{op}: {name} is {described(a)}; one input must be an array, the other may be a number")
        check_kind(op, name, spec_of(a), kind)
    dtype, like = promote(op, [spec_of(a) for a in given.values()]), next(iter(arrays.values()))
    for name in given.keys() - arrays.keys():
        check_fits(op, name, given[name], dtype)
        given[name] = fill(given[name], like, shape=(), dtype=dtype)
    x1, x2 = (a if a.dtype == dtype else astype(a, dtype=dtype) for a in given.values())
    return x1, x2


class UniqueAll(NamedTuple):
    """Result of unique_all: distinct values, first positions, the position of each element among the values, counts."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """Result of unique_counts: distinct values and their counts."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """Result of unique_inverse: distinct values and the position of each element among them."""

    values: Array
    inverse_indices: Array


@explained
def unique_values(x: Array, /) -> Array:
    """Return the distinct elements of x in ascending order. Every nan is distinct.

    Args:
        x: Array of any dtype and shape.

    Returns:
        Array with one axis and the dtype of x. Its length is read by the host.

    Raises:
        TypeError: x is not an array with values.

    Examples:
        >>> import polyarr as pa
        >>> pa.unique_values(pa.asarray([3, 1, 3]))
        Array([1, 3], int64, 'numpy')

    Gradients: x; the first of equal elements has it
    """
    flat, order, first = _groups("unique_values", x)
    return take(flat, take(order, true_positions(first), axis=0), axis=0)


def unique_counts(x: Array, /) -> UniqueCounts:
    """Return the distinct elements of x in ascending order, and how often each occurs.

    Args:
        x: Array of any dtype and shape.

    Returns:
        UniqueCounts (values, counts) of arrays with one axis; counts is int64.

    Raises:
        TypeError: x is not an array with values.

    Examples:
        >>> import polyarr as pa
        >>> pa.unique_counts(pa.asarray([3, 1, 3])).counts
        Array([1, 2], int64, 'numpy')

    Gradients: x, through the values
    """
    found = _unique("unique_counts", x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Array, /) -> UniqueInverse:
    """Return the distinct elements of x in ascending order, and the position of each element of x among them.

    Args:
        x: Array of any dtype and shape.

    Returns:
        UniqueInverse (values, inverse_indices): inverse_indices is int64, of the shape of x.

    Raises:
        TypeError: x is not an array with values.

    Examples:
        >>> import polyarr as pa
        >>> pa.unique_inverse(pa.asarray([3, 1, 3])).inverse_indices
        Array([1, 0, 1], int64, 'numpy')

    Gradients: x, through the values
    """
    found = _unique("unique_inverse", x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_all(x: Array, /) -> UniqueAll:
    """Return the distinct elements of x in ascending order, with their positions and counts.

    Args:
        x: Array of any dtype and shape.

    Returns:
        UniqueAll (values, indices, inverse_indices, counts). indices are the first positions of the values in the
        flattened x; inverse_indices, of the shape of x, are the positions of its elements among the values.

    Raises:
        TypeError: x is not an array with values.

    Examples:
        >>> import polyarr as pa
        >>> pa.unique_all(pa.asarray([3, 1, 3])).indices
        Array([1, 0], int64, 'numpy')

    Gradients: x, through the values
    """
    return _unique("unique_all", x)


def _unique(op: str, x: Array) -> UniqueAll:
    flat, order, first = _groups(op, x)
    starts: Any = true_positions(first)
    ends = concat([starts[1:], fill(flat.shape[0], starts, shape=(min(starts.shape[0], 1),), dtype=int64)], axis=0)
    indices = take(order, starts, axis=0)
    group = subtract(cumulative_sum(astype(first, dtype=int64), axis=0), 1)  # per sorted element
    inverse = scatter(fill(0, order, shape=order.shape, dtype=int64), order, group, axis=0)
    return UniqueAll(take(flat, indices, axis=0), indices, reshape(inverse, shape=x.shape), subtract(ends, starts))


def _groups(op: str, x: Array) -> tuple[Array, Array, Array]:
    """Return x flattened, the order that sorts it, and where an element in this order differs from the previous one."""
    if type(x) is not Array:
        raise TypeError(f"{op}: x is {described(x)}; it must be a polyarr array, whose values decide the shape")
    flat = reshape(x, shape=(-1,))
    order = _order(flat)
    ordered = take(flat, order, axis=0)
    one = fill(True, flat, shape=(min(flat.shape[0], 1),), dtype=bool_)
    return flat, order, concat([one, not_equal(ordered[1:], ordered[:-1])], axis=0)


def _order(x: Array) -> Array:
    """Return the indices that sort x, complex numbers by their real part and then by their imaginary part."""
    if x.dtype not in COMPLEX:
        return argsort(_ordered_kind(x))
    order = argsort(imag(x))
    return take(order, argsort(take(real(x), order, axis=0)), axis=0)


def _ordered_kind(x: Array) -> Array:
    """Return x in a dtype that has an order: bool as 0 and 1."""
    return astype(x, dtype="uint8") if x.dtype == bool_ else x
