"""Faults in convolutions, pooling and resizing: positions of windows, members of groups, counts of means."""

import math

import numpy as np

from polyarr import ops
from polyarr.testing import naive
from tests.testing.negative_controls.fused_kernels import fused
from tests.testing.negative_controls.table import differs, kernels

PRODUCTS = (ops.conv_product, ops.conv_input_gradient, ops.conv_weight_gradient)


def computed(fn):
    """Return a kernel made of a function of float64 arrays."""
    return lambda out, *bufs, **params: np.asarray(fn(*(b.astype("d") for b in bufs), **params)).astype(out.dtype)


def fitted(a, shape):
    """Return a cropped or zero-padded to a shape, as a kernel writes that trusts its output's shape."""
    found = np.zeros(shape)
    common = tuple(slice(0, min(n, m)) for n, m in zip(a.shape, shape, strict=True))
    found[common] = a[common]
    return found


def elsewhere(op, moved):
    """Plant the op's reference loops with window positions changed by `moved`."""
    loops = getattr(naive, op.name)

    def kernel(out, *bufs, **params):
        found = loops(*(b.astype("d") for b in bufs), **moved(params))
        return fitted(found, out.shape).astype(out.dtype)

    return kernel


def plant(name, changed, *cases):
    """Enter a fault that these cases catch, in the result or in a gradient."""
    what = {"backward": r"d/d\w+"}
    kernels("numpy", {case: differs(what.get(case.partition("-")[0], "the result")) for case in cases}, changed, name)


# ---- where windows lie ---------------------------------------------------------------------------------------------


def on_one_side(params):
    return {**params, "padding": tuple((sum(p), 0) for p in params["padding"])}


def no_dilation(params):
    return {**params, "dilation": (1,) * len(params["dilation"])}


def first_stride(params):
    return {**params, "stride": params["stride"][:1] * len(params["stride"])}


for _what, _moved in (("padding on one side", on_one_side), ("one stride for all axes", first_stride)):
    plant(f"conv: {_what}", {ops.conv_product: elsewhere(ops.conv_product, _moved)},
          "forward-conv_product", "forward-conv", "backward-conv_input_gradient")  # fmt: skip
    plant(f"max_pool: {_what}", {ops.max_pool: elsewhere(ops.max_pool, _moved)}, "forward-max_pool")
plant(
    "conv: dilation ignored",
    {ops.conv_product: elsewhere(ops.conv_product, no_dilation)},
    "forward-conv_product",
    "forward-conv",
)
plant("windows: dilation ignored", {ops.windows: elsewhere(ops.windows, no_dilation)},
      "forward-windows", "forward-conv_product")  # fmt: skip
plant("max_pool: dilation ignored", {ops.max_pool: elsewhere(ops.max_pool, no_dilation)}, "forward-max_pool")


def short(op):
    """Omit the last column of the last spatial axis if its length is no multiple of four."""

    def kernel(out, *bufs, **params):
        found = getattr(naive, op.name)(*(b.astype("d") for b in bufs), **params)
        if found.shape[-2] % 4:
            found[..., -1:, :] = 0
        return found.astype(out.dtype)

    return kernel


for _op in (*PRODUCTS, ops.max_pool, ops.mean_pool, ops.sum_windows):
    plant(f"{_op.name}: the last column skipped", {_op: short(_op)}, f"forward-{_op.name}")


def overwritten(x, *, shape, **where):
    found = naive.Windows(shape, x.shape[1 + len(shape) : -1], **where)
    out = np.zeros((x.shape[0], *shape, x.shape[-1]))
    for i, j, at in found.positions():
        out[(slice(None), *at)] = x[(slice(None), *i, *j)]
    return out


plant("sum_windows: the last window wins", {ops.sum_windows: computed(overwritten)},
      "forward-sum_windows", "backward-windows", "forward-conv_input_gradient")  # fmt: skip


# ---- groups, sums and means ----------------------------------------------------------------------------------------


def interleaved(a, groups):
    """Confuse channel i of group j with channel j of group i."""
    return a.reshape(*a.shape[:-1], a.shape[-1] // groups, groups).swapaxes(-1, -2).reshape(a.shape)


plant(
    "conv: groups mixed",
    {
        ops.conv_product: computed(
            lambda x, w, *, groups, **p: naive.conv_product(interleaved(x, groups), w, groups=groups, **p)
        )
    },
    "forward-conv_product",
    "forward-conv",
)
plant(
    "conv: the weight's gradient mixes groups",
    {ops.conv_weight_gradient: computed(
        lambda g, x, *, groups, **p: naive.conv_weight_gradient(g, interleaved(x, groups), groups=groups, **p)
    )},
    "forward-conv_weight_gradient",
)  # fmt: skip
kernels(
    "numpy",
    {"backward-conv_product": differs("d/dweight"), "backward-conv": differs("d/dweight")},
    {ops.conv_weight_gradient: computed(lambda g, x, **p: naive.conv_weight_gradient(g[:1], x[:1], **p))},
    "conv: the weight's gradient is that of the first image",
)
kernels(
    "numpy",
    {"backward-conv_product": differs("d/dx")},
    {ops.conv_input_gradient: computed(
        lambda g, w, **p: naive.conv_input_gradient(g, np.flip(w, tuple(range(1, w.ndim - 1))), **p)
    )},
    "conv: the gradient's filters are flipped",
)  # fmt: skip


def in_halves(out, x, weight, **params):
    """Accumulate products in the dtype that they are stored in."""
    if x.dtype.itemsize > 2 or params["groups"] > 1 or set(params["dilation"]) != {1}:
        return computed(naive.conv_product)(out, x, weight, **params)
    total = np.zeros(out.shape, x.dtype)
    for i, j, at in naive.Windows(x.shape[1:-1], weight.shape[1:-1], params["stride"], params["padding"]).positions():
        total[(slice(None), *i)] += x[(slice(None), *at)] @ weight[(slice(None), *j)].T
    return total


plant("conv: sums of 16 bits", {ops.conv_product: in_halves}, "float16-conv_product", "bfloat16-conv_product")
plant(
    "mean_pool: the padding counts",
    {ops.mean_pool: computed(lambda x, **p: naive.mean_pool(x, **{**p, "count_include_pad": True}))},
    "forward-mean_pool",
)
plant(
    "mean_pool: what ceil_mode adds counts",
    {ops.mean_pool: computed(
        lambda x, **p: naive.mean_pool(x, **({**p, "divisor": math.prod(p["kernel"])} if p["ceil_mode"] else p))
    )},
    "forward-mean_pool",
)  # fmt: skip


def over_zeros(x, *, padding, **params):
    around = ((0, 0), *padding, (0, 0))
    return naive.max_pool(np.pad(x, around), padding=0, **params)


plant(
    "max_pool: the padding is 0",
    {ops.max_pool: lambda out, x, **p: fitted(over_zeros(x.astype("d"), **p), out.shape).astype(out.dtype)},
    "forward-max_pool",
)


# ---- gradients of the largest --------------------------------------------------------------------------------------


def of_the_largest(chosen):
    """Return Fused max_pool whose gradient goes where `chosen` selects among the maxima (b, window, c)."""

    def backward(g, saved, x, *, kernel, **where):
        dx = np.zeros(x.shape)
        for i in np.ndindex(g.shape[1:-1]):
            there = [
                [at for j in range(k) if 0 <= (at := a * s + j * d - lo) < n]
                for a, k, s, d, (lo, _), n in zip(
                    i, kernel, where["stride"], where["dilation"], where["padding"], x.shape[1:-1], strict=True
                )
            ]
            part = x[(slice(None), *np.ix_(*there))]
            flat = part.reshape(len(x), math.prod(map(len, there)), x.shape[-1])
            shares = chosen(flat == flat.max(1, keepdims=True, initial=-np.inf)) * g[(slice(None), *i)][:, None]
            dx[(slice(None), *np.ix_(*there))] += shares.reshape(part.shape)
        return (dx,)

    return fused(lambda x, **params: (naive.max_pool(x, **params), None), backward)


for _what, _chosen in (
    ("is split among the largest", lambda largest: largest / np.maximum(largest.sum(1, keepdims=True), 1)),
    ("goes to all of the largest", lambda largest: largest * 1.0),
    ("goes to the last of the largest", lambda largest: (largest[:, ::-1].cumsum(1)[:, ::-1] == 1) & largest),
):
    plant(f"max_pool: the gradient {_what}", {ops.max_pool: of_the_largest(_chosen)}, "backward-max_pool")
