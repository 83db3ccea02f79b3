"""polyarr.fft: all functions against NumPy's, gradients, errors, and backends without kernels for them."""

from collections.abc import Callable

import numpy as np
import pytest

import polyarr as pa
from polyarr import fft, ops
from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.ops.fourier import roots
from polyarr.testing import check_grads
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import NotOffered

pytestmark = pytest.mark.usefixtures("on_numpy")

RNG = np.random.default_rng(4)
REAL = RNG.standard_normal((4, 6, 5))
COMPLEX = REAL + 1j * RNG.standard_normal((4, 6, 5))
KIT = cases()
FOURIER = ops.dft, ops.dft_of_real, ops.dft_to_real
NORMS = ("backward", "ortho", "forward")
ALONG_ONE, ALONG_SEVERAL = ("fft", "ifft", "irfft", "hfft"), ("fftn", "ifftn", "irfftn")


@pytest.fixture(params=["kernels", "decompositions"])
def anywhere(request, on_numpy: Backend):
    """NumPy with its transforms, and without them."""
    without = {op: kernel for op, kernel in on_numpy.kernels.items() if op not in FOURIER}
    plain = on_numpy._replace(name="plain", kernels=without)
    with use_backend(on_numpy if request.param == "kernels" else plain):
        yield


def agrees(name: str, host: np.ndarray, **params: object) -> None:
    found, due = getattr(fft, name)(pa.asarray(host), **params), getattr(np.fft, name)(host, **params)
    assert (found.shape, found.dtype) == (due.shape, due.dtype)
    np.testing.assert_allclose(found.numpy(), due, rtol=0, atol=2e-15 * np.abs(due).max(initial=0))


# ---- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
def test_transforms_along_one_axis(norm: str, anywhere: None) -> None:
    for params in ({"axis": axis, "n": n, "norm": norm} for axis in (-1, 0, 1) for n in (None, 1, 3, 8)):
        for name in ALONG_ONE:
            agrees(name, COMPLEX, **params)
        for name in (*ALONG_ONE, "rfft", "ihfft"):
            agrees(name, REAL, **params)


@pytest.mark.parametrize("norm", NORMS)
def test_transforms_along_several_axes(norm: str) -> None:
    lengths = [(None, None)] + [(a, s) for a in ((0,), (1, 0), (2, 0, 1)) for s in (None, (8, 2, 5)[: len(a)])]
    for axes, s in lengths:
        for name in ALONG_SEVERAL:
            agrees(name, COMPLEX, axes=axes, s=s, norm=norm)
        agrees("rfftn", REAL, axes=axes, s=s, norm=norm)
    found = fft.fftn(pa.asarray(COMPLEX), s=(3, 4)).numpy()  # without axes, the last ones
    np.testing.assert_allclose(found, np.fft.fftn(COMPLEX, s=(3, 4), axes=(-2, -1)), atol=1e-13)


@pytest.mark.parametrize("n", [64, 65, 67, 134, 210, 1000, 1021])
def test_lengths_of_every_kind(n: int, anywhere: None) -> None:
    """One matrix, two factors, a prime that is a convolution, one as a factor."""
    host = RNG.standard_normal((2, n)) + 1j * RNG.standard_normal((2, n))
    for name in ALONG_ONE[:2]:
        agrees(name, host)
    agrees("rfft", host.real)
    for length in (n, n - 1):
        agrees("irfft", host, n=length)


def test_precision_and_transforms_of_nothing(anywhere: None) -> None:
    x = pa.asarray(REAL.astype(np.float32))
    assert fft.fft(x).dtype == fft.rfft(x).dtype == fft.fftn(x.astype("complex64")).dtype == pa.complex64
    assert fft.irfft(x).dtype == fft.hfft(fft.rfft(x)).dtype == pa.float32
    for dtype in ("float16", "bfloat16"):
        assert fft.rfft(x.astype(dtype)).dtype == fft.fft(x.astype(dtype)).dtype == pa.complex64
        assert pa.grad(lambda x: pa.sum(pa.abs(fft.rfft(x))))(x.astype(dtype)).dtype == dtype
    assert fft.fft(x[:0]).shape == (0, 6, 5) and fft.rfft(x[:0]).shape == (0, 6, 3)
    assert fft.fft(x[:, :, :0], n=3).tolist() == np.zeros((4, 6, 3)).tolist()
    assert fft.fftn(pa.asarray(3.0)).tolist() == 3


def test_frequencies_and_shifts() -> None:
    for n in (1, 2, 5, 8):
        assert fft.fftfreq(n, d=0.3, dtype="float64").tolist() == np.fft.fftfreq(n, 0.3).tolist()
        assert fft.rfftfreq(n, d=0.3, dtype="float64").tolist() == np.fft.rfftfreq(n, 0.3).tolist()
    assert fft.fftfreq(3).dtype == pa.float32
    for axes in (None, 1, (0, 2)):
        for name in ("fftshift", "ifftshift"):
            due = getattr(np.fft, name)(REAL, axes)
            assert getattr(fft, name)(pa.asarray(REAL), axes=axes).tolist() == due.tolist()


def test_roots_are_rounded_once() -> None:
    """Compared in extended precision with angles that are reduced; NumPy's own angle is off by its rounding."""
    for n in (1, 7, 12, 4099, 2**40 + 1):
        k = RNG.integers(-(2**20), 2**60 // n, 200)
        angle = 2 * np.longdouble("3.14159265358979323846264") * ((k % n) / np.longdouble(n))
        found = roots(k, n)
        np.testing.assert_allclose(found.real, np.cos(angle).astype(float), rtol=0, atol=1.2e-16)
        np.testing.assert_allclose(found.imag, np.sin(angle).astype(float), rtol=0, atol=1.2e-16)
    assert roots(np.arange(4), 4).tolist() == [1, 1j, -1, -1j]


@pytest.mark.parametrize("check", ["forward", "backward", "transfers"])
def test_a_backend_without_kernels_passes_the_kit(check: str, on_numpy: Backend) -> None:
    """With complex dtypes; without them, it offers no transforms."""
    chosen = [case for case in KIT if case.check == check and case.subject in {op.name for op in FOURIER}]
    kernels = {op: kernel for op, kernel in on_numpy.kernels.items() if op not in FOURIER}
    real = {op: kernel for op, kernel in kernels.items() if op.group != "complex"}
    plain, floats = (on_numpy._replace(name=name, kernels=k) for name, k in (("plain", kernels), ("floats", real)))
    floats = floats._replace(dtypes=floats.dtypes - {pa.complex64, pa.complex128})
    for case in chosen:
        with use_backend(plain):
            case.run(plain, Effort(examples=3))
        with use_backend(floats), pytest.raises(NotOffered):
            case.run(floats, Effort(examples=3))
    assert len(chosen) == 3


# ---- gradients ---------------------------------------------------------------------------------------------------


def weighted(name: str, **params: object) -> Callable:
    """Return a function of the parts of x: a real function of the transform, not linear, with a weight each."""

    def fn(*x: pa.Array) -> pa.Array:
        y = getattr(fft, name)(x[0] if len(x) == 1 else ops.complex(*x), **params)
        factors = pa.reshape(pa.linspace(0.5, 1.5, y.size, dtype="float64"), y.shape)
        parts = pa.real(y) * factors + pa.imag(y) if y.dtype == pa.complex128 else y * factors
        return pa.sum(parts * pa.sin(parts))

    return fn


@pytest.mark.parametrize("length", [None, 4, 7], ids=["whole", "cut", "padded"])
def test_gradients_to_the_second_order(length: int | None) -> None:
    parts = REAL * 0.3, COMPLEX.imag * 0.3
    for name in ("fft", "ifft", "irfft", "hfft", "rfft", "ihfft"):
        args = tuple(pa.asarray(a[:2, 0]) for a in parts[: 1 if name in ("rfft", "ihfft") else 2])
        check_grads(weighted(name, n=length, norm="ortho"), args, order=2)
    for name in ("fftn", "irfftn", "rfftn"):
        args = tuple(pa.asarray(a[0, :3, :3]) for a in parts[: 1 if name == "rfftn" else 2])
        check_grads(weighted(name, s=length and (length - 1, 2), norm="ortho"), args, order=2)
    check_grads(weighted("fftshift"), (pa.asarray(REAL[0]),), order=2)


def test_vmap_and_compiled_functions_compute_the_same(anywhere: None) -> None:
    x = pa.asarray(COMPLEX)
    several, to_real = lambda a: fft.fftn(a, s=(3, 8)), lambda a: fft.irfft(a, axis=0)
    for fn in (fft.fft, several, to_real, lambda a: fft.rfft(pa.real(a))):
        whole = np.stack([fn(a).numpy() for a in x])
        np.testing.assert_allclose(pa.vmap(fn)(x).numpy(), whole, atol=1e-14)
        compiled = pa.compile(fn)
        for _ in range(3):
            assert (compiled(x[1]).numpy() == fn(x[1]).numpy()).all()


# ---- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: fft.fft(x, n=0), ValueError, "fft: n is 0; it must be at least 1"),
        (lambda x: fft.irfft(x, n=1.5), TypeError, "irfft: n is 1.5; it must be an int"),
        (lambda x: fft.fft(x, axis=3), IndexError, r"fft: x is float32\[2, 1\]; axis 3 must be from -2 to 1"),
        (lambda x: fft.fft(x, norm="none"), ValueError, "fft: norm is 'none'; it must be 'backward', 'ortho' or 'for"),
        (lambda x: fft.fftn(x, norm=["ortho"]), ValueError, r"fftn: norm is \['ortho'\]; it must be"),
        (lambda x: fft.fft(x, axis=[1]), TypeError, r"fft: axis is \[1\]; it must be an int"),
        (lambda x: fft.fftn(x, axes=(0, -2)), ShapeError, r"fftn: x is .*, axes is \(0, -2\); they must be"),
        (lambda x: fft.fftshift(x, axes=(1, 1)), ShapeError, "fftshift: x is .*; they must be distinct"),
        (lambda x: fft.fftn(x, s=(2, 3), axes=(0,)), ShapeError, r"fftn: s is \(2, 3\), axes is \(0,\); there must"),
        (lambda x: fft.rfftn(x, axes=()), ShapeError, r"rfftn: x is .*, axes is \(\); there must be at least 1"),
        (lambda x: fft.irfft(x), ShapeError, r"irfft: x is float32\[2, 1\]; it has too few elements along axis 1"),
        (lambda x: fft.fft(x[:0], axis=0), ShapeError, "fft: x is .* too few elements along axis 0, so n must be"),
        (lambda x: fft.rfft(x.astype("complex64")), DtypeError, "rfft: x is complex64.*; its dtype must be float"),
        (lambda x: fft.fft([1.0]), TypeError, r"fft: x is a list; it must be a polyarr array"),
        (lambda x: fft.fftfreq(0), ValueError, "fftfreq: n is 0; it must be at least 1"),
        (lambda x: fft.rfftfreq(3, d=0), ValueError, "rfftfreq: d is 0; it must not be"),
        (lambda x: fft.fftfreq(3, dtype="complex64"), DtypeError, "fftfreq: the result is complex64.*must be floating"),
        (lambda x: ops.dft(x[:0], axis=0), DtypeError, "dft: x is float32.*; its dtype must be complex"),
        (lambda x: ops.dft(fft.fft(x), axis=(1, -1)), ShapeError, r"dft: x is .*, axis is \(1, -1\); it must be"),
        (lambda x: ops.dft_of_real(x[:0], axis=0), ShapeError, "dft_of_real: x is .*must have an element along axis 0"),
        (lambda x: ops.dft_to_real(fft.fft(x), n=3), ShapeError, "dft_to_real: x is .*, n is 3; x must have n // 2 "),
    ],
)
def test_mistakes_are_one_line(call: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}[^\n]*$"):
        call(pa.ones((2, 1)))
