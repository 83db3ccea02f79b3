"""Faults in indices, on NumPy and its Fused kernels: invalid ones are clamped, ignored or wrapped around."""

import numpy as np

from polyarr import ops
from polyarr.core.backend import Fused
from tests.testing.negative_controls.sizes import wrapping
from tests.testing.negative_controls.table import fault, with_kernels

GAVE = r" gave \[.*\]; expected an IndexError"


def moved(change):
    """Return the op's own kernel with indices changed by change(indices, number of elements)."""

    def wrap(kernel):
        def changed(out, x, indices, *rest, axis):
            return kernel(out, x, change(indices, x.shape[axis]), *rest, axis=axis)

        return changed

    return wrap


def caught(*cases):
    found = {}
    for case in cases:
        op = case.partition("-")[2]
        found[case] = rf"{op} on numpy: indices \[.*\] \(\w+\) of \d+{GAVE}"
    return found


def only_the_lower_word(indices, n):
    """Use the lower 32 bits of a 64-bit index."""
    return (indices & 0xFFFFFFFF) if indices.dtype == np.int64 and (indices > 2**31).any() else indices


def clamped_below(indices, n):
    return np.maximum(indices, -n)


def one_too_many(indices, n):
    return np.where(indices == n, n - 1, indices)


def counted_round(indices, n):
    return np.where((indices < -n) & (indices >= -2 * n), indices % max(n, 1), indices)


for _op, _change, _name in (
    (ops.take, only_the_lower_word, "take: an index of 64 bits is cut to 32"),
    (ops.scatter, only_the_lower_word, "scatter: an index of 64 bits is cut to 32"),
    (ops.scatter_add, clamped_below, "scatter_add: an index below -n is taken for -n"),
    (ops.scatter, clamped_below, "scatter: an index below -n is taken for -n"),
    (ops.take, counted_round, "take: an index below -n comes round again"),
    (ops.scatter, one_too_many, "scatter: index n is taken for n - 1"),
):
    wrapping("numpy", _op, _name, caught(f"indices-{_op.name}"), moved(_change))


def folded(kernel):
    """Return a kernel that forgets the shape of a result without elements."""

    def changed(out, *bufs, axis):
        found = kernel(out, *bufs, axis=axis)
        return found if found.size else found.reshape(-1)

    return changed


for _op in (ops.scatter, ops.scatter_add):
    _name = f"promised-{_op.name}"
    wrapping("numpy", _op, f"{_op.name}: empty axes are lost", {_name: r"came as float32\[0\]; it must be"}, folded)


def own(op, name, run):
    """Give the op a kernel instead of its decomposition."""

    def plant(backend):
        return with_kernels(backend, {op: run})

    plant.__name__ = name
    fault("numpy", caught(f"indices-{op.name}"))(plant)


def embedded(out, weight, indices):
    return np.take(weight, indices, axis=0, mode="clip" if (indices >= 0).all() else "raise")


def taken_along(out, x, indices, *, axis):
    return np.take_along_axis(x, np.where(np.abs(indices) > x.shape[axis], indices % x.shape[axis], indices), axis)


own(ops.embedding, "embedding: a token beyond the table is the last one", embedded)
own(ops.take_along_axis, "take_along_axis: indices far away come round again", taken_along)


def scattered_along(out, x, indices, updates, *, axis):
    """Ignore indices out of range."""
    n, new = x.shape[axis], np.array(x)
    inside = (indices >= -n) & (indices < n)
    places = list(np.indices(indices.shape))
    places[axis] = np.where(inside, indices, 0)
    np.add.at(new, tuple(places), np.where(inside, updates, 0).astype(x.dtype))
    return new


own(ops.scatter_add_along_axis, "scatter_add_along_axis: what is out of range is left out", scattered_along)


def lenient(fused):
    """Treat a target that is no class as the last class."""

    def inside(targets, classes, ignored):
        return np.where((targets >= classes) & (targets != ignored), classes - 1, targets)

    def forward(out, logits, targets, **params):
        return fused.forward(out, logits, inside(targets, logits.shape[-1], params["ignore_index"]), **params)

    def backward(g, saved, logits, targets, **params):
        return fused.backward(g, saved, logits, inside(targets, logits.shape[-1], params["ignore_index"]), **params)

    return Fused(forward, backward)


wrapping(
    "fused",
    ops.cross_entropy,
    "cross_entropy: a target beyond the classes is the last one",
    {"indices-cross_entropy": rf"cross_entropy on numpy: targets .*{GAVE}"},
    lenient,
)
