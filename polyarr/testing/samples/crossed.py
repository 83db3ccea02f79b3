"""Large and huge calls with other inputs than normal float32: other dtypes, offsets, ties, one nan, one infinity."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from polyarr import ops, tree
from polyarr.core.op import Op
from polyarr.testing.samples.entry import Entry, is_narrow
from polyarr.testing.samples.huge import huge
from polyarr.testing.samples.large import large
from polyarr.testing.samples.numbers import UNFIT, WIDE
from polyarr.testing.shaped import SHAPED_VALUES
from polyarr.testing.strategies import VALUES, Data, Sample

# Ops whose results lose digits with inputs around 100 even in a correct float32 kernel.
NO_OFFSET = {ops.attention, ops.cumulative_sum, ops.linear_cross_entropy}
# An entry's `special` -> the special values that a single element may have.
LONE = {
    "mixed": ("lone nan", "lone inf", "lone -inf"), "nonfinite": ("lone nan", "lone inf", "lone -inf"),
    "masked": ("lone nan", "lone -inf"), "nan": ("lone nan",), "": (),
}  # fmt: skip
SHARED = 2  # number of huge calls in each 16-bit dtype, and of large ones with each rule of values


def in_other_dtypes(op: Op, entry: Entry, template: Sample) -> Iterator[Sample]:
    """Yield every large call and some huge ones in 16-bit floats, and the first of each in other dtypes."""
    if not any(d.dtype == entry.usual for d in _arrays(template)):
        return
    for dtype in (d for d in entry.dtypes if d != entry.usual and not _is_unfit(op, d)):
        changed = template.with_dtype(dtype, entry.usual)
        count = (None, SHARED) if is_narrow(dtype) else (1, 1)
        count = (None, 0) if any(d.values in SHAPED_VALUES for d in _arrays(template)) else count
        yield from itertools.islice(large(op, changed), count[0])
        yield from itertools.islice(huge(op, changed), count[1])
        if dtype in WIDE and op not in UNFIT:
            yield from (call.with_values("edges") for call in itertools.islice(large(op, changed), 1))


def with_other_values(op: Op, entry: Entry, template: Sample) -> Iterator[Sample]:
    """Yield some large and huge calls with inputs around 100, ties, few nonzeros, and one nan or infinity."""
    if entry.usual != "float32" or any(d.values in SHAPED_VALUES for d in _arrays(template)):
        return
    everywhere = [v for v in ("offset", "ties", "sparse") if not (v == "offset" and op in NO_OFFSET)]
    for call in (*large(op, template)[:SHARED], *huge(op, template)[:1]):
        usual = call.with_values("normal", only="distinct")
        yield from (usual.with_values(values) for values in everywhere)
        places = [path for path, d in tree.items(call.inputs) if isinstance(d, Data) and d.values in VALUES]
        for path, values in itertools.product({*places[:1], *places[-1:]}, LONE[entry.special]):
            yield call.changed_at(path, lambda d: replace(d, values=values))  # noqa: B023  called at once


def _is_unfit(op: Op, dtype: str) -> bool:
    """Return whether a dtype is excluded: no negative exponents in integers, and no exact reference in float64."""
    return (op is ops.pow and "float" not in dtype) or (op is ops.interpolate and dtype == "float64")


def _arrays(template: Sample) -> list[Data]:
    return [leaf for leaf in tree.leaves(template.inputs) if isinstance(leaf, Data)]
