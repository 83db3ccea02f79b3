"""The last product of a model fused with its loss, computed in chunks of rows: the logits never exist as a whole."""

import math

from polyarr.core.array import spec_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import NARROW, check_kind, float32
from polyarr.ops.create import fill, iota
from polyarr.ops.elementwise import add, astype, divide, like, maximum, multiply, subtract, where
from polyarr.ops.joining import concat
from polyarr.ops.linalg import matrix_product
from polyarr.ops.logic import equal, not_equal
from polyarr.ops.nn import check_reduction, cross_entropy, linear, reduced, softmax
from polyarr.ops.shape import expand_dims, matrix_transpose, part_of, reshape
from polyarr.ops.validation import whole, within

MAX_LOGITS_BYTES = 1 << 29  # bytes: the logits of a chunk
ROW_TILE = 128  # rows of a chunk are a multiple of this, the tile of matrix products


@composed(indices="targets")
def cross_entropy_and_gradient(g, logits, targets, *, ignore_index=-100, label_smoothing=0.0):
    """Return the unreduced losses of cross_entropy, and the gradient of the logits for the cotangent g.

    Args:
        g: Floating-point array (n,), of the dtype of the losses.
        logits: Floating-point array (n, v).
        targets: Integer array (n,).
        ignore_index: As in cross_entropy.
        label_smoothing: As in cross_entropy.

    Returns:
        Tuple of the losses (n,) and the gradient (n, v), of the dtype of logits.

    Raises:
        ShapeError: As in cross_entropy.
        DtypeError: g has another shape or dtype than the losses.

    Gradients: g, logits
    """
    losses = cross_entropy(
        logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )
    if spec_of(g) != spec_of(losses) or len(logits.shape) != 2:
        given = f"g is {spec_of(g)}, logits is {spec_of(logits)}"
        raise DtypeError(f"cross_entropy_and_gradient: {given}; g must be as the losses, logits must have two axes")
    wide, classes = like(logits, losses), logits.shape[1]
    counted, at = expand_dims(not_equal(targets, ignore_index), axis=1), expand_dims(targets, axis=1)
    hit = astype(equal(at, iota(0, 1, logits, size=classes, dtype=targets.dtype)), dtype=wide.dtype)
    due = add(multiply(hit, 1 - label_smoothing), label_smoothing / classes)
    slope = subtract(softmax(where(counted, wide, 0)), due)
    return losses, like(where(counted, multiply(slope, expand_dims(g, axis=1)), 0), logits)


@composed(promote="x weight", indices="targets", widen=False)
def linear_cross_entropy(
    x, weight, targets, *, ignore_index=-100, label_smoothing=0.0, reduction="mean", rows_at_once=None, precision=None
):  # fmt: skip
    """Return cross_entropy(linear(x, weight), targets) without storing all logits, for heads of many classes.

    The logits and their gradients exist for a chunk of rows at a time. With a mean or a sum, the gradients are computed
    in the forward pass, while the logits of a chunk are there.

    Args:
        x: Floating-point array (..., k).
        weight: Floating-point array (v, k), promoted with x.
        targets: Integer array (...): the classes, from 0 to v - 1.
        ignore_index: As in cross_entropy.
        label_smoothing: As in cross_entropy.
        reduction: "mean", "sum", or "none" for a loss per row.
        rows_at_once: Rows in a chunk; None for as many as have 512 MB of logits.
        precision: As in matmul.

    Returns:
        Array (), or (...) with reduction "none", of the promoted dtype, but float32 for float16 and bfloat16. The
        mean of no rows is nan, and its gradients are 0.

    Raises:
        ShapeError: The shapes do not fit, or there are no classes.
        ValueError: There is no such reduction, rows_at_once is below 1, or label_smoothing is not from 0 to 1.
        IndexError: A target is out of range; raised at the next read of a result.

    Examples:
        >>> import polyarr as pa
        >>> x, weight = pa.asarray([[1.0, 0.0]]), pa.asarray([[2.0, 0.0], [0.0, 2.0]])
        >>> pa.linear_cross_entropy(x, weight, pa.asarray([0]))
        Array(0.12692805, float32, 'numpy')

    Gradients: x, weight

    Source: Hsu et al. 2024, arXiv:2410.10989
    """
    _check_head(x, weight, targets, reduction)
    within("linear_cross_entropy", "label_smoothing", label_smoothing, 0, 1)
    settings = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": "none"}
    losses = [
        cross_entropy(linear(some, weight, precision=precision), at, **settings)
        for some, at in _chunks(rows_at_once, weight, _rows(x), _flat(targets))
    ]
    return reduced(reshape(_joined(losses), shape=targets.shape), targets, ignore_index, reduction)[0]


def _forward(x, weight, targets, *, wanted, ignore_index, reduction, **settings):
    """Return the loss and, for a cotangent of 1, the gradients and the divisor of the sum of the losses.

    Without a reduction each row has its own cotangent, which is not known yet.
    """
    settings["ignore_index"] = ignore_index
    if reduction == "none":
        return linear_cross_entropy.decomposition(x, weight, targets, reduction=reduction, **settings), None
    ones = fill(1.0, x, shape=(targets.size,), dtype=float32 if x.dtype in NARROW else x.dtype)
    losses, *slopes = _chunked_gradients(ones, x, weight, targets, wanted, **settings)
    loss, divisor = reduced(losses, _flat(targets), ignore_index, reduction)
    return loss, (*slopes, divisor)


def _backward(g, saved, x, weight, targets, *, wanted, reduction, **settings):
    """Return the gradients: those of the forward pass times the cotangent."""
    if saved is None:
        _, *slopes = _chunked_gradients(_flat(g), x, weight, targets, wanted, **settings)
    else:
        *slopes, divisor = saved
        # Without a row that counts, the loss is nan, and the gradients stay 0, as those of cross_entropy.
        factor = g if divisor is None else divide(g, maximum(divisor, 1))
        slopes = [None if s is None else multiply(like(s, factor), factor) for s in slopes]
    dx, dweight = slopes
    dx = None if dx is None else reshape(like(dx, x), shape=x.shape)
    return dx, None if dweight is None else like(dweight, weight), None


linear_cross_entropy.defvjp(_forward, _backward)


def _chunked_gradients(g, x, weight, targets, wanted, *, rows_at_once, **settings):
    """Return the losses of all rows, and the gradients of x and weight for the cotangent g; None if not wanted."""
    losses, dx, dweight = [], [], None
    for some_g, some_x, at in _chunks(rows_at_once, weight, g, _rows(x), _flat(targets)):
        loss, *slopes = _chunk_gradients(some_g, some_x, at, weight, wanted, **settings)
        losses.append(loss)
        dx.append(slopes[0])
        if dweight is not None:  # accumulate in the dtype of the losses
            dweight, slopes[1] = like(dweight, loss), like(slopes[1], loss)
        dweight = slopes[1] if dweight is None else add(dweight, slopes[1])
    return _joined(losses), _joined(dx) if wanted[0] else None, dweight


def _chunk_gradients(g, x, targets, weight, wanted, *, precision, **settings):
    """Return losses and gradients of one chunk of rows, whose logits are freed when this function returns."""
    losses, slope = cross_entropy_and_gradient(g, linear(x, weight, precision=precision), targets, **settings)
    dx = matrix_product(slope, weight, precision=precision) if wanted[0] else None
    dweight = matrix_product(matrix_transpose(slope), x, precision=precision) if wanted[1] else None
    return losses, dx, dweight


def _check_head(x, weight, targets, reduction):
    for name, a in (("x", x), ("weight", weight)):
        check_kind("linear_cross_entropy", name, spec_of(a), "floating")
    check_kind("linear_cross_entropy", "targets", spec_of(targets), "integer")
    given = f"linear_cross_entropy: x is {spec_of(x)}, weight is {spec_of(weight)}"
    if not x.shape or len(weight.shape) != 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"{given}; x.shape[-1] must equal weight.shape[1]")
    if not weight.shape[0]:
        raise ShapeError(f"{given}; there must be at least one class")
    if targets.shape != x.shape[:-1]:
        raise ShapeError(f"{given}, targets is {spec_of(targets)}; targets must be {list(x.shape[:-1])}")
    check_reduction("linear_cross_entropy", reduction)


def _chunks(rows_at_once, weight, *arrays):
    """Yield chunks of rows of each array; at least one chunk."""
    rows, classes = arrays[0].shape[0], weight.shape[0]
    if rows_at_once is None:
        most = max(1, MAX_LOGITS_BYTES // (classes * weight.dtype.itemsize))
        most = most // ROW_TILE * ROW_TILE or most
        each = -(-rows // max(1, -(-rows // most)))  # chunks of equal size
        each = min(-(-each // ROW_TILE) * ROW_TILE, most)
    else:
        each = whole("linear_cross_entropy", "rows_at_once", rows_at_once)
        if each < 1:
            raise ValueError(f"linear_cross_entropy: rows_at_once is {each}; it must be at least 1")
    for first in range(0, max(rows, 1), each):
        count = min(each, rows - first)
        yield tuple(a if count == rows else part_of(a, 0, first, count) for a in arrays)


def _rows(x):
    return reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))


def _flat(x):
    return reshape(x, shape=(math.prod(x.shape),))


def _joined(parts):
    return parts[0] if len(parts) == 1 else concat(parts)
