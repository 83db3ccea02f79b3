"""Faults in calls that few programs make: medium lengths, batches of long sums, other dtypes than the default."""

import numpy as np

from polyarr import ops
from polyarr.core.spec import NARROW, bfloat16, float32, int8, int64
from polyarr.testing import naive, references
from tests.testing.negative_controls.convolutions import computed
from tests.testing.negative_controls.side_effects import joining, rounded_once
from tests.testing.negative_controls.sizes import spoilt
from tests.testing.negative_controls.table import differs, fault, kernels

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
    "take: a negative int32 index takes the first element",
    lambda out, x, at, **p: at.dtype == np.int32 and (at < 0).any(),
    lambda y, x, at: y.fill(0),
    {"indices-embedding": differs()},
)


@fault("numpy", {"backend-joined": r"compiled ops of int8\[5, 33\] have other bits than the ops"})
def fused_integers_do_not_wrap_around(backend):
    return joining(rounded_once({int8: int64}), of=(ops.multiply, ops.add, ops.greater))(backend)


# ---- complex numbers that differ in one part -------------------------------------------------------------------------

for _op, _of_real in ((ops.equal, np.equal), (ops.isnan, np.isnan)):
    spoilt(
        _op,
        f"{_op.name}: of complex numbers, the real parts are looked at",
        lambda out, *bufs: all(getattr(b, "dtype", None) == np.complex64 for b in bufs),
        lambda y, *bufs, fn=_of_real: np.copyto(y, fn(*(b.real for b in bufs))),
        {f"promised-{_op.name}": differs(dtype="bool")},
    )

# ---- networks ------------------------------------------------------------------------------------------------------


def planted(op, name, fn):
    kernels("numpy", {f"promised-{op.name}": differs()}, {op: fn}, name)


def linear(out, x, weight, bias, *, activation):
    with np.errstate(all="ignore"):
        found = references.linear(x, weight, bias, activation=activation)
    return np.asarray(found if x.shape[-1] else np.zeros(out.shape)).astype(out.dtype)


def attention(out, q, k, v, mask, key, counter, *, scale, causal, dropout_rate):
    found = references.attention(
        q, k, v, mask, key, counter, scale=abs(scale), causal=causal, dropout_rate=dropout_rate
    )
    return found.astype(out.dtype)


def layer_norm(out, x, weight, bias, *, eps):
    bias = bias if bias is None or bias.dtype == x.dtype else np.resize(bias.view(x.dtype), bias.shape)
    wide = (a if a is None else a.astype("d") for a in (x, weight, bias))
    with np.errstate(all="ignore"):
        return references.layer_norm(*wide, eps=eps).astype(out.dtype)


def quantized_linear(out, x, codes, scale, bias, *, activation):
    scale = scale.view(bfloat16) if scale.dtype == np.float16 else scale
    bias = None if bias is None else bias.astype(float32)
    wide = x.astype(float32), codes, scale.astype(float32), bias
    return references.quantized_linear(*wide, activation=activation).astype(out.dtype)


planted(ops.linear, "linear: a layer without inputs has no bias", linear)
planted(ops.attention, "attention: the sign of the scale is lost", attention)
planted(ops.layer_norm, "layer_norm: a bias of another dtype is read in that of x", layer_norm)
planted(ops.quantized_linear, "quantized_linear: scales of float16 are read as bfloat16", quantized_linear)


def of_groups(x, weight, *, groups, **params):
    if groups > 1 and weight.shape[-1] == 4:  # channels of a group
        x = x.reshape(*x.shape[:-1], groups, 4)[..., [0, 2, 1, 3]].reshape(x.shape)
    return naive.conv_product(x, weight, groups=groups, **params)


def of_lines(x, weight, *, groups, padding, **params):
    if groups > 1 and x.ndim == 3:
        padding = ((0, sum(padding[0])),)
    return naive.conv_product(x, weight, groups=groups, padding=padding, **params)


planted(ops.conv_product, "conv_product: two of the four channels of groups are exchanged", computed(of_groups))
planted(ops.conv_product, "conv_product: the padding of groups of sequences follows them", computed(of_lines))
for _name, _when in (
    ("the largest of -inf is the least finite number", lambda y: np.isneginf(y)),
    ("an element past the 256th of a window is not found", lambda y: np.arange(y.size).reshape(y.shape) == y.size - 1),
):
    planted(
        ops.max_pool,
        f"max_pool: {_name}",
        lambda out, x, *, kernel, hit=_when, **p: (
            lambda y: np.where(hit(y) & (np.isneginf(y) | (np.prod(kernel) > 256)), -3e38, y).astype(out.dtype)
        )(naive.max_pool(x.astype("d"), kernel=kernel, **p)),
    )
