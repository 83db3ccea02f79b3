"""Faults in data movement, on NumPy: strides, indices, order, random bits."""

import functools

import numpy as np

from polyarr import ops
from polyarr.backends.numpy.table import KERNELS
from tests.testing.negative_controls.table import differs, kernels

plant = functools.partial(kernels, "numpy")
exp = KERNELS[ops.exp]


# ---- layouts -------------------------------------------------------------------------------------------------


def as_if_dense(x):
    """Return the elements in memory order, as a kernel reads them that ignores strides."""
    return x.ravel(order="K").reshape(x.shape) if isinstance(x, np.ndarray) else x


plant(
    {"layout-exp": differs()},
    {ops.exp: lambda out, x: exp(out, as_if_dense(x))},
    "strides are ignored",
)
plant(
    {"layout-matrix_product": differs()},
    {ops.matrix_product: lambda out, x, y: KERNELS[ops.matrix_product](out, x, as_if_dense(y))},
    "a transposed operand is read as if it were not",
)


def from_the_start(x):
    """Return x as if it started at the start of its buffer."""
    root = x
    while root.base is not None:
        root = root.base
    if root is x or min(x.strides, default=0) < 0 or not x.size:
        return x
    return np.ndarray(x.shape, x.dtype, np.ascontiguousarray(root).reshape(-1).view(np.uint8), 0, x.strides)


plant(
    {"layout-exp": differs(), "layout-add": differs()},
    {
        ops.exp: lambda out, x: exp(out, from_the_start(x)),
        ops.add: lambda out, x, y: KERNELS[ops.add](out, *map(from_the_start_or_number, (x, y))),
    },
    "the offset of a view is ignored",
)


def from_the_start_or_number(x):
    return from_the_start(x) if isinstance(x, np.ndarray) else x


plant(
    {"layout-exp": differs()},
    {ops.exp: lambda out, x: exp(out, x[tuple(slice(None, None, -1 if s < 0 else 1) for s in x.strides)])},
    "negative strides are taken for positive ones",
)

# ---- indices -------------------------------------------------------------------------------------------------


def clamped(x, indices, axis):
    """Clamp indices into the range after negative ones are resolved."""
    n = x.shape[axis]
    return np.clip(np.where(indices < 0, indices + n, indices), 0, n - 1)


plant(
    {"forward-take": differs(), "int32-take": differs(dtype="int32")},
    {ops.take: lambda out, x, indices, *, axis: np.asarray(np.take(x, indices, axis=axis, mode="clip"))},
    "a negative index is not counted from the end",
)
plant(
    {"backend-bad-indices": r"take on numpy: index 3 of 3 elements gave \[1.0, 3.0\]; expected an IndexError"},
    {ops.take: lambda out, x, indices, *, axis: np.asarray(np.take(x, clamped(x, indices, axis), axis=axis))},
    "take clamps an index that is out of range",
)
plant(
    {"backend-bad-indices": r"scatter_add on numpy: index 3 of 3 elements gave \[2.0, 2.0, 5.0\]; expected an Ind"},
    {
        ops.scatter_add: lambda out, x, indices, updates, *, axis: KERNELS[ops.scatter_add](
            out, x, clamped(x, indices, axis), updates, axis=axis
        )
    },
    "scatter_add clamps an index that is out of range",
)


def reversed_scatter(out, x, indices, updates, *, axis):
    """Apply duplicate indices in reverse order: the first one wins."""
    flat = indices.reshape(-1)[::-1]
    lead, trail = x.shape[:axis], x.shape[axis + 1 :]
    return KERNELS[ops.scatter](
        out,
        x,
        flat,
        updates.reshape(*lead, -1 if flat.size else 0, *trail)[(*(slice(None),) * axis, slice(None, None, -1))],
        axis=axis,
    )


def dropping_scatter_add(out, x, indices, updates, *, axis):
    """Compute new[indices] += updates, which NumPy applies once per index."""
    new = x.astype(out.dtype)
    with np.errstate(all="ignore"):
        new[(*(slice(None),) * axis, indices)] += updates
    return new


plant({"forward-scatter": differs()}, {ops.scatter: reversed_scatter}, "scatter keeps the first of duplicates")
plant(
    {"forward-scatter_add": differs(), "backward-take": differs(r"d/dx"), "backward-embedding": differs(r"d/dweight")},
    {ops.scatter_add: dropping_scatter_add},
    "scatter_add drops duplicates",
)

# ---- order ---------------------------------------------------------------------------------------------------


def last_among_ties(out, x, *, axis, descending, stable):
    backwards = np.flip(x, axis)
    return x.shape[axis] - 1 - KERNELS[ops.argsort](out, backwards, axis=axis, descending=descending, stable=stable)


def last_largest(out, x, *, axis, keepdims):
    if axis is None:
        x, axis, shape = x.reshape(-1), 0, out.shape
    else:
        axis, shape = (axis[0] if isinstance(axis, tuple) else axis), out.shape
    return np.asarray(x.shape[axis] - 1 - np.argmax(np.flip(x, axis), axis=axis)).reshape(shape)


plant(
    {"forward-argsort": differs(dtype="int64"), "int8-argsort": differs(dtype="int64")},
    {ops.argsort: last_among_ties},
    "a stable sort is not stable",
)
plant({"forward-argmax": differs(dtype="int64")}, {ops.argmax: last_largest}, "argmax gives the last of ties")


def nan_first(out, x, *, axis, descending, stable):
    x = np.where(np.isnan(x), -np.inf, x) if x.dtype.kind == "f" else x
    return KERNELS[ops.argsort](out, x, axis=axis, descending=descending, stable=stable)


plant(
    {"special-argsort": differs(dtype="int64")},
    {ops.argsort: nan_first},
    "nan is sorted as the smallest number",
)


def always_up(out, x, *, axis, descending, stable):
    order = KERNELS[ops.argsort](out, x, axis=axis, descending=False, stable=stable)
    return np.take_along_axis(x, order, axis)


plant({"forward-sort": differs()}, {ops.sort: always_up}, "what is sorted downwards goes up")


# ---- random bits ---------------------------------------------------------------------------------------------


def bits(turned_key=False, counter_bits=64):
    def kernel(out, key, counter, like, *, shape):
        key = (key >> 32 | key << 32) & 2**64 - 1 if turned_key else key
        return KERNELS[ops.random_bits](out, key, counter & 2**counter_bits - 1, like, shape=shape)

    return {ops.random_bits: kernel}


RANDOM = {
    "forward-random_bits": differs(dtype="uint32"),
    "backend-random-bits": r"random_bits on numpy: key \d+, counter \d+ \(uint32\) differs at \[0\]: \d+, expected \d+",
}
plant(RANDOM, bits(turned_key=True), "the words of the key are the wrong way round")
plant(RANDOM, bits(counter_bits=32), "the counter's high word is ignored")
plant(
    {"backend-random-bits": r"random_bits on numpy: key 1, counter 9223372036854775813 \(uint32\) differs"},
    bits(counter_bits=63),
    "the counter's last bit is ignored",
)
