"""Fourier transforms on OpenCL: accuracy, layouts and captured calls, with the kernels for CPUs and those for GPUs."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import fft, ops
from tests.backends.opencl.test_complex import kernels  # noqa: F401  a fixture
from tests.helpers.launches import launches
from tests.helpers.opencl_modules import opencl_modules

stages, plans = opencl_modules("stages", "plans")
pytestmark = pytest.mark.polyarr_backend("opencl")
RNG = np.random.default_rng(8)


def numbers(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(np.complex64)


def error(found: pa.Array, due: np.ndarray) -> float:
    """Return the root mean square error divided by the root mean square of the result, in eps of float32."""
    size = np.sqrt(np.mean(np.abs(due) ** 2))
    return float(np.sqrt(np.mean(np.abs(found.numpy() - due) ** 2)) / size / np.finfo(np.float32).eps)


def bound(n: int) -> float:
    """Return an error that grows like that of a sum by halves; a convolution adds that of another transform."""
    return (0.4 if stages.is_smooth(n) else 0.9) + 0.1 * np.log2(n)


SMALL = [*range(1, 18), 30, 31, 33, 36, 49, 61, 64]  # with all radices
LARGE = [97, 120, 121, 128, 169, 210, 1000, 1021, 2048, 2401, 4096, 4099, 8190, 3**9, 2**16, 100_003, 2**20]


@pytest.mark.parametrize("lengths", [SMALL, LARGE], ids=["small", "large"])
def test_errors_are_those_of_rounding(kernels, lengths, request):  # noqa: F811
    is_whole = request.config.getoption("polyarr_thorough") or "cpu" in request.node.callspec.params.values()
    for turn, n in enumerate(lengths):
        host = numbers(max(1, min(33, 2000 // n)), n)
        wide = host.astype(np.complex128)
        x = pa.asarray(host)
        assert error(fft.fft(x), np.fft.fft(wide)) < bound(n), n
        assert error(fft.ifft(x, norm="forward"), np.fft.ifft(wide, norm="forward")) < bound(n), n
        if is_whole or turn % 2:  # on GPUs each length and form is a program of its own, a second to compile
            assert error(fft.rfft(pa.real(x)), np.fft.rfft(wide.real)) < bound(n), n
        if is_whole or not turn % 2:
            half = x[:, : n // 2 + 1]
            assert error(ops.dft_to_real(half, n=n), np.fft.irfft(wide, n=n, norm="forward")) < bound(n), n


@pytest.mark.parametrize("n", [1, 8, 60, 67, 78, 1001, 4096, 4099])
def test_double_precision(kernels, n):  # noqa: F811
    host = numbers(3, n).astype(np.complex128)
    x, eps = pa.asarray(host), np.finfo(np.float64).eps * 4 * np.log2(2 * n)
    for found, due in (
        (fft.fft(x), np.fft.fft(host)), (fft.irfft(x, n=n), np.fft.irfft(host, n=n)),
        (fft.ihfft(pa.real(x)), np.fft.ihfft(host.real)), (fft.hfft(x, n=2 * n), np.fft.hfft(host, n=2 * n)),
    ):  # fmt: skip
        np.testing.assert_allclose(found.numpy(), due, rtol=0, atol=eps * np.abs(due).max())


def test_every_axis_of_every_layout(kernels):  # noqa: F811
    host = numbers(6, 10, 14)
    x = pa.asarray(host)
    views = [(x, host), (x[::-2, 1:, ::3], host[::-2, 1:, ::3]), (x.mT, host.swapaxes(1, 2)), (x[:, :0], host[:, :0])]
    views.append((pa.broadcast_to(x[:, None, :1], (6, 3, 17, 14)), np.broadcast_to(host[:, None, :1], (6, 3, 17, 14))))
    views.append((pa.permute_dims(x, (2, 0, 1)), host.transpose(2, 0, 1)))
    views.append((pa.asarray(host[:, :, :1]), host[:, :, :1]))
    for view, expected in views:
        for axis in (a for a in range(view.ndim) if view.shape[a]):
            for name in ("fft", *("irfft",) * (view.shape[axis] > 1)):
                due = getattr(np.fft, name)(expected, axis=axis)
                np.testing.assert_allclose(getattr(fft, name)(view, axis=axis).numpy(), due, atol=2e-5)
            due = np.fft.rfft(expected.real, axis=axis)
            np.testing.assert_allclose(fft.rfft(pa.real(view), axis=axis).numpy(), due, atol=2e-5)


def test_rows_of_other_numbers_do_not_mix(kernels):  # noqa: F811
    """Rows beyond the lanes of a work-group, nan in one of them, and a scale of many magnitudes in the others."""
    host = numbers(150, 12) * 10.0 ** (np.arange(150)[:, None] % 60 - 30)
    host[77, 5] = np.nan
    found, due = fft.fft(pa.asarray(host)).numpy(), np.fft.fft(host)
    assert np.isnan(found[77]).all()
    rest = np.arange(150) != 77
    scale = np.abs(due[rest]).max(-1, keepdims=True)
    assert (np.abs(found[rest] - due[rest]) < 1e-6 * scale).all()


def test_infinite_and_huge_numbers(kernels):  # noqa: F811
    host = np.full((1, 9), 1e37, np.float32)
    np.testing.assert_allclose(fft.rfft(pa.asarray(host)).numpy()[0, 0], 9e37, rtol=1e-6)
    assert not np.isfinite(fft.fft(pa.full((4, 8), np.inf)).numpy()).any()


@pytest.mark.parametrize("n", [60, 61, 63, 122])
def test_rows_in_local_memory_take_one_launch(kernels, n):  # noqa: F811
    x, real = pa.asarray(numbers(9, n)), pa.asarray(np.ones((9, n), np.float32))
    for call in (lambda: fft.ifft(x, norm="ortho"), lambda: fft.rfft(real), lambda: ops.dft_to_real(x, n=2 * n - 1)):
        with launches() as names:
            call()
        assert names == ["transform_rows"]
    with launches() as names:
        fft.fftn(pa.asarray(numbers(3, 60, 60)), axes=(1, 2))
    assert sorted(names) == ["transform_lanes", "transform_rows"]


@pytest.mark.parametrize(("shape", "axes"), [((6, 10, 14), (1, 0, 2)), ((17, 3, 1), (-1, 1)), ((4, 67, 12), (2, 1))])
def test_several_axes_at_once(kernels, shape, axes):  # noqa: F811
    host = numbers(*shape)
    for view, expected in ((pa.asarray(host), host), (pa.asarray(host)[::-1].mT, host[::-1].swapaxes(1, 2))):
        for name in ("fftn", "irfftn"):
            params = {"axes": axes, "s": [max(expected.shape[a], 2) for a in axes]}
            due = getattr(np.fft, name)(expected.astype(np.complex128), **params)
            found = getattr(fft, name)(view, **params).numpy()
            np.testing.assert_allclose(found, due, atol=2e-6 * np.abs(due).max())


@pytest.fixture
def uploads(backend, monkeypatch):
    """The sizes in bytes of the tables that are uploaded."""
    device, found = backend.upload.__self__, []
    upload = device.upload
    monkeypatch.setattr(device, "upload", lambda host: found.append(host.nbytes) or upload(host))
    return found


def test_tables_are_uploaded_once(uploads):
    x = pa.asarray(numbers(2, 1021))
    fft.irfft(fft.fft(x), n=2042).numpy()
    uploads.clear()
    fft.irfft(fft.fft(x), n=2042)
    assert not uploads


def test_tables_of_many_lengths_are_freed_and_captured_programs_keep_theirs(backend, uploads, monkeypatch):
    """Beyond the limit the oldest are computed again."""
    monkeypatch.setattr(plans, "MAX_TABLE_BYTES", 50_000)
    tables = backend.upload.__self__.plans[plans._Tables]()
    x = pa.asarray(numbers(2, 67 * 64))
    around = pa.compile(lambda x: fft.irfft(fft.fft(x), n=2 * x.shape[-1]))
    due = [around(x).numpy() for _ in range(4)][-1]
    for n in range(60, 3000, 97):
        host = numbers(2, n)
        assert error(fft.fft(pa.asarray(host)), np.fft.fft(host)) < bound(n), n
    assert 10_000 < sum(table.nbytes for table in tables.kept) < 50_000 + 2 * max(uploads)
    uploads.clear()
    assert all((around(x).numpy() == due).all() for _ in range(3)) and not uploads
    assert (around.fn(x).numpy() == due).all() and uploads


def test_compiled_transforms_and_gradients_are_replayed(backend):
    def loss(x):
        return pa.sum(pa.abs(fft.fftn(x)) * pa.abs(fft.ifft(x, n=67)))

    compiled = pa.compile(pa.value_and_grad(loss))
    for _ in range(4):
        x = pa.asarray(numbers(60, 67))
        for found, due in zip(compiled(x), pa.value_and_grad(loss)(x), strict=True):
            assert (found.numpy() == due.numpy()).all()
