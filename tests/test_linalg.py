"""polyarr.linalg: functions built on its ops, gradients, matrices without a result, and backends without the group."""

import types
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import polyarr as pa
from polyarr import linalg, ops
from polyarr.backends.kernels import LINALG, make_kernels
from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError, MatrixError, ShapeError
from polyarr.core.groups import groups, lacking, offer
from polyarr.testing import check_grads

pytestmark = pytest.mark.usefixtures("on_numpy")

INF, NAN = float("inf"), float("nan")
RNG = np.random.default_rng(4)
SQUARE, TALL, WIDE = (RNG.standard_normal((2, *shape)) for shape in ((4, 4), (5, 3), (3, 5)))
DEFINITE = SQUARE @ SQUARE.swapaxes(-1, -2) / 4 + np.eye(4)
DEPENDENT = TALL[..., :2] @ RNG.standard_normal((2, 2, 4))  # of rank 2


def close(found: pa.Array, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


# ---- values ------------------------------------------------------------------------------------------------------


def product(*factors: pa.Array) -> pa.Array:
    found = factors[0]
    for factor in factors[1:]:
        found = found @ factor
    return found


@pytest.mark.parametrize("host", [SQUARE, TALL, WIDE, TALL[:, :, :0], TALL[:, :0], TALL[:0]], ids=np.shape)
def test_decompositions_of_every_shape(host: np.ndarray) -> None:
    """The product of the factors is the matrix, and orthonormal factors are so, with full matrices as well."""
    x, (m, n) = pa.asarray(host), host.shape[-2:]
    k = min(m, n)
    for mode, rows in (("reduced", k), ("complete", m)):
        q, r = linalg.qr(x, mode=mode)
        assert q.shape == (*host.shape[:-2], m, rows) and r.shape == (*host.shape[:-2], rows, n)
        close(q @ r, host)
        close(q.mT @ q, np.broadcast_to(np.eye(rows), (*host.shape[:-2], rows, rows)))
        close(r, np.triu(r.numpy()))
        assert (linalg.diagonal(r).numpy() >= 0).all()
    for full in (True, False):
        u, s, vh = linalg.svd(x, full_matrices=full)
        assert u.shape[-2:] == (m, m if full else k) and vh.shape[-2:] == (n if full else k, n)
        close(product(u[..., :k] * s[..., None, :], vh[..., :k, :]), host)
        for a in (u.mT @ u, vh @ vh.mT):
            close(a, np.broadcast_to(np.eye(a.shape[-1]), a.shape))
    close(linalg.svdvals(x), s.numpy())
    close(linalg.pinv(x), np.linalg.pinv(host))


def test_results_have_the_names_of_the_standard() -> None:
    assert linalg.eigh(pa.asarray(DEFINITE))._fields == ("eigenvalues", "eigenvectors")
    assert linalg.qr(pa.asarray(TALL))._fields == ("Q", "R")
    assert linalg.svd(pa.asarray(TALL))._fields == ("U", "S", "Vh")
    found = linalg.slogdet(pa.asarray(SQUARE))
    assert found._fields == ("sign", "logabsdet")
    for a, e in zip(found, np.linalg.slogdet(SQUARE), strict=True):
        close(a, e)


def test_signs_do_not_depend_on_the_library() -> None:
    w, v = linalg.eigh(pa.asarray(-DEFINITE))
    close(product(v * w[..., None, :], v.mT), -DEFINITE)
    largest = np.take_along_axis(v.numpy(), np.abs(v.numpy()).argmax(-2, keepdims=True), -2)
    assert (largest > 0).all()
    q, r = linalg.qr(pa.asarray([[0.0, 1.0], [1.0, 1.0]]))
    assert q.tolist() == [[0, 1], [1, 0]] and r.tolist() == [[1, 1], [0, 1]]
    assert not np.signbit(r.numpy()[1, 0])


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(upper: bool) -> None:
    close(linalg.cholesky(pa.asarray(DEFINITE), upper=upper), np.linalg.cholesky(DEFINITE, upper=upper))


@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 7])
def test_matrix_power(n: int) -> None:
    x = pa.asarray(SQUARE)
    y = linalg.matrix_power(x, n)
    close(y, np.linalg.matrix_power(SQUARE, n))
    y += 1
    close(x, SQUARE)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, INF, -INF])
@pytest.mark.parametrize("keepdims", [False, True])
def test_norms_of_matrices(order: str | float, keepdims: bool) -> None:
    expected = np.linalg.norm(TALL, ord=order, axis=(-2, -1), keepdims=keepdims)
    close(linalg.matrix_norm(pa.asarray(TALL), ord=order, keepdims=keepdims), expected)


def test_rank_and_pseudo_inverse_of_dependent_columns() -> None:
    x = pa.asarray(DEPENDENT)
    assert linalg.matrix_rank(x).tolist() == [2, 2] and linalg.matrix_rank(x).dtype == pa.int64
    close(linalg.pinv(x), np.linalg.pinv(DEPENDENT, rtol=1e-12))
    rtol = np.array([1e-12, 0.99])
    close(linalg.pinv(x, rtol=pa.asarray(rtol)), np.linalg.pinv(DEPENDENT, rtol=rtol))
    assert linalg.matrix_rank(x, rtol=pa.asarray(rtol)).tolist() == [2, 1]
    assert linalg.pinv(x.astype("float32"), rtol=pa.asarray(rtol)).dtype == pa.float32
    assert linalg.matrix_rank(x, rtol=0.99).tolist() == [1, 1]
    assert linalg.matrix_rank(x[..., :0]).tolist() == [0, 0]


@pytest.mark.parametrize("offset", range(-6, 6))
def test_diagonals(offset: int) -> None:
    close(linalg.diagonal(pa.asarray(TALL), offset=offset), np.diagonal(TALL, offset, -2, -1))
    close(linalg.trace(pa.asarray(TALL), offset=offset), np.trace(TALL, offset, -2, -1))
    assert linalg.trace(pa.ones((2, 2), dtype="int8"), dtype="int8").dtype == pa.int8


def test_cross_products() -> None:
    x, y = TALL, RNG.standard_normal((5, 1, 3))
    close(linalg.cross(pa.asarray(x), pa.asarray(x[::-1])), np.cross(x, x[::-1]))
    close(linalg.cross(pa.asarray(y), pa.asarray(x[:1])), np.cross(y, x[:1]))
    close(linalg.cross(pa.asarray(WIDE), pa.asarray(WIDE[::-1]), axis=1), np.cross(WIDE, WIDE[::-1], axis=1))


@pytest.mark.parametrize("upper", [False, True])
def test_equations_of_a_triangle_do_not_read_the_other_one(upper: bool) -> None:
    triangle = (np.triu if upper else np.tril)(DEFINITE)
    other = np.where(triangle == 0, NAN, triangle)
    for b in (RNG.standard_normal(4), RNG.standard_normal((3, 1, 4, 2))):
        expected = np.linalg.solve(triangle, b if b.ndim > 1 else b[:, None])
        found = linalg.solve_triangular(pa.asarray(other), pa.asarray(b), upper=upper)
        close(found, expected if b.ndim > 1 else expected[..., 0])


def test_equations_with_one_vector_for_all_matrices() -> None:
    b = SQUARE[0, 0]
    close(linalg.solve(pa.asarray(SQUARE), pa.asarray(b)), np.linalg.solve(SQUARE, b))


# ---- gradients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: linalg.cholesky(x, upper=True), (DEFINITE,)),
        (linalg.solve, (SQUARE, SQUARE[0, 0])),
        (partial(linalg.solve_triangular, upper=True), (DEFINITE, SQUARE[0])),
        (linalg.qr, (WIDE,)),
        (lambda x: linalg.qr(x, mode="complete"), (TALL,)),
        (linalg.svd, (WIDE,)),
        (linalg.pinv, (WIDE,)),
        (lambda x: linalg.matrix_power(x, -3), (SQUARE,)),
        (lambda x: [linalg.matrix_norm(x, ord=order) for order in ("fro", "nuc", 1, 2, -2, INF)], (TALL,)),
        (linalg.trace, (WIDE,)),
        (linalg.cross, (TALL, TALL[0, 0])),
    ],
)
def test_gradients_to_the_second_order(fn: Callable, args: tuple) -> None:
    check_grads(fn, args, order=2)


def test_products_within_are_exact(on_numpy: Backend) -> None:
    """Inside linalg functions, products ignore the surrounding precision; those of matrix_power use it."""
    asked = []

    def noting(*args: np.ndarray, precision: str) -> np.ndarray:
        asked.append(precision)
        return on_numpy.kernels[ops.matrix_product](*args)

    kernels = {**on_numpy.kernels, ops.matrix_product: noting}
    with pa.use_backend(on_numpy._replace(kernels=kernels, precisions={ops.matrix_product: ("medium",)})):
        wide, definite = pa.asarray(WIDE), pa.asarray(DEFINITE)
        with pa.use_matmul_precision("medium"):
            for fn, x in ((linalg.cholesky, definite), (linalg.eigh, definite), (linalg.qr, wide), (linalg.svd, wide)):
                value, pull = pa.vjp(fn, x)
                pull(value)
            linalg.pinv(wide)
            assert {*asked} == {"highest"}
            linalg.matrix_power(definite, 2)
    assert asked[-1] == "medium"


def test_third_derivatives() -> None:
    check_grads(linalg.eigh, (DEFINITE,), order=3)


def test_gradients_where_vectors_may_be_chosen() -> None:
    """For equal eigenvalues and singular values, quantities that do not depend on the choice have their gradient."""
    x = pa.asarray(np.diag([2.0, 2.0, 1.0]))

    def rebuilt(x: pa.Array) -> pa.Array:
        w, v = linalg.eigh(x)
        return pa.sum((product(v * w[None, :] ** 2, v.mT)) * weights)

    weights = pa.asarray(SQUARE[0, :3, :3])
    direct = pa.grad(lambda x: pa.sum((x @ x) * weights))(x).numpy()
    found = pa.grad(rebuilt)(x).numpy()
    np.testing.assert_allclose(np.diag(found), np.diag(direct), rtol=1e-12)
    np.testing.assert_allclose(pa.grad(lambda x: pa.sum(linalg.svdvals(x)))(x).numpy(), np.eye(3), atol=1e-12)
    np.testing.assert_allclose(pa.grad(lambda x: pa.sum(linalg.pinv(x)))(x).numpy()[0, 0], -0.25, rtol=1e-12)


@pytest.mark.parametrize("order", [-1, -2, -0.5])
def test_norms_of_negative_order_of_infinities_and_of_nothing(order: float) -> None:
    norm = pa.value_and_grad(lambda x: linalg.vector_norm(x, ord=order))
    value, gradient = norm(pa.asarray([INF, -INF]))
    assert value.item() == INF and gradient.tolist() == [0, 0]
    assert linalg.vector_norm(pa.zeros((2, 0)), axis=1, ord=order).tolist() == [INF, INF]
    assert linalg.vector_norm(pa.asarray([INF, 2.0]), ord=order).item() == pytest.approx(2)


@pytest.mark.parametrize("order", [2, 3, 1, 0.5, -1, -2.5])
def test_zeros_in_a_norm_have_the_gradient_zero(order: float) -> None:
    norm, x = pa.value_and_grad(lambda x: linalg.vector_norm(x, ord=order)), np.array([1.0, -2.0, 0.0, 2.0])
    assert norm(pa.zeros(3))[1].tolist() == [0, 0, 0]
    value, slope = norm(pa.asarray(x))
    np.testing.assert_allclose(value.numpy(), 0 if order < 0 else np.linalg.norm(x, order), rtol=1e-12)
    assert slope.numpy()[2] == 0 and np.isfinite(slope.numpy()).all()


@pytest.mark.parametrize("order", [2, 3, 0.5, -1, INF])
def test_the_norm_over_no_axis_is_the_magnitude(order):
    x = np.array([-0.1590909, 3e30, 0.0, -7e-30], np.float32)
    norms = pa.vjp(lambda x: linalg.vector_norm(x, axis=(), ord=order), pa.asarray(x))
    np.testing.assert_array_equal(norms[0].numpy(), abs(x))
    np.testing.assert_array_equal(norms[1](pa.ones(4))[0].numpy(), np.sign(x))



@pytest.mark.parametrize("host", [np.eye(3, 2), np.eye(4, 1), np.eye(5, 2)[::-1], np.eye(4, 3)[[1, 3, 0, 2]] * 2])
def test_columns_that_complete_a_basis_do_not_hang_on_it(host: np.ndarray) -> None:
    """For such matrices they depend on an identity, and qr, which orthonormalizes them, has no gradient."""
    x, k = pa.asarray(host * np.arange(1, host.shape[1] + 1)), host.shape[1]
    weights = pa.asarray(np.arange(1.0, k + 1))

    def loss(svd: Callable) -> Callable:
        return lambda x: (lambda u, s, vh: pa.sum(product(u[:, :k] * s**2, vh) * weights))(*svd(x))

    found = pa.grad(loss(linalg.svd))(x).numpy()
    expected = pa.grad(loss(lambda x: linalg.svd(x, full_matrices=False)))(x).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-10)
    slope = pa.grad(lambda x: pa.sum(linalg.qr(x, mode="complete")[1] ** 2))(x).numpy()
    np.testing.assert_allclose(slope, 2 * x.numpy(), atol=1e-10)
    q = linalg.qr(x, mode="complete")[0].numpy()
    np.testing.assert_allclose(q.T @ q, np.eye(len(q)), atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_keep_their_dtype(dtype: str) -> None:
    x = pa.asarray(DEFINITE).astype(dtype)
    names = "cholesky eigh qr svd inv det pinv slogdet".split()
    for fn in (getattr(linalg, name) for name in names):
        value, pull = pa.vjp(fn, x)
        (grad,) = pull(value)
        assert {a.dtype for a in (*pa.tree.leaves(value), grad)} == {x.dtype}
    q = linalg.qr(x[..., :1], mode="complete")[0]
    np.testing.assert_allclose((q.mT @ q).astype("float32").numpy(), np.broadcast_to(np.eye(4), q.shape), atol=0.05)


# ---- what has no answer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: linalg.inv(pa.ones((2, 2))), MatrixError, r"^inv: x is float32\[2, 2\]; it must have an inv"),
        (lambda: linalg.solve(pa.zeros((3, 2, 2)), pa.ones(2)), MatrixError, r"^solve: x is float32\[3, 2, 2\]; it mu"),
        (lambda: linalg.cholesky(-pa.eye(3)), MatrixError, r"^cholesky: x is .*\[3, 3\]; it must be positive def"),
        (lambda: linalg.matrix_power(pa.ones((2, 2)), -1), MatrixError, "^inv: .* it must have an inverse$"),
        (lambda: pa.grad(linalg.det)(pa.ones((2, 2))), MatrixError, "^inv: .* it must have an inverse$"),
        (lambda: linalg.svd(pa.full((2, 3), NAN)), MatrixError, "^svd: .* and holds nan or infinity; it must be fin"),
        (lambda: linalg.det(pa.full((2, 2), INF)), MatrixError, "^det: .* and holds nan or infinity; it must be fin"),
        (lambda: linalg.inv(pa.ones((2, 3))), ShapeError, r"^inv: x is float32\[2, 3\]; it must have as many rows as"),
        (lambda: linalg.eigh(pa.ones(3)), ShapeError, r"^eigh: x is float32\[3\]; it must have at least two axes$"),
        (lambda: ops.qr(pa.ones((2, 3))), ShapeError, r"^qr: x is float32\[2, 3\]; it must have at least as many rows"),
        (lambda: linalg.solve_triangular(pa.eye(2), pa.ones(3), upper=True), ShapeError, "^solve_triangular: x is"),
        (lambda: linalg.solve(pa.eye(2), pa.ones((3, 1))), ShapeError, "^solve: .* b must have as many rows as x$"),
        (lambda: linalg.matrix_power(pa.ones((2, 3)), 2), ShapeError, "^matrix_power: .* as many rows as columns$"),
        (lambda: linalg.cross(pa.ones(2), pa.ones(2)), ShapeError, "^cross: .* axis -1 must have three elements$"),
        (lambda: linalg.diagonal(pa.ones(2)), ShapeError, "^diagonal: .* at least two axes$"),
        (lambda: linalg.vector_norm(pa.zeros((0, 2)), axis=0, ord=INF), ShapeError, "no element to choose from$"),
        (lambda: linalg.qr(pa.eye(2), mode="r"), ValueError, "^qr: mode is 'r'; it must be 'reduced' or 'complete'$"),
        (lambda: linalg.matrix_norm(pa.eye(2), ord=3), ValueError, "^matrix_norm: ord is 3; it must be 'fro', 'nuc',"),
        (lambda: linalg.matrix_rank([[1.0]]), TypeError, "^matrix_rank: x is a list; it must be a polyarr array"),
    ],
)
def test_bad_matrices_are_one_line(call: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as found:
        call()
    assert found.type is error and "\n" not in str(found.value)


def test_nan_beside_a_matrix_goes_through() -> None:
    """As in any sum: the error is not in the matrix."""
    assert np.isnan(linalg.solve(pa.eye(2), pa.asarray([1.0, NAN])).numpy()[1])
    assert linalg.slogdet(pa.ones((2, 2))).logabsdet.item() == -INF and linalg.det(pa.ones((2, 2))).item() == 0


def test_a_library_that_says_nothing_of_singular_matrices() -> None:
    """JAX, for example, returns nan; the error is the same."""

    def silent(fn: Callable) -> Callable:
        def call(*args: np.ndarray) -> np.ndarray:
            try:
                return fn(*args)
            except np.linalg.LinAlgError:
                return np.full_like(args[-1], NAN)

        return call

    named = {op.name: getattr(np.linalg, op.name) for op in LINALG} | {"diagonal": np.linalg.diagonal}
    named |= {name: silent(named[name]) for name in ("cholesky", "solve", "inv")}
    library = types.SimpleNamespace(**vars(np) | {"linalg": types.SimpleNamespace(**named)})
    where = Backend("silent", make_kernels(library), np.array, lambda b: np.array(b, order="C"))
    for fn, host in ((linalg.cholesky, -np.eye(2)), (linalg.inv, np.ones((2, 2)))):
        with pytest.raises(MatrixError, match=r"it must"):
            fn(pa.asarray(host, device=where))
    close(linalg.inv(pa.asarray(SQUARE, device=where)), np.linalg.inv(SQUARE))


# ---- the group ---------------------------------------------------------------------------------------------------


def test_the_group_is_lacking_in_one_line(on_numpy: Backend) -> None:
    bare = on_numpy._replace(name="bare", kernels={op: k for op, k in on_numpy.kernels.items() if not op.group})
    assert groups() == ["complex", "conv", "eig", "linalg"]
    assert offer(bare, "conv") == "offered"  # it has no primitives, so every backend can run it
    assert (offer(on_numpy, "linalg"), offer(bare, "linalg")) == ("offered", "not offered")
    told = r": backend 'bare' has no linalg; compute it on one that has \(see polyarr ops\), with x\.to\(.numpy.\)$"
    x, square = pa.asarray(TALL, device=bare), pa.asarray(SQUARE, device=bare)
    calls = {linalg.svd: x, linalg.svdvals: x, linalg.pinv: x, linalg.inv: square, linalg.det: square}
    for fn, given in calls.items():
        with pytest.raises(BackendError, match=f"^{fn.__name__}{told}"):
            fn(given)
    with pytest.raises(BackendError, match=f"^det{told}"):
        pa.grad(lambda x: pa.sum(linalg.det(x)))(square)
    close(linalg.svdvals(x.to("numpy")), np.linalg.svdvals(TALL))
    close(linalg.matrix_norm(x), np.linalg.norm(TALL, axis=(-2, -1)))  # which needs no decomposition
    close(linalg.trace(x), np.trace(TALL, 0, -2, -1))


def test_a_group_in_part_lacks_what_is_not_there(on_numpy: Backend) -> None:
    part = on_numpy._replace(kernels={op: k for op, k in on_numpy.kernels.items() if op is not ops.qr})
    assert offer(part, "linalg") == "in part" and lacking(part, "linalg") == [ops.qr]
    with pytest.raises(BackendError, match=r"^qr: backend 'numpy' has no kernel for it; compute"):
        linalg.qr(pa.asarray(TALL, device=part))


def test_make_kernels_offers_the_group_as_a_whole() -> None:
    named = {name: fn for name, fn in vars(np.linalg).items() if name != "svd"}
    without = make_kernels(types.SimpleNamespace(**vars(np) | {"linalg": types.SimpleNamespace(**named)}))
    assert make_kernels(np).keys() - without.keys() == LINALG.keys()
