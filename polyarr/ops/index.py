"""Ops that gather and scatter elements by index, and ops that sort."""

from polyarr.core.array import spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.op import composed, primitive
from polyarr.core.spec import Spec, broadcast, check_kind, int64
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import fill, iota
from polyarr.ops.elementwise import add, multiply
from polyarr.ops.shape import broadcast_to, one_axis, part_of, reshape
from polyarr.ops.validation import whole


@primitive(indices="indices")
def take(x, indices, *, axis=0):
    """Return the elements of x at indices along an axis. A negative index counts from the end.

    Args:
        x: Array of any dtype, of shape (*before, n, *after) with n along axis.
        indices: Integer array of any shape.
        axis: Axis that the indices count along.

    Returns:
        Array (*before, *indices.shape, *after) of the dtype of x.

    Raises:
        DtypeError: indices is not an integer array.
        AxisError: x lacks the axis.
        IndexError: An index is out of range; raised at the next read of a result.

    Examples:
        >>> import polyarr as pa
        >>> pa.take(pa.asarray([10, 20, 30]), pa.asarray([2, 0]))
        Array([30, 10], int64, 'numpy')

    Gradients: x
    """
    check_kind("take", "indices", indices, "integer")
    at = one_axis("take", x, axis)
    return Spec((*x.shape[:at], *indices.shape, *x.shape[at + 1 :]), x.dtype), {"axis": at}


@primitive(indices="indices")
def scatter(x, indices, updates, *, axis=0):
    """Return x with the elements at indices along an axis replaced by updates; of equal indices the last one counts.

    Args:
        x: Array of any dtype, of shape (*before, n, *after) with n along axis.
        indices: Integer array of any shape.
        updates: Array (*before, *indices.shape, *after) of the dtype of x.
        axis: Axis that the indices count along.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: updates has another shape or dtype.
        IndexError: An index is out of range; raised at the next read of a result.

    Examples:
        >>> import polyarr as pa
        >>> pa.scatter(pa.asarray([1, 2, 3]), pa.asarray([0, 2]), pa.asarray([7, 9]))
        Array([7, 2, 9], int64, 'numpy')

    Gradients: x, updates (if no two indices are equal)
    """
    return _scattered("scatter", x, indices, updates, axis)


@primitive(indices="indices")
def scatter_add(x, indices, updates, *, axis=0):
    """Return x with updates added to the elements at indices along an axis.

    Args:
        x: Integer or floating-point array, of shape (*before, n, *after) with n along axis.
        indices: Integer array of any shape; equal indices add up.
        updates: Array (*before, *indices.shape, *after) of the dtype of x.
        axis: Axis that the indices count along.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: updates has another shape or dtype.
        IndexError: An index is out of range; raised at the next read of a result.

    Examples:
        >>> import polyarr as pa
        >>> pa.scatter_add(pa.asarray([1, 2, 3]), pa.asarray([0, 0]), pa.asarray([10, 20]))
        Array([31,  2,  3], int64, 'numpy')

    Gradients: x, updates
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
        fill(0, g, shape=x_spec.shape, dtype=g.dtype), indices, g, axis=axis
    ),
    indices=None,
)
scatter.vjp(
    x=lambda g, indices, updates_spec, axis: scatter(
        g, indices, fill(0, g, shape=updates_spec.shape, dtype=g.dtype), axis=axis
    ),
    indices=None,
    updates=lambda g, indices, axis: take(g, indices, axis=axis),
)
scatter_add.vjp(x=lambda g: g, indices=None, updates=lambda g, indices, axis: take(g, indices, axis=axis))


def _canonical_axis(x, indices, *, axis):
    return {"axis": one_axis("take_along_axis", x, axis)}


@composed(indices="indices", canonical=_canonical_axis, widen=False)
def take_along_axis(x, indices, *, axis=-1):
    """Return, for each position, the element of x at the index held there, such as one that argsort or argmax returned.

    Args:
        x: Array of any dtype, of length n along axis.
        indices: Integer array with as many axes as x; all axes but `axis` broadcast against x.
        axis: Axis that the indices count along.

    Returns:
        Array of the broadcast shape, with the length of indices along axis, and the dtype of x.

    Raises:
        ShapeError: x and indices have different numbers of axes, or do not broadcast.
        IndexError: An index is out of range; raised at the next read of a result.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.asarray([[3, 1, 2], [9, 8, 7]])
        >>> pa.take_along_axis(x, pa.asarray([[1, 0], [2, 2]]))
        Array([[1, 3],
               [7, 7]], int64, 'numpy')

    Gradients: x
    """
    x, indices, flat = _flat_positions("take_along_axis", x, indices, axis)
    return take(reshape(x, shape=(-1,)), flat, axis=0)


@composed(indices="indices", widen=False)
def scatter_add_along_axis(x, indices, updates, *, axis=-1):
    """Return x with updates added at indices along an axis: the transpose of take_along_axis.

    Args:
        x: Integer or floating-point array, of length n along axis.
        indices: Integer array with as many axes as x.
        updates: Array of the shape of indices and the dtype of x.
        axis: Axis that the indices count along.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: x and indices have different numbers of axes, or updates has another shape.
        IndexError: An index is out of range; raised at the next read of a result.

    Examples:
        >>> import polyarr as pa
        >>> updates = pa.asarray([[1.0], [2.0]])
        >>> pa.scatter_add_along_axis(pa.zeros((2, 3)), pa.asarray([[1], [2]]), updates)
        Array([[0., 1., 0.],
               [0., 0., 2.]], float32, 'numpy')

    Gradients: x, updates
    """
    x, indices, flat = _flat_positions("scatter_add_along_axis", x, indices, axis)
    return reshape(scatter_add(reshape(x, shape=(-1,)), flat, updates, axis=0), shape=x.shape)


def _flat_positions(op: str, x, indices, axis: int):
    """Return x and indices, broadcast on all axes but `axis`, and the positions of indices in the flattened x."""
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
    """Return indices as numbers from 0 to n - 1, negative ones counted from the end; others fail as in take."""
    return take(iota(0, 1, indices, size=n, dtype=int64), indices, axis=0)


def _positions(like, axis: int):
    """Return 0, 1, 2, ... along axis, with length 1 along all other axes."""
    ndim, n = len(like.shape), like.shape[axis]
    return reshape(iota(0, 1, like, size=n, dtype=int64), shape=tuple(n if i == axis else 1 for i in range(ndim)))


# ---- ordering ----------------------------------------------------------------------------------------------------


@primitive
def argsort(x, *, axis=-1, descending=False, stable=True):
    """Return the indices that sort x along an axis. Equal elements keep their order; nan is larger than all numbers.

    Args:
        x: Integer, floating-point or bool array.
        axis: Axis to sort along.
        descending: Whether the largest element comes first.
        stable: Ignored; the order of equal elements is always kept.

    Returns:
        int64 array of the shape of x.

    Raises:
        AxisError: x lacks the axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.argsort(pa.asarray([3.0, 1.0, 2.0]))
        Array([1, 2, 0], int64, 'numpy')

    Gradients: none
    """
    check_kind("argsort", "x", x, "real or bool")
    at = one_axis("argsort", x, axis)
    return Spec(x.shape, int64), {"axis": at, "descending": bool(descending), "stable": True}


argsort.vjp(x=None)


def _canonical_sort(x, *, axis, descending, stable):
    check_kind("sort", "x", x, "real or bool")
    return {"axis": one_axis("sort", x, axis), "descending": bool(descending), "stable": True}


@composed(canonical=_canonical_sort, widen=False)
def sort(x, *, axis=-1, descending=False, stable=True):
    """Return x sorted along an axis; nan is larger than all numbers.

    Args:
        x: Integer, floating-point or bool array.
        axis: Axis to sort along.
        descending: Whether the largest element comes first.
        stable: Ignored; the order of equal elements is always kept.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        AxisError: x lacks the axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.sort(pa.asarray([3.0, 1.0, 2.0]), descending=True)
        Array([3., 2., 1.], float32, 'numpy')

    Gradients: x
    """
    return take_along_axis(x, argsort(x, axis=axis, descending=descending), axis=axis)


def _canonical_top(x, *, k, axis):
    at, k = one_axis("topk", x, axis), whole("topk", "k", k)
    if not 0 <= k <= x.shape[at]:
        raise ShapeError(f"topk: x is {spec_of(x)}; k is {k}, it must be from 0 to {x.shape[at]}")
    return {"k": k, "axis": at}


@composed(canonical=_canonical_top, widen=False)
def argtopk(x, *, k, axis=-1):
    """Return the indices of the k largest elements along an axis, the largest first.

    Args:
        x: Integer, floating-point or bool array, of length n along axis.
        k: Int from 0 to n.
        axis: Axis to choose along.

    Returns:
        int64 array of length k along axis.

    Raises:
        AxisError: x lacks the axis.
        ShapeError: k is not from 0 to n.

    Gradients: none
    """
    return part_of(argsort(x, axis=axis, descending=True), axis, 0, k)


argtopk.vjp(x=None)


@composed(canonical=_canonical_top, widen=False)
def topk(x, *, k, axis=-1):
    """Return the k largest elements along an axis, the largest first, and their indices.

    Args:
        x: Integer, floating-point or bool array, of length n along axis.
        k: Int from 0 to n.
        axis: Axis to choose along.

    Returns:
        Tuple of two arrays of length k along axis: the elements, of the dtype of x, and their indices, int64.

    Raises:
        AxisError: x lacks the axis.
        ShapeError: k is not from 0 to n.

    Examples:
        >>> import polyarr as pa
        >>> values, indices = pa.topk(pa.asarray([3.0, 1.0, 2.0]), k=2)
        >>> values
        Array([3., 2.], float32, 'numpy')
        >>> indices
        Array([0, 2], int64, 'numpy')

    Gradients: x, through the elements
    """
    order = argtopk(x, k=k, axis=axis)
    return take_along_axis(x, order, axis=axis), order
