"""Rules of values that depend on an array's shape: well-conditioned matrices, constant rows, and branch cuts."""

import numpy as np


def _normal(rng: np.random.Generator, shape: tuple, dtype: np.dtype) -> np.ndarray:
    """Return normal numbers; for a complex dtype, both parts are."""
    found = rng.standard_normal(shape)
    return found + 1j * rng.standard_normal(shape) if dtype.kind == "c" else found


def _rotation(rng: np.random.Generator, lead: tuple, n: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """Return the first columns of unitary matrices, which are orthogonal with determinants of both signs if real."""
    drawn, signs = _normal(rng, (*lead, n, n), dtype), rng.choice([-1, 1], (*lead, 1, n))
    return np.linalg.qr(drawn[..., :columns])[0] * signs[..., :columns]


def _regular(rng: np.random.Generator, shape: tuple, dtype: np.dtype) -> np.ndarray:
    """Return well-conditioned matrices with well-separated singular values."""
    *lead, m, n = shape
    sizes = np.linspace(1.75, 0.5, min(m, n))
    left, right = (_rotation(rng, tuple(lead), k, len(sizes), dtype) for k in (m, n))
    return left * sizes @ right.swapaxes(-1, -2).conj()


def _definite(rng: np.random.Generator, shape: tuple, dtype: np.dtype) -> np.ndarray:
    """Return matrices whose Hermitian part has positive, well-separated eigenvalues."""
    n = shape[-1]
    turn, rest = _rotation(rng, shape[:-2], n, n, dtype), _normal(rng, shape, dtype) / (8 * n)
    definite = turn * np.linspace(1.75, 0.5, n) @ turn.swapaxes(-1, -2).conj()
    return definite + rest - rest.swapaxes(-1, -2).conj()


def _even_rows(rng: np.random.Generator, shape: tuple, dtype: np.dtype) -> np.ndarray:
    """Return rows that are all 0, constant, or 0 with one exception, and normal ones."""
    rows = rng.standard_normal(shape)
    rows[0::6], rows[1::6], rows[2::6], rows[3::6] = 0.0, -0.0, 100.0, 0.0
    rows[3::6, -1] = 1.0
    return rows


def _odd_rows(rng: np.random.Generator, shape: tuple, dtype: np.dtype) -> np.ndarray:
    """Return rows that are all 0, -inf, inf or nan, rows with one exception, and normal ones."""
    rows = rng.standard_normal(shape)
    for first, most, last in (
        (0, 0.0, 0.0), (1, -np.inf, -np.inf), (2, np.inf, np.inf), (3, -np.nan, -np.nan), (4, -np.inf, 1.5),
        (5, 1e30, -1e30), (6, -0.0, 0.0), (7, 1.0, np.nan), (8, -np.inf, np.inf),
    ):  # fmt: skip
        rows[first::11], rows[first::11, -1] = most, last
    return rows


def _cuts(rng: np.random.Generator, shape: tuple, dtype: np.dtype) -> np.ndarray:
    """Return complex numbers on the axes, on both sides of each: branch cuts lie there."""
    far, near = np.meshgrid([0.5, -0.5, 2.0, -2.0], [0.0, -0.0])
    parts = np.stack([[far, near], [near, far]], axis=-1)
    return np.resize(parts, (*shape, 2)).view(np.complex128)[..., 0]


# Rules that need the array's shape and dtype, by name; those of strategies.VALUES fill any number of elements.
SHAPED_VALUES = {
    "regular": _regular, "definite": _definite, "cuts": _cuts, "even rows": _even_rows, "odd rows": _odd_rows,
    "masked rows": lambda rng, shape, dtype: np.minimum(_odd_rows(rng, shape, dtype), 1e30),
}  # fmt: skip
OF_COMPLEX = ("regular", "definite", "cuts")  # those of them that return complex numbers for a complex dtype
