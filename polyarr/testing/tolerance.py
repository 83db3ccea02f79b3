"""Tolerances of results by class of ops and dtype, in one table. There are no other tolerances."""

import numpy as np

from polyarr.core.spec import INEXACT, NARROW, bfloat16, float16, float32, float64, real_of
from polyarr.creation import finfo

# Tolerances are multiples of the dtype's eps, relative to a magnitude that the class defines:
#
#   exact       none: elements are moved, selected or counted
#   arithmetic  the expected value (that is: ulps). IEEE requires 0.5; OpenCL allows 2.5 for division in float32
#   function    the expected value; OpenCL allows 5 for tan and less for other functions
#   power       the expected value: pow, erf and complex functions; OpenCL allows 16 for the first two
#   relative    the expected value, after a sum of positive numbers
#   cancelling  the element's largest input: sums of terms that may cancel
#   reduction   the same reduction of the absolute values; like step if its weights have signs
#   layer       the largest element of the same layer of absolute values: weights that are integers cancel exactly.
#               Dequantized weights may first be rounded to the dtype
#   step        the largest input or expected value
#   composed    the largest expected value of the whole result
#   weighted    like composed, for sums with weights that may first be rounded to the dtype (attention)
#   program     like composed, for a function of several ops, each of which rounds
#   gradient    the largest expected value of the whole gradient
#
# Complex numbers have the tolerance of their parts' dtype, relative to the absolute value.
#
# float16 and bfloat16 are computed in float32 and rounded once: they have the tolerance of float32 plus ROUNDED ulps of
# their own. Classes with a column for them may round or accumulate in the narrow dtype on the way.
TABLE: dict[str, dict[np.dtype, float]] = {
    "exact": {float32: 0, float64: 0},
    "arithmetic": {float32: 3, float64: 3},
    "function": {float32: 8, float64: 8},
    "power": {float32: 16, float64: 16},
    "relative": {float32: 128, float64: 128},
    "cancelling": {float32: 8, float64: 8},
    "reduction": {float32: 32, float64: 32},
    "layer": {float16: 0.5, bfloat16: 0.5, float32: 128, float64: 128},
    "step": {float32: 16, float64: 16},
    "composed": {float32: 800, float64: 1e6},
    "weighted": {float16: 0.5, bfloat16: 0.5, float32: 800, float64: 1e6},
    "program": {float16: 16, bfloat16: 16, float32: 800, float64: 1e6},
    "gradient": {float16: 32, bfloat16: 32, float32: 800, float64: 1e6},
}
ROUNDED = 0.505  # half an ulp, and a margin for the error of float32 before rounding
# Tolerances of float32 products in addition to the class "reduction", as a multiple of |x| @ |y|. "high" has two
# bfloat16 terms per operand and leaves out the product of the low terms: its error is at most half of this.
PRECISIONS = {"highest": 0.0, "high": 2.0**-14, "medium": 2.0**-7}
# Lower bounds of the magnitude of a result and of a gradient: below them, tolerances are absolute.
FLOOR, GRADIENT_FLOOR = 0.01, 0.1


def allowed(kind: str, dtype: np.dtype, expected: np.ndarray, magnitude: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the allowed error of each element as float64; infinite expected values allow none."""
    if dtype not in INEXACT:
        return np.zeros(expected.shape)
    dtype = real_of(dtype)
    if dtype in NARROW and dtype not in TABLE[kind]:
        wide = allowed(kind, np.dtype(float32), expected, magnitude) if kind not in ("exact", "arithmetic") else 0.0
        return wide + (0.0 if kind == "exact" else ROUNDED) * ulp(dtype, expected)
    factor, info = TABLE[kind][dtype], finfo(dtype)
    if kind in ("exact", "arithmetic"):
        return factor * ulp(dtype, expected)
    # Denormal numbers may be flushed to 0, in intermediate results too: hence a multiple. Not in float16, whose
    # denormals are normal numbers in float32.
    flushed = 0.0 if dtype == float16 else 128 * info.smallest_normal
    if kind in ("function", "power"):
        return factor * ulp(dtype, expected) + flushed
    return factor * info.eps * np.broadcast_to(magnitude, expected.shape) + ulp(dtype, expected) + flushed


def rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round float64 to the nearest number of a floating-point dtype, ties to even."""
    if dtype != bfloat16:
        return x.astype(dtype)
    # ml_dtypes converts through float32. Rounding to odd in float32 avoids ties that x did not have.
    near = x.astype(np.float32)
    even = (near.view(np.uint32) & 1) == 0
    odd = np.where(
        (near != x) & even & np.isfinite(near),
        np.nextafter(near, np.where(x > near, np.inf, -np.inf).astype(np.float32)),
        near,
    )
    return odd.astype(np.float32).astype(dtype)


def ties(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a mask of the elements exactly between two numbers of dtype, which have only one correct rounding."""
    return np.abs(x - rounded(x, dtype).astype(np.float64)) == ulp(dtype, x) / 2


def ulp(dtype: np.dtype, x: np.ndarray) -> np.ndarray:
    """Return the spacing of dtype's numbers around x as float64; 0 where x is not finite."""
    info = finfo(dtype)
    exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))[1] - 1
    spacing = np.maximum(np.ldexp(info.eps, exponent), info.smallest_normal * info.eps)
    return np.where(np.isfinite(x), spacing, 0.0)


def largest(*arrays: np.ndarray) -> float:
    """Return the largest finite magnitude in any of the arrays."""
    found = [np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in map(np.asarray, arrays)]
    return float(max(found, default=0.0))
