"""Matrix decompositions, and what is solved by them: the group linalg, which a backend may lack.

Signs that a decomposition leaves open are fixed, so that every backend gives the same result.
"""

from polyarr.core.array import spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.op import composed, primitive
from polyarr.core.spec import Spec, broadcast, check_kind
from polyarr.ops.create import iota
from polyarr.ops.elementwise import add, astype, divide, multiply, negative, subtract, where
from polyarr.ops.functions import exp
from polyarr.ops.linalg import matrix_product
from polyarr.ops.logic import equal, greater
from polyarr.ops.shape import broadcast_to, expand_dims, matrix_transpose, reshape, slice, tril

LINALG = "linalg"


def _matrices(op: str, x: Spec, rows: str = "any") -> Spec:
    """Return x if it is a stack of matrices, with `rows` "as many" as columns, or "at least as many"."""
    check_kind(op, "x", x, "floating")
    if x.ndim < 2:
        raise ShapeError(f"{op}: x is {x}; it must have at least two axes")
    m, n = x.shape[-2:]
    if (rows == "as many" and m != n) or (rows == "at least as many" and m < n):
        raise ShapeError(f"{op}: x is {x}; it must have {rows} rows as columns")
    return x


# ---- primitives --------------------------------------------------------------------------------------------------


@primitive(group=LINALG, widen=True)
def cholesky(x):
    """Return the lower triangle L with a positive diagonal such that L L^T is the symmetric part (x + x^T) / 2 of x.

    Args:
        x: Floating-point array (..., n, n).

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: The symmetric part of x is not positive definite.

    Examples:
        >>> import polyarr as pa
        >>> pa.ops.cholesky(pa.asarray([[4.0, 2.0], [2.0, 5.0]]))
        Array([[2., 0.],
               [1., 2.]], float32, 'numpy')

    Gradients: x, symmetric

    Source: Seeger, Hetzel, Dai, Meissner, Lawrence 2017, arXiv:1710.08717
    """
    return _matrices("cholesky", x, "as many")


@primitive(group=LINALG, widen=True)
def eigh(x):
    """Return eigenvalues w, ascending, and eigenvectors v of the symmetric part of x: v diag(w) v^T = (x + x^T) / 2.

    In every column of v, the element of the largest magnitude is positive.

    Args:
        x: Floating-point array (..., n, n).

    Returns:
        Tuple (w, v) of arrays (..., n) and (..., n, n) of the dtype of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Gradients: x, symmetric; the choice of eigenvectors of equal eigenvalues has none

    Source: Giles 2008, An extended collection of matrix derivative results
    """
    x = _matrices("eigh", x, "as many")
    return Spec(x.shape[:-1], x.dtype), x


@primitive(group=LINALG, widen=True)
def qr(x):
    """Return q with orthonormal columns and the upper triangle r with a nonnegative diagonal such that x = q r.

    Args:
        x: Floating-point array (..., m, n) with m >= n. polyarr.linalg.qr takes m < n as well.

    Returns:
        Tuple (q, r) of arrays (..., m, n) and (..., n, n) of the dtype of x.

    Raises:
        ShapeError: x has fewer rows than columns.
        MatrixError: x is not finite.

    Gradients: x, if its columns are independent

    Source: Walter, Lehmann 2012, Algorithmic differentiation of linear algebra functions; arXiv:1009.6112
    """
    x = _matrices("qr", x, "at least as many")
    return x, Spec((*x.shape[:-2], x.shape[-1], x.shape[-1]), x.dtype)


@primitive(group=LINALG, widen=True)
def svd(x):
    """Return u and vh with orthonormal columns and rows, and the singular values s, such that x = u diag(s) vh.

    The singular values are descending and nonnegative. In every column of u, the element of the largest magnitude is
    positive.

    Args:
        x: Floating-point array (..., m, n); k is the smaller of m and n.

    Returns:
        Tuple (u, s, vh) of arrays (..., m, k), (..., k) and (..., k, n) of the dtype of x.

    Raises:
        ShapeError: x has fewer than two axes.
        MatrixError: x is not finite.

    Gradients: x; the choice of singular vectors of singular values that are equal or 0 has none

    Source: Wan, Zhang 2019, arXiv:1909.02659
    """
    x = _matrices("svd", x)
    *lead, m, n = x.shape
    k = min(m, n)
    return tuple(Spec((*lead, *shape), x.dtype) for shape in ((m, k), (k,), (k, n)))


@primitive(group=LINALG, widen=True)
def slogdet(x):
    """Return the sign of the determinant and the logarithm of its absolute value; 0 and -inf for a singular matrix.

    Args:
        x: Floating-point array (..., n, n).

    Returns:
        Tuple of two arrays (...) of the dtype of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Gradients: x, through the logarithm, unless the determinant is 0

    Source: Giles 2008, An extended collection of matrix derivative results
    """
    x = _matrices("slogdet", x, "as many")
    return (Spec(x.shape[:-2], x.dtype),) * 2


@primitive(group=LINALG, widen=True, promote="x b")
def solve(x, b):
    """Return the solution y of x y = b.

    Args:
        x: Floating-point array (..., n, n).
        b: Floating-point array (..., n, k), promoted with x. The leading axes broadcast.

    Returns:
        Array (..., n, k) of the promoted dtype.

    Raises:
        ShapeError: x is not square, or b has another number of rows.
        MatrixError: x is singular or not finite.

    Examples:
        >>> import polyarr as pa
        >>> pa.ops.solve(pa.asarray([[2.0, 0.0], [1.0, 1.0]]), pa.asarray([[4.0], [5.0]]))
        Array([[2.],
               [3.]], float32, 'numpy')

    Gradients: x, b

    Source: Giles 2008, An extended collection of matrix derivative results
    """
    _matrices("solve", x, "as many")
    if b.is_number or b.ndim < 2 or b.shape[-2] != x.shape[-1]:
        raise ShapeError(f"solve: x is {x}, b is {b}; b must have as many rows as x")
    lead = broadcast("solve", Spec(x.shape[:-2], x.dtype), Spec(b.shape[:-2], b.dtype))
    return Spec((*lead, *b.shape[-2:]), x.dtype)


# ---- their gradients ---------------------------------------------------------------------------------------------


def product(x, *more):
    """Return the matrix product at the highest precision: gradients of decompositions divide by small differences."""
    for y in more:
        x = matrix_product(x, y, precision="highest")
    return x


def _diagonal_of(n: int, like):
    """Return a bool matrix, true on the diagonal."""
    numbers = iota(0, 1, like, size=n, dtype="int64")
    return equal(reshape(numbers, shape=(n, 1)), numbers)


def identity(n: int, like):
    """Return an identity matrix for every matrix of like."""
    return broadcast_to(astype(_diagonal_of(n, like), dtype=like.dtype), shape=(*like.shape[:-2], n, n))


def _symmetric(x):
    return multiply(add(x, matrix_transpose(x)), 0.5)


def _mirrored(x):
    """Return the symmetric matrix with the lower triangle of x."""
    return add(tril(x), matrix_transpose(tril(x, k=-1)))


def _over(x, y):
    """Return x y^-1."""
    return matrix_transpose(solve(matrix_transpose(y), matrix_transpose(x)))


def _inverses(x):
    """Return 1 / x, and 0 where x is 0."""
    zero = equal(x, 0)
    return where(zero, 0, divide(1, where(zero, 1, x)))


def _gaps(x):
    """Return 1 / (x_j - x_i), and 0 where they are equal: the gradient does not depend on the vectors chosen there."""
    return _inverses(subtract(expand_dims(x, axis=-2), expand_dims(x, axis=-1)))


def _cholesky_grad(g, out):
    up = matrix_transpose(out)
    return multiply(_over(solve(up, _mirrored(product(up, g))), out), 0.5)


def _eigh_grad(g, out):
    (dw, dv), (w, v) = g, out
    turned = multiply(_gaps(w), product(matrix_transpose(v), dv))
    inner = where(_diagonal_of(w.shape[-1], w), expand_dims(dw, axis=-1), turned)
    return _symmetric(product(v, inner, matrix_transpose(v)))


def _qr_grad(g, out):
    (dq, dr), (q, r) = g, out
    inner = subtract(product(r, matrix_transpose(dr)), product(matrix_transpose(dq), q))
    return _over(add(dq, product(q, _mirrored(inner))), matrix_transpose(r))


def _svd_grad(g, out):
    (du, ds, dvh), (u, s, vh) = g, out
    v, dv = matrix_transpose(vh), matrix_transpose(dvh)
    across, down = expand_dims(s, axis=-2), expand_dims(s, axis=-1)
    gaps = _gaps(multiply(s, s))
    left, right = (multiply(gaps, product(matrix_transpose(a), da)) for a, da in ((u, du), (v, dv)))
    left, right = (add(a, matrix_transpose(a)) for a in (left, right))
    inner = add(multiply(left, across), multiply(down, right))
    found = product(u, where(_diagonal_of(s.shape[-1], s), expand_dims(ds, axis=-1), inner), vh)
    if u.shape[-2] > s.shape[-1]:  # the part outside of the space that the columns span
        found = add(found, product(_rest(du, u), multiply(expand_dims(_inverses(s), axis=-1), vh)))
    if vh.shape[-1] > s.shape[-1]:
        more = product(_rest(dv, v), multiply(expand_dims(_inverses(s), axis=-1), matrix_transpose(u)))
        found = add(found, matrix_transpose(more))
    return found


def _rest(x, q):
    """Return x without its part in the space that the columns of q span."""
    return subtract(x, product(q, matrix_transpose(q), x))


def _times_inverse(g, x):
    """Return g x^-T for one number g per matrix."""
    return multiply(expand_dims(expand_dims(g, axis=-1), axis=-1), matrix_transpose(inv(x)))


cholesky.vjp(x=_cholesky_grad)
eigh.vjp(x=_eigh_grad)
qr.vjp(x=_qr_grad)
svd.vjp(x=_svd_grad)
slogdet.vjp(x=lambda g, x: _times_inverse(g[1], x))
solve.vjp(
    x=lambda g, x, out: negative(product(solve(matrix_transpose(x), g), matrix_transpose(out))),
    b=lambda g, x: solve(matrix_transpose(x), g),
)


# ---- made of them ------------------------------------------------------------------------------------------------


@composed(group=LINALG)
def inv(x):
    """Return the inverse of a matrix.

    Args:
        x: Floating-point array (..., n, n).

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is singular or not finite.

    Gradients: x
    """
    _matrices("inv", spec_of(x), "as many")
    return solve(x, identity(x.shape[-1], x))


@composed(group=LINALG)
def det(x):
    """Return the determinant of a matrix.

    Args:
        x: Floating-point array (..., n, n).

    Returns:
        Array (...) of the dtype of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite; of the gradient, the determinant is 0.

    Gradients: x, unless the determinant is 0
    """
    _matrices("det", spec_of(x), "as many")
    sign, size = slogdet(x)
    return multiply(sign, exp(size))


@composed(group=LINALG)
def eigvalsh(x):
    """Return the eigenvalues of the symmetric part of x, ascending.

    Args:
        x: Floating-point array (..., n, n).

    Returns:
        Array (..., n) of the dtype of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Gradients: x, symmetric
    """
    _matrices("eigvalsh", spec_of(x), "as many")
    return eigh(x)[0]


@composed(group=LINALG)
def svdvals(x):
    """Return the singular values of x, descending.

    Args:
        x: Floating-point array (..., m, n).

    Returns:
        Array (..., min(m, n)) of the dtype of x.

    Raises:
        ShapeError: x has fewer than two axes.
        MatrixError: x is not finite.

    Gradients: x
    """
    _matrices("svdvals", spec_of(x))
    return svd(x)[1]


@composed(group=LINALG, promote="x rtol")
def pinv(x, rtol):
    """Return the pseudo-inverse of x. Singular values of at most rtol times the largest count as 0.

    Args:
        x: Floating-point array (..., m, n).
        rtol: Number, or floating-point array that broadcasts to (...), promoted with x.

    Returns:
        Array (..., n, m) of the promoted dtype.

    Raises:
        ShapeError: x has fewer than two axes.
        MatrixError: x is not finite.

    Gradients: x, where a small change does not change the rank

    Source: Golub, Pereyra 1973, doi:10.1137/0710036
    """
    _matrices("pinv", spec_of(x))
    u, s, vh = svd(x)
    kept = where(significant(s, rtol), s, 0)
    return product(matrix_transpose(vh), multiply(expand_dims(_inverses(kept), axis=-1), matrix_transpose(u)))


def significant(s, rtol):
    """Return which singular values exceed rtol times the largest, which is the first."""
    n, zeros = len(s.shape), (0,) * len(s.shape)
    first = slice(s, starts=zeros, steps=(1,) * n, shape=(*s.shape[:-1], min(1, s.shape[-1])))
    return greater(s, multiply(first, expand_dims(rtol, axis=-1) if getattr(rtol, "shape", ()) else rtol))


def _pinv_grad(g, x, out):
    turned, back = matrix_transpose(g), matrix_transpose(out)
    by_rows, by_columns = (product(a, b) for a, b in ((x, out), (out, x)))  # projections
    of_rows, of_columns = product(turned, out, back), product(back, out, turned)
    rest = add(subtract(of_rows, product(by_rows, of_rows)), subtract(of_columns, product(of_columns, by_columns)))
    return subtract(rest, product(back, g, back))


inv.vjp(x=lambda g, out: negative(product(matrix_transpose(out), g, matrix_transpose(out))))
det.vjp(x=lambda g, x, out: _times_inverse(multiply(g, out), x))
pinv.vjp(x=_pinv_grad, rtol=None)
