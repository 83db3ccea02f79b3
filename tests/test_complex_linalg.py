"""polyarr.linalg of complex matrices, and eigenvalues of matrices that are not Hermitian."""

from collections.abc import Callable

import numpy as np
import pytest

import polyarr as pa
from polyarr import linalg, ops
from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError, DtypeError, MatrixError, ShapeError
from polyarr.testing import check_grads

pytestmark = pytest.mark.usefixtures("on_numpy")

RNG = np.random.default_rng(8)
INF = float("inf")


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)


def adjoint(a: np.ndarray) -> np.ndarray:
    return a.swapaxes(-1, -2).conj()


SQUARE, TALL, WIDE = random(2, 4, 4), random(2, 5, 3), random(2, 3, 5)
DEFINITE = SQUARE @ adjoint(SQUARE) / 4 + np.eye(4)
REAL = RNG.standard_normal((2, 4, 4))


def close(found: pa.Array, expected: np.ndarray) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


def unitary(columns: np.ndarray) -> None:
    found = adjoint(columns) @ columns
    np.testing.assert_allclose(found, np.broadcast_to(np.eye(found.shape[-1]), found.shape), atol=1e-12)


def positive(found: np.ndarray) -> None:
    np.testing.assert_allclose(found, np.abs(found), atol=1e-15)


def largest(v: np.ndarray) -> np.ndarray:
    return np.take_along_axis(v, np.abs(v).argmax(-2, keepdims=True), -2)


# ---- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [SQUARE, TALL, WIDE, TALL[:, :, :0], TALL[:, :0], TALL[:0]], ids=np.shape)
def test_factors_of_every_shape(host: np.ndarray) -> None:
    x, (m, n) = pa.asarray(host), host.shape[-2:]
    k = min(m, n)
    for mode, rows in (("reduced", k), ("complete", m)):
        q, r = (a.numpy() for a in linalg.qr(x, mode=mode))
        assert q.shape[-1] == r.shape[-2] == rows
        np.testing.assert_allclose(q @ r, host, atol=1e-12)
        unitary(q)
        positive(np.diagonal(r, 0, -2, -1))
    for full in (True, False):
        u, s, vh = linalg.svd(x, full_matrices=full)
        assert u.shape[-2:] == (m, m if full else k) and vh.shape[-2:] == (n if full else k, n)
        assert s.dtype == pa.float64
        np.testing.assert_allclose((u[..., :k] * s[..., None, :] @ vh[..., :k, :]).numpy(), host, atol=1e-12)
        unitary(u.numpy())
        unitary(adjoint(vh.numpy()))
    close(linalg.pinv(x), np.linalg.pinv(host))


def test_hermitian_matrices() -> None:
    x = pa.asarray(SQUARE)
    w, v = linalg.eigh(x)
    hermitian = (SQUARE + adjoint(SQUARE)) / 2
    close(w, np.linalg.eigvalsh(hermitian))
    close(linalg.eigvalsh(x), w.numpy())
    np.testing.assert_allclose(v.numpy() * w.numpy()[:, None] @ adjoint(v.numpy()), hermitian, atol=1e-12)
    positive(largest(v.numpy()))
    positive(largest(linalg.svd(x).U.numpy()))
    definite = pa.asarray(DEFINITE)
    close(linalg.cholesky(definite), np.linalg.cholesky(DEFINITE))
    close(linalg.cholesky(definite, upper=True), adjoint(np.linalg.cholesky(DEFINITE)))


def test_equations_and_determinants() -> None:
    x = pa.asarray(SQUARE)
    close(linalg.inv(x), np.linalg.inv(SQUARE))
    close(linalg.solve(x, pa.asarray(REAL)), np.linalg.solve(SQUARE, REAL))
    close(linalg.solve(pa.asarray(REAL), x), np.linalg.solve(REAL, SQUARE))
    close(linalg.det(x), np.linalg.det(SQUARE))
    for a, e in zip(linalg.slogdet(x), np.linalg.slogdet(SQUARE), strict=True):
        close(a, e)
    close(linalg.matrix_power(x, -3), np.linalg.matrix_power(SQUARE, -3))


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, INF, -INF])
def test_norms(order: str | float) -> None:
    close(linalg.matrix_norm(pa.asarray(TALL), ord=order), np.linalg.norm(TALL, ord=order, axis=(-2, -1)))
    if not isinstance(order, str):
        close(linalg.vector_norm(pa.asarray(TALL), axis=1, ord=order), np.linalg.norm(TALL, ord=order, axis=1))


def test_ranks() -> None:
    host = TALL[..., :2] @ random(2, 2, 4)
    x, rtol = pa.asarray(host), np.array([1e-12, 0.99])
    assert linalg.matrix_rank(x).tolist() == [2, 2]
    assert linalg.matrix_rank(x, rtol=pa.asarray(rtol)).tolist() == [2, 1]
    close(linalg.pinv(x, rtol=pa.asarray(rtol)), np.linalg.pinv(host, rtol=rtol))
    assert linalg.pinv(x.astype("complex64"), rtol=pa.asarray(rtol)).dtype == pa.complex64


@pytest.mark.parametrize("host", [SQUARE, REAL, SQUARE[:, :0, :0], SQUARE[:0]])
def test_eigenvalues(host: np.ndarray) -> None:
    w, v = linalg.eig(pa.asarray(host))
    assert w.dtype == v.dtype == pa.complex128 and w.shape == host.shape[:-1] and v.shape == host.shape
    np.testing.assert_allclose(host @ v.numpy(), v.numpy() * w.numpy()[..., None, :], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(v.numpy(), axis=-2), np.ones(w.shape), rtol=1e-12)
    if host.size:
        positive(largest(v.numpy()))
    keys = np.sort_complex(w.numpy())  # by real parts, then by imaginary ones
    np.testing.assert_array_equal(w.numpy(), keys)
    close(linalg.eigvals(pa.asarray(host)), w.numpy())


def test_real_eigenvalues_come_as_complex_numbers() -> None:
    w, v = linalg.eig(pa.asarray([[2.0, 1.0], [0.0, 1.0]]))
    assert w.tolist() == [1, 2] and w.dtype == v.dtype == pa.complex64
    assert linalg.eigvals(pa.asarray([[2.0, 1.0], [0.0, 1.0]], dtype="float16")).dtype == pa.complex64
    assert linalg.eig(pa.asarray(REAL))._fields == ("eigenvalues", "eigenvectors")


# ---- gradients ---------------------------------------------------------------------------------------------------


def of_parts(fn: Callable) -> Callable:
    """Return fn of real and imaginary parts, with the parts of its results: a function that check_grads can check."""

    def parts(*halves: pa.Array) -> list[pa.Array]:
        found = fn(*(ops.complex(re, im) for re, im in zip(halves[::2], halves[1::2], strict=True)))
        leaves = pa.tree.leaves(found)
        return [part for a in leaves for part in ((pa.real(a), pa.imag(a)) if "complex" in a.dtype.name else (a,))]

    return parts


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (linalg.cholesky, (DEFINITE,)),
        (lambda x: linalg.cholesky(x, upper=True), (DEFINITE,)),
        (linalg.solve, (SQUARE, SQUARE[1])),
        (linalg.inv, (SQUARE,)),
        (linalg.det, (SQUARE,)),
        (linalg.slogdet, (SQUARE,)),
        (linalg.qr, (TALL,)),
        (linalg.qr, (WIDE,)),
        (linalg.eigh, (SQUARE,)),
        (linalg.svd, (SQUARE,)),
        (lambda x: linalg.svd(x, full_matrices=False), (TALL,)),
        (lambda x: linalg.svd(x, full_matrices=False), (WIDE,)),
        (linalg.pinv, (TALL,)),
        (linalg.eig, (SQUARE,)),
        (linalg.eigvals, (SQUARE,)),
        (lambda x: [linalg.matrix_norm(x, ord=order) for order in ("fro", "nuc", 1, 2, -2, INF)], (TALL,)),
    ],
)
def test_gradients_to_the_second_order(fn: Callable, args: tuple) -> None:
    halves = [part for a in args for part in (a.real, a.imag)]
    check_grads(of_parts(fn), tuple(map(np.ascontiguousarray, halves)))


@pytest.mark.parametrize("fn", [linalg.eig, linalg.eigvals])
def test_gradients_of_real_matrices(fn: Callable) -> None:
    check_grads(lambda x: of_parts(lambda z: fn(x))(x, x), (REAL,))


def test_gradients_have_no_conjugate() -> None:
    """That of a real function f is df/dx - i df/dy: of Re det x it is det x times the inverse of x, transposed."""
    slope = pa.grad(lambda x: pa.sum(pa.real(linalg.det(x))))(pa.asarray(SQUARE))
    close(slope, np.linalg.det(SQUARE)[:, None, None] * np.linalg.inv(SQUARE).swapaxes(-1, -2))


# ---- what has no result ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: linalg.inv(pa.ones((2, 2), dtype="complex64")), MatrixError, r"^inv: x is complex64\[2, 2\]; it must"),
        (lambda: linalg.cholesky(pa.asarray(-DEFINITE)), MatrixError, r"^cholesky: x is .* must be positive definite$"),
        (lambda: linalg.svd(pa.full((2, 2), complex(0, INF))), MatrixError, "^svd: .* holds nan or infinity; it"),
        (lambda: linalg.eig(pa.full((2, 2), INF)), MatrixError, r"^eig: x is float32\[2, 2\] and holds nan or inf"),
        (lambda: linalg.eig(pa.ones((2, 3))), ShapeError, r"^eig: x is float32\[2, 3\]; it must have as many rows as"),
        (lambda: linalg.eigvals([[1.0]]), TypeError, "^eigvals: x is a list; it must be a polyarr array"),
        (lambda: ops.pinv(pa.asarray(TALL), pa.asarray(TALL[:, 0, 0])), DtypeError, "^pinv: rtol is complex128"),
    ],
)
def test_bad_matrices_are_one_line(call: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as found:
        call()
    assert "\n" not in str(found.value)


# ---- backends without eig ----------------------------------------------------------------------------------------


def test_eigenvalues_are_computed_on_the_host(on_numpy: Backend) -> None:
    kernels = {op: k for op, k in on_numpy.kernels.items() if op.group != "eig"}
    bare = Backend("bare", kernels, np.array, lambda b: np.array(b, order="C"), dtypes=on_numpy.dtypes)
    x, before = pa.asarray(REAL, device=bare), pa.transfers()
    w, v = linalg.eig(x)
    assert w.backend is v.backend is bare and linalg.eigvals(x).backend is bare
    assert pa.transfers().downloads > before.downloads
    close(w, linalg.eigvals(pa.asarray(REAL)).numpy())
    close(pa.vmap(linalg.eigvals)(x), w.numpy())
    slope = pa.grad(lambda x: pa.sum(pa.real(linalg.eigvals(x) ** 2)))(x)
    assert slope.backend is bare
    close(slope, 2 * REAL.swapaxes(-1, -2))  # the sum of squares is the trace of x @ x
    with pytest.raises(BackendError, match=r"^eig: backend 'bare' has no eig; compute"):
        ops.eig(x)
    real = pa.asarray(REAL, device=bare._replace(name="real", dtypes=frozenset({pa.float64}), home=object()))
    with pytest.raises(DtypeError, match="complex128 on 'real'"):
        linalg.eig(real)
