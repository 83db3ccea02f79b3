"""Faults in calls that few programs make: medium lengths, batches of long sums, other dtypes than the default."""

import numpy as np

from polyarr import ops
from polyarr.core.spec import NARROW, int8, int64
from tests.testing.negative_controls.side_effects import joining, rounded_once
from tests.testing.negative_controls.sizes import spoilt
from tests.testing.negative_controls.table import differs, fault

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

# ---- sums and sequences in other dtypes ----------------------------------------------------------------------------

for _op in (ops.sum, ops.prod, ops.cumulative_sum):
    spoilt(
        _op,
        f"{_op.name}: a wider dtype than that of x is only a conversion of the result",
        lambda out, x, *, dtype, **p: x.dtype in NARROW and dtype not in NARROW,
        lambda y, x: np.copyto(y, y.astype(x.dtype).astype(y.dtype)),
        {f"numbers-{_op.name}": differs(dtype="float32")},
    )
spoilt(
    ops.sum,
    "sum: uint16 is added in 32 bits",
    lambda out, x, *, dtype, **p: x.dtype == np.uint16 and dtype == np.uint64,
    lambda y, x: np.bitwise_and(y, 2**31 - 1, out=y),
    {"numbers-sum": differs(dtype="uint64")},
)
spoilt(
    ops.iota,
    "iota: float16 counts in float16",
    lambda out, *numbers, **p: out.dtype == np.float16,
    lambda y, start, step, *like: np.copyto(y, np.arange(y.size).astype(y.dtype) * y.dtype.type(step) + start),
    {"numbers-iota": differs(dtype="float16")},
)
spoilt(
    ops.iota,
    "iota: uint64 counts in 32 bits",
    lambda out, *numbers, **p: out.dtype == np.uint64,
    lambda y, *numbers: np.bitwise_and(y, 2**32 - 1, out=y),
    {"numbers-iota": differs(dtype="uint64")},
)
spoilt(
    ops.take,
    "take: a negative index of 32 bits is that of the first element",
    lambda out, x, at, **p: at.dtype == np.int32 and (at < 0).any(),
    lambda y, x, at: y.fill(0),
    {"indices-embedding": differs()},
)


@fault("numpy", {"backend-joined": r"compiled ops of int8\[5, 33\] have other bits than the ops"})
def fused_integers_do_not_wrap_around(backend):
    return joining(rounded_once({int8: int64}), of=(ops.multiply, ops.add, ops.greater))(backend)
