"""Decompositions on OpenCL against NumPy's in float64, with the kernels for CPUs and those for GPUs."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import linalg, ops
from polyarr.core.current import use_backend
from polyarr.core.errors import CaptureError, MatrixError
from tests.backends.opencl.rows.test_gpu_kernels import as_gpu  # noqa: F401  a fixture
from tests.helpers.launches import launches
from tests.helpers.opencl_modules import opencl_modules

eigen, jacobi, matrices, tridiagonal = opencl_modules("eigen", "jacobi", "matrices", "tridiagonal")
pytestmark = pytest.mark.polyarr_backend("opencl")
RNG = np.random.default_rng(3)
EPS = 2.0**-52


@pytest.fixture(params=["as it is", "as a GPU"])
def device(request, backend, as_gpu, monkeypatch):  # noqa: F811
    """A backend whose panels and blocks are narrow, so that small matrices have several, and kernels compile fast."""
    monkeypatch.setattr(matrices, "PANEL", {"cpu": 5, "gpu": 5})
    monkeypatch.setattr(matrices, "GROUP", {"cpu": 1, "gpu": 16})
    monkeypatch.setattr(matrices, "TALL_GROUP", {"cpu": 1, "gpu": 32})
    monkeypatch.setattr(matrices, "TALL", 20)
    monkeypatch.setattr(jacobi, "MAX_HALF", 4)
    monkeypatch.setattr(eigen, "MIN_TRIDIAGONAL", {"eigh": 4, "svd": 6})
    monkeypatch.setattr(tridiagonal, "PANEL", 3)
    monkeypatch.setattr(tridiagonal, "MAX_LEAF", 3)
    programs = as_gpu.upload.__self__.programs
    build, options = programs._build, programs.options

    def built(stem, defines):
        # Without optimization PoCL 3 computes find_rotations wrong. Optimizing the other kernels takes too long.
        programs.options = [] if stem == "jacobi" else options
        return build(stem, defines)

    monkeypatch.setattr(programs, "_build", built)
    monkeypatch.setattr(programs, "options", options)  # to restore them
    chosen = backend if request.param == "as it is" else as_gpu
    with use_backend(chosen):
        yield chosen


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def rotation(n: int) -> np.ndarray:
    return np.linalg.qr(random(n, n))[0]


def graded(n: int) -> np.ndarray:
    return np.logspace(-20, 20, n)


SQUARES = {
    **{f"random {n}": random(n, n) for n in (1, 2, 3, 7, 13, 33)},
    "batch": random(2, 3, 6, 6),
    "zero": np.zeros((6, 6)),
    "ones": np.ones((7, 7)),
    "of rank 2": random(9, 2) @ random(2, 9),
    "graded columns": random(11, 11) * graded(11),
    "graded rows": random(11, 11) * graded(11)[:, None],
    "graded": random(11, 11) * graded(11) * graded(11)[:, None],
    "singular values down to 1e-18": rotation(12) * np.logspace(0, -18, 12) @ rotation(12),
    "repeated eigenvalues": (lambda q: q * np.resize([1.0, 1.0, 2.0, -1.0], 13) @ q.T)(rotation(13)),
    "equal halves": np.eye(12) * 2 + np.eye(12, k=1) + np.eye(12, k=-1),  # of equal eigenvalues, when it is divided
    "huge": random(5, 5) * 1e300,
    "tiny": random(5, 5) * 1e-300,
    "exchange": np.eye(9)[::-1] * np.arange(1, 10),
}


def near(found: np.ndarray, due: np.ndarray, n: int, size: float | None = None) -> None:
    """Compare normwise: with 20 n eps of the largest magnitude that was given or is expected."""
    size = max(np.abs(due).max(initial=0), size or 0)
    np.testing.assert_allclose(found, due, rtol=0, atol=20 * n * EPS * size)


def adjoint(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2).conj()


def orthonormal(q: np.ndarray) -> None:
    k = q.shape[-1]
    near(adjoint(q) @ q, np.broadcast_to(np.eye(k), (*q.shape[:-2], k, k)), q.shape[-2])


@pytest.mark.parametrize("host", SQUARES.values(), ids=SQUARES)
def test_factors_multiply_to_the_matrix(device, host):
    x, n = pa.asarray(host), host.shape[-1]
    q, r = (a.numpy() for a in ops.qr(x))
    orthonormal(q)
    near(q @ r, host, n)
    for given in (host, host[..., : n // 2 + 1], host[..., : n // 2 + 1, :]):
        u, s, vh = (a.numpy() for a in ops.svd(pa.asarray(given)))
        orthonormal(u)
        orthonormal(vh.swapaxes(-1, -2))
        near(u * s[..., None, :] @ vh, given, n)
        near(s, np.linalg.svd(given, compute_uv=False), n)
    symmetric = (host + host.swapaxes(-1, -2)) / 2
    w, v = (a.numpy() for a in ops.eigh(x))
    orthonormal(v)
    near(v * w[..., None, :] @ v.swapaxes(-1, -2), symmetric, n)
    near(w, np.linalg.eigvalsh(symmetric), n, np.abs(symmetric).max())


def with_phases(x: np.ndarray) -> np.ndarray:
    """Return x with a random phase of each row and, conjugated, of each column."""
    rows, columns = (np.exp(2j * np.pi * RNG.random(n)) for n in x.shape[-2:])
    return rows[:, None] * x / columns


COMPLEX = {f"random {n}": random(n, n) + 1j * random(n, n) for n in (1, 5, 13)}
COMPLEX |= {name: with_phases(x) for name, x in SQUARES.items() if "random" not in name}


@pytest.mark.parametrize("host", COMPLEX.values(), ids=COMPLEX)
def test_complex_factors_multiply_to_the_matrix(device, host):
    x, n = pa.asarray(host), host.shape[-1]
    q, r = (a.numpy() for a in ops.qr(x))
    orthonormal(q)
    near(q @ r, host, n)
    diagonal = np.diagonal(r, 0, -2, -1)
    assert (diagonal.real >= 0).all()
    near(diagonal.imag, np.zeros(diagonal.shape), 1, np.abs(r).max())
    for given in (host, host[..., : n // 2 + 1], host[..., : n // 2 + 1, :]):
        u, s, vh = (a.numpy() for a in ops.svd(pa.asarray(given)))
        orthonormal(u)
        orthonormal(adjoint(vh))
        near(u * s[..., None, :] @ vh, given, n)
        near(s, np.linalg.svd(given, compute_uv=False), n)
    hermitian = (host + adjoint(host)) / 2
    w, v = (a.numpy() for a in ops.eigh(x))
    orthonormal(v)
    near(v * w[..., None, :] @ adjoint(v), hermitian, n)
    near(w, np.linalg.eigvalsh(hermitian), n, np.abs(hermitian).max())


@pytest.mark.parametrize("n", [1, 6, 13])
def test_complex_equations_are_solved(device, n):
    host, right = random(2, n, n) + 1j * random(2, n, n), random(n, 3) * (1 - 2j)
    x, condition = pa.asarray(host), np.linalg.cond(host).max()
    definite = host @ adjoint(host) + np.eye(n)
    near(ops.cholesky(pa.asarray(definite)).numpy(), np.linalg.cholesky(definite), n)
    near(host @ ops.inv(x).numpy() / condition, np.broadcast_to(np.eye(n), host.shape) / condition, n, 1)
    sides = np.broadcast_to(right, (2, n, 3)) / condition
    near(host @ ops.solve(x, pa.asarray(right)).numpy() / condition, sides, n, 1)
    for found, due in zip(ops.slogdet(x), np.linalg.slogdet(host), strict=True):
        np.testing.assert_allclose(found.numpy(), due, rtol=1e-11, atol=1e-13)
    near(linalg.det(x.mT).numpy(), np.linalg.det(host), n)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 13, 33])
def test_equations_are_solved(device, n):
    host = random(2, n, n)
    definite = host @ host.swapaxes(-1, -2) + np.eye(n)
    low = ops.cholesky(pa.asarray(definite)).numpy()
    near(low, np.linalg.cholesky(definite), n)
    assert (np.triu(low, 1) == 0).all()
    x, condition = pa.asarray(host), np.linalg.cond(host).max()
    near(host @ ops.inv(x).numpy() / condition, np.broadcast_to(np.eye(n), host.shape) / condition, n, 1)
    sign, size = (a.numpy() for a in ops.slogdet(x))
    assert (sign == np.linalg.slogdet(host)[0]).all()
    np.testing.assert_allclose(size, np.linalg.slogdet(host)[1], rtol=1e-11)
    for a, b in (((2,), (2,)), ((), (3,)), ((3,), ()), ((2, 1), (3,)), ((1, 3), (2, 3)), ((2, 3), (2, 1))):
        matrix, right = random(*a, n, n), random(*b, n, 2)
        found = ops.solve(pa.asarray(matrix), pa.asarray(right)).numpy()
        assert found.shape == np.linalg.solve(matrix, right).shape
        condition = np.linalg.cond(matrix).max()
        near(matrix @ found / condition, np.broadcast_to(right, found.shape) / condition, n, 1)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", [1, 7, 33, 150])
def test_equations_of_triangles_are_solved(device, n, upper):
    part = np.triu if upper else np.tril
    for a, b in (((2,), (2,)), ((), (3,)), ((2, 1), (3,)), ((1, 3), (2, 3))):
        matrix, right = random(*a, n, n) / n + 2 * np.eye(n), random(*b, n, 2)
        beside_nan = pa.asarray(np.where(part(np.ones((n, n))), matrix, np.nan))
        found = ops.solve_triangular(beside_nan, pa.asarray(right), upper=upper)
        near(found.numpy(), np.linalg.solve(part(matrix), right), n)
        turned = ops.solve_triangular(pa.asarray(matrix).mT, pa.asarray(right), upper=not upper)
        near(turned.numpy(), np.linalg.solve(part(matrix).swapaxes(-1, -2), right), n)


def test_views_are_read_where_they_are(device):
    base = random(4, 9, 9)
    x = pa.asarray(base)
    views = [(x.mT, base.swapaxes(-1, -2)), (x[::2, ::-1, 1:8][:, :7], base[::2, ::-1, 1:8][:, :7])]
    views.append((pa.broadcast_to(x[1, :5, :5], (3, 5, 5)), np.broadcast_to(base[1, :5, :5], (3, 5, 5))))
    for view, host in views:
        near(linalg.svdvals(view).numpy(), np.linalg.svd(host, compute_uv=False), 9)
        near(linalg.det(view).numpy(), np.linalg.det(host), 9, 100)
        near(host @ linalg.solve(view, view).numpy(), host, 9, 1000)


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (0, 0), (0, 2, 0, 0)])
def test_matrices_without_elements(device, shape):
    x = pa.zeros(shape)
    assert ops.cholesky(x).shape == ops.inv(x).shape == ops.solve(x, x).shape == shape
    assert [a.shape for a in ops.eigh(x)] == [shape[:-1], shape]
    sign, size = ops.slogdet(x)
    assert (sign.numpy() == 1).all() and (size.numpy() == 0).all() and sign.shape == shape[:-2]
    assert [a.shape for a in ops.svd(pa.zeros((2, 0, 3)))] == [(2, 0, 0), (2, 0), (2, 0, 3)]
    assert [a.shape for a in ops.qr(pa.zeros((2, 3, 0)))] == [(2, 3, 0), (2, 0, 0)]


SINGULAR = np.diag(np.r_[np.ones(12), 0.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linalg.inv(pa.asarray(SINGULAR)), r"^inv: x is float64\[13, 13\]; it must have an inverse;"),
        (lambda: linalg.inv(pa.asarray(SINGULAR * 1j)), r"^inv: x is complex128\[13, 13\]; it must have an inverse;"),
        (lambda: linalg.qr(pa.full((2, 2), complex(0, np.nan))).R, "^qr: x is .* and holds nan or infinity; it must"),
        (lambda: linalg.solve(pa.zeros((3, 2, 2)), pa.ones(2)), r"^solve: x is float32\[3, 2, 2\]; it must have an"),
        (lambda: linalg.cholesky(pa.asarray(-SINGULAR)), r"^cholesky: x is .*\[13, 13\]; it must be positive def"),
        (lambda: linalg.cholesky(pa.asarray(SINGULAR * np.nan)), "^cholesky: x .* holds nan or infinity; it must be"),
        (lambda: linalg.svd(pa.full((2, 3), np.nan)).U, "^svd: x is .* and holds nan or infinity; it must be finite;"),
        (lambda: linalg.eigh(pa.full((2, 2), np.inf))[0], "^eigh: .* and holds nan or infinity; it must be finite;"),
        (lambda: linalg.det(pa.full((2, 2), np.inf)), "^slogdet: .* and holds nan or infinity; it must be finite;"),
    ],
)
def test_bad_matrices_are_errors_at_the_next_read(device, call, message):
    before = pa.ones(2) + 1
    found = call()
    with pytest.raises(MatrixError, match=message):
        found.numpy()
    assert before.tolist() == [2, 2]  # as the error was reported
    assert linalg.inv(pa.eye(2) * 2).tolist() == [[0.5, 0], [0, 0.5]]


@pytest.mark.polyarr_backend("opencl")
def test_captures_of_one_shape_add_no_messages(backend):
    faults, x = backend.home.faults, pa.asarray(np.eye(3, dtype=np.float32))
    linalg.inv(x)
    before = len(faults._messages)
    for _ in range(3):
        pa.compile(lambda x: linalg.inv(x))(x)
    assert len(faults._messages) == before



def test_solutions_may_overflow(device):
    matrix, right = np.diag([1e-30, 1.0]).astype("float32"), np.array([[1e30], [1.0]], np.float32)
    for x, b in ((matrix, right), (matrix * np.complex64(1j), right * np.complex64(1j))):
        found = linalg.solve(pa.asarray(x), pa.asarray(b)).numpy()
        assert np.isinf(found[0, 0]) and found[1, 0] == 1
        with use_backend("numpy"):
            assert np.isinf(linalg.solve(pa.asarray(x), pa.asarray(b)).numpy()[0, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_hermitian_parts_of_the_largest_and_smallest_numbers(device, dtype):
    """The sum x + x^H of both overflows, and half of the smallest number is 0."""
    limits = np.finfo(dtype)
    host = np.diag(np.linspace(0.75, 1, 7) * limits.max).astype(dtype)
    skew = np.triu(np.full((7, 7), limits.max), 1)
    for chosen in (device, "numpy"):
        with use_backend(chosen):
            values, vectors = linalg.eigh(pa.asarray(host))
            np.testing.assert_allclose(values.numpy(), np.diag(host).real, rtol=1e-6)
            np.testing.assert_allclose(vectors.numpy(), np.eye(7), atol=1e-6)
            np.testing.assert_allclose(linalg.cholesky(pa.asarray(host)).numpy(), np.sqrt(host), rtol=1e-6)
            np.testing.assert_array_equal(linalg.eigvalsh(pa.asarray((skew - skew.T).astype(dtype))).numpy(), 0)
            smallest = np.eye(7, dtype=dtype) * limits.smallest_subnormal
            np.testing.assert_array_equal(linalg.eigvalsh(pa.asarray(smallest)).numpy(), limits.smallest_subnormal)


@pytest.mark.parametrize("n", [3, 9])
def test_eigenvectors_of_the_smallest_normal_numbers(device, n):
    """Rotations are small against 1, the magnitude that matrices are scaled to."""
    host = np.zeros((n, n))
    host[1, ::2] = 1
    w, v = (a.numpy() for a in linalg.eigh(pa.asarray(host * np.finfo(np.float64).tiny)))
    near(v * (w / np.finfo(np.float64).tiny) @ v.T, (host + host.T) / 2, n)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_denormal_numbers_do_not_spoil_the_others(device, dtype):
    """The complex quotient of 0 and a denormal number is nan, as in NumPy; such numbers have few digits."""
    smallest = np.finfo(dtype).smallest_subnormal
    x = pa.asarray(np.array([[8 * smallest, 1], [0, 1], [0, 2]], dtype))
    np.testing.assert_array_equal(linalg.qr(x)[0].numpy()[:, 0], [1, 0, 0])
    assert linalg.det(x[:2]).numpy() == 8 * smallest
    np.testing.assert_array_equal(linalg.solve(pa.triu(x[:2]), pa.asarray(np.ones(2, dtype))).numpy(), [0, 1])
    columns, rank = random(30, 9).astype(dtype), np.full((60, 17), 0.444, dtype)  # R of which decreases to denormals
    columns[:, ::2] = np.sign(columns[:, ::2]) * 3 * smallest
    columns[0] *= 2
    for host in (columns, columns.T, columns[:9], rank, rank.T):
        u, s, vh = linalg.svd(pa.asarray(host), full_matrices=False)
        np.testing.assert_allclose((u * s.astype(dtype) @ vh).numpy(), host, atol=500 * np.finfo(dtype).eps)
        if host.shape[0] >= host.shape[1]:
            q, r = linalg.qr(pa.asarray(host))
            np.testing.assert_allclose((q @ r).numpy(), host, atol=500 * np.finfo(dtype).eps)


def test_nan_beside_a_matrix_stays_in_its_column(device):
    found = linalg.solve(pa.eye(2), pa.asarray([[1.0, np.nan], [2.0, 3.0]])).numpy()
    assert found[:, 0].tolist() == [1, 2] and np.isnan(found[0, 1])
    assert linalg.slogdet(pa.ones((2, 2))).logabsdet.item() == -np.inf and linalg.det(pa.ones((2, 2))).item() == 0


def test_compiled_calls_report_bad_matrices(backend):
    """A replay repeats the kernels, whatever the matrices are then."""
    compiled = pa.compile(lambda x: (linalg.inv(x), *linalg.svd(x)))
    for _ in range(3):
        inverse, _, s, _ = compiled(pa.asarray(np.diag([4.0, 2.0])))
        assert inverse.tolist() == [[0.25, 0], [0, 0.5]] and s.tolist() == [4, 2]
    with pytest.raises(MatrixError, match=r"^inv: .* it must have an inverse; called at "):
        compiled(pa.ones((2, 2), dtype="float64"))[0].numpy()
    assert compiled(pa.asarray(np.diag([1.0, 8.0])))[2].tolist() == [8, 1]


def test_complex_matrices_under_compile_and_vmap(backend):
    def call(x):
        return linalg.svd(x), linalg.eigh(x), linalg.solve(x, x)

    x = pa.asarray((random(3, 4, 4) + 1j * random(3, 4, 4)).astype("complex64"))
    due = [a.numpy() for a in pa.tree.leaves(call(x))]
    compiled = pa.compile(call)
    for found in (compiled(x), compiled(x), pa.vmap(call)(x)):
        for a, d in zip(pa.tree.leaves(found), due, strict=True):
            np.testing.assert_allclose(a.numpy(), d, atol=1e-5)


def test_large_ones_by_blocks_of_the_usual_size(backend):
    host = random(70, 70)
    u, s, vh = (a.numpy() for a in ops.svd(pa.asarray(host)))
    near(u * s @ vh, host, 70)
    w, v = (a.numpy() for a in ops.eigh(pa.asarray(host)))
    near(v * w @ v.T, (host + host.T) / 2, 70)
    near(host @ ops.inv(pa.asarray(host)).numpy() / np.linalg.cond(host), np.eye(70) / np.linalg.cond(host), 70, 1)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_eigenvalues_are_rounded_a_few_times_only(backend, dtype):
    real, imaginary = np.random.default_rng(5).standard_normal((2, 128, 128))
    x = real + (1j * imaginary if dtype == "complex64" else 0)
    x = ((x + x.conj().T) / 2).astype(dtype)
    expected = np.linalg.eigvalsh(x.astype("complex128"))
    found = linalg.eigvalsh(pa.asarray(x)).numpy()
    assert np.abs(found - expected).max() < 5 * 2.0**-23 * np.abs(expected).max()  # 14 by the rotated diagonal


def test_eigenvalues_come_from_the_host(backend):
    host = random(2, 5, 5)
    x, before = pa.asarray(host), pa.transfers()
    w, v = linalg.eig(x)
    assert w.backend is v.backend is x.backend
    counted = pa.transfers()
    assert counted.downloads > before.downloads and counted.uploads > before.uploads
    near(host @ v.numpy(), v.numpy() * w.numpy()[:, None], 5)
    assert (pa.vmap(linalg.eigvals)(x).numpy() == linalg.eigvals(x).numpy()).all()
    with pytest.raises(CaptureError, match=r"takes an array from .* to 'numpy'"):
        pa.compile(linalg.eigvals)(x)


def test_decompositions_transfer_nothing(backend):
    x = pa.asarray(random(40, 40))
    before = pa.transfers()
    found = ops.svd(x), ops.eigh(x), ops.qr(x), ops.solve(x, x), ops.slogdet(x)
    assert pa.transfers() == before
    assert len(pa.tree.leaves(found)) == 10


def test_a_step_of_cholesky_is_one_launch_on_gpus(as_gpu, monkeypatch):  # noqa: F811
    monkeypatch.setattr(matrices, "PANEL", {"gpu": 8})
    monkeypatch.setattr(matrices, "GROUP", {"gpu": 16})
    with use_backend(as_gpu), launches() as names:
        assert ops.cholesky(pa.eye(36) * 4).tolist() == (np.eye(36) * 2).tolist()
    assert names[names.index("move") :] == ["move", *["factorize_step"] * 5]
