"""A complete polyarr backend: a table from ops to kernels, and two functions that copy.

A kernel is called as kernel(out, *buffers, **params) and returns a buffer; here a buffer is a NumPy array. `out` is
the result's Spec: its shape and dtype. All arguments are checked before a kernel is called.
"""

import math

import numpy as np

from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.spec import COMPLEX, DTYPES, bfloat16, float16
from polyarr.plugins import hookimpl


def plain(fn):
    """Return a kernel made of a NumPy function. Python numbers among the inputs take the dtype of the arrays."""

    def kernel(out, *bufs, **params):
        dtype = next(b.dtype for b in bufs if isinstance(b, np.ndarray))
        return np.asarray(fn(*(np.asarray(b, dtype) for b in bufs), **params), out.dtype)

    return kernel


def summed(fn):
    """Return a kernel that accumulates in 64 bits: in 32 bits, the sum of 70,001 tenths is off by a thousandth."""
    wide = lambda dtype: np.dtype("d") if dtype.kind == "f" else dtype
    return lambda out, *bufs, dtype=None, **p: np.asarray(fn(*bufs, dtype=wide(out.dtype), **p), out.dtype)


def window(starts, steps, shape):
    """Return Python slices. One that runs back to the first element ends at None, because -1 would mean the last."""
    each = [(start, start + n * step, step, n) for start, step, n in zip(starts, steps, shape, strict=True)]
    return tuple(slice(a, b if b >= 0 else None, step) if n else slice(0, 0) for a, b, step, n in each)


def along(axis, indices):
    return (*(slice(None),) * axis, np.array(indices, order="C"))


def replace(x, places, values, put=np.ndarray.__setitem__):
    new = np.array(x)  # a copy: a kernel never writes to an input
    put(new, places, np.array(values, order="C"))  # in row-major order, so that the last of several updates wins
    return new


def argsort(out, x, *, axis, descending, stable):
    """Sort in ascending order; for descending, sort the flipped array and reverse the result, so ties stay stable."""
    order = np.argsort(np.flip(x, axis) if descending else x, axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(order, axis) if descending else order


def random_bits(out, key, counter, like, *, shape):
    """Return Philox4x32-10: four words from each block's number and `counter`, in ten rounds with a changing key."""
    block, low, high = np.arange(-(-out.size // 4), dtype=np.uint64), np.uint64(2**32 - 1), np.uint64(32)
    a, b, c, d = block & low, block >> high, np.uint64(counter & 2**32 - 1), np.uint64(counter >> 32)
    for i in range(10):
        k0, k1 = (key + i * 0x9E3779B9) & 2**32 - 1, ((key >> 32) + i * 0xBB67AE85) & 2**32 - 1
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = (right >> high) ^ b ^ np.uint64(k0), right & low
        c, d = (left >> high) ^ d ^ np.uint64(k1), left & low
    return np.stack([a, b, c, d], axis=-1).reshape(-1)[: out.size].astype(np.uint32).reshape(shape)


SAME_NAME = (  # in NumPy, with the same parameters
    ops.add, ops.subtract, ops.multiply, ops.divide, ops.floor_divide, ops.remainder, ops.maximum, ops.minimum,
    ops.negative, ops.abs, ops.sign, ops.signbit, ops.floor, ops.round, ops.exp, ops.expm1, ops.log, ops.log1p,
    ops.sqrt, ops.sin, ops.cos, ops.atan2, ops.tanh, ops.equal, ops.less, ops.less_equal, ops.nextafter, ops.max,
    ops.min, ops.argmax, ops.argmin, ops.prod, ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor, ops.bitwise_invert,
    ops.bitwise_left_shift, ops.bitwise_right_shift, ops.reshape, ops.broadcast_to,
)  # fmt: skip
KERNELS = {
    **{op: plain(getattr(np, op.name)) for op in SAME_NAME},
    ops.erf: plain(np.vectorize(math.erf, "d")), ops.cumulative_sum: summed(np.cumsum), ops.random_bits: random_bits,
    ops.pow: plain(lambda x, y: np.where(np.isinf(x) & (y == 0.5), np.abs(x), np.pow(x, y))),  # NumPy: sqrt(-inf)
    ops.fill: lambda out, value, like, *, shape, dtype: np.full(shape, value, dtype),
    ops.iota: lambda out, start, step, like, *, size, dtype: (start + np.arange(size) * step).astype(dtype),
    ops.permute_dims: plain(np.transpose), ops.astype: lambda out, x, *, dtype: x.astype(dtype),
    ops.where: lambda out, c, x, y: np.where(c, np.asarray(x, out.dtype), np.asarray(y, out.dtype)),
    ops.concat: lambda out, arrays, *, axis: np.concatenate(arrays, axis),
    ops.slice: lambda out, x, starts, *, steps, shape: x[window(starts, steps, shape)],
    ops.slice_update: lambda out, x, v, starts, *, steps: replace(x, window(starts, steps, v.shape), v),
    ops.take: lambda out, x, i, *, axis: np.asarray(np.take(x, i, axis)), ops.argsort: argsort, ops.sum: summed(np.sum),
    ops.scatter: lambda out, x, i, v, *, axis: replace(x, along(axis, i), v), ops.matrix_product: summed(np.matmul),
    ops.scatter_add: lambda out, x, i, v, *, axis: replace(x, along(axis, i), v, put=np.add.at),
}  # fmt: skip


def start():
    kernels = {op: np.errstate(all="ignore")(kernel) for op, kernel in KERNELS.items()}  # nan and inf are valid results
    held = frozenset(DTYPES) - {float16, bfloat16, *COMPLEX}  # NumPy would accumulate the first two in 16 bits
    return Backend("tiny", kernels, upload=np.array, download=lambda x: np.array(x, order="C"), dtypes=held)


@hookimpl
def polyarr_backends(register):
    register("tiny", start, summary="the smallest backend: every primitive in plain NumPy", api=2)
