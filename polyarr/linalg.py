"""Linear algebra: the extension `linalg` of the array API standard 2025.12.

Functions that need a decomposition run on backends that offer the group linalg (`polyarr ops` lists them); the others
run on every backend. eig and eigvals compute on the host where a backend lacks the group eig. polyarr.linalg.qr is a
function of this file that calls the op polyarr.ops.qr; the others are alike. Where a function needs floating-point or
complex numbers, integers and bools are cast to float32.
"""

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from polyarr import ops
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.groups import NOT_OFFERED, offer
from polyarr.core.keywords import explained
from polyarr.core.names import answering
from polyarr.core.number import NUMBERS
from polyarr.core.spec import INEXACT, float32, int64, real_of, shown
from polyarr.creation import finfo
from polyarr.ops import det, eigvalsh, inv, matmul, matrix_transpose, outer, svdvals, tensordot, vecdot, vector_norm
from polyarr.ops.decompositions import EIG, adjoint, identity, product, significant
from polyarr.ops.linalg import diagonal
from polyarr.ops.validation import check_array, number, stands_for_array, whole

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
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
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


class Eig(NamedTuple):
    """Result of eig: the eigenvalues and the eigenvectors, as columns."""

    eigenvalues: Array
    eigenvectors: Array


class Eigh(NamedTuple):
    """Result of eigh: the eigenvalues and the eigenvectors, as columns."""

    eigenvalues: Array
    eigenvectors: Array


class QR(NamedTuple):
    """Result of qr: the orthonormal columns Q and the upper triangle R."""

    Q: Array
    R: Array


class Slogdet(NamedTuple):
    """Result of slogdet: the sign of the determinant and the logarithm of its absolute value."""

    sign: Array
    logabsdet: Array


class SVD(NamedTuple):
    """Result of svd: the left singular vectors U, the singular values S, and the right singular vectors Vh, as rows."""

    U: Array
    S: Array
    Vh: Array


# ---- decompositions ----------------------------------------------------------------------------------------------


@explained
def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """Return the lower triangle L with L L^H = x, or the upper triangle U with U^H U = x.

    x^H is the conjugate transpose; for a real x, this is x^T, and a Hermitian matrix is symmetric.

    Args:
        x: Floating-point or complex array (..., n, n); its Hermitian part (x + x^H) / 2 is decomposed.
        upper: Whether to return U.

    Returns:
        Array of the shape and dtype of x, with a positive diagonal.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not positive definite.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.cholesky(pa.asarray([[4.0, 2.0], [2.0, 5.0]]))
        Array([[2., 0.],
               [1., 2.]], float32, 'numpy')

    Gradients: x, Hermitian
    """
    found = ops.cholesky(x)
    return adjoint(found) if upper else found


@explained
def eigh(x: Array, /) -> Eigh:
    """Return the eigenvalues and eigenvectors of a Hermitian matrix, which if it is real is a symmetric one.

    Args:
        x: Floating-point or complex array (..., n, n); its Hermitian part (x + x^H) / 2 is decomposed.

    Returns:
        Eigh (eigenvalues, eigenvectors) of shapes (..., n), ascending and real, and (..., n, n), as columns.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.eigh(pa.asarray([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
        Array([1., 2.], float32, 'numpy')

    Gradients: x, Hermitian; the choice of eigenvectors of equal eigenvalues has none
    """
    return Eigh(*ops.eigh(x))


def eig(x: Array, /) -> Eig:
    """Return the eigenvalues and eigenvectors of a square matrix. Only the NumPy backend computes them.

    On other backends x is copied to the host, and the results come back, which pa.transfers() counts; in functions that
    pa.compile captured there, that is an error. Every eigenvector has norm 1, and its element of the largest magnitude
    is positive.

    Args:
        x: Floating-point or complex array (..., n, n).

    Returns:
        Eig (eigenvalues, eigenvectors) of complex arrays (..., n) and (..., n, n), as columns. The eigenvalues are
        ascending: by their real parts, where these are equal by their imaginary parts.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.eig(pa.asarray([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues
        Array([0.-1.j, 0.+1.j], complex64, 'numpy')

    Gradients: x, where the eigenvalues are distinct
    """
    w, v = ops.eig(_where_eig_is("eig", x))
    return Eig(w.to(x.backend), v.to(x.backend))


def eigvals(x: Array, /) -> Array:
    """Return the eigenvalues of a square matrix. Only the NumPy backend computes them, as in eig.

    Args:
        x: Floating-point or complex array (..., n, n).

    Returns:
        Complex array (..., n) of the precision of x, in the order of eig.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.eigvals(pa.asarray([[2.0, 1.0], [0.0, 1.0]]))
        Array([1.+0.j, 2.+0.j], complex64, 'numpy')

    Gradients: x, where the eigenvalues are distinct
    """
    return ops.eigvals(_where_eig_is("eigvals", x)).to(x.backend)


def _where_eig_is(op: str, x: Array) -> Array:
    """Return x on its backend if that offers the group eig, else on the NumPy backend."""
    check_array(op, "x", x)
    return x.to("numpy") if offer(x.backend, EIG) == NOT_OFFERED else x


@explained
def qr(x: Array, /, mode: str = "reduced") -> QR:
    """Return Q with orthonormal columns and the upper triangle R with a nonnegative diagonal such that x = Q R.

    Args:
        x: Floating-point or complex array (..., m, n); k is the smaller of m and n.
        mode: "reduced" or "complete".

    Returns:
        QR (Q, R) of shapes (..., m, k) and (..., k, n); with "complete" (..., m, m) and (..., m, n).

    Raises:
        ShapeError: x has fewer than two axes.
        ValueError: There is no such mode.
        MatrixError: x is not finite.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.qr(pa.asarray([[3.0, 1.0], [4.0, 2.0]])).R
        Array([[5. , 2.2],
               [0. , 0.4]], float32, 'numpy')

    Gradients: x, if its columns (the first m of them, if there are more) are independent
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode is {shown(mode)}; it must be 'reduced' or 'complete'")
    m, n = _lengths("qr", x)
    q, r = ops.qr(x if m >= n else x[..., :m])
    if m < n:
        r = ops.concat([r, product(adjoint(q), x[..., m:])], axis=-1)
    if mode == "complete" and m > n:
        q = _completed(q)
        r = ops.concat([r, ops.zeros_like(x[..., n:, :])], axis=-2)
    return QR(q, r)


@explained
def svd(x: Array, /, full_matrices: bool = True) -> SVD:
    """Return the singular value decomposition x = U diag(S) Vh.

    Args:
        x: Floating-point or complex array (..., m, n); k is the smaller of m and n.
        full_matrices: Whether U and Vh are square.

    Returns:
        SVD (U, S, Vh) of shapes (..., m, m), (..., k) and (..., n, n); without full_matrices (..., m, k), (..., k) and
        (..., k, n). S is real and descending.

    Raises:
        ShapeError: x has fewer than two axes.
        MatrixError: x is not finite.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.svd(pa.asarray([[0.0, 2.0], [1.0, 0.0]])).S
        Array([2., 1.], float32, 'numpy')

    Gradients: x; the choice of singular vectors of singular values that are equal or 0 has none
    """
    u, s, vh = ops.svd(x)
    if full_matrices:
        u, vh = _completed(u), adjoint(_completed(adjoint(vh)))
    return SVD(u, s, vh)


def _completed(q: Array) -> Array:
    """Return a square matrix with orthonormal columns, the first of which are those of q."""
    *lead, m, n = q.shape
    if m == n:
        return q
    if n == 0:
        return identity(m, q)
    # Complete with random-looking columns, which are independent of those of q; columns of an identity may not be.
    bits = ops.astype(ops.random_bits(0, 0, q, shape=(m, m - n)), dtype=float32)
    others = ops.broadcast_to(ops.astype(bits / 2.0**31 - 1, dtype=q.dtype), shape=(*lead, m, m - n))
    more = ops.qr(ops.concat([q, others], axis=-1))[0][..., n:]
    return ops.concat([q, more], axis=-1)


def _lengths(op: str, x: Array) -> tuple[int, ...]:
    """Return the numbers of rows and columns of matrices."""
    check_array(op, "x", x)
    if x.ndim < 2:
        raise ShapeError(f"{op}: x is {spec_of(x)}; it must have at least two axes")
    return x.shape[-2:]


# ---- equations and determinants ----------------------------------------------------------------------------------


@explained
def solve(x1: Array, x2: Array, /) -> Array:
    """Return the solution y of x1 y = x2.

    Args:
        x1: Floating-point or complex array (..., n, n).
        x2: Floating-point or complex array (n,), one vector for all matrices, or (..., n, k). Leading axes broadcast.

    Returns:
        Array (..., n) or (..., n, k) of the promoted dtype.

    Raises:
        ShapeError: x1 is not square, or x2 has another number of rows.
        MatrixError: x1 is singular or not finite.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.solve(pa.asarray([[2.0, 0.0], [1.0, 1.0]]), pa.asarray([4.0, 5.0]))
        Array([2., 3.], float32, 'numpy')

    Gradients: x1, x2
    """
    check_array("solve", "x2", x2)
    return ops.solve(x1, x2[:, None])[..., 0] if x2.ndim == 1 else ops.solve(x1, x2)


@explained
def solve_triangular(x1: Array, x2: Array, /, *, upper: bool) -> Array:
    """Return the solution y of x1 y = x2 for triangular matrices x1, such as those of cholesky.

    Args:
        x1: Floating-point or complex array (..., n, n).
        x2: Floating-point or complex array (n,), one vector for all matrices, or (..., n, k). Leading axes broadcast.
        upper: Whether the upper triangles of x1 are used, or the lower ones; the others are not read.

    Returns:
        Array (..., n) or (..., n, k) of the promoted dtype.

    Raises:
        ShapeError: x1 is not square, or x2 has another number of rows.
        MatrixError: The triangle of x1 is not finite, or an element of its diagonal is 0.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.solve_triangular(pa.asarray([[2.0, 0.0], [1.0, 1.0]]), pa.asarray([4.0, 5.0]), upper=False)
        Array([2., 3.], float32, 'numpy')

    Gradients: x1, x2
    """
    check_array("solve_triangular", "x2", x2)
    if x2.ndim == 1:
        return ops.solve_triangular(x1, x2[:, None], upper=upper)[..., 0]
    return ops.solve_triangular(x1, x2, upper=upper)


@explained
def slogdet(x: Array, /) -> Slogdet:
    """Return the sign of the determinant and the logarithm of its absolute value; 0 and -inf for a singular matrix.

    Args:
        x: Floating-point or complex array (..., n, n).

    Returns:
        Slogdet (sign, logabsdet) of arrays (...); a complex sign is the determinant divided by its absolute value.

    Raises:
        ShapeError: x is not square.
        MatrixError: x is not finite.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.slogdet(pa.asarray([[2.0, 0.0], [0.0, -1.0]])).sign
        Array(-1., float32, 'numpy')

    Gradients: x, through the logarithm and a complex sign, unless the determinant is 0
    """
    return Slogdet(*ops.slogdet(x))


@explained
def pinv(x: Array, /, rtol: Any = None) -> Array:
    """Return the pseudo-inverse of x.

    Args:
        x: Floating-point or complex array (..., m, n).
        rtol: Number, or array that broadcasts to (...): singular values of at most rtol times the largest count as 0.
            None for max(m, n) times the eps of the dtype.

    Returns:
        Array (..., n, m) of the dtype of x.

    Raises:
        ShapeError: x has fewer than two axes.
        MatrixError: x is not finite.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.pinv(pa.asarray([[2.0, 0.0], [0.0, 0.0]]))
        Array([[0.5, 0. ],
               [0. , 0. ]], float32, 'numpy')

    Gradients: x, where a small change does not change the rank
    """
    return ops.pinv(x, _tolerance("pinv", x, rtol))


def matrix_rank(x: Array, /, *, rtol: Any = None) -> Array:
    """Return the rank: the number of singular values greater than rtol times the largest.

    Args:
        x: Floating-point or complex array (..., m, n).
        rtol: Number, or array that broadcasts to (...); None for max(m, n) times the eps of the dtype.

    Returns:
        int64 array (...).

    Raises:
        ShapeError: x has fewer than two axes.
        MatrixError: x is not finite.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.matrix_rank(pa.asarray([[1.0, 2.0], [2.0, 4.0]]))
        Array(1, int64, 'numpy')

    Gradients: none
    """
    rtol = _tolerance("matrix_rank", x, rtol)
    return ops.sum(significant(ops.svdvals(x), rtol), axis=-1, dtype=int64)


def _tolerance(op: str, x: Array, rtol: Any) -> Any:
    lengths = _lengths(op, x)
    if rtol is None:
        return max(lengths) * float(finfo(x.dtype if x.dtype in INEXACT else float32).eps)
    if isinstance(rtol, Array):
        return rtol.astype(real_of(x.dtype))
    return rtol if isinstance(rtol, NUMBERS) or stands_for_array(rtol) else number(op, "rtol", rtol)


def matrix_power(x: Array, n: int, /) -> Array:
    """Return the n-th power of a matrix; for a negative n, of its inverse.

    Args:
        x: Floating-point or complex array (..., m, m).
        n: Int.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: x is not square.
        MatrixError: n is negative and x is singular.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.matrix_power(pa.asarray([[1.0, 1.0], [0.0, 1.0]]), 3)
        Array([[1., 3.],
               [0., 1.]], float32, 'numpy')

    Gradients: x
    """
    rows, columns = _lengths("matrix_power", x)
    if rows != columns:
        raise ShapeError(f"matrix_power: x is {spec_of(x)}; it must have as many rows as columns")
    n = whole("matrix_power", "n", n)
    x, n = (ops.inv(x), -n) if n < 0 else (x, n)
    factors = []
    while n:
        if n % 2:
            factors.append(x)
        n //= 2
        x = ops.matmul(x, x) if n else x
    found = reduce(ops.matmul, factors) if factors else identity(rows, x)
    return found.snapshot()  # the result must not be the handle x


# ---- norms and sums ----------------------------------------------------------------------------------------------


@explained
def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: float | str | None = "fro") -> Array:
    """Return a norm of matrices.

    Args:
        x: Floating-point or complex array (..., m, n).
        keepdims: Whether the reduced axes stay, with length 1.
        ord: "fro" for the root of the sum of squares, "nuc" for the sum of the singular values, 2 and -2 for the
            largest and smallest singular value, 1 and -1 for the largest and smallest sum of magnitudes of a column,
            inf and -inf of a row.

    Returns:
        Real array (...), or (..., 1, 1) with keepdims, of the precision of x.

    Raises:
        ShapeError: x has fewer than two axes, or there is no element to choose from.
        ValueError: There is no such ord.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.matrix_norm(pa.asarray([[3.0, 0.0], [0.0, 4.0]]))
        Array(5., float32, 'numpy')

    Gradients: x
    """
    _lengths("matrix_norm", x)
    if ord in ("fro", None):
        return ops.vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = ops.svdvals(x)
        found = ops.sum(values, axis=-1) if ord == "nuc" else (ops.max if ord == 2 else ops.min)(values, axis=-1)
        return found[..., None, None] if keepdims else found
    sums = {1: -2, -1: -2, float("inf"): -1, -float("inf"): -1}
    if not isinstance(ord, (int, float)) or ord not in sums:
        raise ValueError(f"matrix_norm: ord is {shown(ord)}; it must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    norms = ops.vector_norm(x, axis=sums[ord], keepdims=True, ord=1)
    return (ops.max if ord > 0 else ops.min)(norms, axis=(-2, -1), keepdims=keepdims)


@explained
def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Return the sum of a diagonal.

    Args:
        x: Array (..., m, n).
        offset: Diagonal: 0 is the main one, positive numbers are above it, negative ones below.
        dtype: Dtype to add up in and of the result; None for the default, as in polyarr.sum.

    Returns:
        Array (...).

    Raises:
        ShapeError: x has fewer than two axes.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.trace(pa.asarray([[1.0, 2.0], [3.0, 4.0]]))
        Array(5., float32, 'numpy')

    Gradients: x
    """
    _lengths("trace", x)
    return ops.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


@explained
def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Return the cross product of vectors of three elements.

    Args:
        x1: Integer, floating-point or complex array of length 3 along axis.
        x2: Integer, floating-point or complex array of length 3 along axis, promoted with x1; they broadcast.
        axis: Axis of the vectors.

    Returns:
        Array of the broadcast shape and the promoted dtype.

    Raises:
        ShapeError: x1 and x2 do not broadcast, or do not have three elements along axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.linalg.cross(pa.asarray([1, 0, 0]), pa.asarray([0, 1, 0]))
        Array([0, 0, 1], int64, 'numpy')

    Gradients: x1, x2
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


if not TYPE_CHECKING:  # to a type checker, every name would seem to be there
    __getattr__ = answering(__name__, __all__)
