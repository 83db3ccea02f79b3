"""The linear algebra of the array API standard 2024.12: its extension `linalg`.

What needs a decomposition runs where the backend offers the group linalg (`polyarr ops` lists who does); the rest
runs everywhere. polyarr.linalg.qr is a function of this file, polyarr.ops.qr the op that it calls, and so with others.
"""

from typing import Any, NamedTuple

from polyarr import ops
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.spec import float32, int64, told
from polyarr.creation import finfo
from polyarr.ops import det, eigvalsh, inv, matmul, matrix_transpose, outer, svdvals, tensordot, vecdot, vector_norm
from polyarr.ops.decompositions import identity, product, significant
from polyarr.ops.linalg import diagonal
from polyarr.ops.validation import check_array, whole

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


class Eigh(NamedTuple):
    """What eigh gives."""

    eigenvalues: Array
    eigenvectors: Array


class QR(NamedTuple):
    """What qr gives."""

    Q: Array
    R: Array


class Slogdet(NamedTuple):
    """What slogdet gives."""

    sign: Array
    logabsdet: Array


class SVD(NamedTuple):
    """What svd gives."""

    U: Array
    S: Array
    Vh: Array


# ---- decompositions ----------------------------------------------------------------------------------------------


def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """The lower triangle L with L L^T = x, or the upper U with U^T U = x. x counts as its symmetric part.

    Shapes:  (..., n, n) -> the same
    Dtypes:  floating -> the same
    Errors:  ShapeError unless x is square; MatrixError unless it is positive definite
    Grads:   x, symmetric
    """
    found = ops.cholesky(x)
    return ops.matrix_transpose(found) if upper else found


def eigh(x: Array, /) -> Eigh:
    """The eigenvalues, ascending, and the eigenvectors, as columns, of a symmetric x. x counts as its symmetric part.

    Shapes:  (..., n, n) -> (..., n) and (..., n, n)
    Dtypes:  floating -> the same
    Errors:  ShapeError unless x is square; MatrixError if it is not finite
    Grads:   x, symmetric; of equal eigenvalues, the choice of eigenvectors has none
    """
    return Eigh(*ops.eigh(x))


def qr(x: Array, /, *, mode: str = "reduced") -> QR:
    """Q with orthonormal columns and the upper triangle R, whose diagonal is not negative: Q R is x.

    Shapes:  (..., m, n), k the smaller of m and n -> (..., m, k) and (..., k, n); "complete": (..., m, m), (..., m, n)
    Dtypes:  floating -> the same
    Errors:  ShapeError if x has fewer than two axes; ValueError for another mode; MatrixError if x is not finite
    Grads:   x, where its columns are independent, or the first of them where there are more than rows
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode is {told(mode)}; it must be 'reduced' or 'complete'")
    m, n = _lengths("qr", x)
    q, r = ops.qr(x if m >= n else x[..., :m])
    if m < n:
        r = ops.concat([r, product(ops.matrix_transpose(q), x[..., m:])], axis=-1)
    if mode == "complete" and m > n:
        q = _completed(q)
        r = ops.concat([r, ops.zeros_like(x[..., n:, :])], axis=-2)
    return QR(q, r)


def svd(x: Array, /, *, full_matrices: bool = True) -> SVD:
    """U and Vh with orthonormal columns and rows, and the singular values S, descending: U diag(S) Vh is x.

    Shapes:  (..., m, n), k the smaller -> (..., m, m), (..., k) and (..., n, n), or (..., m, k) and (..., k, n)
    Dtypes:  floating -> the same
    Errors:  ShapeError if x has fewer than two axes; MatrixError if it is not finite
    Grads:   x; of equal singular values and of those that are 0, the choice of vectors has none
    """
    u, s, vh = ops.svd(x)
    if full_matrices:
        u, vh = _completed(u), ops.matrix_transpose(_completed(ops.matrix_transpose(vh)))
    return SVD(u, s, vh)


def _completed(q: Array) -> Array:
    """A square matrix with orthonormal columns, of which q's are the first."""
    *lead, m, n = q.shape
    if m == n:
        return q
    if n == 0:
        return identity(m, q)
    # Numbers that look random depend on no q's columns; of an identity some may be among these, and qr has no gradient.
    bits = ops.astype(ops.random_bits(0, 0, q, shape=(m, m - n)), dtype=float32)
    others = ops.broadcast_to(ops.astype(bits / 2.0**31 - 1, dtype=q.dtype), shape=(*lead, m, m - n))
    more = ops.qr(ops.concat([q, others], axis=-1))[0][..., n:]
    return ops.concat([q, more], axis=-1)


def _lengths(op: str, x: Array) -> tuple[int, ...]:
    """The numbers of rows and of columns of matrices."""
    check_array(op, "x", x)
    if x.ndim < 2:
        raise ShapeError(f"{op}: x is {spec_of(x)}; it must have at least two axes")
    return x.shape[-2:]


# ---- equations and determinants ----------------------------------------------------------------------------------


def solve(x1: Array, x2: Array, /) -> Array:
    """The y for which x1 y is x2; x2 may be one vector for all matrices.

    Shapes:  x1 (..., n, n), x2 (n,) -> (..., n), or x2 (..., n, k) -> (..., n, k); the leading axes broadcast
    Dtypes:  floating, promoted
    Errors:  ShapeError unless x1 is square and x2 has as many rows; MatrixError if x1 is singular or not finite
    Grads:   x1, x2
    """
    check_array("solve", "x2", x2)
    return ops.solve(x1, x2[:, None])[..., 0] if x2.ndim == 1 else ops.solve(x1, x2)


def slogdet(x: Array, /) -> Slogdet:
    """The determinant's sign, and the logarithm of its absolute value; 0 and -inf where it is 0.

    Shapes:  (..., n, n) -> (...) twice
    Dtypes:  floating -> the same
    Errors:  ShapeError unless x is square; MatrixError if it is not finite
    Grads:   x, of the logarithm, unless the determinant is 0
    """
    return Slogdet(*ops.slogdet(x))


def pinv(x: Array, /, *, rtol: Any = None) -> Array:
    """The pseudo-inverse: singular values of at most rtol times the largest count as 0.

    Shapes:  x (..., m, n), rtol a number or an array that broadcasts to (...) -> (..., n, m)
    Dtypes:  floating -> the same
    Errors:  ShapeError if x has fewer than two axes; MatrixError if it is not finite
    Grads:   x, where a small change leaves the rank as it is
    """
    return ops.pinv(x, _tolerance("pinv", x, rtol))


def matrix_rank(x: Array, /, *, rtol: Any = None) -> Array:
    """How many singular values are more than rtol times the largest.

    Shapes:  x (..., m, n), rtol a number or an array that broadcasts to (...) -> (...)
    Dtypes:  floating -> int64
    Errors:  ShapeError if x has fewer than two axes; MatrixError if it is not finite
    Grads:   none
    """
    rtol = _tolerance("matrix_rank", x, rtol)
    return ops.sum(significant(ops.svdvals(x), rtol), axis=-1, dtype=int64)


def _tolerance(op: str, x: Array, rtol: Any) -> Any:
    lengths = _lengths(op, x)
    if rtol is None:
        return max(lengths) * float(finfo(x.dtype).eps)
    return rtol.astype(x.dtype) if isinstance(rtol, Array) else rtol


def matrix_power(x: Array, n: int, /) -> Array:
    """The product of n times x; of its inverse, where n is negative.

    Shapes:  (..., m, m) -> the same
    Dtypes:  floating -> the same
    Errors:  ShapeError unless x is square; MatrixError if n is negative and x singular
    Grads:   x
    """
    rows, columns = _lengths("matrix_power", x)
    if rows != columns:
        raise ShapeError(f"matrix_power: x is {spec_of(x)}; it must have as many rows as columns")
    n = whole("matrix_power", "n", n)
    x, n = (ops.inv(x), -n) if n < 0 else (x, n)
    found = None if n else identity(rows, x)
    while n:
        if n % 2:
            found = x if found is None else ops.matmul(found, x)
        n //= 2
        x = ops.matmul(x, x) if n else x
    return found.snapshot()  # x itself has a handle of its own


# ---- norms and sums ----------------------------------------------------------------------------------------------


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: float | str | None = "fro") -> Array:
    """The norm of matrices: "fro" of all elements, "nuc" the sum of singular values, 2 and -2 the largest and smallest.

    1 and -1 are the largest and smallest sum of magnitudes of a column, inf and -inf of a row.

    Shapes:  (..., m, n) -> (...), or (..., 1, 1) with keepdims
    Dtypes:  floating -> the same
    Errors:  ShapeError if x has fewer than two axes, or none to choose from; ValueError for another ord
    Grads:   x
    """
    _lengths("matrix_norm", x)
    if ord in ("fro", None):
        return ops.vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = ops.svdvals(x)
        found = ops.sum(values, axis=-1) if ord == "nuc" else (ops.max if ord == 2 else ops.min)(values, axis=-1)
        return found[..., None, None] if keepdims else found
    sums = {1: -2, -1: -2, float("inf"): -1, -float("inf"): -1}
    if not isinstance(ord, (str, int, float)) or ord not in sums:
        raise ValueError(f"matrix_norm: ord is {told(ord)}; it must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    norms = ops.vector_norm(x, axis=sums[ord], keepdims=True, ord=1)
    return (ops.max if ord > 0 else ops.min)(norms, axis=(-2, -1), keepdims=keepdims)


def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sum of a diagonal, which is `offset` above the main one.

    Shapes:  (..., m, n) -> (...)
    Dtypes:  floating -> the same; integer -> int64 or uint64; dtype overrules
    Errors:  ShapeError if x has fewer than two axes
    Grads:   x
    """
    _lengths("trace", x)
    return ops.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of three elements along axis.

    Shapes:  x1 and x2 broadcast, each with three elements along axis, which is counted from the end -> the same
    Dtypes:  real, promoted
    Errors:  ShapeError if they do not broadcast, or have other than three elements along axis
    Grads:   x1, x2
    """
    for name, x in (("x1", x1), ("x2", x2)):
        check_array("cross", name, x)
    axis = whole("cross", "axis", axis)
    x1, x2 = ops.broadcast_arrays(x1, x2) if axis >= 0 else (x1, x2)
    if any(not -x.ndim <= axis < x.ndim or x.shape[axis] != 3 for x in (x1, x2)):
        raise ShapeError(f"cross: x1 is {spec_of(x1)}, x2 is {spec_of(x2)}; axis {axis} must have three elements")

    def turned(x: Array, by: int) -> Array:
        return ops.roll(x, shift=-by, axis=axis)

    return turned(x1, 1) * turned(x2, 2) - turned(x1, 2) * turned(x2, 1)
