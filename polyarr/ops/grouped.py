"""Linear layers with several weights, of which each row of the input names one: the experts of a mixture."""

import math

from polyarr.core.array import spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import check_kind, int64
from polyarr.ops.create import fill, iota
from polyarr.ops.elementwise import add, astype, floor_divide, multiply, subtract, where
from polyarr.ops.index import checked_positions, scatter, scatter_add, take
from polyarr.ops.joining import concat
from polyarr.ops.linalg import matrix_product
from polyarr.ops.logic import equal, less_equal
from polyarr.ops.quantized import check_codes, dequantized, quantized_shape, unpacked
from polyarr.ops.reduce import cumulative_sum, sum
from polyarr.ops.shape import expand_dims, matrix_transpose, part_of, reshape

MAX_PIECES = 8  # products, one after the other, of the tiles of a quantized layer: one piece at a time is dequantized
TILES_PER_GROUP = 2  # tiles of rows per group, beside one that is not full: more copies of weights, fewer padded rows


@composed(promote="x weight", indices="groups", widen=False)
def grouped_linear(x, weight, groups):
    """Return a linear layer whose weight each row chooses: row i of the result is weight[groups[i]] x[i].

    Rows are sorted by group into tiles of rows of one group, whose number depends on the shapes alone, so that the
    arithmetic grows with the rows and not with the groups. The order of groups is free.

    Args:
        x: Floating-point array (..., k).
        weight: Floating-point array (e, n, k), promoted with x.
        groups: Integer array (...): the group of each row, from 0 to e - 1; a negative one counts from the end.

    Returns:
        Array (..., n) of the promoted dtype.

    Raises:
        DtypeError: x or weight is not floating-point, or groups is not an integer array.
        ShapeError: The shapes do not fit, or there are no groups.
        IndexError: A group is out of range; raised at the next read of a result.

    Examples:
        >>> import polyarr as pa
        >>> weight = pa.asarray([[[1.0, 1.0]], [[1.0, -1.0]]])
        >>> pa.grouped_linear(pa.asarray([[3.0, 2.0], [3.0, 2.0]]), weight, pa.asarray([1, 0]))
        Array([[1.],
               [5.]], float32, 'numpy')

    Gradients: x, weight

    Source: Gale, Narayanan, Young, Zaharia 2022, arXiv:2211.15841
    """
    _check(x, weight, groups)
    slots, tile_groups, tile = _tiles(groups, weight.shape[0])
    chosen = matrix_transpose(take(weight, tile_groups, axis=0))  # (T, k, n)
    y = matrix_product(_in_tiles(x, slots, tile_groups, tile), chosen)  # (T, tile, n)
    y = reshape(y, shape=(tile_groups.shape[0] * tile, weight.shape[1]))
    return reshape(take(y, slots, axis=0), shape=(*x.shape[:-1], weight.shape[1]))


def _forward(x, weight, groups, *, wanted):
    return grouped_linear.decomposition(x, weight, groups), None


def _backward(g, saved, x, weight, groups, *, wanted):
    """Return the gradients; weights are gathered once more, because keeping them would double the memory of weights."""
    dx = grouped_linear(g, matrix_transpose(weight), groups) if wanted[0] else None
    if not wanted[1]:
        return dx, None, None
    slots, tile_groups, tile = _tiles(groups, weight.shape[0])
    left, right = (_in_tiles(a, slots, tile_groups, tile) for a in (g, x))
    of_tiles = matrix_product(matrix_transpose(left), right)  # (T, n, k)
    return dx, scatter_add(fill(0, weight, shape=weight.shape, dtype=weight.dtype), tile_groups, of_tiles, axis=0), None


grouped_linear.defvjp(_forward, _backward)


@composed(indices="groups")
def quantized_grouped_linear(x, codes, scale, groups):
    """Return a linear layer with quantized weights, one of which each row chooses: weight[groups[i]] x[i] for row i.

    The weight (e, n, k) is codes * scale, stored as that of quantized_linear. The rows are put into tiles, as in
    grouped_linear; the weights of at most an eighth of the tiles are dequantized at a time.

    Args:
        x: Floating-point array (..., k).
        codes: int8 array (e, n, k), or uint8 array (e, n, k / 2) of codes of 4 bits.
        scale: Floating-point array (e, n), or (e, n, k / 32), of finite numbers.
        groups: Integer array (...): the group of each row, from 0 to e - 1; a negative one counts from the end.

    Returns:
        Array (..., n) of the dtype of x.

    Raises:
        DtypeError: codes is neither int8 nor uint8, x or scale is not floating-point, or groups is no integer array.
        ShapeError: The shapes do not fit, there are no groups, or blocks do not divide k.
        IndexError: A group is out of range; raised at the next read of a result.

    Examples:
        >>> import polyarr as pa
        >>> codes = pa.asarray([[[100, 50]], [[100, -50]]], dtype="int8")
        >>> scale, x = pa.asarray([[0.5], [0.25]]), pa.asarray([[1.0, 1.0]])
        >>> pa.quantized_grouped_linear(x, codes, scale, pa.asarray([1]))
        Array([[12.5]], float32, 'numpy')

    Gradients: x, scale

    Source: Gale, Narayanan, Young, Zaharia 2022, arXiv:2211.15841; Dettmers, Lewis, Belkada, Zettlemoyer 2022,
    arXiv:2208.07339 (only the quantized weights)
    """
    for name, a in (("x", x), ("scale", scale)):
        check_kind("quantized_grouped_linear", name, spec_of(a), "floating")
    check_kind("quantized_grouped_linear", "groups", spec_of(groups), "integer")
    check_codes("quantized_grouped_linear", x, codes, scale, groups="e")
    if x.shape[:-1] != groups.shape or not codes.shape[0]:
        given = f"quantized_grouped_linear: x is {spec_of(x)}, codes is {spec_of(codes)}, groups is {spec_of(groups)}"
        raise ShapeError(f"{given}; the axes of groups must be those of x but the last, and e at least 1")
    slots, tile_groups, tile = _tiles(groups, codes.shape[0])
    y = _of_pieces(_in_tiles(x, slots, tile_groups, tile), codes, scale, tile_groups, matrix_transpose)
    return reshape(take(y, slots, axis=0), shape=(*x.shape[:-1], codes.shape[1]))


def _quantized_forward(x, codes, scale, groups, *, wanted):
    return quantized_grouped_linear.decomposition(x, codes, scale, groups), None


def _quantized_backward(g, saved, x, codes, scale, groups, *, wanted):
    """Return the gradients; weights are dequantized once more, because keeping them would undo the quantization."""
    slots, tile_groups, tile = _tiles(groups, codes.shape[0])
    left = _in_tiles(g, slots, tile_groups, tile)  # (T, tile, n)
    dx = dscale = None
    if wanted[0]:
        dx = _of_pieces(left, codes, scale, tile_groups, lambda weight: weight)
        dx = reshape(take(dx, slots, axis=0), shape=x.shape)
    if wanted[2]:
        of_tiles = matrix_product(matrix_transpose(left), _in_tiles(x, slots, tile_groups, tile))  # (T, n, k)
        of_weight = scatter_add(fill(0, x, shape=quantized_shape(codes), dtype=x.dtype), tile_groups, of_tiles, axis=0)
        blocks = (*codes.shape[:2], scale.shape[2] if len(scale.shape) == 3 else 1, -1)
        dscale = sum(reshape(multiply(of_weight, unpacked(codes, x.dtype)), shape=blocks), axis=3)
        dscale = astype(reshape(dscale, shape=scale.shape), dtype=scale.dtype)
    return dx, None, dscale, None


quantized_grouped_linear.defvjp(_quantized_forward, _quantized_backward)


def _of_pieces(tiles, codes, scale, tile_groups, side):
    """Return the products of tiles (T, tile, ...) with side(weight) of their groups, one below the other."""
    count = tile_groups.shape[0]
    step, found = max(1, -(-count // MAX_PIECES)), []
    for first in range(0, max(count, 1), step):
        size = min(step, count - first)
        chosen = part_of(tile_groups, 0, first, size)
        weight = dequantized(take(codes, chosen, axis=0), take(scale, chosen, axis=0), tiles.dtype)
        found.append(matrix_product(part_of(tiles, 0, first, size), side(weight)))
    y = concat(found, axis=0)
    return reshape(y, shape=(count * y.shape[1], y.shape[2]))


def _check(x, weight, groups):
    for name, a in (("x", x), ("weight", weight)):
        check_kind("grouped_linear", name, spec_of(a), "floating")
    check_kind("grouped_linear", "groups", spec_of(groups), "integer")
    given = f"grouped_linear: x is {spec_of(x)}, weight is {spec_of(weight)}, groups is {spec_of(groups)}"
    fits = x.shape and len(weight.shape) == 3 and (x.shape[-1], x.shape[:-1]) == (weight.shape[2], groups.shape)
    if not fits:
        raise ShapeError(f"{given}; they must be [..., k], [e, n, k] and [...]")
    if not weight.shape[0]:
        raise ShapeError(f"{given}; there must be at least one group")


def _tiles(groups, count):
    """Return the slot of each row, the group of each tile, and the number of rows of a tile.

    Tiles are sorted by group. The rows of a group fill its tiles in their order; the last slots may stay empty.

    Args:
        groups: Integer array with N elements.
        count: Number of groups, E.

    Returns:
        Tuple of the slots, int64 (N,): rows of the tiles one below the other; the groups, int64 (T,); and an int.
    """
    rows = math.prod(groups.shape)
    tile = max(1, -(-rows // (TILES_PER_GROUP * count)))
    tiles = (rows + count * (tile - 1)) // tile  # at least the sum over groups of their rows / tile, rounded up
    groups = expand_dims(checked_positions(reshape(groups, shape=(rows,)), count), axis=1)  # (N, 1)
    chosen = equal(groups, iota(0, 1, groups, size=count, dtype=int64))  # (N, E)
    ranks = cumulative_sum(astype(chosen, dtype=int64), axis=0)  # (N, E): rows of the group up to each row
    sizes = sum(astype(chosen, dtype=int64), axis=0)  # (E,)
    full = floor_divide(add(sizes, tile - 1), tile)  # (E,): tiles of each group
    ends = cumulative_sum(full, axis=0)  # (E,)
    first = multiply(subtract(ends, full), tile)  # (E,): first slot of each group
    slots = sum(where(chosen, add(subtract(ranks, 1), first), 0), axis=1)  # (N,)
    number = expand_dims(iota(0, 1, groups, size=tiles, dtype=int64), axis=1)  # (T, 1)
    before = part_of(ends, 0, 0, count - 1)  # unused tiles belong to the last group
    return slots, sum(astype(less_equal(before, number), dtype=int64), axis=1), tile


def _in_tiles(x, slots, tile_groups, tile):
    """Return the rows of x (..., k) in their slots, (T, tile, k), with zeros in others."""
    (tiles,), width = tile_groups.shape, x.shape[-1]
    rows = reshape(x, shape=(math.prod(x.shape[:-1]), width))
    placed = scatter(fill(0, x, shape=(tiles * tile, width), dtype=x.dtype), slots, rows, axis=0)
    return reshape(placed, shape=(tiles, tile, width))
