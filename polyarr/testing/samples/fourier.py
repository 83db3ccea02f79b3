"""Entries of Fourier transforms. The prime 67 is beyond the radices of any kernel."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing import references as ref
from polyarr.testing.samples.entry import Entry, dtypes, with_params
from polyarr.testing.strategies import one_axis

SAMPLES: dict[Op, Entry] = {}
SHAPES = ((2, 12), (3,), (1,), (8,), (67,), (5, 30), (12, 2), (0, 3), (2, 7, 3), (3, 1, 4), (1, 32))
SMALL = ((2, 6), (3,), (1,), (5, 2), (8,))


def _params(shape: tuple) -> SearchStrategy:
    axis = one_axis(shape).filter(lambda a: shape[a])
    return st.fixed_dictionaries(
        {"axis": axis, "inverse": st.booleans(), "scale": st.sampled_from((1.0, 0.5))}
    )


def _params_of_several(shape: tuple) -> SearchStrategy:
    """Return parameters with one axis or several, counted from either end."""
    long = [a for a, n in enumerate(shape) if n]
    some = st.lists(st.sampled_from(long), min_size=2, max_size=3, unique=True) if len(long) > 1 else st.just(long)
    tuples = some.map(lambda axes: (*axes[1:], axes[0] - len(shape)))
    axes = st.one_of(st.none(), tuples)
    return st.builds(lambda params, a: params if a is None else {**params, "axis": a}, _params(shape), axes)


def _halved(shape: tuple) -> SearchStrategy:
    """Return parameters with either of the lengths whose first half has this shape."""

    def lengths(params: dict) -> SearchStrategy:
        odd = 2 * shape[params["axis"]] - 1
        return st.sampled_from([n for n in (odd - 1, odd) if n]).map(lambda n: {"n": n, **params})

    return _params(shape).flatmap(lengths)


for _op, _reference, _kind in (
    (ops.dft, ref.dft, "complex"), (ops.dft_of_real, ref.dft_of_real, "floating"),
    (ops.dft_to_real, ref.dft_to_real, "complex"),
):  # fmt: skip
    _given = {ops.dft: _params_of_several, ops.dft_to_real: _halved}.get(_op, _params)
    SAMPLES[_op] = Entry(
        with_params(SHAPES, _given, ("normal", "ties")), with_params(SMALL, _given, ("normal",)), _reference,
        "composed", dtypes(_kind), special="",
    )  # fmt: skip
