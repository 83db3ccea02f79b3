"""Fourier transforms against PyTorch: values, gradients and gradients of gradients of the samples of its own tests.

Complex and real ones on every backend, as in test_ops_beside_torch.py. hfft2, hfftn, ihfft2 and ihfftn, which the
array API standard lacks, are not compared.
"""

import pytest

import polyarr as pa
from tests.ops.beside_pytorch import DTYPES, PARTS, compare_all, infos

pytestmark = pytest.mark.filterwarnings("ignore")


def one_axis(fn):
    """Return a transform along one axis with PyTorch's parameters."""
    return lambda x, n=None, dim=-1, norm=None: fn(x, n=n, axis=dim, norm=norm or "backward")


def several_axes(fn, last=None):
    """Return a transform along several axes, by default these, with PyTorch's parameters."""

    def run(x, s=None, dim=last, norm=None):
        whole = lambda given: (given,) if isinstance(given, int) else given
        return fn(x, s=whole(s), axes=whole(dim), norm=norm or "backward")

    return run


ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn")
OURS = {
    **{f"fft.{name}": one_axis(getattr(pa.fft, name)) for name in ONE},
    **{f"fft.{name}": several_axes(getattr(pa.fft, name)) for name in SEVERAL},
    **{f"fft.{name[:-1]}2": several_axes(getattr(pa.fft, name), (-2, -1)) for name in SEVERAL},
    "fft.fftshift": lambda x, dim=None: pa.fft.fftshift(x, axes=dim),
    "fft.ifftshift": lambda x, dim=None: pa.fft.ifftshift(x, axes=dim),
}
OF_REAL = ("fft.rfft", "fft.rfft2", "fft.rfftn", "fft.ihfft")
CASES = [(name, dtype) for name in OURS for dtype in DTYPES if dtype not in PARTS or name not in OF_REAL]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_every_sample_of_pytorch(backend, name, dtype):
    (info,) = (info for info in infos() if info.name == name)
    assert compare_all(info, info.op, OURS[name], backend, dtype)["agree"]
