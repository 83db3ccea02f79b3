"""How far a result may be from the exact one: one table, by op class and dtype. There are no other tolerances."""

import numpy as np

from polyarr.core.spec import FLOATS, bfloat16, float16, float32, float64
from polyarr.creation import finfo

# Multiples of the dtype's eps; eps times what, the class says:
#
#   exact       nothing: elements are moved, chosen or counted
#   arithmetic  the expected value (so: units in the last place). IEEE asks 0.5; OpenCL grants division 2.5, in float32
#   function    the expected value; OpenCL grants pow 16
#   cancelling  the largest input of the element: sums of terms that may cancel
#   reduction   the same reduction of the absolute values
#   layer       the largest element of the same layer of absolute values: whole numbers as weights cancel exactly
#   step        the largest input or expected value
#   composed    the largest expected value of the whole result
#   gradient    the largest expected value of the whole gradient
#
# Narrow floats are computed in float32 and rounded, once by a kernel and at every op by a body.
TABLE: dict[str, dict[np.dtype, float]] = {
    "exact": {float16: 0, bfloat16: 0, float32: 0, float64: 0},
    "arithmetic": {float16: 0.51, bfloat16: 0.51, float32: 3, float64: 3},
    "function": {float16: 4, bfloat16: 4, float32: 16, float64: 16},
    "cancelling": {float16: 4, bfloat16: 4, float32: 8, float64: 8},
    "reduction": {float16: 2, bfloat16: 2, float32: 32, float64: 32},
    "layer": {float16: 4, bfloat16: 4, float32: 128, float64: 128},
    "step": {float16: 8, bfloat16: 8, float32: 16, float64: 16},
    "composed": {float16: 16, bfloat16: 16, float32: 800, float64: 1e6},
    "gradient": {float16: 32, bfloat16: 32, float32: 800, float64: 1e6},
}
# How far a product of float32 may be off beyond the class "reduction": so many times |x| @ |y|; as if each number were
# off by so many times the largest one of its operand; and for each term, so many times the two largest. The last two
# are for kernels that divide a whole operand by one scale, and its numbers into two of float16.
_IN_TWO = (2.0**-50, 2.0**-78)
PRECISIONS = {"highest": (0.0, 0.0, 0.0), "high": (2.0**-20, *_IN_TWO), "medium": (2.0**-7, *_IN_TWO)}
# The least "largest value" of a result and of a gradient: below it, differences count as absolute.
FLOOR, GRADIENT_FLOOR = 0.01, 0.1


def allowed(kind: str, dtype: np.dtype, expected: np.ndarray, magnitude: np.ndarray | float = 0.0) -> np.ndarray:
    """The largest error that each element may have, as float64; infinities in expected allow none."""
    if dtype not in FLOATS:
        return np.zeros(expected.shape)
    factor, info = TABLE[kind][dtype], finfo(dtype)
    if kind in ("exact", "arithmetic"):
        return factor * ulp(dtype, expected)
    # What lies below the smallest normal number may be flushed to 0, on the way too: hence some of them. Not so in
    # float16, whose small numbers are ordinary ones in float32.
    flushed = 0.0 if dtype == float16 else 128 * info.smallest_normal
    if kind == "function":
        return factor * ulp(dtype, expected) + flushed
    return factor * info.eps * np.broadcast_to(magnitude, expected.shape) + ulp(dtype, expected) + flushed


def ulp(dtype: np.dtype, x: np.ndarray) -> np.ndarray:
    """The distance of neighbours in dtype around x, as float64; 0 where x is not finite."""
    info = finfo(dtype)
    exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))[1] - 1
    spacing = np.maximum(np.ldexp(info.eps, exponent), info.smallest_normal * info.eps)
    return np.where(np.isfinite(x), spacing, 0.0)


def largest(*arrays: np.ndarray) -> float:
    """The largest finite magnitude in any of the arrays."""
    found = [np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in map(np.asarray, arrays)]
    return float(max(found, default=0.0))
