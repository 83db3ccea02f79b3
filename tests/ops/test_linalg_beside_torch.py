"""Decompositions against PyTorch: values, gradients and gradients of gradients of the samples of its own tests.

Of real and complex matrices on every backend, as in test_ops_beside_torch.py. Vectors are compared as far as they are
determined: eigenvectors, singular vectors and the columns of qr by the product of each with its counterpart, which does
not depend on their signs or phases; those of no singular value by the projection on the space that they span.
"""

import numpy as np
import pytest

import polyarr as pa
from tests.ops.beside_pytorch import DTYPES, Absent, compare_all, infos, torch

pytestmark = pytest.mark.filterwarnings("ignore")


def adjoint(x):
    return x.mH if isinstance(x, torch.Tensor) else pa.conj(x.mT)


def terms(left, right):
    """Return the products (..., k, m, n) of the k columns of one matrix and the rows of another."""
    return left.mT[..., :, :, None] * right[..., :, None, :]


def hermitian(fn):
    """Return a function of the Hermitian matrix x + x^H."""
    return lambda x, **params: fn(x + adjoint(x))


# ---- functions that both PyTorch and polyarr run -------------------------------------------------------------------


def of_eigh(values, vectors):
    return values, terms(vectors, adjoint(vectors))


def of_qr(q, r):
    return terms(q, r)


def of_svd(u, s, vh):
    k = s.shape[-1]
    left, right = u[..., k:], vh[..., k:, :]
    return s, terms(u[..., :k], vh[..., :k, :]), left @ adjoint(left), adjoint(right) @ right


# ---- polyarr's functions with PyTorch's parameters -----------------------------------------------------------------


def matrix_norm(x, ord="fro", dim=(-2, -1), keepdim=False, dtype=None):
    found = pa.linalg.matrix_norm(pa.moveaxis(x, dim, (-2, -1)), ord=ord, keepdims=keepdim)
    return pa.moveaxis(found, (-2, -1), dim) if keepdim else found


def norm(x, ord=None, dim=None, keepdim=False, dtype=None):
    axes = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if ord is None or len(axes) == 1:
        return pa.linalg.vector_norm(x, ord=2 if ord is None else ord, axis=axes, keepdims=keepdim)
    return matrix_norm(x, ord, axes, keepdim)


def pinv_of_product(x, y):
    if x.shape[-2] > 5:  # these would take as long as all other samples
        raise Absent
    return pa.linalg.pinv(x @ y.mT)


def matrix_rank(x, atol=None, rtol=None, hermitian=False):
    if atol is not None:
        raise Absent
    return pa.linalg.matrix_rank(x, rtol=rtol)


def diagonal(x, offset=0, dim1=-2, dim2=-1):
    return pa.linalg.diagonal(pa.moveaxis(x, (dim1, dim2), (-2, -1)), offset=offset)


def solve(x, y, left=True):
    vector = y.ndim == 1 or y.shape == x.shape[:-1]  # of the latter, polyarr takes (n,) only
    y = y[..., None] if vector else y
    found = pa.linalg.solve(x, y) if left else pa.linalg.solve(x.mT, y.mT).mT
    return found[..., 0] if vector else found


def eig(x):
    values, vectors = pa.linalg.eig(x)
    return values, terms(vectors, pa.linalg.inv(vectors))


# ---- PyTorch's -----------------------------------------------------------------------------------------------------


def order(values):
    """Return polyarr's order of complex eigenvalues: by the real parts, then by the imaginary ones."""
    values = values.detach().numpy()
    return torch.from_numpy(np.lexsort((values.imag, values.real), axis=-1))


def their_eig(x):
    values, vectors = torch.linalg.eig(x)
    at = order(values)
    vectors = torch.take_along_dim(vectors, at[..., None, :], -1)
    return torch.take_along_dim(values, at, -1), terms(vectors, torch.linalg.inv(vectors))


def their_eigvals(x):
    values = torch.linalg.eigvals(x)
    return torch.take_along_dim(values, order(values), -1)


def their_svd(x, full_matrices):
    *taken, left, right = of_svd(*torch.linalg.svd(x, full_matrices=full_matrices))
    return *taken, left.detach(), right.detach()  # which PyTorch differentiates as if they did not depend on x


OURS = {
    "linalg.cholesky": lambda x, upper: pa.linalg.cholesky(x + adjoint(x), upper=upper),
    "linalg.eigh": hermitian(lambda x: of_eigh(*pa.linalg.eigh(x))),
    "linalg.eigvalsh": hermitian(pa.linalg.eigvalsh),
    "linalg.eig": eig,
    "linalg.eigvals": pa.linalg.eigvals,
    "linalg.qr": lambda x: of_qr(*pa.linalg.qr(x)),
    "linalg.svd": lambda x, full_matrices: of_svd(*pa.linalg.svd(x, full_matrices=full_matrices)),
    "linalg.svdvals": pa.linalg.svdvals,
    "linalg.det": pa.linalg.det,
    "linalg.slogdet": pa.linalg.slogdet,
    "linalg.inv": pa.linalg.inv,
    "linalg.solve": solve,
    "linalg.pinv": lambda x, rtol: pa.linalg.pinv(x, rtol=rtol),
    "linalg.pinv.singular": pinv_of_product,
    "linalg.pinv.hermitian": hermitian(pa.linalg.pinv),
    "linalg.matrix_rank": matrix_rank,
    "linalg.matrix_rank.hermitian": matrix_rank,
    "linalg.matrix_power": pa.linalg.matrix_power,
    "linalg.matrix_norm": matrix_norm,
    "linalg.norm": norm,
    "linalg.norm.subgradients_at_zero": norm,
    "linalg.diagonal": diagonal,
}
THEIRS = {
    "linalg.cholesky": lambda x, upper: torch.linalg.cholesky(x + x.mH, upper=upper),
    "linalg.eigh": hermitian(lambda x: of_eigh(*torch.linalg.eigh(x))),
    "linalg.eigvalsh": hermitian(torch.linalg.eigvalsh),
    "linalg.eig": their_eig,
    "linalg.eigvals": their_eigvals,
    "linalg.qr": lambda x: of_qr(*torch.linalg.qr(x)),
    "linalg.svd": their_svd,
    "linalg.pinv.hermitian": hermitian(torch.linalg.pinv),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OURS)
def test_every_sample_of_pytorch(backend, name, dtype):
    (info,) = (info for info in infos() if f"{info.name}.{info.variant_test_name}".rstrip(".") == name)
    # Norms have no second derivative at zero: PyTorch's is nan, polyarr's 0.
    most = 1 if "at_zero" in name or dtype in ("float32", "complex64") else 2
    assert compare_all(info, THEIRS.get(name, info.op), OURS[name], backend, dtype, most)["agree"]
