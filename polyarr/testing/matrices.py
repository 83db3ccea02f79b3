"""Checks of the ops of linalg and eig for matrices that are singular, permuted, not finite, or have equal eigenvalues.

Eigenvectors and singular vectors are not unique, so results are checked in float64 against their defining equations.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import polyarr
from polyarr import ops, tree
from polyarr.core.backend import Backend
from polyarr.core.errors import MatrixError
from polyarr.core.op import Op
from polyarr.core.spec import COMPLEX, FLOATS, complex64, complex128, float32, float64
from polyarr.testing.checks import check, check_forward, label_of
from polyarr.testing.compare import CheckFailure, values
from polyarr.testing.strategies import Sample
from polyarr.testing.tolerance import TABLE

WIDE = {float32: float64, float64: float64, complex64: complex128, complex128: complex128}
MAX_COMPLEX = 9  # largest length of a complex matrix with special values
STACK = 40  # matrices in a stack; the last is the one under test


def _stacked(bad: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the matrix, and a stack of regular ones that ends with it."""
    yield bad
    good = np.broadcast_to(np.eye(*bad.shape) * 2, (STACK - 1, *bad.shape))
    yield np.concatenate([good, bad[None]])


# ---- matrices without a result -------------------------------------------------------------------------------------


def _not_finite() -> Iterator[np.ndarray]:
    for value, at in ((np.nan, (0, 0)), (np.inf, (2, 1)), (-np.inf, (1, 2)), (-np.nan, (2, 2))):
        bad = np.eye(3) * 2
        bad[at] = value
        yield bad
    large = np.eye(70) * 2
    large[69, 3] = large[3, 69] = np.nan
    yield large


def _singular() -> Iterator[np.ndarray]:
    yield np.zeros((1, 1))
    yield np.array([[1.0, 2.0], [2.0, 4.0]])
    yield np.diag([1.0, 0.0, 3.0])
    large = np.eye(70)
    large[-1, -1] = 0
    yield large


def _not_definite() -> Iterator[np.ndarray]:
    yield np.zeros((2, 2))
    yield -np.eye(3)
    yield np.array([[1.0, 2.0], [2.0, 1.0]])
    large = np.eye(70)
    large[-1, -1] = -1
    yield large


def _unusable_triangles() -> Iterator[np.ndarray]:
    """Yield matrices whose lower triangle is not finite, or has a 0 on its diagonal."""
    for x in (*_not_finite(), *_singular()):
        if not np.isfinite(np.tril(x)).all() or 0 in np.diagonal(x):
            yield x


REFUSED: dict[Op, tuple[Callable, ...]] = {
    op: (_not_finite,)
    for op in (
        ops.eigh, ops.qr, ops.svd, ops.slogdet, ops.det, ops.eigvalsh, ops.svdvals, ops.pinv, ops.eig, ops.eigvals,
    )
}
REFUSED |= {
    ops.cholesky: (_not_finite, _not_definite),
    ops.solve: (_not_finite, _singular),
    ops.inv: (_not_finite, _singular),
    ops.solve_triangular: (_unusable_triangles,),
}


@check
def check_refused(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that a matrix without a result raises MatrixError at once or at the next download, and later calls work."""
    for dtype in (d for d in FLOATS if d in backend.dtypes):
        for matrices in REFUSED[op]:
            for host in (a for bad in matrices() for a in _stacked(bad)):
                _check_raises(op, backend, host.astype(dtype))
    if op is ops.det:  # its gradient needs the inverse
        x = polyarr.asarray(np.diag([1.0, 0.0]).astype(np.float32), device=backend)
        _expect_matrix_error(f"{label_of(op, backend)}: the gradient of a singular matrix", lambda: polyarr.grad(op)(x))
    check_forward(op, backend, sample)


def _check_raises(op: Op, backend: Backend, host: np.ndarray) -> None:
    x = polyarr.asarray(host, device=backend)
    more = {ops.solve: (x,), ops.solve_triangular: (x,), ops.pinv: (0.1,)}.get(op, ())
    params = {"upper": False} if op is ops.solve_triangular else {}
    bad = host.reshape(-1, *host.shape[-2:])[-1]
    what = f"not finite at {np.argwhere(~np.isfinite(bad))[0].tolist()}" if not np.isfinite(bad).all() else "singular"
    what = "not positive definite" if op is ops.cholesky and what == "singular" else what
    given = f"{host.dtype.name}{list(host.shape)}, the last of which is {what},"
    _expect_matrix_error(f"{label_of(op, backend)}: {given}", lambda: op(x, *more, **params))


def _expect_matrix_error(what: str, call: Callable[[], Any]) -> None:
    try:
        found = [a.tolist() for a in tree.leaves(call())]
    except MatrixError:
        return
    raise CheckFailure(f"{what} gave {str(found)[:80]}; expected a MatrixError")


# ---- what defines a result -----------------------------------------------------------------------------------------


def _rotation(n: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]


def _squares() -> Iterator[np.ndarray]:
    yield from (np.eye(3), np.array([[-2.0]]), np.array([[0.0, 1.0], [1.0, 0.0]]), np.eye(5)[[2, 0, 4, 1, 3]])
    yield np.eye(33)[::-1] * np.arange(1, 34)
    for n, turn in ((4, _rotation(4, 1)), (9, _rotation(9, 2)), (70, _rotation(70, 3))):
        yield turn * np.resize([1.0, 1.0, 2.0], n) @ turn.T  # equal eigenvalues
        yield turn[::-1]  # all singular values are 1
    small_pivot = np.random.default_rng(4).standard_normal((6, 6))
    small_pivot[0, 0] = 0.0
    yield small_pivot
    yield np.array([[1e-7, 1.0], [1.0, 1.0]])  # needs pivoting
    yield np.diag([3.0, -1.0, 2.0, -5.0])
    yield np.triu(np.ones((5, 5))) + np.eye(5)


def _degenerate() -> Iterator[np.ndarray]:
    yield from (np.zeros((3, 3)), np.diag([1.0, 0.0, 3.0]), np.ones((4, 4)))
    yield np.outer(np.arange(1.0, 6.0), [1.0, 2.0, 3.0, 4.0, 5.0])


def _rectangles() -> Iterator[np.ndarray]:
    yield from (np.eye(5, 3), np.ones((5, 3)), np.zeros((4, 2)), np.eye(7, 3)[:, ::-1] * -2.0)
    yield np.repeat(np.random.default_rng(5).standard_normal((9, 2)), 2, axis=1)


def _definite() -> Iterator[np.ndarray]:
    yield from (np.eye(3), np.array([[4.0]]), np.diag([1e-3, 1.0, 1e3]))
    for n, seed in ((4, 4), (33, 33), (70, 70), (70, 71)):
        turn = _rotation(n, seed)
        yield turn * np.resize([1.0, 1.0, 2.0], n) @ turn.T


def _adjoint(a: np.ndarray) -> np.ndarray:
    return a.swapaxes(-1, -2).conj()


def _phases_hold(v: np.ndarray) -> np.ndarray:
    """Return each column's element of largest magnitude minus its magnitude; 0 if two are about as large."""
    sizes = np.sort(np.abs(v), axis=-2)
    clear = np.ones(v.shape[-1], bool) if v.shape[-2] < 2 else sizes[..., -1, :] > 1.01 * sizes[..., -2, :]
    top = np.take_along_axis(v, np.abs(v).argmax(-2, keepdims=True), -2)[..., 0, :]
    return np.where(clear, top - np.abs(top), 0.0)


Equations = Iterator[tuple[str, np.ndarray, np.ndarray]]  # description, left side, right side


def _of_cholesky(x: np.ndarray, low: np.ndarray) -> Equations:
    yield "L L^H", low @ _adjoint(low), (x + _adjoint(x)) / 2
    yield "what lies above the diagonal", np.triu(low, 1), np.zeros_like(low)
    yield "the diagonal's sign", np.sign(np.diagonal(low)), np.ones(low.shape[-1])


def _of_eigh(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> Equations:
    yield "v diag(w) v^H", v * w @ _adjoint(v), (x + _adjoint(x)) / 2
    yield "v^H v", _adjoint(v) @ v, np.eye(v.shape[-1])
    yield "the order of w", w, np.sort(w)
    yield "the phase of v's columns", _phases_hold(v), np.zeros(v.shape[-1])


def _of_eig(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> Equations:
    yield "v diag(w)", v * w, x @ v
    yield "the norms of v's columns", np.linalg.norm(v, axis=-2), np.ones(v.shape[-1])
    yield "the phase of v's columns", _phases_hold(v), np.zeros(v.shape[-1])


def _of_eigvals(x: np.ndarray, w: np.ndarray) -> Equations:
    yield "the sum of w", w.sum(), np.trace(x)
    yield "the sum of squares of w", (w * w).sum(), np.trace(x @ x)


def _of_qr(x: np.ndarray, q: np.ndarray, r: np.ndarray) -> Equations:
    yield "q r", q @ r, x
    yield "q^H q", _adjoint(q) @ q, np.eye(q.shape[-1])
    yield "what lies below the diagonal of r", np.tril(r, -1), np.zeros_like(r)
    yield "what is not positive on the diagonal of r", np.diagonal(r) - np.abs(np.diagonal(r)), np.zeros(r.shape[-1])


def _of_svd(x: np.ndarray, u: np.ndarray, s: np.ndarray, vh: np.ndarray) -> Equations:
    yield "u diag(s) vh", u * s @ vh, x
    yield "u^H u", _adjoint(u) @ u, np.eye(u.shape[-1])
    yield "vh vh^H", vh @ _adjoint(vh), np.eye(vh.shape[-2])
    yield "the order of s", s, np.maximum(np.sort(s)[::-1], 0)
    yield "the phase of u's columns", _phases_hold(u), np.zeros(u.shape[-1])


def _of_slogdet(x: np.ndarray, sign: np.ndarray, size: np.ndarray) -> Equations:
    expected = np.linalg.slogdet(x)
    yield "the sign", sign, expected[0]
    yield "the logarithm", size, expected[1]


def _of_pinv(x: np.ndarray, y: np.ndarray) -> Equations:
    yield "x y x", x @ y @ x, x
    yield "y x y", y @ x @ y, y
    yield "(x y)^H", _adjoint(x @ y), x @ y
    yield "(y x)^H", _adjoint(y @ x), y @ x


DEFINED: dict[Op, tuple[tuple[Callable, ...], Callable[..., Equations]]] = {
    ops.cholesky: ((_definite,), _of_cholesky),
    ops.eigh: ((_squares, _degenerate), _of_eigh),
    ops.eigvalsh: ((_squares, _degenerate), lambda x, w: iter([("w", w, np.linalg.eigvalsh((x + _adjoint(x)) / 2))])),
    ops.eig: ((_squares, _degenerate), _of_eig),
    ops.eigvals: ((_squares, _degenerate), _of_eigvals),
    ops.qr: ((_squares, _degenerate, _rectangles), _of_qr),
    ops.svd: ((_squares, _degenerate, _rectangles), _of_svd),
    ops.svdvals: ((_squares, _degenerate, _rectangles), lambda x, s: iter([("s", s, np.linalg.svd(x)[1])])),
    ops.slogdet: ((_squares, _singular), _of_slogdet),
    ops.det: ((_squares, _singular), lambda x, d: iter([("the determinant", d, np.linalg.det(x))])),
    ops.solve: ((_squares,), lambda x, y: iter([("x y", x @ y, _right_side(x))])),
    ops.solve_triangular: ((_definite,), lambda x, y: iter([("x y", np.tril(x) @ y, _right_side(x))])),
    ops.inv: ((_squares,), lambda x, y: iter([("x y", x @ y, np.eye(len(x)))])),
    ops.pinv: ((_squares, _degenerate, _rectangles), _of_pinv),
}


def _right_side(x: np.ndarray) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((x.shape[-1], 2)).astype(np.float32).astype(np.float64)


@check
def check_defined(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that results satisfy their equations for matrices that are singular, permuted or have equal eigenvalues."""
    makers, equations = DEFINED[op]
    for dtype in (d for d in (float32, float64, complex64) if d in backend.dtypes):
        hosts = [x for make in makers for x in make()]
        if dtype in COMPLEX:
            hosts = [_with_phases(x) for x in hosts if max(x.shape) <= MAX_COMPLEX]
        by_shape: dict[tuple, list[np.ndarray]] = {}
        for host in hosts:
            by_shape.setdefault(host.shape, []).append(host)
        stacks = [np.stack(alike) for alike in by_shape.values() if len(alike) > 1]  # regular ones among singular ones
        for host in (*hosts, *stacks):
            x = polyarr.asarray(host.astype(dtype), device=backend)
            wide = x.numpy().astype(WIDE[dtype])
            sides = polyarr.asarray(_right_side(wide).astype(dtype), device=backend)
            more = {ops.solve: (sides,), ops.solve_triangular: (sides,), ops.pinv: (1e-4,)}.get(op, ())
            params = {"upper": False} if op is ops.solve_triangular else {}
            found = values(label_of(op, backend), op(x, *more, **params))
            results = [wide, *(a.astype(WIDE[a.dtype]) for a in found)]
            for each in zip(*results, strict=True) if host.ndim == 3 else [results]:
                given = f"{'a stack with ' * (host.ndim == 3)}{dtype.name}{each[0].tolist()}"
                for what, got, due in equations(*each):
                    _agree(f"{label_of(op, backend)}: of {given}"[:200], what, got, due, dtype)


def _with_phases(x: np.ndarray) -> np.ndarray:
    """Return x with powers of i as factors of rows and their reciprocals of columns: exact, and eigenvalues stay."""
    rows, columns = (np.resize([1, 1j, -1, -1j], n) for n in x.shape)
    return rows[:, None] * x * columns.conj()


def _agree(where: str, what: str, got: np.ndarray, due: np.ndarray, dtype: np.dtype) -> None:
    size = max(1.0, float(np.abs(due[np.isfinite(due)]).max(initial=0.0)))
    bound = (
        TABLE["composed"][np.dtype(np.float32)]
        * float(polyarr.finfo(dtype).eps)
        * size
        * max(len(np.atleast_1d(got)), 1)
    )
    with np.errstate(all="ignore"):
        bad = ~((got == due) | (np.abs(got - due) <= bound))
    if bad.any():
        at = np.unravel_index(np.argmax(bad), bad.shape)
        place = f"{what} ({dtype.name}) differs at {list(map(int, at))}: {got[at]}, expected {due[at]}"
        raise CheckFailure(
            f"{where}: {place} (off by {abs(got[at] - due[at]):.3g}, allowed {bound:.3g}; "
            f"{int(bad.sum())} of {bad.size} elements differ)"
        )
