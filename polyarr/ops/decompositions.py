"""Matrix decompositions, and what is solved by them: the group linalg, which a backend may lack.

Signs and phases that a decomposition leaves open are fixed, so that every backend gives the same result.
"""

from polyarr.core.array import spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.op import composed, primitive
from polyarr.core.spec import COMPLEX, Spec, broadcast, check_kind, complex_of, real_of
from polyarr.ops.create import iota
from polyarr.ops.elementwise import (
    add,
    astype,
    complex,
    conj,
    divide,
    imaginary_part,
    multiply,
    negative,
    real_part,
    subtract,
    where,
)
from polyarr.ops.functions import exp
from polyarr.ops.linalg import matrix_product
from polyarr.ops.logic import equal, greater
from polyarr.ops.reduce import argmax, sum
from polyarr.ops.shape import broadcast_to, expand_dims, matrix_transpose, part_of, reshape, tril, triu

LINALG, EIG = "linalg", "eig"


def _matrices(op: str, x: Spec, rows: str = "any") -> Spec:
    """Return x if it is a stack of matrices, with `rows` "as many" as columns, or "at least as many"."""
    check_kind(op, "x", x, "inexact")
    if x.ndim < 2:
        raise ShapeError(f"{op}: x is {x}; it must have at least two axes")
    m, n = x.shape[-2:]
    if (rows == "as many" and m != n) or (rows == "at least as many" and m < n):
        raise ShapeError(f"{op}: x is {x}; it must have {rows} rows as columns")
    return x


def _check_equations(op: str, x: Spec, b: Spec) -> None:
    _matrices(op, x, "as many")
    if b.is_number or b.ndim < 2 or b.shape[-2] != x.shape[-1]:
        raise ShapeError(f"{op}: x is {x}, b is {b}; b must have as many rows as x")


# ---- primitives --------------------------------------------------------------------------------------------------


@primitive(group=LINALG, widen=True, floats="x")
def cholesky(x):
    """Return the lower triangle L with a positive diagonal such that L L^H is the Hermitian part (x + x^H) / 2 of x.

    x^H is the conjugate transpose; for a real x, this is x^T, and a Hermitian matrix is symmetric.

    Args:
        x: Floating-point or complex array (..., n, n).

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: The Hermitian part of x is not positive definite.

    Examples:
        >>> import polyarr as pa
        >>> pa.ops.cholesky(pa.asarray([[4.0, 2.0], [2.0, 5.0]]))
        Array([[2., 0.],
               [1., 2.]], float32, 'numpy')

    Gradients: x, Hermitian

    Source: Seeger, Hetzel, Dai, Meissner, Lawrence 2017, arXiv:1710.08717
    """
    return _matrices("cholesky", x, "as many")


@primitive(group=LINALG, widen=True, floats="x")
def eigh(x):
    """Return eigenvalues w, ascending, and eigenvectors v of the Hermitian part of x: v diag(w) v^H = (x + x^H) / 2.

    In every column of v, the element of the largest magnitude is positive.

    Args:
        x: Floating-point or complex array (..., n, n).

    Returns:
        Tuple (w, v) of a real array (..., n), and an array (..., n, n) of the dtype of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Gradients: x, Hermitian; the choice of eigenvectors of equal eigenvalues has none

    Source: Giles 2008, An extended collection of matrix derivative results
    """
    x = _matrices("eigh", x, "as many")
    return Spec(x.shape[:-1], real_of(x.dtype)), x


@primitive(group=LINALG, widen=True, floats="x")
def qr(x):
    """Return q with orthonormal columns and the upper triangle r with a nonnegative diagonal such that x = q r.

    Args:
        x: Floating-point or complex array (..., m, n) with m >= n. polyarr.linalg.qr takes m < n as well.

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


@primitive(group=LINALG, widen=True, floats="x")
def svd(x):
    """Return u and vh with orthonormal columns and rows, and the singular values s, such that x = u diag(s) vh.

    The singular values are descending and nonnegative. In every column of u, the element of the largest magnitude is
    positive.

    Args:
        x: Floating-point or complex array (..., m, n); k is the smaller of m and n.

    Returns:
        Tuple (u, s, vh) of arrays (..., m, k), (..., k) and (..., k, n); s is real, the others have the dtype of x.

    Raises:
        ShapeError: x has fewer than two axes.
        MatrixError: x is not finite.

    Gradients: x; the choice of singular vectors of singular values that are equal or 0 has none

    Source: Wan, Zhang 2019, arXiv:1909.02659
    """
    x = _matrices("svd", x)
    *lead, m, n = x.shape
    k = min(m, n)
    return Spec((*lead, m, k), x.dtype), Spec((*lead, k), real_of(x.dtype)), Spec((*lead, k, n), x.dtype)


@primitive(group=LINALG, widen=True, floats="x")
def slogdet(x):
    """Return the sign of the determinant and the logarithm of its absolute value; 0 and -inf for a singular matrix.

    The sign of a complex number is the number divided by its absolute value.

    Args:
        x: Floating-point or complex array (..., n, n).

    Returns:
        Tuple of an array (...) of the dtype of x and a real one.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Gradients: x, through the logarithm and a complex sign, unless the determinant is 0

    Source: Giles 2008, An extended collection of matrix derivative results
    """
    x = _matrices("slogdet", x, "as many")
    return Spec(x.shape[:-2], x.dtype), Spec(x.shape[:-2], real_of(x.dtype))


@primitive(group=LINALG, widen=True, promote="x b", floats="x b")
def solve(x, b):
    """Return the solution y of x y = b.

    Args:
        x: Floating-point or complex array (..., n, n).
        b: Floating-point or complex array (..., n, k), promoted with x. The leading axes broadcast.

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
    _check_equations("solve", x, b)
    lead = broadcast("solve", Spec(x.shape[:-2], x.dtype), Spec(b.shape[:-2], b.dtype))
    return Spec((*lead, *b.shape[-2:]), x.dtype)


@primitive(group=EIG, widen=True, floats="x")
def eig(x):
    """Return the eigenvalues w and eigenvectors v of a square matrix: x v = v diag(w).

    w is ascending: by the real parts, where they are equal by the imaginary ones. Every column of v has norm 1, and its
    element of the largest magnitude is positive.

    Args:
        x: Floating-point or complex array (..., n, n).

    Returns:
        Tuple (w, v) of complex arrays (..., n) and (..., n, n) of the precision of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Gradients: x, where the eigenvalues are distinct

    Source: Giles 2008, An extended collection of matrix derivative results
    """
    x = _matrices("eig", x, "as many")
    dtype = complex_of(x.dtype)
    return Spec(x.shape[:-1], dtype), Spec(x.shape, dtype)


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


def adjoint(x):
    """Return the conjugate transpose of matrices."""
    return conj_of(matrix_transpose(x))


def conj_of(x):
    """Return the complex conjugate of x; a real x itself, and no op runs."""
    return conj(x) if x.dtype in COMPLEX else x


def _literal(fn):
    """Return the VJP rule for a formula of the literature, whose cotangents and gradient are the conjugates of ours."""

    def rule(g, out):
        return conj_of(fn(tuple(conj_of(a) for a in g) if type(g) is tuple else conj_of(g), out))

    return rule


def _hermitian(x):
    return multiply(add(x, adjoint(x)), 0.5)


def _mirrored(x):
    """Return the Hermitian matrix with the lower triangle of x; of its diagonal with the real part."""
    both = add(tril(x), adjoint(tril(x)))
    return where(_diagonal_of(x.shape[-1], x), multiply(both, 0.5), both)


def _over(x, y):
    """Return x y^-1 for lower triangles y."""
    return matrix_transpose(solve_triangular(matrix_transpose(y), matrix_transpose(x), upper=True))


def _inverses(x):
    """Return 1 / x, and 0 where x is 0."""
    zero = equal(x, 0)
    return where(zero, 0, divide(1, where(zero, 1, x)))


def _gaps(x):
    """Return 1 / (x_j - x_i), and 0 where they are equal: the gradient does not depend on the vectors chosen there."""
    return _inverses(subtract(expand_dims(x, axis=-2), expand_dims(x, axis=-1)))


def _projections(v, dv):
    """Return the inner product of each column of v with that of dv."""
    return sum(multiply(conj_of(v), dv), axis=-2, dtype=v.dtype)


def _with_free_phase(dv, v, along):
    """Return the cotangent of columns before their phases were fixed, which made the largest elements positive.

    Args:
        dv: Cotangent (..., m, k) of v.
        v: Columns (..., m, k) with fixed phases; if they are real, the cotangent stays.
        along: Inner products (..., k) of the columns with the cotangents of all results that their phases turn.
    """
    if v.dtype not in COMPLEX or 0 in v.shape:
        return dv
    sizes = real_part(v)
    largest = argmax(sizes, axis=-2, keepdims=True)
    is_largest = equal(reshape(iota(0, 1, v, size=v.shape[-2], dtype="int64"), shape=(-1, 1)), largest)
    turns = divide(expand_dims(imaginary_part(along), axis=-2), where(is_largest, sizes, 1))
    return subtract(dv, where(is_largest, complex(multiply(turns, 0), turns), 0))


def _cholesky_grad(g, out):
    up = adjoint(out)
    return multiply(_over(solve_triangular(up, _mirrored(product(up, g)), upper=True), out), 0.5)


def _eigh_grad(g, out):
    (dw, dv), (w, v) = g, out
    dv = _with_free_phase(dv, v, _projections(v, dv))
    turned = multiply(_gaps(w), product(adjoint(v), dv))
    inner = where(_diagonal_of(w.shape[-1], w), expand_dims(dw, axis=-1), turned)
    return _hermitian(product(v, inner, adjoint(v)))


def _eig_grad(g, out):
    (dw, dv), (w, v) = g, out
    along = _projections(v, dv)
    dv = subtract(_with_free_phase(dv, v, along), multiply(v, expand_dims(real_part(along), axis=-2)))  # norms are 1
    turned = multiply(conj(_gaps(w)), product(adjoint(v), dv))
    inner = where(_diagonal_of(w.shape[-1], w), expand_dims(dw, axis=-1), turned)
    return solve(adjoint(v), product(inner, adjoint(v)))


def _qr_grad(g, out):
    (dq, dr), (q, r) = g, out
    inner = subtract(product(r, adjoint(dr)), product(adjoint(dq), q))
    return _over(add(dq, product(q, _mirrored(inner))), adjoint(r))


def _svd_grad(g, out):
    (du, ds, dvh), (u, s, vh) = g, out
    v, dv = adjoint(vh), adjoint(dvh)
    if u.dtype in COMPLEX:
        along = _projections(v, dv)
        du = _with_free_phase(du, u, add(_projections(u, du), along))
        ds = complex(ds, negative(multiply(imaginary_part(along), _inverses(s))))
    across, down = expand_dims(s, axis=-2), expand_dims(s, axis=-1)
    gaps = _gaps(multiply(s, s))
    left, right = (multiply(gaps, product(adjoint(a), da)) for a, da in ((u, du), (v, dv)))
    left, right = (add(a, adjoint(a)) for a in (left, right))
    inner = add(multiply(left, across), multiply(down, right))
    found = product(u, where(_diagonal_of(s.shape[-1], s), expand_dims(ds, axis=-1), inner), vh)
    if u.shape[-2] > s.shape[-1]:  # the part outside of the space that the columns span
        found = add(found, product(_rest(du, u), multiply(expand_dims(_inverses(s), axis=-1), vh)))
    if vh.shape[-1] > s.shape[-1]:
        more = product(_rest(dv, v), multiply(expand_dims(_inverses(s), axis=-1), adjoint(u)))
        found = add(found, adjoint(more))
    return found


def _rest(x, q):
    """Return x without its part in the space that the columns of q span."""
    return subtract(x, product(q, adjoint(q), x))


def _slogdet_grad(g, x, out):
    (dsign, dsize), (sign, _) = g, out
    turned = complex(dsize, imaginary_part(multiply(dsign, sign))) if x.dtype in COMPLEX else dsize
    return _times_inverse(turned, x)


def _times_inverse(g, x):
    """Return g x^-T for one number g per matrix."""
    return multiply(expand_dims(expand_dims(g, axis=-1), axis=-1), matrix_transpose(inv(x)))


cholesky.vjp(x=_literal(_cholesky_grad))
eigh.vjp(x=_literal(_eigh_grad))
eig.vjp(x=lambda g, x_spec, out: _like(_literal(_eig_grad)(g, out), x_spec))
qr.vjp(x=_literal(_qr_grad))
svd.vjp(x=_literal(_svd_grad))
slogdet.vjp(x=_slogdet_grad)
solve.vjp(
    x=lambda g, x, out: negative(product(solve(matrix_transpose(x), g), matrix_transpose(out))),
    b=lambda g, x: solve(matrix_transpose(x), g),
)


def _like(g, x: Spec):
    """Return the gradient of x: of a real x the real part."""
    return g if x.dtype in COMPLEX else real_part(g)


# ---- made of them ------------------------------------------------------------------------------------------------


@composed(group=LINALG, floats="x")
def inv(x):
    """Return the inverse of a matrix.

    Args:
        x: Floating-point or complex array (..., n, n).

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is singular or not finite.

    Gradients: x
    """
    _matrices("inv", spec_of(x), "as many")
    return solve(x, identity(x.shape[-1], x))


def _canonical_triangle(x, b, *, upper):
    return {"upper": bool(upper)}


@composed(group=LINALG, promote="x b", floats="x b", canonical=_canonical_triangle)
def solve_triangular(x, b, *, upper):
    """Return the solution y of x y = b for triangular matrices x.

    Args:
        x: Floating-point or complex array (..., n, n).
        b: Floating-point or complex array (..., n, k), promoted with x. The leading axes broadcast.
        upper: Whether the upper triangles of x are used, or the lower ones; the others are not read.

    Returns:
        Array (..., n, k) of the promoted dtype.

    Raises:
        ShapeError: x is not square, or b has another number of rows.
        MatrixError: The triangle of x is not finite, or an element of its diagonal is 0.

    Gradients: x, b
    """
    _check_equations("solve_triangular", spec_of(x), spec_of(b))
    return solve((triu if upper else tril)(x), b)


def _triangle_grad(g, x, out, upper):
    inner = negative(product(solve_triangular(matrix_transpose(x), g, upper=not upper), matrix_transpose(out)))
    return (triu if upper else tril)(inner)


solve_triangular.vjp(
    x=_triangle_grad,
    b=lambda g, x, upper: solve_triangular(matrix_transpose(x), g, upper=not upper),
)


@composed(group=LINALG, floats="x")
def det(x):
    """Return the determinant of a matrix.

    Args:
        x: Floating-point or complex array (..., n, n).

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


@composed(group=LINALG, floats="x")
def eigvalsh(x):
    """Return the eigenvalues of the Hermitian part of x, ascending.

    Args:
        x: Floating-point or complex array (..., n, n).

    Returns:
        Real array (..., n) of the precision of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Gradients: x, Hermitian
    """
    _matrices("eigvalsh", spec_of(x), "as many")
    return eigh(x)[0]


@composed(group=EIG, floats="x")
def eigvals(x):
    """Return the eigenvalues of a square matrix, in the order of eig.

    Args:
        x: Floating-point or complex array (..., n, n).

    Returns:
        Complex array (..., n) of the precision of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Gradients: x, where the eigenvalues are distinct
    """
    _matrices("eigvals", spec_of(x), "as many")
    return eig(x)[0]


@composed(group=LINALG, floats="x")
def svdvals(x):
    """Return the singular values of x, descending.

    Args:
        x: Floating-point or complex array (..., m, n).

    Returns:
        Real array (..., min(m, n)) of the precision of x.

    Raises:
        ShapeError: x has fewer than two axes.
        MatrixError: x is not finite.

    Gradients: x
    """
    _matrices("svdvals", spec_of(x))
    return svd(x)[1]


@composed(group=LINALG, floats="x")
def pinv(x, rtol):
    """Return the pseudo-inverse of x. Singular values of at most rtol times the largest count as 0.

    Args:
        x: Floating-point or complex array (..., m, n).
        rtol: Number, or floating-point array that broadcasts to (...); it is rounded to the precision of x.

    Returns:
        Array (..., n, m) of the dtype of x.

    Raises:
        ShapeError: x has fewer than two axes.
        MatrixError: x is not finite.

    Gradients: x, where a small change does not change the rank

    Source: Golub, Pereyra 1973, doi:10.1137/0710036
    """
    _matrices("pinv", spec_of(x))
    check_kind("pinv", "rtol", spec_of(rtol), "floating")
    u, s, vh = svd(x)
    kept = where(significant(s, rtol), s, 0)
    return product(adjoint(vh), multiply(expand_dims(_inverses(kept), axis=-1), adjoint(u)))


def significant(s, rtol):
    """Return which singular values exceed rtol times the largest, which is the first."""
    first = part_of(s, -1, 0, min(1, s.shape[-1]))
    if not spec_of(rtol).is_number:
        rtol = expand_dims(astype(rtol, dtype=s.dtype), axis=-1)
    return greater(s, multiply(first, rtol))


def _pinv_grad(g, x, out):
    g, back = conj_of(g), adjoint(out)
    turned = adjoint(g)
    by_rows, by_columns = (product(a, b) for a, b in ((x, out), (out, x)))  # projections
    of_rows, of_columns = product(turned, out, back), product(back, out, turned)
    rest = add(subtract(of_rows, product(by_rows, of_rows)), subtract(of_columns, product(of_columns, by_columns)))
    return conj_of(subtract(rest, product(back, g, back)))


inv.vjp(x=lambda g, out: negative(product(matrix_transpose(out), g, matrix_transpose(out))))
det.vjp(x=lambda g, x, out: _times_inverse(multiply(g, out), x))
pinv.vjp(x=_pinv_grad, rtol=None)
