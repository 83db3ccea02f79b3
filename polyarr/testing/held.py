"""Check of dynamic scalars in 0-d arrays: numbers that change from call to call."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from polyarr import ops, tree
from polyarr.core.array import from_numpy
from polyarr.core.backend import Backend, transfers
from polyarr.core.op import Op
from polyarr.testing.checks import check, coarsest, gradients_of, label_of, magnitudes
from polyarr.testing.compare import CheckFailure, close, gradients_agree, values
from polyarr.testing.samples import SAMPLES
from polyarr.testing.strategies import Data, Sample

WHAT = "with its numbers in arrays, "
# Parameters that calls need so that their dynamic scalars have an effect.
NEEDED: dict[Op, dict[str, float]] = {ops.attention: {"dropout_rate": 0.5}}
_LINE, _TABLE = Data((7,), layout="stepped"), Data((5, 6), layout="transposed")
WINDOWS: dict[Op, tuple[Sample, ...]] = {
    ops.slice: (
        Sample((_LINE,), {"starts": (5,), "steps": (-2,), "shape": (3,)}),
        Sample((_TABLE,), {"starts": (1, 4), "steps": (2, -1), "shape": (2, 3)}),
    ),
    ops.slice_update: (
        Sample((_LINE, Data((3,), seed=1)), {"starts": (5,), "steps": (-2,)}),
        Sample((_TABLE, Data((2, 3), seed=1)), {"starts": (1, 4), "steps": (2, -1)}),
    ),
}
OUTSIDE = ((3,), (7,), (0, 1), (1, 6))  # starts of slices that exceed x by one element


@check
def check_held(op: Op, backend: Backend, template: Sample) -> None:
    """Check that numbers in 0-d arrays, which a kernel may read from memory, act as Python numbers; bad ones raise."""
    for sample in WINDOWS.get(op) or [replace(template, params={**template.params, **NEEDED.get(op, {})})]:
        _check_value(op, backend, sample)
    for sample in WINDOWS.get(op, ()):
        for starts in (s for s in OUTSIDE if len(s) == len(sample.params["starts"])):
            _check_refused(op, backend, replace(sample, params={**sample.params, "starts": starts}))


def _check_value(op: Op, backend: Backend, sample: Sample) -> None:
    """Compare value and gradients with those of the same call with Python numbers."""
    entry, place = SAMPLES[op], label_of(op, backend)
    calls = [*_called(op, backend, sample)]
    before = transfers()
    value = op(*calls[0][0], **calls[0][1].params)
    if {op.inputs[i] for i in op.numbers} <= {*backend.reads.get(op, ())} and transfers() != before:
        raise CheckFailure(f"{place}: {WHAT}{transfers().downloads - before.downloads} of them came to the host")
    got, expected = values(place, value), values(place, op(*calls[1][0], **calls[1][1].params))
    for g, e, m in zip(got, expected, magnitudes(op, entry, sample, expected), strict=True):
        close(place, f"{WHAT}the result", g, e, entry.kind, m, flushes=g.dtype in backend.flushes)
    slopes, due = ({n: values(place, g, f"d/d{n}")[0] for n, g in gradients_of(op, *call).items()} for call in calls)
    if due:
        gradients_agree(place, {n: slopes[n] for n in due}, due, WHAT, coarsest(op, sample))


def _check_refused(op: Op, backend: Backend, sample: Sample) -> None:
    (args, call), _ = _called(op, backend, sample)
    try:
        found = [a.tolist() for a in tree.leaves(op(*args, **call.params))]
    except IndexError:
        return
    starts = f"starts {sample.params['starts']}"
    raise CheckFailure(f"{label_of(op, backend)}: {WHAT}{starts} gave {found}; expected an IndexError")


def _called(op: Op, backend: Backend, sample: Sample) -> Iterator[tuple[tuple, Sample]]:
    """Yield the arguments and the call, first with numbers in 0-d arrays and then with equal Python numbers."""
    numbers = {op.inputs[i] for i in op.numbers}
    for change in (lambda n: _held(n, backend), lambda n: float(np.float32(n)) if type(n) is float else n):
        args = zip(op.inputs, sample.arrays(backend), strict=False)
        params = {name: _changed(change, value, name in numbers) for name, value in sample.params.items()}
        yield tuple(_changed(change, a, name in numbers) for name, a in args), replace(sample, params=params)


def _changed(change: Callable[[Any], Any], value: Any, is_number: bool) -> Any:
    return tree.map(change, value) if is_number else value


def _held(number: Any, backend: Backend) -> Any:
    """Return a Python number as a 0-d array that does not start at the start of its buffer."""
    if type(number) not in (int, float):
        return number
    dtype = np.float32 if type(number) is float else np.int64 if number < 2**63 else np.uint64
    return from_numpy(np.array([7, number], dtype), backend)[1]
