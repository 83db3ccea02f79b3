"""Check of gradients for unusual cotangents: zeros, nan, infinities, reversed and broadcast ones.

Gradients agree with the reference where both are finite, and no nan or infinity of the reference is lost. The backend
decides how far nan and infinities spread: a kernel may multiply elements that another one skips by zero.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from polyarr import ops, tree
from polyarr.core.array import Array, from_numpy
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import use_backend
from polyarr.core.op import Op
from polyarr.core.spec import COMPLEX, INEXACT, NARROW
from polyarr.testing import adapters
from polyarr.testing.checks import carries_gradient, check, coarsest, gradients_of, label_of, reference
from polyarr.testing.compare import CheckFailure, close, values
from polyarr.testing.samples import SAMPLES
from polyarr.testing.strategies import VALUES, Data, Sample
from polyarr.testing.tolerance import GRADIENT_FLOOR, largest

Change = Callable[[np.ndarray], np.ndarray]


def _first_half(value: float) -> Change:
    """Replace the first half of the elements: some rows completely, one in part."""
    return lambda g: np.where(np.arange(g.size).reshape(g.shape) < (g.size + 1) // 2, value, g)


def _one(value: float) -> Change:
    return lambda g: np.where(np.arange(g.size).reshape(g.shape) == g.size // 3, value, g)


def _repeated(keep: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Change:
    """Keep the first slice along some axes, to be broadcast along them."""
    return lambda g: g[tuple(slice(0, n) for n in keep(g.shape))]


# Cotangents by description. Those with fewer elements than the result are broadcast to its shape without a copy.
COTANGENTS: dict[str, Change] = {
    "of zeros": np.zeros_like,
    "half of zeros": _first_half(0.0),
    "with one nan": _one(np.nan),
    "with one infinity": _one(np.inf),
    "that repeats one number": _repeated(lambda shape: (1,) * len(shape)),
    "that repeats its first row": _repeated(lambda shape: (1, *shape[1:])[: len(shape)]),
    "that repeats its first column": _repeated(lambda shape: (*shape[:-1], 1)[-len(shape) :] if shape else ()),
}
LAYOUTS = ("reversed", "stepped", "offset")
ROWS, CHANNELS = 4096, 8
MAY_BE_WIDER = {ops.layer_norm: 1, ops.rms_norm: 1, ops.linear: 2}  # the first input that may be wider than x
FEW = ("half of zeros", "with one nan", "that repeats its first row")  # for ops whose gradient consists of other ops
# Substitution keeps nan out of rows that do not depend on it, where elimination, the reference, spreads it to all. So
# their gradients may be finite in part, but not everywhere.
SUBSTITUTED = (ops.cholesky, ops.solve_triangular)


def _of_many_rows(op: Op, dtype: str) -> Iterator[Sample]:
    """Yield calls whose gradient adds 4,096 rows, if the op has one: positive terms, so that no errors cancel.

    All inputs have the dtype; then some of them float32, if they may be wider than x.
    """

    def data(*shape: int) -> Data:
        return Data(shape, dtype, "positive", seed=len(shape))

    row, images = data(CHANNELS), data(ROWS // 64, 64, CHANNELS)
    few, at = data(2, CHANNELS), Data((ROWS,), "int64", "below", limit=2)
    calls = {
        ops.layer_norm: Sample((data(ROWS, CHANNELS), row, row), {"eps": 0.1}),
        ops.rms_norm: Sample((data(ROWS, CHANNELS), row), {"eps": 0.1}),
        ops.batch_norm: Sample((images, row, row), {"eps": 0.1}),
        ops.group_norm: Sample((images, row, row), {"eps": 0.1, "groups": 2}),
        ops.instance_norm: Sample((images, row, row), {"eps": 0.1}),
        ops.linear: Sample((data(ROWS, CHANNELS), data(5, CHANNELS), data(5))),
        ops.conv: Sample((data(4, ROWS // 4, CHANNELS), data(5, 1, CHANNELS), data(5))),
        ops.embedding: Sample((few, at)),
        ops.take: Sample((few, at), {"axis": 0}),
        ops.multiply: Sample((data(ROWS, CHANNELS), row)),
    }
    if op in calls:
        yield calls[op]
    if op in MAY_BE_WIDER:
        first, inputs = MAY_BE_WIDER[op], calls[op].inputs
        yield replace(calls[op], inputs=(*inputs[:first], *(replace(a, dtype="float32") for a in inputs[first:])))


def _check_many_rows(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that gradients of 16-bit floats are added in float32, and rounded once."""
    got, expected = (_gradients(op, b, sample, np.abs, wide) for b, wide in ((backend, False), (reference(), True)))
    for name, due in expected.items():
        if due.size < ROWS:
            what = f"of {ROWS:,} rows and a positive cotangent, d/d{name}"
            close(label_of(op, backend), what, got[name], due, "relative", ROWS)


@check
def check_cotangents(op: Op, backend: Backend, sample: Sample) -> None:
    """Check the gradients for cotangents of zeros, with nan or infinity, reversed or broadcast, and for many rows."""
    if not carries_gradient(op, sample):
        return
    usual = {name: largest(g) for name, g in _gradients(op, reference(), sample, None, True).items()}
    has_own = isinstance(backend.kernels.get(op), Fused)
    for what in COTANGENTS if has_own else FEW:
        _agree(op, backend, sample, what, COTANGENTS[what], usual)
    for layout in LAYOUTS if has_own else LAYOUTS[:1]:
        _agree(op, backend, replace(sample, g=layout), f"that is {layout}", None, usual)
    for hidden in _with_nan(op, sample):
        for what in ("of zeros", "half of zeros") if has_own else ("half of zeros",):
            _agree(op, backend, hidden, f"{what}, where an input holds nan", COTANGENTS[what], usual)
    for dtype in (d for d in NARROW if d in backend.dtypes):
        for many in () if adapters.is_adapter(backend.name) else _of_many_rows(op, dtype.name):
            _check_many_rows(op, backend, many)


def _with_nan(op: Op, sample: Sample) -> Iterator[Sample]:
    """Yield the call with nan in one floating-point input at a time, if the op accepts nan."""
    if not SAMPLES[op].special:
        return
    for data in tree.leaves(sample.inputs):
        if isinstance(data, Data) and data.is_floating and data.values in VALUES:
            yield replace(
                sample,
                inputs=tree.map(lambda d, data=data: replace(d, values="nan") if d is data else d, sample.inputs),
            )


def _agree(op: Op, backend: Backend, sample: Sample, what: str, change: Change | None, usual: dict[str, float]) -> None:
    """Compare the gradients for a changed cotangent with the reference.

    `usual` has the gradients' magnitudes for an ordinary cotangent; those of a constant cotangent may cancel to zero.
    """
    place = label_of(op, backend)
    got, expected = (_gradients(op, b, sample, change, wide) for b, wide in ((backend, False), (reference(), True)))
    if got.keys() != expected.keys():
        raise CheckFailure(f"{place}: gradients for {[*got]}, expected for {[*expected]}")
    for name, due in expected.items():
        whose, found = f"with a cotangent {what}, d/d{name}", got[name]
        if op not in SUBSTITUTED or np.isfinite(_plain(found)).all():
            _check_not_finite(place, whose, found, due)
        both = np.isfinite(_plain(found)) & np.isfinite(due)
        found, due = np.where(both, found, found.dtype.type(0)), np.where(both, due, 0.0)
        close(
            place, whose, found, due, "gradient", max(GRADIENT_FLOOR, largest(due), usual[name]), coarsest(op, sample)
        )


def _gradients(op: Op, backend: Backend, sample: Sample, change: Change | None, wide: bool) -> dict[str, np.ndarray]:
    with use_backend(backend), np.errstate(all="ignore"):
        args = sample.arrays(backend, wide)
        params = sample.wide_params() if wide else sample.params
        value = op(*args, **params)
        cotangents = tree.map(lambda a: _cotangent(a, sample.g, change), value)
        found = gradients_of(op, args, sample, cotangents, wide=wide)
        return {name: values(label_of(op, backend), g, f"d/d{name}")[0] for name, g in found.items()}


def _cotangent(a: Array, layout: str, change: Change | None) -> Array:
    if a.dtype not in INEXACT:
        return a
    data = Data(a.shape, a.dtype.name, "eighths", layout, seed=8)
    if change is None:
        return data.array(a.backend)
    host = np.array(change(data.numpy()), a.dtype, order="C")
    return ops.broadcast_to(from_numpy(host, a.backend), shape=a.shape)


def _plain(a: np.ndarray) -> np.ndarray:
    """Return an array in a dtype that all functions of NumPy know, unlike bfloat16."""
    return a if a.dtype in COMPLEX else a.astype(np.float64)


def _check_not_finite(place: str, what: str, got: np.ndarray, expected: np.ndarray) -> None:
    """Check that elements that are not finite in the expected gradient are not finite in the one found."""
    if got.shape != expected.shape:
        raise CheckFailure(f"{place}: {what} has shape {list(got.shape)}, expected {list(expected.shape)}")
    bad = np.isfinite(_plain(got)) & ~np.isfinite(expected)
    if bad.any():
        at = np.unravel_index(np.argmax(bad), bad.shape)
        raise CheckFailure(
            f"{place}: {what} ({got.dtype.name}) differs at {list(map(int, at))}: {got[at]}, expected {expected[at]} "
            f"({int(bad.sum())} of {bad.size} elements are finite that must not be)"
        )
