"""Taking and placing elements by index, and ordering."""

from polyarr.core.array import spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.op import composed, primitive
from polyarr.core.spec import Spec, broadcast, check_kind, int64
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import arange, full
from polyarr.ops.elementwise import add, multiply
from polyarr.ops.shape import broadcast_to, one_axis, reshape, slice
from polyarr.ops.validation import whole


@primitive(indices="indices")
def take(x, indices, *, axis=0):
    """The elements of x at indices along axis. A negative index counts from the end.

    Shapes:  x (a, n, b), indices any -> (a, *indices.shape, b)
    Dtypes:  x any, indices integer -> x's
    Errors:  DtypeError unless indices are integers; IndexError, at the next read, for one that is out of range
    Grads:   x
    """
    check_kind("take", "indices", indices, "integer")
    at = one_axis("take", x, axis)
    return Spec((*x.shape[:at], *indices.shape, *x.shape[at + 1 :]), x.dtype), {"axis": at}


@primitive(indices="indices")
def scatter(x, indices, updates, *, axis=0):
    """x with the elements at indices along axis replaced by updates; of several for one place the last one counts.

    Shapes:  x (a, n, b), indices any, updates (a, *indices.shape, b) -> x's
    Dtypes:  x and updates any, one for both; indices integer -> x's
    Errors:  ShapeError if updates has another shape; IndexError, at the next read, for an index out of range
    Grads:   x, updates (if no two indices are equal)
    """
    return _scattered("scatter", x, indices, updates, axis)


@primitive(indices="indices")
def scatter_add(x, indices, updates, *, axis=0):
    """x with updates added to the elements at indices along axis.

    Shapes:  x (a, n, b), indices any, updates (a, *indices.shape, b) -> x's
    Dtypes:  x and updates real, one for both; indices integer -> x's
    Errors:  ShapeError if updates has another shape; IndexError, at the next read, for an index out of range
    Grads:   x, updates
    """
    return _scattered("scatter_add", x, indices, updates, axis)


def _scattered(op: str, x: Spec, indices: Spec, updates: Spec, axis: int) -> tuple[Spec, dict]:
    check_kind(op, "indices", indices, "integer")
    at = one_axis(op, x, axis)
    window = (*x.shape[:at], *indices.shape, *x.shape[at + 1 :])
    if updates.shape != window or updates.dtype != x.dtype:
        raise ShapeError(f"{op}: updates is {updates}, x is {x}; updates must be {Spec(window, x.dtype)}")
    return Spec(x.shape, x.dtype), {"axis": at}


take.vjp(
    x=lambda g, x_spec, indices, axis: scatter_add(
        full(0, g, shape=x_spec.shape, dtype=g.dtype), indices, g, axis=axis
    ),
    indices=None,
)
scatter.vjp(
    x=lambda g, indices, updates_spec, axis: scatter(
        g, indices, full(0, g, shape=updates_spec.shape, dtype=g.dtype), axis=axis
    ),
    indices=None,
    updates=lambda g, indices, axis: take(g, indices, axis=axis),
)
scatter_add.vjp(x=lambda g: g, indices=None, updates=lambda g, indices, axis: take(g, indices, axis=axis))


def _canonical_axis(x, indices, *, axis):
    return {"axis": one_axis("take_along_axis", x, axis)}


@composed(indices="indices", canonical=_canonical_axis, widen=False)
def take_along_axis(x, indices, *, axis=-1):
    """For each place, the element of x at indices along axis: what argsort and argmax point to.

    Shapes:  x (a, n, b), indices (a, m, b), other axes may broadcast -> (a, m, b)
    Dtypes:  x any, indices integer -> x's
    Errors:  ShapeError if they have different numbers of axes; IndexError, at the next read, out of range
    Grads:   x
    """
    x, indices, flat = _flat_positions("take_along_axis", x, indices, axis)
    return take(reshape(x, shape=(-1,)), flat, axis=0)


@composed(indices="indices", widen=False)
def scatter_add_along_axis(x, indices, updates, *, axis=-1):
    """x with updates added at indices along axis: the transpose of take_along_axis.

    Shapes:  x (a, n, b), indices and updates (a, m, b) -> x's
    Dtypes:  x and updates real, one for both; indices integer -> x's
    Errors:  ShapeError if they have different numbers of axes; IndexError, at the next read, out of range
    Grads:   x, updates
    """
    x, indices, flat = _flat_positions("scatter_add_along_axis", x, indices, axis)
    return reshape(scatter_add(reshape(x, shape=(-1,)), flat, updates, axis=0), shape=x.shape)


def _flat_positions(op: str, x, indices, axis: int):
    """x and indices broadcast against each other off axis, and the positions of indices in the flattened x."""
    check_kind(op, "indices", spec_of(indices), "integer")
    if len(x.shape) != len(indices.shape):
        raise ShapeError(f"{op}: x is {spec_of(x)}, indices is {spec_of(indices)}; they must have as many axes")
    at = one_axis(op, x, axis)
    off = [Spec((*a.shape[:at], 1, *a.shape[at + 1 :]), bool_) for a in (x, indices)]
    shared = broadcast(op, *off)
    x = broadcast_to(x, shape=(*shared[:at], x.shape[at], *shared[at + 1 :]))
    indices = broadcast_to(indices, shape=(*shared[:at], indices.shape[at], *shared[at + 1 :]))
    flat, stride = None, 1
    for i in reversed(range(len(x.shape))):
        place = checked_positions(indices, x.shape[at]) if i == at else _positions(indices, i)
        part = multiply(place, stride)
        flat = part if flat is None else add(flat, part)
        stride *= x.shape[i]
    return x, indices, flat


def checked_positions(indices, n: int):
    """indices from 0 to n - 1, negative ones counted from the end; one that is out of range is an error as in take."""
    return take(arange(0, 1, indices, size=n, dtype=int64), indices, axis=0)


def _positions(like, axis: int):
    """0, 1, 2 ... along axis, of length 1 along all others."""
    ndim, n = len(like.shape), like.shape[axis]
    return reshape(arange(0, 1, like, size=n, dtype=int64), shape=tuple(n if i == axis else 1 for i in range(ndim)))


# ---- ordering ----------------------------------------------------------------------------------------------------


@primitive
def argsort(x, *, axis=-1, descending=False, stable=True):
    """The indices that put x in order along axis; equal ones keep their order, nan counts as larger than all numbers.

    Shapes:  any -> the same
    Dtypes:  real -> int64
    Errors:  ShapeError for an axis that x lacks
    Grads:   none
    """
    check_kind("argsort", "x", x, "real")
    at = one_axis("argsort", x, axis)
    return Spec(x.shape, int64), {"axis": at, "descending": bool(descending), "stable": True}


argsort.vjp(x=None)


def _canonical_sort(x, *, axis, descending, stable):
    check_kind("sort", "x", x, "real")
    return {"axis": one_axis("sort", x, axis), "descending": bool(descending), "stable": True}


@composed(canonical=_canonical_sort, widen=False)
def sort(x, *, axis=-1, descending=False, stable=True):
    """x in order along axis, as argsort has it.

    Shapes:  any -> the same
    Dtypes:  real -> the same
    Errors:  ShapeError for an axis that x lacks
    Grads:   x
    """
    return take_along_axis(x, argsort(x, axis=axis, descending=descending), axis=axis)


def _canonical_top(x, *, k, axis):
    at, k = one_axis("topk", x, axis), whole("topk", "k", k)
    if not 0 <= k <= x.shape[at]:
        raise ShapeError(f"topk: x is {spec_of(x)}; k is {k}, it must be from 0 to {x.shape[at]}")
    return {"k": k, "axis": at}


@composed(canonical=_canonical_top, widen=False)
def argtopk(x, *, k, axis=-1):
    """The indices of the k largest elements along axis, the largest first: the first k of the descending order.

    Shapes:  n along axis -> k along it
    Dtypes:  real -> int64
    Errors:  ShapeError if k is larger than n
    Grads:   none
    """
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return slice(argsort(x, axis=axis, descending=True), starts=(0,) * len(shape), steps=(1,) * len(shape), shape=shape)


argtopk.vjp(x=None)


@composed(canonical=_canonical_top, widen=False)
def topk(x, *, k, axis=-1):
    """The k largest elements along axis, in descending order, and their indices.

    Shapes:  n along axis -> two arrays with k along it
    Dtypes:  real -> the same, and int64
    Errors:  ShapeError if k is larger than n
    Grads:   x, through the values
    """
    order = argtopk(x, k=k, axis=axis)
    return take_along_axis(x, order, axis=axis), order
