"""Entries of gather, scatter and sorting ops."""

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing import references as ref
from polyarr.testing.samples.entry import ANY, FILLED, LONG, SMALL, Cases, Entry, axis_params, dtypes, with_params
from polyarr.testing.strategies import Sample, datas, memoized, one_axis, samples

SAMPLES: dict[Op, Entry] = {}


# ---- indices and order -------------------------------------------------------------------------------------------

INDICES = ((3,), (), (1,), (0,), (33,), (2, 3))


def _indexed(values: Sequence[str], indices: Sequence[str], updates: bool) -> Cases:
    """Return cases with x, indices along one of its axes, and updates if the op takes them."""

    def drawn(dtype: str, shape: tuple, axis: int, where: tuple, index: str) -> SearchStrategy:
        at = datas(
            where,
            index,
            indices,
            ("plain", "transposed", "stepped"),
            limit=shape[axis],
        )
        window = (*shape[:axis], *where, *shape[axis + 1 :])
        more = (datas(window, dtype, values),) if updates else ()
        return samples(datas(shape, dtype, values), at, *more, params=st.just({"axis": axis}))

    def cases(dtype: str) -> SearchStrategy[Sample]:
        chosen = st.sampled_from(FILLED[:-1]).flatmap(
            memoized(lambda s: st.tuples(st.just(s), st.integers(0, len(s) - 1)))
        )
        shapes = [w for w in INDICES if "unique" not in indices or w in ((), (1,))]
        both = st.tuples(chosen, st.sampled_from(shapes), st.sampled_from(("int64", "int32")))
        return both.flatmap(memoized(lambda b: drawn(dtype, b[0][0], b[0][1], b[1], b[2])))

    return cases


def _along(values: Sequence[str], updates: bool) -> Cases:
    def drawn(dtype: str, shape: tuple, axis: int, count: int) -> SearchStrategy:
        window = (*shape[:axis], count, *shape[axis + 1 :])
        at = datas(window, "int64", ("below",) if updates else ("index",), ("plain", "transposed"), limit=shape[axis])
        more = (datas(window, dtype, values),) if updates else ()
        return samples(datas(shape, dtype, values), at, *more, params=st.just({"axis": axis}))

    return lambda dtype: (
        st.sampled_from(SMALL)
        .flatmap(
            memoized(lambda s: st.tuples(st.just(s), st.integers(0, len(s) - 1), st.sampled_from((1, 3, 0, 40))))
        )
        .flatmap(memoized(lambda t: drawn(dtype, *t)))
    )


SAMPLES[ops.take] = Entry(
    _indexed(ANY, ("index",), False),
    _indexed(("normal",), ("index",), False),
    lambda x, at, *, axis: np.take(x, at, axis),
    "exact",
    dtypes("any"),
    True,
)
SAMPLES[ops.scatter] = Entry(
    _indexed(ANY, ("index",), True), _indexed(("normal",), ("unique",), True), ref.scatter, "exact", dtypes("any"), True
)
SAMPLES[ops.scatter_add] = Entry(
    _indexed(("normal", "ties"), ("index",), True),
    _indexed(("normal",), ("index",), True),
    ref.scatter_add,
    "composed",
    dtypes("real"),
    special="nonfinite",
)
SAMPLES[ops.take_along_axis] = Entry(
    _along(ANY, False),
    _along(("normal",), False),
    lambda x, at, *, axis: np.take_along_axis(x, at, axis),
    "exact",
    dtypes("any"),
    True,
)
SAMPLES[ops.scatter_add_along_axis] = Entry(
    _along(("normal", "ties"), True), _along(("normal",), True), ref.scatter_add_along_axis, "composed", dtypes("real"),
    special="nonfinite",
)  # fmt: skip

_orders = axis_params(descending=st.sampled_from((True, False)))
_op: Op
_reference: Callable
for _op, _reference in ((ops.argsort, ref.argsort), (ops.sort, ref.sort)):
    SAMPLES[_op] = Entry(
        with_params(LONG, _orders, ("normal", "ties", "nonfinite", "special")),
        with_params(SMALL, _orders, ("distinct",)),
        _reference,
        dtypes=dtypes("real or bool"),
    )


def _tops(shape: tuple) -> SearchStrategy:
    return one_axis(shape).flatmap(
        memoized(lambda a: st.fixed_dictionaries({"axis": st.just(a), "k": st.integers(0, shape[a])}))
    )


for _op, _reference in ((ops.argtopk, ref.argtopk), (ops.topk, ref.topk)):
    SAMPLES[_op] = Entry(
        with_params(FILLED, _tops, ("normal", "ties", "nonfinite")),
        with_params(SMALL, _tops, ("distinct",)),
        _reference,
        dtypes=dtypes("real or bool"),
    )
