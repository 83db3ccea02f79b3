"""Faults in decompositions: signs, orders and triangles in which libraries differ; and an incomplete group."""

import numpy as np

from polyarr import ops
from tests.testing.negative_controls.table import differs, fault, kernels


def half(x):
    """Return the symmetric matrix with x's lower triangle, as LAPACK reads it."""
    return np.tril(x) + np.tril(x, -1).swapaxes(-1, -2)


def upside_down(x):
    w, v = np.linalg.eigh((x + x.swapaxes(-1, -2)) / 2)
    return w[..., ::-1], v[..., ::-1]


def as_it_comes(fn):
    """Return NumPy's results with LAPACK's arbitrary signs."""
    return lambda out, x, *more: tuple(a.astype(o.dtype) for a, o in zip(fn(x.astype("d"), *more), out, strict=True))


def narrowly(fn):
    return lambda out, *bufs: fn(*(a.astype("d") for a in bufs)).astype(out.dtype)


def not_signed(x):
    sign, size = np.linalg.slogdet(x)
    return np.abs(sign), size


def svd_with_v(x):
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    return u, s, vh.swapaxes(-1, -2) if vh.shape[-1] == vh.shape[-2] else vh


for _name, _op, _kernel, _what in (
    ("cholesky reads one triangle", ops.cholesky, narrowly(lambda x: np.linalg.cholesky(half(x))), "the result"),
    ("cholesky gives the upper triangle", ops.cholesky,
     narrowly(lambda x: np.linalg.cholesky((x + x.swapaxes(-1, -2)) / 2).swapaxes(-1, -2)), "the result"),
    ("eigh puts the largest first", ops.eigh, as_it_comes(upside_down), "result 0"),
    ("eigh leaves signs open", ops.eigh,
     as_it_comes(lambda x: np.linalg.eigh((x + x.swapaxes(-1, -2)) / 2)), "result 1"),
    ("eigvalsh reads one triangle", ops.eigvalsh, narrowly(lambda x: np.linalg.eigvalsh(half(x))), "the result"),
    ("qr leaves signs open", ops.qr, as_it_comes(np.linalg.qr), "result [01]"),
    ("svd leaves signs open", ops.svd, as_it_comes(lambda x: np.linalg.svd(x, full_matrices=False)), "result [02]"),
    ("svd gives v for its transpose", ops.svd, as_it_comes(svd_with_v), "result [02]"),
    ("slogdet forgets the sign", ops.slogdet, as_it_comes(not_signed), "result 0"),
    ("solve divides by the transpose", ops.solve,
     narrowly(lambda x, b: np.linalg.solve(x.swapaxes(-1, -2), b)), "the result"),
    ("inv transposes", ops.inv, narrowly(lambda x: np.linalg.inv(x).swapaxes(-1, -2)), "the result"),
    ("det is that of the transpose's negative", ops.det, narrowly(lambda x: np.linalg.det(-x)), "the result"),
):  # fmt: skip
    kernels("numpy", {f"forward-{_op.name}": differs(_what)}, {_op: _kernel}, _name)


def of_complex(fn):
    """Return NumPy's results in complex128, rounded."""
    return lambda out, x: tuple(a.astype(o.dtype) for a, o in zip(fn(x.astype("D")), out, strict=True))


def symmetric_eigh(x):
    w, v = np.linalg.eigh((x + x.swapaxes(-1, -2)) / 2)
    return w, v / np.sign(np.take_along_axis(v, np.abs(v).argmax(-2, keepdims=True), -2))


for _name, _op, _kernel, _what in (
    ("eigh of a complex matrix forgets a conjugate", ops.eigh, symmetric_eigh, "result [01]"),
    ("svd of a complex matrix leaves phases open", ops.svd, lambda x: np.linalg.svd(x, full_matrices=False),
     "result [02]"),
    ("slogdet of a complex matrix gives a real sign", ops.slogdet,
     lambda x: (lambda s, size: (np.sign(s.real), size))(*np.linalg.slogdet(x)), "result 0"),
    ("eig leaves the order open", ops.eig, lambda x: tuple(a[..., ::-1] for a in np.linalg.eig(x)), "result [01]"),
):  # fmt: skip
    kernels("numpy", {f"complex64-{_op.name}": differs(_what)}, {_op: of_complex(_kernel)}, _name)

kernels(
    "numpy",
    {"forward-vector_norm": differs()},
    {ops.vector_norm: lambda out, x, *, axis, keepdims, ord: np.full(out.shape, np.linalg.norm(x), out.dtype)},
    "vector_norm takes all axes",
)


@fault("numpy", {"backend-complete": r"of linalg, no kernel for qr, svd; a group is there as a whole, or not"})
def a_group_is_there_in_part(backend):
    return backend._replace(kernels={op: k for op, k in backend.kernels.items() if op not in (ops.qr, ops.svd)})
