"""Faults of backward kernels that need certain cotangents or subsets of gradients; on NumPy's Fused kernels."""

import numpy as np

from polyarr import ops
from tests.testing.negative_controls import fused_kernels
from tests.testing.negative_controls.sizes import wrapping
from tests.testing.negative_controls.table import differs, kernels


def plant(op, name, caught, change):
    """Enter a fault: change(pull, g, wanted) returns the gradients; pull(g) returns the correct ones as a list."""
    fused = fused_kernels.FUSED[op]

    def backward(g, saved, *bufs, wanted, **params):
        pull = lambda g: list(fused.backward(g, saved, *bufs, wanted=wanted, **params))
        return tuple(change(pull, g, wanted))

    kernels("fused", caught, {op: fused._replace(backward=backward)}, f"{op.name}: {name}")


def lost(op, cotangent, gradient):
    """Return the pattern of a failure about a lost nan or infinity."""
    told = rf"with a cotangent {cotangent}, d/d{gradient} \(\w+\) differs at .*, expected (nan|-?inf) "
    return {f"cotangents-{op.name}": told + r"\(\d+ of \d+ elements are finite that must not be\)"}


def wrong(op, cotangent, gradient):
    return {f"cotangents-{op.name}": differs(f"with a cotangent {cotangent}, d/d{gradient}")}


def unwanted(op, gradient, others=r"with 1 of the others"):
    return {f"wanted-{op.name}": differs(f"asked for {others}, d/d{gradient}")}


def skipped(pull, g, wanted):
    """Skip rows whose cotangent is 0."""
    found = pull(g)
    rows = (g == 0).all(-1, keepdims=True)
    return [np.where(rows, 0, found[0]).astype(found[0].dtype), *found[1:]]


plant(
    ops.softmax,
    "rows of a cotangent of 0 are skipped",
    lost(ops.softmax, "of zeros, where an input holds nan", "x"),
    skipped,
)
plant(
    ops.gelu,
    "where the cotangent is 0, so is the gradient",
    lost(ops.gelu, "of zeros, where an input holds nan", "x"),
    lambda pull, g, wanted: [np.where(g == 0, 0, pull(g)[0]).astype(g.dtype)],
)
plant(
    ops.layer_norm,
    "nan in the cotangent counts as 0",
    lost(ops.layer_norm, "with one nan", "x"),
    lambda pull, g, wanted: pull(np.nan_to_num(g)),
)
plant(
    ops.rms_norm,
    "the cotangent is clipped",
    lost(ops.rms_norm, "with one infinity", "x"),
    lambda pull, g, wanted: pull(np.clip(g, -1e30, 1e30).astype(g.dtype)),
)
plant(
    ops.softmax,
    "a reversed cotangent is read forwards",
    wrong(ops.softmax, "that is reversed", "x"),
    lambda pull, g, wanted: pull(g[tuple(slice(None, None, -1 if s < 0 else 1) for s in g.strides)]),
)


def bias_once(pull, g, wanted):
    found = pull(g)
    if g.ndim > 1 and g.strides[0] == 0 and g.shape[0] > 1 and found[2] is not None:
        found[2] = (found[2] / g.shape[0]).astype(found[2].dtype)
    return found


plant(
    ops.linear,
    "rows that are repeated are added once",
    wrong(ops.linear, "that repeats (one number|its first row)", "bias"),
    bias_once,
)


def when(condition, gradient, change):
    """Return the gradients with one changed if these are wanted."""

    def changed(pull, g, wanted):
        found = pull(g)
        if condition(*wanted) and found[gradient] is not None:
            found[gradient] = change(found[gradient]).astype(found[gradient].dtype)
        return found

    return changed


plant(
    ops.attention,
    "keys get twice as much where queries ask for nothing and values do",
    unwanted(ops.attention, "k"),
    when(lambda q, k, v, *rest: k and v and not q, 1, lambda d: 2 * d),
)
plant(
    ops.linear,
    "the bias gets nothing where x asks and the weight does not",
    unwanted(ops.linear, "bias"),
    when(lambda x, weight, bias: x and bias and not weight, 2, np.zeros_like),
)
plant(
    ops.layer_norm,
    "the bias gets too little where x alone does not ask",
    unwanted(ops.layer_norm, "bias"),
    when(lambda x, weight, bias: weight and bias and not x, 2, lambda d: d / 2),
)


# ---- sums over many rows -----------------------------------------------------------------------------------------


def added_in(block):
    """Add the gradients of 16-bit weights in blocks of rows, and the sums of the blocks one by one in 16 bits."""

    def change(fused):
        def backward(g, saved, x, *rest, **params):
            if x.dtype.itemsize > 2 or len(x) <= block:
                return fused.backward(g, saved, x, *rest, **params)
            parts = [slice(i, i + block) for i in range(0, len(x), block)]
            each = [fused.backward(g[p], saved[p], x[p], *rest, **params) for p in parts]
            total = each[0][1]
            for _, dweight in each[1:]:
                total = total + dweight
            return np.concatenate([dx for dx, _ in each]), total

        return fused._replace(backward=backward)

    return change


for _block in (16, 256):
    wrapping(
        "fused",
        ops.rms_norm,
        f"rms_norm: the gradient of the weight is added in 16 bits after {_block} rows",
        {"cotangents-rms_norm": differs(r"of 4,096 rows and a positive cotangent, d/dweight", r"b?float16")},
        added_in(_block),
    )


def in_the_dtype_of_x(fused):
    """Round the gradient of a weight to the dtype of x."""

    def backward(g, saved, x, weight, *rest, wanted, **params):
        dx, dweight, *more = fused.backward(g, saved, x, weight, *rest, wanted=wanted, **params)
        return dx, None if dweight is None else dweight.astype(x.dtype).astype(weight.dtype), *more

    return fused._replace(backward=backward)


wrapping(
    "fused",
    ops.layer_norm,
    "layer_norm: the gradient of a wider weight is rounded to the dtype of x",
    {"cotangents-layer_norm": differs(r"of 4,096 rows and a positive cotangent, d/dweight", "float32")},
    in_the_dtype_of_x,
)
