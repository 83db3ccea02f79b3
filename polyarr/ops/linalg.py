"""Products of matrices and of tensors."""

import itertools
import math
import string

import numpy as np

from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.keywords import explained
from polyarr.core.op import composed, primitive
from polyarr.core.precision import decided
from polyarr.core.spec import COMPLEX, Spec, broadcast, check_kind, described, real_of, shown
from polyarr.ops import elementwise, functions, reduce
from polyarr.ops.elementwise import astype, conj, multiply, square, where
from polyarr.ops.functions import sqrt
from polyarr.ops.logic import equal, not_equal
from polyarr.ops.reduce import axes_of, root, sum
from polyarr.ops.shape import matrix_transpose, one_axis, permute_dims, reshape, slice
from polyarr.ops.validation import check_array, number, whole, wholes


@primitive(promote="x y")
def matrix_product(x, y, *, precision=None):
    """Return the matrix product over the last two axes; matmul and others run this op.

    Args:
        x: Integer, floating-point or complex array (..., m, k).
        y: Integer, floating-point or complex array (..., k, n), promoted with x. The leading axes broadcast.
        precision: As in matmul.

    Returns:
        Array (..., m, n) of the promoted dtype.

    Raises:
        ShapeError: There are fewer than two axes, or k differs.
        ValueError: There is no such precision.

    Gradients: x, y
    """
    for name, a in (("x", x), ("y", y)):
        check_kind("matmul", name, a, "numeric")
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-2]:
        raise ShapeError(f"matmul: x is {x}, y is {y}; x.shape[-1] must equal y.shape[-2]")
    lead = broadcast("matmul", Spec(x.shape[:-2], x.dtype), Spec(y.shape[:-2], y.dtype))
    return Spec((*lead, x.shape[-2], y.shape[-1]), x.dtype)


matrix_product.vjp(
    x=lambda g, y, precision: matrix_product(g, matrix_transpose(y), precision=precision),
    y=lambda g, x, y_spec, precision: _right_grad(g, x, y_spec, precision),
)


def _right_grad(g, x, y_spec: Spec, precision: str):
    """Return x^T g. If one y served a whole batch, the batch is part of the sum instead of a stack of products."""
    if y_spec.ndim == 2 and x.ndim > 2 and x.shape[:-2] == g.shape[:-2]:
        x, g = (reshape(a, shape=(math.prod(a.shape[:-1]), a.shape[-1])) for a in (x, g))
    return matrix_product(matrix_transpose(x), g, precision=precision)


@composed(promote="x y", widen=False)
def matmul(x, y, *, precision=None):
    """Return the matrix product. A one-dimensional x counts as a row, a one-dimensional y as a column.

    Args:
        x: Integer, floating-point or complex array (..., m, k) or (k,).
        y: Integer, floating-point or complex array (..., k, n) or (k,), promoted with x. The leading axes broadcast.
        precision: How exact a product of float32 arrays is, as in set_matmul_precision; None for the current setting.

    Returns:
        Array (..., m, n) of the promoted dtype; without m if x has one axis, without n if y has.

    Raises:
        ShapeError: x or y has no axis, or k differs.
        ValueError: There is no such precision.

    Examples:
        >>> import polyarr as pa
        >>> pa.matmul(pa.asarray([[1.0, 2.0], [3.0, 4.0]]), pa.asarray([1.0, 10.0]))
        Array([21., 43.], float32, 'numpy')

    Gradients: x, y

    Source: array API standard 2025.12
    """
    rows = -2 if len(y.shape) > 1 else 0
    if not x.shape or not y.shape or x.shape[-1] != y.shape[rows]:
        raise ShapeError(f"matmul: x is {spec_of(x)}, y is {spec_of(y)}; x.shape[-1] must equal y.shape[{rows}]")
    left = reshape(x, shape=(1, *x.shape)) if len(x.shape) == 1 else x
    right = reshape(y, shape=(*y.shape, 1)) if len(y.shape) == 1 else y
    out = matrix_product(left, right, precision=precision)
    if left is x and right is y:
        return out
    shape = out.shape[:-1] if right is not y else out.shape
    return reshape(out, shape=shape if left is x else (*shape[:-2], *shape[-1:]) if right is y else shape[:-1])


@composed(promote="x y")
def vecdot(x, y, *, axis=-1):
    """Return the dot product of vectors along an axis; elements of a complex x are conjugated.

    Args:
        x: Integer, floating-point or complex array.
        y: Integer, floating-point or complex array, promoted with x, that broadcasts against it.
        axis: Axis of the vectors; x and y have the same length along it.

    Returns:
        Array of the broadcast shape without the axis, of the promoted dtype.

    Raises:
        AxisError: x or y lacks the axis.
        ShapeError: The shapes do not broadcast, or the lengths along axis differ.

    Examples:
        >>> import polyarr as pa
        >>> pa.vecdot(pa.asarray([[1.0, 2.0], [3.0, 4.0]]), pa.asarray([1.0, 10.0]))
        Array([21., 43.], float32, 'numpy')

    Gradients: x, y
    """
    shorter = x if len(x.shape) < len(y.shape) else y
    at = one_axis("vecdot", shorter, axis) - len(shorter.shape)  # broadcasting aligns the last axes
    if x.shape[at] != y.shape[at]:
        raise ShapeError(f"vecdot: x is {spec_of(x)}, y is {spec_of(y)}; they must agree along axis {axis}")
    return sum(multiply(conj(x) if x.dtype in COMPLEX else x, y), axis=at, dtype=x.dtype)


@composed(promote="x y", widen=False)
def outer(x, y):
    """Return the outer product of two vectors.

    Args:
        x: Integer, floating-point or complex array (m,).
        y: Integer, floating-point or complex array (n,), promoted with x.

    Returns:
        Array (m, n) of the promoted dtype.

    Raises:
        ShapeError: x or y does not have one axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.outer(pa.asarray([1, 2]), pa.asarray([1, 10]))
        Array([[ 1, 10],
               [ 2, 20]], int64, 'numpy')

    Gradients: x, y
    """
    if len(x.shape) != 1 or len(y.shape) != 1:
        raise ShapeError(f"outer: x is {spec_of(x)}, y is {spec_of(y)}; both must have one axis")
    return multiply(reshape(x, shape=(-1, 1)), reshape(y, shape=(1, -1)))


@composed(promote="x y", widen=False)
def tensordot(x, y, *, axes=2, precision=None):
    """Return the sum of products over pairs of axes of two tensors.

    Args:
        x: Integer, floating-point or complex array.
        y: Integer, floating-point or complex array, promoted with x.
        axes: Int n: the last n axes of x with the first n of y. Or two tuples of ints: axes of x, and those of y that
            they are paired with.
        precision: As in matmul.

    Returns:
        Array of the promoted dtype: the remaining axes of x, then those of y.

    Raises:
        ShapeError: Paired axes differ in length.
        TypeError: axes is neither an int nor a pair.

    Examples:
        >>> import polyarr as pa
        >>> pa.tensordot(pa.ones((2, 3, 4)), pa.ones((4, 3, 5)), axes=((1, 2), (1, 0))).shape
        (2, 5)

    Gradients: x, y
    """
    if isinstance(axes, (int, np.integer)):
        if not 0 <= axes <= min(len(x.shape), len(y.shape)):
            raise ShapeError(f"tensordot: x is {spec_of(x)}, y is {spec_of(y)}; axes is {axes}, more than they have")
        axes = (tuple(range(len(x.shape) - axes, len(x.shape))), tuple(range(axes)))
    if not isinstance(axes, (tuple, list)) or len(axes) != 2:
        raise TypeError(f"tensordot: axes is {shown(axes)}; it must be an int, or the axes of x and those of y")
    left = tuple(one_axis("tensordot", x, a) for a in wholes("tensordot", "axes", axes[0]))
    right = tuple(one_axis("tensordot", y, a) for a in wholes("tensordot", "axes", axes[1]))
    if [x.shape[a] for a in left] != [y.shape[a] for a in right]:
        raise ShapeError(f"tensordot: x is {spec_of(x)}, y is {spec_of(y)}; axes {axes} pair different lengths")
    free_x = tuple(i for i in range(len(x.shape)) if i not in left)
    free_y = tuple(i for i in range(len(y.shape)) if i not in right)
    summed = math.prod(x.shape[a] for a in left)
    rows, columns = (math.prod(a.shape[i] for i in free) for a, free in ((x, free_x), (y, free_y)))
    out = matrix_product(
        reshape(permute_dims(x, axes=(*free_x, *left)), shape=(rows, summed)),
        reshape(permute_dims(y, axes=(*right, *free_y)), shape=(summed, columns)),
        precision=precision,
    )
    return reshape(out, shape=(*(x.shape[i] for i in free_x), *(y.shape[i] for i in free_y)))


@composed(floats="x")
def vector_norm(x, *, axis=None, keepdims=False, ord=2.0):
    """Return the norm of order `ord` of vectors: sum(|x|^ord)^(1/ord).

    Args:
        x: Floating-point or complex array; integers and bools are cast to float32.
        axis: Int or tuple of ints; None for all axes.
        keepdims: Whether reduced axes stay, with length 1.
        ord: Order. inf gives the largest magnitude, -inf the smallest, 0 the number of nonzero elements.

    Returns:
        Real array without the reduced axes, of the precision of x.

    Raises:
        ShapeError: x lacks an axis, or ord is inf or -inf and there are no elements.

    Gradients: x; 0 where the norm is 0, and for elements that are 0 if the order is below 1
    """
    check_kind("vector_norm", "x", spec_of(x), "inexact")
    kind, over = number("vector_norm", "ord", ord), {"axis": axes_of("vector_norm", x, axis), "keepdims": keepdims}
    if kind == 0:
        return sum(astype(not_equal(x, 0), dtype=real_of(x.dtype)), **over)
    if kind == 2 and over["axis"]:
        return root(sum(square(elementwise.abs(x) if x.dtype in COMPLEX else x), **over), sqrt)
    sizes = elementwise.abs(x)
    if kind == 1 or not over["axis"]:  # a power and its root would only round
        return sum(sizes, **over)
    if math.isinf(kind):
        return (reduce.max if kind > 0 else reduce.min)(sizes, **over)
    total = sum(_powers(sizes, kind), **over)
    if kind > 0:
        return root(total, lambda total: functions.pow(total, 1 / kind))
    is_zero = equal(total, 0)  # of infinite elements only, or of none
    return where(is_zero, math.inf, functions.pow(where(is_zero, 1, total), 1 / kind))


def _powers(sizes, kind: float):
    if kind > 1:
        return functions.pow(sizes, kind)
    zero = equal(sizes, 0)
    return where(zero, 0.0 if kind > 0 else math.inf, functions.pow(where(zero, 1, sizes), kind))


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """Return the diagonals of matrices.

    Args:
        x: Array (..., m, n) of any dtype.
        offset: Diagonal: 0 is the main one, positive numbers are above it, negative ones below.

    Returns:
        Array (..., length of the diagonal) of the dtype of x.

    Raises:
        ShapeError: x has fewer than two axes.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.diagonal(pa.asarray([[1, 2], [3, 4]]))
        Array([1, 4], int64, 'numpy')
    """
    check_array("diagonal", "x", x)
    if len(x.shape) < 2:
        raise ShapeError(f"diagonal: x is {spec_of(x)}; it must have at least two axes")
    (*lead, m, n), k = x.shape, whole("diagonal", "offset", offset)
    row, column = max(-k, 0), max(k, 0)
    length = max(0, min(m - row, n - column))
    starts, ones = (0,) * len(lead), (1,) * len(lead)
    # every (n + 1)-th element of the two axes joined
    joined = reshape(x, shape=(*lead, m * n))
    start = row * n + column if length else 0
    return slice(joined, starts=(*starts, start), steps=(*ones, n + 1), shape=(*lead, length))


@explained
def einsum(subscripts: str, *operands: Array, precision: str | None = None) -> Array:
    """Return a sum of products in Einstein's notation. NumPy's planner chooses the order of the products.

    Args:
        subscripts: Labels of the axes of each operand, and of the result after "->", such as "bhtd,bhsd->bhts"; "..."
            stands for leading axes that broadcast.
        *operands: Integer, floating-point or complex arrays, promoted to one dtype.
        precision: As in matmul.

    Returns:
        Array of the promoted dtype with the axes that the subscripts name.

    Raises:
        ShapeError: The subscripts and the operands do not fit.
        TypeError: subscripts is not a string.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.asarray([[1.0, 2.0], [3.0, 4.0]])
        >>> pa.einsum("ij,ij->i", x, x)
        Array([ 5., 25.], float32, 'numpy')
    """
    if not isinstance(subscripts, str):
        raise TypeError(f"einsum: subscripts is {described(subscripts)}; it must be a str such as 'ij,jk->ik'")
    for a in operands:
        check_array("einsum", "an operand", a)
    precision = decided("einsum", precision)
    inputs, output = _subscripts(subscripts, operands)
    stand_ins = [np.broadcast_to(np.float32(0), a.shape) for a in operands]
    try:
        path = np.einsum_path(f"{','.join(inputs)}->{output}", *stand_ins, optimize="greedy")[0][1:]
    except ValueError as error:
        listed = ", ".join(str(spec_of(a)) for a in operands)
        raise ShapeError(f"einsum: {subscripts!r} with {listed}: {error}") from None
    terms = list(zip(inputs, operands, strict=True))
    for chosen in path:
        pair = [terms.pop(i) for i in sorted(chosen, reverse=True)]
        left_over = set(output).union(*(labels for labels, _ in terms))
        while len(pair) > 1:
            wanted = left_over.union(*(labels for labels, _ in pair[:-2]))
            pair.append(_contract(pair.pop(), pair.pop(), wanted, precision))
        terms.append(pair[0])
    labels, out = _summed(terms[0], set(output))
    return permute_dims(out, axes=tuple(labels.index(c) for c in output))


def _subscripts(subscripts: str, operands) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result, with every ellipsis written out."""
    left, arrow, output = subscripts.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(operands):
        raise ShapeError(f"einsum: {subscripts!r} names {len(inputs)} operands, got {len(operands)}")
    free = [c for c in string.ascii_letters if c not in subscripts]
    named = [len(t.replace("...", "")) for t in inputs]
    extra = max((len(a.shape) - n for t, n, a in zip(inputs, named, operands, strict=True) if "..." in t), default=0)
    dots = "".join(free[: max(extra, 0)])
    spelt = [
        t.replace("...", dots[len(dots) - (len(a.shape) - n) :] if len(a.shape) > n else "")
        for t, n, a in zip(inputs, named, operands, strict=True)
    ]
    if not arrow:
        every = "".join(spelt)
        output = dots + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in dots))
    return spelt, output.replace("...", dots)


def _contract(a: tuple, b: tuple, wanted: set[str], precision: str | None) -> tuple:
    """Return one operand made of two: labels that no other operand needs are summed by a batched matrix product."""
    (x_labels, x), (y_labels, y) = _summed(a, wanted | set(b[0])), _summed(b, wanted | set(a[0]))
    shared = [c for c in x_labels if c in y_labels]
    batch = [c for c in shared if c in wanted]
    inner = [c for c in shared if c not in wanted]
    rows = [c for c in x_labels if c not in shared]
    columns = [c for c in y_labels if c not in shared]
    x_sizes, y_sizes = dict(zip(x_labels, x.shape, strict=True)), dict(zip(y_labels, y.shape, strict=True))
    lead = [max(x_sizes[c], y_sizes[c]) if 0 not in (x_sizes[c], y_sizes[c]) else 0 for c in batch]
    left = _grouped(x, x_labels, x_sizes, batch, rows, inner)
    right = _grouped(y, y_labels, y_sizes, batch, inner, columns)
    out = matrix_product(left, right, precision=precision)
    return [*batch, *rows, *columns], reshape(
        out, shape=(*lead, *(x_sizes[c] for c in rows), *(y_sizes[c] for c in columns))
    )


def _grouped(x, labels, sizes, batch, rows, columns):
    """Return x as (*batch, rows, columns), each group of axes joined into one."""
    order = [*batch, *rows, *columns]
    moved = permute_dims(x, axes=tuple(labels.index(c) for c in order))
    lengths = [math.prod(sizes[c] for c in group) for group in (rows, columns)]
    return reshape(moved, shape=(*(sizes[c] for c in batch), *lengths))


def _summed(term: tuple, wanted: set[str]) -> tuple:
    """Return a term without repeated labels (their diagonal is taken) and without unwanted ones (they are summed)."""
    labels, x = list(term[0]), term[1]
    for c in [c for c, group in itertools.groupby(sorted(labels)) if len(list(group)) > 1]:
        while labels.count(c) > 1:
            labels, x = _diagonal(labels, x, c)
    gone = tuple(i for i, c in enumerate(labels) if c not in wanted)
    return [c for c in labels if c in wanted], sum(x, axis=gone, dtype=x.dtype) if gone else x


def _diagonal(labels: list, x, c: str) -> tuple:
    """Return x with two axes labelled c replaced by their diagonal."""
    i = labels.index(c)
    j = labels.index(c, i + 1)
    rest = [a for a in range(len(x.shape)) if a not in (i, j)]
    return [*(labels[a] for a in rest), c], diagonal(permute_dims(x, axes=(*rest, i, j)))
