"""Entries of the group conv: sliding windows, convolutions, pooling and resizing in one to three dimensions."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing import naive
from polyarr.testing.samples.entry import Cases, Entry, dtypes, for_each, narrow_first, normal, ordinary
from polyarr.testing.strategies import Data, Sample, datas, samples

SAMPLES: dict[Op, Entry] = {}
FLOATING = dtypes("floating")
Call = tuple[Any, ...]  # shapes of the inputs (None for an absent one), then the parameters
CALLS: dict[Op, Sequence[Call]] = {}


def _call(values: Callable[[str], Sequence[str]], dtype: str, call: Call) -> SearchStrategy[Sample]:
    *shapes, params = call
    inputs = (st.none() if shape is None else datas(shape, dtype, values(dtype)) for shape in shapes)
    return samples(*inputs, params=st.just(params))


def _calls(calls: Sequence[Call], values: Callable[[str], Sequence[str]] = ordinary) -> Cases:
    return for_each(range(len(calls)), lambda dtype, i: _call(values, dtype, calls[i]))


def _decided(dtype: str) -> tuple[str, ...]:
    """Return rules with ties, of which the first gets the gradient; no ties in float64, for central differences."""
    return ("distinct",) if dtype == "float64" else ("ties", "distinct")


def _entry(op: Op, calls: Sequence[Call], kind: str, special: str = "", smooth: Callable = normal) -> None:
    CALLS[op] = calls
    SAMPLES[op] = Entry(_calls(calls), _calls(calls, smooth), getattr(naive, op.name), kind, FLOATING, special=special)


# One, two and three spatial axes; an axis shorter than its window without padding; windows that leave a remainder and
# windows with gaps; padding on one side; an empty batch, no channels, no filters.
WINDOWS: tuple[Call, ...] = (
    ((2, 7, 6, 3), {"kernel": (3, 2), "stride": (2, 1), "dilation": (1, 2)}),
    ((1, 9, 2), {"kernel": (3,), "stride": (2,), "dilation": (1,)}),
    ((2, 4, 5, 3, 2), {"kernel": (2, 3, 1), "stride": 1, "dilation": 1}),
    ((2, 8, 33), {"kernel": 2, "stride": 3, "dilation": 3}),
    ((1, 5, 5, 1), {"kernel": 5}),
    ((0, 5, 4, 2), {"kernel": 2}),
    ((2, 5, 4, 0), {"kernel": 2}),
)
_entry(ops.windows, WINDOWS, "exact", "mixed")
SUMS: tuple[Call, ...] = (
    ((2, 3, 4, 3, 2, 3), {"shape": (7, 6), "stride": (2, 1), "dilation": (1, 2)}),
    ((1, 4, 3, 2), {"shape": (10,), "stride": 2}),
    ((2, 3, 3, 3, 2, 3, 1, 2), {"shape": (4, 5, 3)}),
    ((2, 2, 2, 33), {"shape": 8, "stride": 3, "dilation": 3}),
    ((0, 4, 3, 2, 2, 2), {"shape": (5, 4)}),
    ((2, 4, 3, 2, 2, 0), {"shape": (5, 4)}),
)
_entry(ops.sum_windows, SUMS, "reduction", "nonfinite")

CONVS: tuple[tuple[tuple, tuple, dict[str, Any]], ...] = (
    ((2, 7, 6, 4), (6, 3, 2, 2), {"stride": (2, 1), "padding": ((1, 0), (0, 2)), "dilation": (1, 2), "groups": 2}),
    ((2, 9, 3), (5, 3, 3), {"padding": 1}),
    ((1, 4, 5, 3, 2), (3, 2, 3, 2, 2), {"stride": (1, 2, 1), "padding": (0, 1, 1)}),
    ((2, 5, 6, 8), (8, 3, 3, 1), {"padding": "same", "groups": 8}),
    ((1, 6, 7, 3), (6, 3, 3, 1), {"groups": 3, "stride": 2, "padding": "same", "dilation": 2}),
    ((2, 3, 3, 2), (2, 3, 3, 2), {"padding": 1}),  # equal shapes: one array can be passed as both
    ((3, 8, 8, 2), (3, 1, 1, 2), {"stride": 3}),
    ((1, 33, 31, 1), (2, 7, 5, 1), {"stride": 2, "padding": 3}),
    ((2, 1, 2, 3), (4, 3, 3, 3), {"padding": ((1, 1), (2, 0))}),
    ((2, 5, 33), (2, 4, 33), {"padding": "valid"}),
    ((1, 4, 4, 17), (33, 3, 3, 17), {"padding": 1}),
    ((0, 5, 5, 2), (3, 2, 2, 2), {}),
    ((2, 5, 5, 0), (3, 2, 2, 0), {}),
    ((2, 5, 5, 2), (0, 2, 2, 2), {}),
    ((1, 0, 3, 2), (2, 2, 2, 2), {"padding": ((1, 1), (0, 0))}),
)  # fmt: skip


def _windows_of(x: tuple, weight: tuple, params: dict[str, Any]) -> tuple[int, ...]:
    where = {name: value for name, value in params.items() if name != "groups"}
    return naive.Windows(x[1:-1], weight[1:-1], **where).out


def _with_gradient(of: str, convs: tuple[tuple[tuple, tuple, dict[str, Any]], ...] = CONVS) -> tuple[Call, ...]:
    """Return the calls for the gradient of one input of a convolution."""
    found = []
    for x, weight, params in convs:
        g = (x[0], *_windows_of(x, weight, params), weight[0])
        other, gone = (weight, x) if of == "x" else (x, weight)
        found.append((g, other, {**params, "shape": gone[1:-1]}))
    return tuple(found)


_entry(ops.conv_product, CONVS, "reduction")
_entry(ops.conv_input_gradient, _with_gradient("x"), "reduction")
_entry(ops.conv_weight_gradient, _with_gradient("weight"), "reduction")
_entry(
    ops.conv,
    tuple(
        (x, weight, None if i % 3 == 2 else weight[:1], {**params, "activation": (None, "silu", None)[i % 3]})
        for i, (x, weight, params) in enumerate(CONVS)
    ),
    "composed",
)
for _op in (ops.conv_product, ops.conv):  # a sum that is wrong without a wider accumulator
    SAMPLES[_op] = SAMPLES[_op]._replace(
        cases=narrow_first(
            lambda dtype: Sample((Data((1, 500, 2), dtype, "lopsided"), Data((2, 500, 2), dtype, "above one"))),
            SAMPLES[_op].cases,
        )
    )

TRANSPOSES: tuple[Call, ...] = (
    ((2, 4, 3, 4), (4, 3, 2, 3), (6,), {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2), "groups": 2}),
    ((2, 5, 3), (3, 4, 2), (2,), {"stride": 2, "padding": ((2, 1),), "dilation": 2}),
    ((1, 2, 3, 2, 2), (2, 2, 1, 3, 3), None, {"stride": (1, 2, 1), "padding": (0, 0, 1)}),
    ((1, 3, 4, 2), (2, 3, 3, 2), None, {"padding": "same", "stride": 2}),
    ((1, 3, 3, 2), (2, 1, 2, 2), (2,), {"padding": "same", "stride": 3}),
    ((1, 3, 4, 2), (2, 2, 2, 2), None, {"stride": 1, "dilation": 3, "output_padding": (2, 1), "padding": (1, 0)}),
    ((1, 4, 4, 6), (6, 3, 3, 1), (6,), {"groups": 6, "padding": "valid"}),
    ((2, 3, 3, 2), (2, 3, 3, 2), None, {"padding": 1}),
    ((0, 4, 3), (3, 2, 2), (2,), {}),
    ((2, 4, 0), (0, 2, 2), (2,), {}),
)  # fmt: skip
_entry(ops.conv_transpose, TRANSPOSES, "reduction")

POOLS: tuple[Call, ...] = (
    ((2, 8, 6, 3), {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0)}),
    ((1, 9, 2), {"kernel": 2}),
    ((1, 4, 5, 6, 2), {"kernel": 2, "padding": 1, "ceil_mode": True}),
    ((2, 8, 7, 33), {"kernel": 3, "stride": 2, "ceil_mode": True, "padding": ((0, 1), (1, 0))}),
    ((1, 6, 5, 1), {"kernel": 4, "stride": 3, "padding": 2, "ceil_mode": True}),
    ((2, 5, 4, 2), {"kernel": 3, "stride": 2, "padding": "same"}),
    ((1, 2, 6, 2), {"kernel": (1, 2), "stride": 3}),
    ((0, 4, 4, 2), {"kernel": 2}),
    ((2, 4, 4, 0), {"kernel": 2}),
)
_entry(
    ops.max_pool,
    (*POOLS, ((2, 9, 8, 3), {"kernel": (2, 3), "stride": 1, "padding": 1, "dilation": (3, 2)})),
    "exact",
    "nonfinite",
    _decided,
)
_entry(
    ops.mean_pool,
    tuple(
        (shape, {**params, **({}, {"count_include_pad": False}, {"divisor": 3})[i % 3]})
        for i, (shape, params) in enumerate(POOLS + POOLS[:5] + POOLS[1:6])
    ),
    "reduction",
    "nonfinite",
)
_entry(
    ops.adaptive_mean_pool,
    (
        ((2, 7, 6, 3), {"shape": (3, 2)}),
        ((1, 9, 2), {"shape": 4}),
        ((2, 4, 5, 3, 2), {"shape": (2, None, 1)}),
        ((2, 7, 7, 33), {"shape": 1}),
        ((1, 3, 5, 2), {"shape": (5, 8)}),
        ((0, 5, 4, 2), {"shape": 3}),
        ((2, 5, 4, 0), {"shape": 3}),
    ),
    "reduction",
    "nonfinite",
)
_entry(
    ops.interpolate,
    (
        ((2, 4, 5, 3), {"shape": (7, 3), "mode": "linear"}),
        ((2, 4, 5, 3), {"shape": (7, 3), "mode": "nearest"}),
        ((1, 5, 2), {"scale": 1.7, "mode": "linear"}),
        ((1, 5, 4, 2), {"scale": (2, 3), "mode": "nearest"}),
        ((1, 6, 5, 2), {"scale": (0.5, 1.7), "mode": "nearest"}),
        ((2, 3, 4, 2, 2), {"shape": (5, 4, 3), "mode": "linear", "align_corners": True}),
        ((1, 4, 4, 33), {"scale": 2, "mode": "bilinear"}),
        ((1, 4, 1, 2), {"shape": (1, 3), "mode": "linear", "align_corners": True}),
        ((2, 4, 5, 3), {"shape": (7, 3), "mode": "cubic"}),
        ((1, 5, 2), {"scale": 1.7, "mode": "bicubic"}),
        ((1, 4, 1, 2), {"shape": (6, 3), "mode": "cubic", "align_corners": True}),
        ((0, 4, 4, 2), {"shape": 3, "mode": "linear"}),
        ((2, 4, 4, 0), {"shape": 3}),
    ),
    "reduction",
)

# ---- calls that are made in promises.py and not drawn --------------------------------------------------------------

# Groups of four channels, of a sequence that is padded on one side, and of volumes; windows of more than 256 elements.
GROUPS: tuple[tuple[tuple, tuple, dict[str, Any]], ...] = (
    ((1, 5, 6, 16), (16, 3, 2, 4), {"padding": 1, "groups": 4}),
    ((2, 9, 6), (6, 3, 1), {"padding": ((2, 0),), "groups": 6}),
    ((1, 3, 4, 5, 4), (4, 2, 3, 1, 2), {"stride": (2, 1, 1), "padding": 1, "groups": 2}),
)  # fmt: skip
_PLANE: Call = ((1, 19, 18, 2), {"kernel": (17, 16), "stride": 1})
_MORE: dict[Op, tuple[Call, ...]] = {
    ops.conv_product: GROUPS,
    ops.conv_input_gradient: _with_gradient("x", GROUPS),
    ops.conv_weight_gradient: _with_gradient("weight", GROUPS),
    ops.conv: tuple((x, weight, None, params) for x, weight, params in GROUPS),
    **dict.fromkeys((ops.max_pool, ops.mean_pool), (_PLANE,)),
}
for _called, _more in _MORE.items():
    CALLS[_called] = (*CALLS[_called], *_more)
