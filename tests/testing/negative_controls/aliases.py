"""Faults with aliased inputs, or with inputs in two unusual layouts at once; on NumPy and its Fused kernels."""

import numpy as np

from polyarr import ops
from tests.testing.negative_controls.sizes import paired, spoilt
from tests.testing.negative_controls.table import differs


def are_one(x, y):
    return isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x is y


def alias(op, what="the result"):
    return {f"alias-{op.name}": differs(what)}


def twins(out, *bufs, **params):
    return len(bufs) > 1 and are_one(bufs[0], bufs[1])


spoilt(ops.subtract, "subtract: x - x is taken for x", twins, lambda z, x, y: np.copyto(z, x), alias(ops.subtract))
spoilt(
    ops.multiply,
    "multiply: x x is worked out in its own memory",
    twins,
    lambda z, x, y: z.__imul__(x),
    alias(ops.multiply),
)
spoilt(
    ops.divide, "divide: x over x is not read a second time", twins, lambda z, x, y: np.copyto(z, x), alias(ops.divide)
)
spoilt(
    ops.atan2,
    "atan2: one array twice is one argument",
    twins,
    lambda z, x, y: np.copyto(z, np.arctan(x)),
    alias(ops.atan2),
)
spoilt(
    ops.matrix_product,
    "matrix_product: x x is taken for x x^T",
    twins,
    lambda z, x, y: np.copyto(z, x @ x.swapaxes(-1, -2)),
    alias(ops.matrix_product, r"(the result|d/d\w)"),
)
spoilt(
    ops.concat,
    "concat: an array that comes twice is placed once",
    lambda out, arrays, *, axis: len(arrays) > len({id(a) for a in arrays}),
    lambda z, arrays: z[len(arrays[0]) :].fill(0),
    alias(ops.concat),
)
spoilt(
    ops.where,
    "where: both choices alike are not copied",
    lambda out, c, x, y: are_one(x, y),
    lambda z, c, x, y: np.copyto(z, np.where(c, x, 0)),
    alias(ops.where),
)
paired(
    ops.attention,
    "attention: keys that are the values have no gradient of their own",
    lambda q, k, v, *r, **p: are_one(k, v),
    alias(ops.attention, r"d/d\w"),
    backward=lambda d, *a: d[1].fill(0),
)
paired(
    ops.attention,
    "attention: queries that are the keys see no position but their own",
    lambda q, k, v, *r, **p: are_one(q, k) and q.shape == v.shape,
    alias(ops.attention, r"(the result|d/d\w)"),
    forward=lambda y, q, k, v, *r: np.copyto(y, v),
)

# ---- two layouts at once -----------------------------------------------------------------------------------------


def root_of(x):
    while isinstance(x, np.ndarray) and isinstance(x.base, np.ndarray):
        x = x.base
    return x


def begins_later(x):
    return (
        isinstance(x, np.ndarray)
        and x.size
        and x.__array_interface__["data"][0] != root_of(x).__array_interface__["data"][0]
    )


def is_transposed(x):
    return (
        isinstance(x, np.ndarray)
        and x.ndim > 1
        and not x.flags.c_contiguous
        and x.flags.f_contiguous | (x.strides[0] < x.strides[-1])
    )


def is_repeated(x):
    return isinstance(x, np.ndarray) and 0 in x.strides and x.size > 1


def both(shape):
    """Overwrite the result with that of another slice of the memory."""
    return lambda out, *bufs, **params: any(
        begins_later(b) and min(b.strides, default=0) >= 0 and shape(b) for b in bufs
    )


def elsewhere(y, *bufs):
    y[...] = np.roll(y.reshape(-1), 1).reshape(y.shape)


for _op in (ops.cos, ops.add, ops.permute_dims, ops.matrix_product):
    spoilt(
        _op,
        f"{_op.name}: a transposed part begins at the start of its memory",
        both(is_transposed),
        elsewhere,
        {f"layout-{_op.name}": differs()},
    )
spoilt(
    ops.sqrt,
    "sqrt: a repeated part is read from the start of its memory",
    both(is_repeated),
    elsewhere,
    {"layout-sqrt": differs()},
)
