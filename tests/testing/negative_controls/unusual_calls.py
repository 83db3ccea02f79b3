"""Faults in calls that few programs make: medium lengths, batches of long sums, other dtypes than the default."""

import numpy as np

from polyarr import ops
from tests.testing.negative_controls.sizes import spoilt

# ---- sizes ---------------------------------------------------------------------------------------------------------

spoilt(
    ops.argmax,
    "argmax: a byte counts the elements of a column",
    lambda out, x, *, axis, keepdims: axis == 0 and x.ndim == 2 and 256 < x.shape[0] < 1000,
    lambda y, x: np.remainder(y, 256, out=y),
)
spoilt(
    ops.cumulative_sum,
    "cumulative_sum: a second stack of columns begins with the parts of the first",
    lambda out, x, *, axis, dtype: x.ndim == 3 and axis == 1 and x.shape[1] > 5000,
    lambda y, x: np.copyto(y[1:, 5000:], y[:1, 5000:]),
)
spoilt(
    ops.permute_dims,
    "permute_dims: two batch axes of transposed matrices are exchanged",
    lambda out, x, *, axes: axes == (1, 0, 3, 2) and min(out.shape) > 4,
    lambda y, x: np.copyto(y, y.reshape(y.shape[1], y.shape[0], *y.shape[2:]).swapaxes(0, 1).copy()),
)
spoilt(
    ops.matrix_product,
    "matrix_product: of a batch with a long k, its remainder is left out",
    lambda out, x, y, **p: x.ndim == 3 and x.shape[-1] > 2**14,
    lambda found, x, y: np.subtract(found, x[..., -3:] @ y[..., -3:, :], out=found),
)
spoilt(
    ops.cholesky,
    "cholesky: of a stack of large matrices, all get the first one's result",
    lambda out, x: x.ndim == 3 and x.shape[-1] > 64,
    lambda y, x: np.copyto(y, y[:1]),
    {"matrices-cholesky": r"L L\^H \(\w+\) differs at"},
)
