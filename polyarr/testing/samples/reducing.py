"""Entries of reductions and cumulative sums."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing import references as ref
from polyarr.testing.samples.entry import (
    EVERYTHING,
    LONG,
    SMALL,
    Entry,
    dtypes,
    lists,
    narrow_first,
    ordinary,
    with_params,
)
from polyarr.testing.strategies import SHAPES, Data, Sample, axes, one_axis

SAMPLES: dict[Op, Entry] = {}
_op: Op
_fn: Callable


# ---- reductions ----------------------------------------------------------------------------------------------------


def _reduction(
    op: Op,
    kind: str,
    tolerance: str,
    reference: Callable,
    values: Callable,
    smooth: str | None = "normal",
    params: Callable | None = None,
    shapes: Sequence[tuple] = SHAPES,
) -> None:
    def drawn(shape: tuple) -> SearchStrategy:
        return st.fixed_dictionaries({"axis": axes(shape), "keepdims": st.booleans()})

    chosen = params or drawn
    SAMPLES[op] = Entry(
        lambda dtype: with_params(shapes, chosen, values(dtype))(dtype),
        with_params([s for s in shapes if np.prod(s) < 200], chosen, (smooth,)) if smooth else None,
        reference,
        tolerance,
        dtypes(kind),
        special="mixed" if tolerance == "exact" else "nonfinite",  # a sum of extreme numbers depends on its order
    )


def _and_nonfinite(dtype: str) -> tuple[str, ...]:
    return (*ordinary(dtype), "nonfinite")


def _one_axis(shape: tuple) -> SearchStrategy:
    axis = st.one_of(one_axis(shape), st.none()) if shape else st.none()
    return st.fixed_dictionaries({"axis": axis, "keepdims": st.booleans()})


_solid = tuple(s for s in SHAPES if 0 not in s)
_reduction(ops.sum, "any", "reduction", ref.reduced(np.sum), _and_nonfinite)
_reduction(
    ops.prod,
    "numeric",
    "composed",
    ref.reduced(np.prod),
    lambda dtype: ("near one", "ties"),
    "near one",
    shapes=SHAPES[:-6],
)
for _op, _fn in ((ops.max, np.max), (ops.min, np.min)):
    _reduction(_op, "real or bool", "exact", ref.reduced(_fn), lambda dtype: EVERYTHING, "distinct", shapes=_solid)
for _op, _fn in ((ops.argmax, np.argmax), (ops.argmin, np.argmin)):
    _reduction(_op, "real or bool", "exact", ref.reduced(_fn), lambda dtype: EVERYTHING, None, _one_axis, _solid)
for _op, _fn in ((ops.any, np.any), (ops.all, np.all)):
    _reduction(_op, "any", "exact", ref.reduced(_fn), lambda dtype: ("ties", "positive", "nonfinite"), None)
_reduction(ops.logsumexp, "floating", "cancelling", ref.logsumexp, _and_nonfinite, shapes=_solid)
_reduction(ops.mean, "inexact", "reduction", ref.reduced(np.mean), _and_nonfinite)
SAMPLES[ops.mean] = SAMPLES[ops.mean]._replace(smooth=SAMPLES[ops.logsumexp].smooth)  # the mean of an empty axis is nan


def _deviations(shape: tuple) -> SearchStrategy:
    axis = axes(shape).filter(lambda a: a != ())
    return st.fixed_dictionaries({"axis": axis, "keepdims": st.booleans(), "correction": st.sampled_from((0, 0.5))})


for _op, _fn in ((ops.var, np.asarray), (ops.std, np.sqrt)):
    _reduction(_op, "floating", "composed", ref.deviation(_fn), ordinary, None, _deviations, [s for s in _solid if s])
    # std has no derivative where all elements are equal.
    _smooth = with_params([s for s in SMALL if 1 not in s], _deviations, ("distinct",))
    SAMPLES[_op] = SAMPLES[_op]._replace(smooth=_smooth)
_reduction(
    ops.cumulative_sum,
    "any",
    "reduction",
    ref.running_sum,
    # A sequential float32 sum of a thousand equal numbers near 100 exceeds the tolerance of sums.
    lambda dtype: ("normal", "ties", "nonfinite") if "float" in dtype else _and_nonfinite(dtype),
    params=lambda s: st.fixed_dictionaries({"axis": one_axis(s)}),
    shapes=LONG,
)


def _lopsided(dtype: str, *, axis: int | None) -> Sample:
    return Sample((Data((1000,), dtype, "lopsided"),), {"axis": axis})


for _op, _axis in ((ops.sum, None), (ops.mean, None), (ops.cumulative_sum, 0)):
    SAMPLES[_op] = SAMPLES[_op]._replace(cases=narrow_first(partial(_lopsided, axis=_axis), SAMPLES[_op].cases))

_norms = [((3,), (), (2, 33)), ((3,), (3,)), ((1,),), ((0,), (5, 31)), ((1000,), (3, 3))]
SAMPLES[ops.global_norm] = Entry(
    lists(_norms, st.just({}), ("normal", "wide")),
    lists(_norms, st.just({}), ("away",)),
    lambda arrays: np.sqrt(sum(np.sum(a * a) for a in arrays)),
    "composed",
    dtypes("floating"),
    special="nonfinite",
)
