"""Entries of ops that create arrays or move their elements; none of them rounds."""

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr import ops
from polyarr.core.op import Op
from polyarr.core.spec import DTYPES
from polyarr.testing import references as ref
from polyarr.testing.samples.entry import (
    ANY,
    LONG,
    MATRICES,
    SMALL,
    Cases,
    Entry,
    axis_params,
    dtypes,
    fixed,
    for_each,
    lists,
    numbers,
    with_params,
)
from polyarr.testing.strategies import SHAPES, Sample, axes, datas, memoized, one_axis, samples

SAMPLES: dict[Op, Entry] = {}


# ---- making and moving -------------------------------------------------------------------------------------------


def _moving(op: Op, shapes: Sequence[tuple], params: Callable[[tuple], SearchStrategy], reference: Callable) -> None:
    """Enter an op that moves elements: any dtype, nothing rounded, and a derivative everywhere."""
    cases = with_params(shapes, params)
    smooth = with_params([s for s in shapes if np.prod(s) < 500], params, ("normal",))
    SAMPLES[op] = Entry(cases, smooth, reference, "exact", dtypes("any"), True)


def _reshapes(shape: tuple) -> SearchStrategy:
    size = int(np.prod(shape))
    found = [(size,), (1, size), (size, 1), shape, tuple(reversed(shape))]
    found += [(-1,), (*shape[:-1], -1)] if size else []
    found += [(2, size // 2), (size // 2, 2, 1)] if size % 2 == 0 else []
    return st.fixed_dictionaries({"shape": st.sampled_from(found)})


def _stretches(shape: tuple) -> SearchStrategy:
    grown = tuple(4 if n == 1 else n for n in shape)
    return st.fixed_dictionaries({"shape": st.sampled_from((shape, grown, (2, *grown), (3, 1, *shape), (0, *shape)))})


@st.composite
def _windows(draw: Callable, shape: tuple) -> dict:
    """Draw the parameters of a strided slice of `shape`, with steps of both signs; axes may be empty."""
    starts, steps, counts = list[int](), list[int](), list[int]()
    for n in shape:
        step = draw(st.sampled_from((1, 1, 2, 3, -1, -2)))
        start = draw(st.integers(0, n - 1)) if n else 0
        most = len(range(start, n if step > 0 else -1, step)) if n else 0
        count = draw(st.integers(0, most)) if draw(st.booleans()) else most
        starts, steps, counts = [*starts, start], [*steps, step], [*counts, count]
    return {"starts": tuple(starts), "steps": tuple(steps), "shape": tuple(counts)}


def _updates(values: Sequence[str]) -> Cases:
    def drawn(dtype: str, shape: tuple, window: dict) -> SearchStrategy:
        params = {"starts": window["starts"], "steps": window["steps"]}
        return samples(datas(shape, dtype, values), datas(window["shape"], dtype, values), params=st.just(params))

    return for_each(SHAPES[:-3], lambda dtype, s: _windows(s).flatmap(lambda w: drawn(dtype, s, w)))


def _axis_moves(shape: tuple) -> SearchStrategy:
    order = st.permutations(range(len(shape))).map(tuple)
    moves = st.tuples(order, order, st.integers(0, len(shape)))
    return moves.map(lambda m: {"source": m[0][: m[2]], "destination": m[1][: m[2]]})


_made = st.sampled_from((*SHAPES, 4)), st.sampled_from([d.name for d in DTYPES])
SAMPLES[ops.fill] = Entry(
    lambda dtype: st.tuples(*_made).flatmap(
        memoized(
            lambda made: samples(
                st.sampled_from(numbers(made[1])), params=st.just({"shape": made[0], "dtype": made[1]})
            )
        )
    ),
    None,
    lambda value, like=None, *, shape, dtype: np.full(shape, value, "float64" if "float" in dtype else dtype),
    signed_zeros=True,
    special="",
)
SAMPLES[ops.iota] = Entry(
    lambda dtype: st.tuples(
        st.sampled_from((0, 1, 31, 33, 1000)), st.sampled_from(("int64", "int32", "float32"))
    ).flatmap(
        memoized(
            lambda made: samples(
                st.sampled_from((0, -3) if "int" in made[1] else (0.0, 2.5)),
                st.sampled_from((1, 2, -1)),
                params=st.just({"size": made[0], "dtype": made[1]}),
            )
        )
    ),
    None,
    lambda start, step, like=None, *, size, dtype: start + step * np.arange(size),
    "arithmetic",
    special="",
)
SAMPLES[ops.random_bits] = Entry(
    lambda dtype: st.builds(
        Sample,
        st.tuples(st.sampled_from((0, 1, 2**32, 2**64 - 1, 12345678901234567890)), st.sampled_from((0, 1, 2**40 + 3))),
        st.fixed_dictionaries({"shape": st.sampled_from((*SHAPES[:12], 5))}),
    ),
    None,
    ref.random_bits,
    special="",
)


def _cuts(shape: tuple) -> SearchStrategy:
    """Return the strategy for splits: into equal parts, or at indices, some of which may exceed the axis."""

    def along(axis: int) -> SearchStrategy:
        parts = min(n for n in range(2, shape[axis] + 1) if shape[axis] % n == 0)
        cuts = st.sampled_from((parts, (1,), 1, (1, 1), (0, 5)))
        return st.fixed_dictionaries({"axis": st.just(axis), "indices_or_sections": cuts})

    return one_axis(shape).flatmap(memoized(along))


def _paddings(shape: tuple) -> SearchStrategy:
    """Return the strategy for pads: with a constant, or, if there are elements, with those of the array."""
    widths, modes = st.sampled_from(((1, 2), (0, 0), (3, 0))), ("wrap", "edge", "reflect", "symmetric")
    constant = {"mode": st.just("constant"), "constant_values": st.sampled_from((1, 0))}
    continued = {"mode": st.sampled_from(modes), "constant_values": st.just(0)}
    kinds = (constant, continued) if all(shape) else (constant,)
    return st.one_of(*(st.fixed_dictionaries({"pad_width": widths, **kind}) for kind in kinds))


def _padded(x: np.ndarray, *, pad_width: tuple[int, int], mode: str, constant_values: int) -> np.ndarray:
    value = {"constant_values": constant_values} if mode == "constant" else {}
    return np.pad(x, [pad_width] * x.ndim, mode, **value) if x.ndim else x  # type: ignore[call-overload]


def _new_axes(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw two positions among the axes of a result with two more axes, one of them counted from the end."""
    n = len(shape) + 2
    return st.permutations(range(n)).map(lambda p: (p[0], p[1] - n))


_moving(ops.reshape, SHAPES, _reshapes, lambda x, *, shape: x.reshape(shape))
_moving(
    ops.permute_dims,
    SHAPES,
    lambda s: st.permutations(range(len(s))).flatmap(
        lambda p: st.sampled_from(({"axes": tuple(p)}, {"axes": tuple(a - len(s) for a in p)}))
    ),
    lambda x, *, axes: x.transpose(axes),
)
_moving(ops.broadcast_to, SHAPES[:-2], _stretches, lambda x, *, shape: np.broadcast_to(x, shape))
_moving(ops.slice, SHAPES, _windows, ref.window)
_moving(
    ops.expand_dims,
    SHAPES,
    lambda s: st.fixed_dictionaries({"axis": st.integers(-len(s) - 1, len(s)) | _new_axes(s)}),
    lambda x, *, axis: np.expand_dims(x, axis),
)
_moving(
    ops.squeeze,
    ((1,), (1, 33), (2, 1, 33), (1, 0)),
    lambda s: st.sampled_from(({"axis": s.index(1)}, {"axis": (s.index(1),)}, {"axis": None})),
    lambda x, *, axis: np.squeeze(x, axis),
)
_moving(ops.matrix_transpose, MATRICES, fixed(), lambda x: x.swapaxes(-1, -2))
_moving(ops.moveaxis, SHAPES, _axis_moves, lambda x, *, source, destination: np.moveaxis(x, source, destination))
_moving(ops.flip, SHAPES, lambda s: axes(s).map(lambda a: {"axis": a}), lambda x, *, axis: np.flip(x, axis))
_moving(ops.unstack, SMALL, axis_params(), lambda x, *, axis: tuple(np.moveaxis(x, axis, 0)))
_moving(
    ops.split,
    ((6,), (12, 2), (6, 33), (2, 3, 4)),
    _cuts,
    lambda x, *, indices_or_sections, axis: np.split(x, indices_or_sections, axis),
)
_moving(ops.pad, SHAPES, _paddings, _padded)
_moving(
    ops.roll,
    LONG,
    axis_params(none=True, shift=st.sampled_from((5, 1, -1, 0, -40))),
    lambda x, *, shift, axis: np.roll(x, shift, axis),
)
_moving(
    ops.tile,
    SHAPES[:-6],
    fixed(repetitions=st.sampled_from(((2,), (1,), (2, 3), (0, 2), (1, 2, 2)))),
    lambda x, *, repetitions: np.tile(x, repetitions),
)
_moving(
    ops.repeat,
    LONG,
    axis_params(none=True, repeats=st.sampled_from((2, 1, 3, 0))),
    lambda x, *, repeats, axis: np.repeat(x, repeats, axis),
)
for _op, _fn in ((ops.tril, np.tril), (ops.triu, np.triu)):
    _moving(_op, MATRICES, fixed(k=st.sampled_from((1, 0, -1, 3, -40))), lambda x, *, k, fn=_fn: fn(x, k))

SAMPLES[ops.slice_update] = Entry(_updates(ANY), _updates(("normal",)), ref.window_update, "exact", dtypes("any"), True)
# Shapes of the inputs, and the axis of the concatenation.
_joined = [
    (((2, 3), (1, 3), (4, 3)), 0),
    (((3, 2), (3, 33), (3, 1)), 1),
    (((31,), (33,), (1,)), -1),
    (((2, 5, 3), (2, 1, 3)), -2),
    (((0, 2), (3, 2)), 0),
    (((5, 32),), 1),
    (((2, 33), (2, 33)), 0),
    (((1, 2, 3), (2, 2, 3)), -3),
]


def _concats(values: Sequence[str] = ANY) -> Cases:
    return for_each(
        _joined, lambda dtype, joined: lists([joined[0]], st.just({"axis": joined[1]}), values)(dtype)
    )


SAMPLES[ops.concat] = Entry(
    _concats(),
    _concats(("normal",)),
    lambda arrays, *, axis: np.concatenate(arrays, axis),
    "exact",
    dtypes("any"),
    True,
)
_stacked = [(s,) * n for s in ((), (3,), (2, 33), (0, 2)) for n in (1, 3)]
_places = st.sampled_from((-1, 0)).map(lambda a: {"axis": a})
SAMPLES[ops.stack] = Entry(
    lists(_stacked, _places),
    lists(_stacked, _places, ("normal",)),
    lambda arrays, *, axis: np.stack(arrays, axis),
    "exact",
    dtypes("any"),
    True,
)
