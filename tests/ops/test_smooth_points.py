"""Derivatives of elementwise ops at 0, at ties and at other special numbers against those beside them, up to order 3.

Where a rule chooses by `where`, the branch for a special number may have the right value and no slope of its own. A
derivative that is the same on all sides of a point must be that at the point, too.
"""

import itertools

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing.samples import SAMPLES, elementwise, special

pytestmark = pytest.mark.imports_only

SMOOTH = [
    op for op, entry in SAMPLES.items()
    if (op in elementwise.SAMPLES or op in special.SAMPLES) and entry.smooth and entry.usual != "complex64"
    and op is not ops.complex and len(op.inputs) < 3 and not op.defaults
]  # fmt: skip
KINKS = {ops.i0e: 1, ops.i1e: 2}  # the order up to which the sides decide: exp(-|x|) has a kink at 0
SINGULAR = {  # points that the formulas of derivatives do not reach, though the sides agree
    ops.beta: lambda x, y: (x < 0) | (y < 0),  # poles of gamma that cancel
    ops.rel_entr: lambda x, y: (x == 0) & (y == 0),
    ops.kl_div: lambda x, y: (x == 0) & (y == 0),
}
NUMBERS = (-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0)
STEP = 1e-4


def derivatives(op: Op, *inputs: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """Return the derivatives by each sequence of up to three inputs; () is the value."""
    arrays = [pa.asarray(a) for a in inputs]
    orders = [o for k in range(4) for o in itertools.product(range(len(inputs)), repeat=k)]

    def derivative(fn, order: tuple[int, ...]):
        for i in order:
            fn = pa.grad(lambda *a, fn=fn: ops.sum(fn(*a)), argnums=i)
        return fn

    with np.errstate(all="ignore"):
        return {o: derivative(op, o)(*arrays).numpy() for o in orders}


@pytest.mark.parametrize("op", SMOOTH, ids=[op.name for op in SMOOTH])
def test_derivatives_are_those_of_the_sides(on_numpy: pa.Backend, op: Op) -> None:
    points = np.asarray(list(itertools.product(NUMBERS, repeat=len(op.inputs)))).T
    if op in SINGULAR:
        points = points[:, ~SINGULAR[op](*points)]
    steps = [(1.0, 0.3), (-1.0, -0.3), (0.4, -1.0), (-0.4, 1.0)] if len(op.inputs) == 2 else [(1.0,), (-1.0,)]
    here = derivatives(op, *points)
    sides = [derivatives(op, *(points + STEP * np.asarray(step)[:, None])) for step in steps]
    compared = 0
    for order, found in here.items():
        if len(order) > KINKS.get(op, 3):
            continue
        beside = np.stack([side[order] for side in sides])
        with np.errstate(all="ignore"):
            middle, spread = beside.mean(axis=0), np.ptp(beside, axis=0)
            size = np.maximum(1, np.abs(middle))
            is_smooth = np.isfinite(here[()]) & (spread < 0.05 * size) & (size < 1e6)
            wrong = is_smooth & ~(np.abs(found - middle) < spread + 0.01 * size)
        at = [(*map(float, points[:, i]), found[i], middle[i]) for i in np.flatnonzero(wrong)]
        assert not at, f"{op.name}, derivative {order}: (inputs, found, beside) {at}"
        compared += int(is_smooth.sum())
    assert compared
