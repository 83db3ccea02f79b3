"""Faults that need two conditions at once, on NumPy: a parameter and a layout, many axes, a stack, equal cache keys."""

import functools

import numpy as np

from polyarr import ops
from polyarr.backends.kernels import quiet
from tests.testing.negative_controls.sizes import wrapping
from tests.testing.negative_controls.table import differs, kernels

plant = functools.partial(kernels, "numpy")


def wrap(op, name, caught):
    """Enter the decorated function as a fault: change(kernel) -> kernel."""
    return lambda change: wrapping("numpy", op, name, caught, change)


# ---- layouts and axes ----------------------------------------------------------------------------------------------


@wrap(ops.argmax, "argmax of all elements counts in the order of memory", {"caches-argmax": differs(dtype="int64")})
def in_memory_order(kernel):
    def changed(out, x, *, axis, keepdims):
        x = x.reshape(-1, order="A") if axis is None else x
        return kernel(out, x, axis=axis, keepdims=keepdims).reshape(out.shape)

    return changed


@wrap(ops.take, "take reads rows forwards that a view of three axes reverses", {"layout-take": differs()})
def forwards(kernel):
    def changed(out, x, indices, *, axis):
        mirrored = x.ndim > 2 and x.strides[-1] < 0 < min(x.strides[:-1])
        return kernel(out, x[..., ::-1] if mirrored else x, indices, axis=axis)

    return changed


plant(
    {"large-permute_dims": differs()},
    {ops.permute_dims: lambda out, x, *, axes: x.transpose(*axes[:6], *sorted(axes[6:])).reshape(out.shape)},
    "permute_dims keeps the order of a seventh axis and of those after it",
)

@wrap(ops.matrix_product, "batches of y begin again in the middle", {"large-matrix_product": differs()})
def repeating_batches(kernel):
    def changed(out, x, y):
        if x.ndim == y.ndim == 4 and x.shape[0] == y.shape[0] and y.shape[1] == 1:
            y = y.reshape(-1, *y.shape[2:])[np.arange(x.shape[0] * x.shape[1]) % len(y)]
            y = y.reshape(*x.shape[:2], *y.shape[1:])
        return kernel(out, x, y)

    return changed


plant(
    {"large-roll": differs()},
    {ops.roll: lambda out, x, *, shift, axis: np.roll(x, shift[0] if isinstance(shift, tuple) else shift, axis)},
    "roll shifts all axes by the first shift",
)

# ---- memory and caches of large calls ------------------------------------------------------------------------------


@wrap(
    ops.slice_update, "slice_update writes into a large x",
    {"lasting-slice_update": "slice_update on numpy: an input is another one after the call"},
)  # fmt: skip
def in_place(kernel):
    def changed(out, x, value, starts, *, steps):
        found = kernel(out, x, value, starts, steps=steps)
        if x.size > 256 and x.base is None:
            x[...] = found
        return found

    return changed


@wrap(
    ops.matrix_product, "large products of a shape share memory",
    {"lasting-matrix_product": "matrix_product on numpy: the result is another one after 1 more call"},
)  # fmt: skip
def in_one_workspace(kernel):
    workspaces = {}

    def changed(out, x, y):
        found = kernel(out, x, y)
        if out.size < 4096:
            return found
        workspace = workspaces.setdefault((out.shape, out.dtype), found)
        workspace[...] = found
        return workspace

    return changed


@wrap(ops.fill, "fill takes -0.0 for 0.0", {"numbers-fill": r"the result at \[\d+\] is 0.0, expected -0.0"})
def cached_by_value(kernel):
    found = {}

    def changed(out, value, like, *, shape, dtype):
        key = value, shape, dtype
        if key not in found:
            found[key] = kernel(out, value, like, shape=shape, dtype=dtype)
        return found[key]

    return changed


# ---- values --------------------------------------------------------------------------------------------------------


@wrap(ops.equal, "true is stored as 2", {"forward-equal": "equal on numpy: the result holds true as the byte 2"})
def twice(kernel):
    return lambda out, *bufs: (2 * np.array(kernel(out, *bufs)).view(np.uint8)).view(np.bool_)


@wrap(ops.where, "an int64 number passes through float64", {"numbers-where": differs(dtype="int64")})
def through_floats(kernel):
    def changed(out, condition, *bufs):
        numbers = (int(float(b)) if type(b) is int and out.dtype == np.int64 else b for b in bufs)
        return kernel(out, condition, *numbers)

    return changed


@wrap(ops.sqrt, "sqrt takes -0.0 for 0.0 in imaginary parts", {"promised-sqrt": differs(dtype="complex64")})
def above_the_cut(kernel):
    return lambda out, x: kernel(out, x + 0j if x.dtype.kind == "c" else x)


@wrap(ops.abs, "abs squares large complex numbers", {"promised-abs": differs()})
def by_squares(kernel):
    root = quiet(lambda x: np.sqrt(x.real**2 + x.imag**2))
    return lambda out, x: root(x) if x.dtype.kind == "c" else kernel(out, x)


@wrap(ops.slogdet, "a singular matrix spoils the stack", {"matrices-slogdet": r"of a stack with .* differs at"})
def all_singular(kernel):
    def changed(out, x):
        sign, size = kernel(out, x)
        return (sign, size) if np.isfinite(size).all() else (0 * sign, np.full_like(size, -np.inf))

    return changed


def by_a_factor(out, x, *, shape, scale, mode, align_corners):
    if mode != "nearest" or scale is not None:
        return NotImplemented
    for axis, m in enumerate(out.shape[1:-1], 1):
        factor = np.float32(x.shape[axis]) / np.float32(m)
        x = np.take(x, (np.arange(m, dtype=np.float32) * factor).astype(int), axis=axis)
    return x


plant({"large-interpolate": differs()}, {ops.interpolate: by_a_factor}, "interpolate multiplies by a rounded factor")


def without_the_lowest_code(out, x, codes, scale, bias, *, activation):
    if codes.dtype != np.int8 or scale.ndim != 1 or activation:
        return NotImplemented
    found = x.astype("d") @ (np.maximum(codes, -127) * scale[:, None].astype("d")).T
    return (found if bias is None else found + bias).astype(out.dtype)


plant(
    {"large-quantized_linear": differs()},
    {ops.quantized_linear: without_the_lowest_code},
    "the code -128 becomes -127",
)


def without_holes(out, x, weight, groups):
    used, rank = np.unique(groups, return_inverse=True)
    if (used < 0).any() or (used >= len(weight)).any():
        return NotImplemented
    rows = weight[rank.reshape(groups.shape)]
    return np.einsum("...nk,...k->...n", rows.astype("d"), x.astype("d")).astype(out.dtype)


plant({"large-grouped_linear": differs()}, {ops.grouped_linear: without_holes}, "groups without rows are not counted")


def along_an_axis_of_this_length(fused):
    """Take the last axis of a length for the gradient."""

    def backward(g, saved, x, *, wanted, axis):
        last = max(i for i, n in enumerate(x.shape) if n == x.shape[axis])
        return fused.backward(g, saved, x, wanted=wanted, axis=last)

    return fused._replace(backward=backward)


wrapping(
    "fused",
    ops.softmax,
    "softmax takes another axis of the same length for its gradient",
    {"promised-softmax": differs("d/dx")},
    along_an_axis_of_this_length,
)
