"""Random arrays, and their comparison with what a loop over examples gives."""

import numpy as np

import polyarr as pa
from polyarr.core.array import Array

RNG = np.random.default_rng(0)


def given(*shape: int, dtype: str = "float32") -> Array:
    """Return normal random numbers."""
    return pa.asarray(RNG.standard_normal(shape).astype(dtype))


def close(got, expected, tolerance: float = 1e-5) -> None:
    """Check that two arrays have the same shape, and values within the tolerance."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
