"""Key-value caches of attention."""

from polyarr.core.array import spec_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import int32
from polyarr.ops.create import iota
from polyarr.ops.elementwise import where
from polyarr.ops.index import take
from polyarr.ops.joining import stack
from polyarr.ops.logic import equal
from polyarr.ops.shape import reshape, slice, slice_update


@composed(indices="positions", widen=False)
def cache_update(cache, k, v, positions):
    """Return a key-value cache in which one position of each row is replaced.

    Args:
        cache: Array (2, B, H, S, D): keys and values of B rows with S positions.
        k: Array (b, H, 1, D), the keys of the first b rows, of the dtype of cache.
        v: Array (b, H, 1, D), the values, likewise.
        positions: Integer array (b,): the position in each of these rows.

    Returns:
        Array of the shape and dtype of cache.

    Raises:
        DtypeError: k or v has another dtype than cache.
        IndexError: A position is out of range; raised at the next read of a result.
        ShapeError: The shapes do not fit.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import ops
        >>> new = pa.ones((1, 1, 1, 1))
        >>> ops.cache_update(pa.zeros((2, 2, 1, 3, 1)), new, 2 * new, pa.asarray([1]))[:, 0, 0, :, 0]
        Array([[0., 1., 0.],
               [0., 2., 0.]], float32, 'numpy')

    Gradients: cache, k, v
    """
    given = ", ".join(f"{name} is {spec_of(a)}" for name, a in (("cache", cache), ("k", k), ("v", v)))
    if {a.dtype for a in (k, v)} != {cache.dtype}:
        raise DtypeError(f"cache_update: {given}; they must have the same dtype")
    rows = k.shape[0] if k.shape else 0
    fits = len(cache.shape) == 5 and cache.shape[0] == 2 and rows <= cache.shape[1]
    if not fits or k.shape != v.shape or k.shape != (rows, cache.shape[2], 1, cache.shape[4]):
        raise ShapeError(f"cache_update: {given}; they must be [2, B, H, S, D] and [b, H, 1, D] with b at most B")
    if positions.shape != (rows,):
        raise ShapeError(f"cache_update: {given}, positions is {spec_of(positions)}; they must be [{rows}]")
    columns = iota(0, 1, positions, size=cache.shape[3], dtype=int32)
    at = take(columns, positions, axis=0)  # (b,), not negative
    is_new = reshape(equal(columns, reshape(at, shape=(rows, 1))), shape=(1, rows, 1, cache.shape[3], 1))
    first, each = (0,) * 5, (1,) * 5
    old = slice(cache, first, steps=each, shape=(2, rows, *cache.shape[2:]))
    return slice_update(cache, where(is_new, stack([k, v]), old), first, steps=each)
