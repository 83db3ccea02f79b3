"""Rules of values that depend on an array's shape: well-conditioned matrices, and constant rows."""

import numpy as np


def _rotation(rng: np.random.Generator, lead: tuple, n: int, columns: int) -> np.ndarray:
    """Return the first columns of orthogonal matrices with determinants of both signs."""
    drawn, signs = rng.standard_normal((*lead, n, n)), rng.choice([-1, 1], (*lead, 1, n))
    return np.linalg.qr(drawn[..., :columns])[0] * signs[..., :columns]


def _regular(rng: np.random.Generator, shape: tuple) -> np.ndarray:
    """Return well-conditioned matrices with well-separated singular values."""
    *lead, m, n = shape
    sizes = np.linspace(1.75, 0.5, min(m, n))
    left, right = (_rotation(rng, tuple(lead), k, len(sizes)) for k in (m, n))
    return left * sizes @ right.swapaxes(-1, -2)


def _definite(rng: np.random.Generator, shape: tuple) -> np.ndarray:
    """Return matrices whose symmetric part has positive, well-separated eigenvalues."""
    turn, rest = _rotation(rng, shape[:-2], shape[-1], shape[-1]), rng.standard_normal(shape) / (8 * shape[-1])
    return turn * np.linspace(1.75, 0.5, shape[-1]) @ turn.swapaxes(-1, -2) + rest - rest.swapaxes(-1, -2)


def _even_rows(rng: np.random.Generator, shape: tuple) -> np.ndarray:
    """Return rows that are all 0, constant, or 0 with one exception, and normal ones."""
    rows = rng.standard_normal(shape)
    rows[0::6], rows[1::6], rows[2::6], rows[3::6] = 0.0, -0.0, 100.0, 0.0
    rows[3::6, -1] = 1.0
    return rows


def _odd_rows(rng: np.random.Generator, shape: tuple) -> np.ndarray:
    """Return rows that are all 0, -inf, inf or nan, rows with one exception, and normal ones."""
    rows = rng.standard_normal(shape)
    for first, most, last in (
        (0, 0.0, 0.0), (1, -np.inf, -np.inf), (2, np.inf, np.inf), (3, -np.nan, -np.nan), (4, -np.inf, 1.5),
        (5, 1e30, -1e30), (6, -0.0, 0.0), (7, 1.0, np.nan), (8, -np.inf, np.inf),
    ):  # fmt: skip
        rows[first::11], rows[first::11, -1] = most, last
    return rows


# Rules that need the array's shape, by name.
MATRICES = {
    "regular": _regular, "definite": _definite, "even rows": _even_rows, "odd rows": _odd_rows,
    "masked rows": lambda rng, shape: np.minimum(_odd_rows(rng, shape), 1e30),
}  # fmt: skip
