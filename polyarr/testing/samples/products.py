"""Entries of matrix products and of the ops of neural networks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing import references as ref
from polyarr.testing.samples.entry import (
    SMALL,
    Cases,
    Entry,
    axis_params,
    dtypes,
    fixed,
    for_each,
    is_narrow,
    narrow_first,
    normal,
    ordinary,
    with_params,
)
from polyarr.testing.strategies import Data, Sample, datas, memoized, samples

SAMPLES: dict[Op, Entry] = {}

# ---- products --------------------------------------------------------------------------------------------------

# Sizes around kernels' tiles of 8, 16, 32 and 64; one row or column; k = 0; broadcast batches.
PRODUCTS = (
    ((2, 33), (33, 4)), ((2, 3), (3, 4)), ((1, 1), (1, 1)), ((1, 33), (33, 1)), ((31, 32), (32, 33)),
    ((33, 1), (1, 31)), ((65, 17), (17, 70)), ((3, 0), (0, 2)),
    ((0, 3), (3, 2)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 2)),
    ((33, 33), (33, 33)), ((4, 5), (3, 5, 2)), ((1, 130), (130, 9)), ((130, 5), (5, 1)),
)  # fmt: skip
VECTORS = ((((3,), (3,))), ((33,), (33, 2)), ((2, 31), (31,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)), ((1,), (1,)))


def _products(shapes: Sequence[tuple], params: SearchStrategy | None = None, smooth: bool = False) -> Cases:
    values = normal if smooth else ordinary
    return for_each(
        shapes, lambda dtype, pair: samples(*(datas(s, dtype, values(dtype)) for s in pair), params=params)
    )


def _product(op: Op, shapes: Sequence[tuple], reference: Callable, params: SearchStrategy | None = None) -> None:
    small = [pair for pair in shapes if all(np.prod(s) < 1200 for s in pair)]
    SAMPLES[op] = Entry(
        _products(shapes, params), _products(small, params, smooth=True), reference, "reduction", dtypes("numeric"),
        special="nonfinite",
    )  # fmt: skip


_product(ops.matrix_product, PRODUCTS, np.matmul)
_product(ops.matmul, (*PRODUCTS, *VECTORS), np.matmul)
_op: Op
_reference: Callable
for _op in (ops.matrix_product, ops.matmul):
    SAMPLES[_op] = SAMPLES[_op]._replace(
        cases=narrow_first(
            lambda dtype: Sample((Data((2, 1000), dtype, "lopsided"), Data((1000, 3), dtype, "above one"))),
            SAMPLES[_op].cases,
        )
    )
_product(
    ops.vecdot,
    (((3,), (3,)), ((2, 33), (33,)), ((5, 1, 4), (3, 4)), ((2, 0), (2, 0))),
    lambda x, y, *, axis: np.sum(np.conj(x) * y, axis=axis, dtype=x.dtype),
)
_product(ops.outer, (((3,), (4,)), ((33,), (33,)), ((1,), (33,)), ((0,), (2,))), np.outer)
_product(
    ops.tensordot,
    (((2, 4, 4), (4, 4, 5)), ((1, 5, 5), (5, 5, 33)), ((3, 3, 3), (3, 3, 3))),
    lambda x, y, *, axes: np.tensordot(x, y, axes),
    st.sampled_from((((2, 1), (0, 1)), 2, 1, ((-1, 1), (1, 0)), ((1,), (0,)))).map(lambda a: {"axes": a}),
)


# ---- neural networks -------------------------------------------------------------------------------------------

ROWS = ((33, 33), (3,), (2, 5), (1, 1), (5, 1), (4, 31), (3, 32), (2, 33), (0, 3), (2, 3, 7), (7, 130), (1, 1000))
SMALL_ROWS = ((2, 33), *(s for s in ROWS if np.prod(s) < 200), (33, 5))
FLOATING = dtypes("floating")


def _rows(shapes: Sequence[tuple], params: Callable, values: Callable = ordinary, weights: int = 0) -> Cases:
    """Return cases with x and `weights` vectors for its last axis, each of which may be None."""

    def drawn(dtype: str, shape: tuple) -> SearchStrategy:
        weight = st.one_of(datas(shape[-1:], dtype), datas(shape[-1:], dtype), st.none())
        return samples(datas(shape, dtype, values(dtype)), *(weight,) * weights, params=params(shape))

    return for_each(shapes, drawn)


_softmax_axis = axis_params()
for _op, _reference, _kind in ((ops.softmax, ref.softmax, "relative"), (ops.log_softmax, ref.log_softmax, "composed")):
    SAMPLES[_op] = Entry(
        _rows(ROWS, _softmax_axis), _rows(SMALL_ROWS, _softmax_axis, normal), _reference, _kind, FLOATING,
        special="masked",
    )  # fmt: skip


# eps 0.1 detects a kernel that ignores eps, length 1 one that divides by a variance of 0, offset 100 one that computes
# the variance as a difference of squares. A row of length 1 with a tiny eps is excluded: its gradient is rounding error
# times 1 / sqrt(eps).
def _eps(shape: tuple) -> SearchStrategy:
    return st.sampled_from((0.1, 1e-2) if shape[-1] == 1 else (0.1, 1e-5, 1e-2)).map(lambda eps: {"eps": eps})


def _well_conditioned(sample: Sample) -> bool:
    # The mean of equal numbers has a rounding error that 1 / sqrt(eps) amplifies in any kernel.
    return not sample.inputs[0].repeats_along_rows


def _has_gentle_slope(sample: Sample) -> bool:
    # Few numbers near 100 leave too few digits in float32 for the deviation that the gradient divides by.
    x = sample.inputs[0]
    return _well_conditioned(sample) and (x.values != "offset" or x.shape[-1] > 30)


def _norm(shapes: Sequence[tuple], weights: int, condition: Callable) -> Cases:
    cases = _rows(shapes, _eps, weights=weights)
    return lambda dtype: cases(dtype).filter(condition)


def _wider(*inputs: Data, weights: int = 1, **params: Any) -> Callable[[str], Sample]:
    """Return a call with narrow inputs, except for `weights` weights in float32."""
    wide = tuple(Data((33,), "float32", seed=1 + i) for i in range(weights))
    return lambda dtype: Sample((*(replace(a, dtype=dtype) for a in inputs), *wide), params)


for _op, _reference, _weights in ((ops.layer_norm, ref.layer_norm, 2), (ops.rms_norm, ref.rms_norm, 1)):
    _beside_wider = _wider(Data((2, 33)), weights=_weights, eps=0.1)
    SAMPLES[_op] = Entry(
        narrow_first(_beside_wider, _norm(ROWS, _weights, _well_conditioned)),
        narrow_first(_beside_wider, _norm(SMALL_ROWS, _weights, _has_gentle_slope)),
        _reference,
        "composed",
        FLOATING,
        special="nan",
    )

_forms = fixed(approximate=st.sampled_from(("none", "tanh")))
SAMPLES[ops.gelu] = Entry(
    with_params(SMALL, _forms, ("normal", "ties", "wide", "offset")),
    with_params(SMALL, _forms, ("normal",)),
    ref.gelu,
    "composed",
    FLOATING,
    special="nonfinite",
)


LAYERS = (
    ((2, 3), 33, 5), ((2,), 3, 4), ((), 5, 1), ((1,), 1, 33), ((31,), 33, 32), ((2, 3), 4, 5), ((0,), 3, 2),
    ((33,), 33, 33), ((65,), 17, 70), ((4,), 130, 9),
)  # fmt: skip


def _linear(activations: Sequence[str | None], layers: Sequence[tuple] = LAYERS) -> Cases:
    def drawn(dtype: str, size: tuple) -> SearchStrategy:
        lead, k, n = size
        bias = st.one_of(datas((n,), dtype), st.none())
        params = st.sampled_from([{"activation": a} for a in activations])
        return samples(datas((*lead, k), dtype), datas((n, k), dtype), bias, params=params)

    return for_each(layers, drawn)


# relu has no derivative at 0, which random products hit only if rounded to few bits. For the large products of long
# rows, the second derivative of gelu is mostly rounding error.
_layers, _smooth_layers = _linear((*ref.ACTIVATIONS,)), _linear((*ref.ACTIVATIONS,), LAYERS[:-1])
_narrow_layers = _linear([a for a in ref.ACTIVATIONS if a != "relu"], LAYERS[:-1])
_layer_slopes = lambda dtype: (_narrow_layers if is_narrow(dtype) else _smooth_layers)(dtype)
_beside_wider = _wider(Data((2, 3, 4)), Data((33, 4), seed=9), activation="silu")
SAMPLES[ops.linear] = Entry(
    narrow_first(_beside_wider, _layers),
    narrow_first(_beside_wider, _layer_slopes),
    ref.linear,
    "composed",
    FLOATING,
    special="nonfinite",
)


def _quantized_layers(activations: Sequence[str | None], layers: Sequence[tuple]) -> Cases:
    def drawn(dtype: str, size: tuple) -> SearchStrategy:
        lead, k, n, bits, blocks = size
        int8 = datas((n, k), "int8", ("normal", "wide"))
        codes = int8 if bits == 8 else datas((n, k // 2), "uint8", ("below",), limit=256)
        scale = datas((n, k // 32) if blocks else (n,), "float32" if is_narrow(dtype) else dtype, ("distinct",))
        params = st.sampled_from([{"activation": a} for a in activations])
        bias = st.one_of(datas((n,), dtype), st.none())
        return samples(datas((*lead, k), dtype), codes, scale, bias, params=params)

    return for_each(layers, drawn)


_INT8_LAYERS = [(*layer, 8, False) for layer in (*LAYERS, ((9,), 33, 5), ((1,), 1031, 3), ((31,), 32, 7))]
_BLOCK_LAYERS = [
    (*layer, bits, blocks)
    for bits, blocks in ((8, True), (4, True), (4, False))
    for layer in (((2, 3), 64, 5), ((), 32, 1), ((1,), 1056, 3), ((9,), 96, 35), ((31,), 32, 33), ((0,), 32, 2))
]
_quantized = [layer for pair in zip_longest(_INT8_LAYERS, _BLOCK_LAYERS) for layer in pair if layer]
SAMPLES[ops.quantized_linear] = Entry(
    _quantized_layers((*ref.ACTIVATIONS,), _quantized),
    _quantized_layers((None,), _quantized),
    ref.quantized_linear,
    "layer",
    FLOATING,
    special="nonfinite",
)


def _embedding(dtype: str) -> SearchStrategy[Sample]:
    def drawn(v: int, c: int, shape: tuple, index: str) -> SearchStrategy:
        return samples(datas((v, c), dtype), datas(shape, index, ("below",), limit=v))

    sizes = st.sampled_from(((5, 3), (1, 1), (33, 31), (100, 8)))
    return st.tuples(
        sizes, st.sampled_from(((3,), (), (2, 7), (0,), (130,))), st.sampled_from(("int64", "int32"))
    ).flatmap(memoized(lambda t: drawn(t[0][0], t[0][1], t[1], t[2])))


def _cache_updates(dtype: str) -> SearchStrategy[Sample]:
    def drawn(rows: int, sizes: tuple, index: str) -> SearchStrategy:
        own, heads, length, width = sizes
        new = [datas((rows, heads, 1, width), dtype)] * 2
        at = datas((rows,), index, ("index",), limit=length)
        return samples(datas((2, rows + own, heads, length, width), dtype), *new, at)

    sizes = st.sampled_from(((0, 2, 5, 4), (2, 3, 33, 8), (1, 1, 1, 1), (0, 1, 7, 5)))
    return st.tuples(st.sampled_from((3, 1, 0)), sizes, st.sampled_from(("int32", "int64"))).flatmap(
        memoized(lambda t: drawn(*t))
    )


SAMPLES[ops.cache_update] = Entry(_cache_updates, _cache_updates, ref.cache_update, "exact", FLOATING)


def _grouped_layers(dtype: str) -> SearchStrategy[Sample]:
    def drawn(size: tuple, index: str) -> SearchStrategy:
        lead, groups, n, k = size
        picks = datas(lead, index, ("below", "index"), limit=groups)
        return samples(datas((*lead, k), dtype), datas((groups, n, k), dtype), picks)

    indices = st.sampled_from(("int64", "int32"))
    return st.tuples(st.sampled_from(GROUPED), indices).flatmap(memoized(lambda t: drawn(*t)))


# leading axes of x, groups, n and k: few rows, which a kernel computes, and many; groups without rows; one group; x of
# the weight's shape
GROUPED = (
    ((3,), 2, 2, 3), ((), 3, 5, 4), ((2, 7), 4, 5, 33), ((0,), 2, 3, 4), ((70,), 2, 9, 5), ((130,), 1, 3, 17),
    ((2, 3), 2, 3, 4), ((3, 5), 3, 5, 7),
)  # fmt: skip
SAMPLES[ops.grouped_linear] = Entry(
    _grouped_layers, _grouped_layers, ref.grouped_linear, "layer", FLOATING, special="nonfinite"
)


def _quantized_grouped_layers(dtype: str) -> SearchStrategy[Sample]:
    def drawn(size: tuple, index: str, kind: tuple[int, bool]) -> SearchStrategy:
        (lead, groups, n, k), (bits, blocks) = size, kind
        k = k + -k % 32 if blocks or bits == 4 else k
        int8 = datas((groups, n, k), "int8", ("normal", "wide"))
        codes = int8 if bits == 8 else datas((groups, n, k // 2), "uint8", ("below",), limit=256)
        rows = (groups, n, k // 32) if blocks else (groups, n)
        scale = datas(rows, "float32" if is_narrow(dtype) else dtype, ("distinct",))
        return samples(datas((*lead, k), dtype), codes, scale, datas(lead, index, ("below", "index"), limit=groups))

    indices = st.sampled_from(("int64", "int32"))
    kinds = st.sampled_from(((8, False), (8, True), (4, True), (4, False)))
    return st.tuples(st.sampled_from(GROUPED), indices, kinds).flatmap(memoized(lambda t: drawn(*t)))


SAMPLES[ops.quantized_grouped_linear] = Entry(
    _quantized_grouped_layers,
    _quantized_grouped_layers,
    ref.quantized_grouped_linear,
    "layer",
    FLOATING,
    special="nonfinite",
)
SAMPLES[ops.embedding] = Entry(_embedding, _embedding, lambda weight, indices: weight[indices], "exact", FLOATING)


_rate = st.sampled_from((0.1, 0.0, 0.5, 1.0)).map(lambda r: {"rate": r})
_key_counter = st.sampled_from((0, 7, 2**64 - 3)), st.sampled_from((1, 2**33 + 1))
_dropout = for_each(
    (*SMALL, (), (0,), (1000,)), lambda dtype, s: samples(datas(s, dtype), *_key_counter, params=_rate)
)
SAMPLES[ops.dropout] = Entry(_dropout, _dropout, ref.dropout, "arithmetic", FLOATING, special="nonfinite")


_LOSS = {"label_smoothing": st.sampled_from((0.0, 0.2)), "reduction": st.sampled_from(("mean", "sum", "none"))}


def _losses(dtype: str) -> SearchStrategy[Sample]:
    def drawn(lead: tuple, classes: int, targets: str, ignored: int) -> SearchStrategy:
        logits = datas((*lead, classes), dtype, ordinary(dtype))
        at = datas(lead, "int64", (targets,), ("plain", "stepped"), limit=classes)
        return samples(logits, at, params=params.map(lambda p: {"ignore_index": ignored, **p}))

    params = st.fixed_dictionaries(_LOSS)
    sizes = st.sampled_from((((33,), 2), ((4,), 5), ((1,), 1), ((2, 3), 33), ((7,), 130), ((), 6)))
    ignored = st.sampled_from((("below", 1), ("targets", -100), ("below", -100)))
    return st.tuples(sizes, ignored).flatmap(memoized(lambda t: drawn(*t[0], *t[1]))).filter(_some_target_counts)


def _some_target_counts(sample: Sample) -> bool:
    # The mean of no losses is nan, whose gradient is unspecified.
    return bool((sample.inputs[-1].numpy() != sample.params["ignore_index"]).any())


SAMPLES[ops.cross_entropy] = Entry(_losses, _losses, ref.cross_entropy, "composed", FLOATING, special="nan")


def _losses_and_gradients(dtype: str) -> SearchStrategy[Sample]:
    def drawn(rows: int, classes: int, targets: str, ignored: int) -> SearchStrategy:
        g = datas((rows,), "float32" if is_narrow(dtype) else dtype, ("normal",))
        logits, at = datas((rows, classes), dtype, ordinary(dtype)), datas((rows,), "int64", (targets,), limit=classes)
        params = st.sampled_from((0.0, 0.2)).map(lambda s: {"ignore_index": ignored, "label_smoothing": s})
        return samples(g, logits, at, params=params)

    sizes = st.sampled_from(((33, 2), (4, 5), (1, 1), (6, 33), (7, 130), (0, 3)))
    ignored = st.sampled_from((("below", 1), ("targets", -100), ("below", -100)))
    return st.tuples(sizes, ignored).flatmap(memoized(lambda t: drawn(*t[0], *t[1])))


SAMPLES[ops.cross_entropy_and_gradient] = Entry(
    _losses_and_gradients, _losses_and_gradients, ref.cross_entropy_and_gradient, "composed", FLOATING, special="nan"
)


def _heads(dtype: str) -> SearchStrategy[Sample]:
    def drawn(lead: tuple, k: int, classes: int, targets: str, ignored: int) -> SearchStrategy:
        x, weight = datas((*lead, k), dtype), datas((classes, k), dtype)
        at = datas(lead, "int64", (targets,), ("plain", "stepped"), limit=classes)
        return samples(x, weight, at, params=params.map(lambda p: {"ignore_index": ignored, **p}))

    params = st.fixed_dictionaries({"rows_at_once": st.sampled_from((None, 2, 5)), **_LOSS})
    sizes = st.sampled_from((((33,), 3, 2), ((4,), 8, 5), ((1,), 1, 1), ((2, 3), 4, 33), ((7,), 17, 70), ((), 3, 6)))
    ignored = st.sampled_from((("below", 1), ("targets", -100)))
    return st.tuples(sizes, ignored).flatmap(memoized(lambda t: drawn(*t[0], *t[1]))).filter(_some_target_counts)


# Narrow logits are rounded, and the loss is float32: tests/ops/test_linear_cross_entropy.py covers those.
SAMPLES[ops.linear_cross_entropy] = Entry(
    _heads, _heads, ref.linear_cross_entropy, "composed", ("float32", "float64"), special="nan"
)
SAMPLES[ops.mse] = Entry(
    _products((((3,), (3,)), ((2, 33), (2, 33)), ((5, 1), (5, 1)), ((), (31,)))),
    _products((((3,), (3,)), ((2, 33), (2, 33)), ((5, 1), (5, 1)), ((), (31,))), smooth=True),
    lambda x, y: np.mean((x - y) ** 2),
    "composed",
    FLOATING,
    special="nonfinite",
)

# leading axes, number of queries, number of keys, head size, value size; queries along the last of three leading axes
# share their keys and values
ATTENTIONS = (
    ((2,), 3, 3, 4, 4), ((), 1, 1, 1, 1), ((1, 2), 5, 5, 8, 8), ((2, 3), 33, 33, 16, 16), ((1,), 1, 31, 8, 8),
    ((2,), 7, 3, 4, 5), ((2, 2, 3), 9, 11, 8, 8), ((1,), 65, 70, 32, 32), ((2,), 3, 7, 33, 33), ((), 4, 130, 8, 8),
    ((2, 0), 17, 17, 8, 8), ((2,), 0, 3, 4, 4), ((2,), 17, 0, 8, 8),
)  # fmt: skip


def _attention(sizes: Sequence[tuple]) -> Cases:
    choices = {"causal": (True, False), "scale": (None, 0.3), "dropout_rate": (0.0, 0.25)}
    params = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in choices.items()})

    def drawn(dtype: str, size: tuple) -> SearchStrategy:
        lead, t, s, d, e = size
        ones, shared = (*(1 for _ in lead), 1), (*lead[:2], 1) if len(lead) == 3 else lead
        shape = st.sampled_from(((t, s), (*lead, t, s), (1, s), (s,), (t, 1), (*ones, s), (*lead, t, 1), ()))
        added = ("normal", "hidden")
        mask = shape.flatmap(memoized(lambda m: st.one_of(datas(m, "bool", ("mask",)), datas(m, dtype, added))))
        arrays = (datas((*lead, t, d), dtype), datas((*shared, s, d), dtype), datas((*shared, s, e), dtype))
        return samples(*arrays, st.one_of(mask, st.none()), st.sampled_from((0, 2**40 + 1)), st.just(3), params=params)

    return for_each(sizes, drawn)


# The effect of a masked nan is unspecified: a kernel may skip it, the decomposition multiplies it by 0.
SAMPLES[ops.attention] = Entry(
    _attention(ATTENTIONS), _attention(ATTENTIONS[:7]), ref.attention, "weighted", FLOATING, special=""
)


# ---- optimizer steps -------------------------------------------------------------------------------------------

MEMBERS = (((3,),), ((2, 33), (), (5,)), ((1,), (0,), (31, 2)))


def _steps(states: Sequence[Sequence[str]], numbers: Sequence, params: dict[str, Any]) -> Cases:
    """Return cases with lists of parameters and gradients, then one list per optimizer state with these values."""

    def drawn(dtype: str, shapes: tuple) -> SearchStrategy:
        lists = [
            st.tuples(*(datas(s, dtype, values) for s in shapes)) for values in (("normal",), ("normal",), *states)
        ]
        scale = st.one_of(st.sampled_from((1.0, 0.5)), datas((), "float32", ("positive",), ("plain", "offset")))
        decay = st.sampled_from((0.1, 0.0)).map(lambda d: tuple(d for _ in shapes))
        chosen = st.fixed_dictionaries({**params, "weight_decay": decay})
        return samples(*lists, st.just(0.1), *numbers, scale, params=chosen)

    return for_each(MEMBERS, drawn)


_sgd = _steps(
    (("normal",),), (), {"momentum": st.sampled_from((0.9, 0.5, 0.0)), "nesterov": st.sampled_from((True, False))}
)
_adamw = _steps(
    (("normal",), ("positive",)),
    (st.sampled_from((1, 2, 100)),),
    {
        "beta1": st.sampled_from((0.9, 0.8)),
        "beta2": st.sampled_from((0.99, 0.95)),
        "eps": st.sampled_from((1e-8, 0.1)),
        "decoupled": st.sampled_from((True, False)),
    },
)
# Whether a decay of 0 times nan is nan is unspecified.
SAMPLES[ops.sgd] = Entry(_sgd, _sgd, ref.sgd, "step", FLOATING, special="")
SAMPLES[ops.adamw] = Entry(_adamw, _adamw, ref.adamw, "step", FLOATING, special="")
