"""Calls whose result a documented special case defines: ties, zeros, empty axes, constant rows, targets all ignored.

Values and gradients are compared as in all checks; drawn examples seldom or never contain these points.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing import references as ref
from polyarr.testing.samples import images
from polyarr.testing.samples.entry import Entry
from polyarr.testing.strategies import Data, Sample

VALUES = defaultdict[Op, list[Sample]](list)  # calls with a documented value
GRADIENTS = defaultdict[Op, list[Sample]](list)  # calls with a documented value and gradient
INF = float("inf")


def promises(op: Op, entry: Entry) -> Iterator[tuple[Sample, bool]]:
    """Yield the calls of an op in float32, and whether their gradients are documented, too."""
    yield from ((sample, False) for sample in VALUES.get(op, ()))
    yield from ((sample, True) for sample in GRADIENTS.get(op, ()))


def is_promised(op: Op) -> bool:
    """Return whether the op has such calls."""
    return op in VALUES or op in GRADIENTS


def _add(table: defaultdict[Op, list[Sample]], which: Iterable[Op], *calls: Sample) -> None:
    """Add calls to a table, for each of the ops."""
    for op in which:
        table[op] += calls


# ---- ties and zeros ------------------------------------------------------------------------------------------------

_TIES = Data((9, 33), values="ties")
_add(
    GRADIENTS, (ops.max, ops.min, ops.prod, ops.sum, ops.mean),
    *(Sample((Data((5, 7), values="ties", seed=2),), {"axis": axis}) for axis in (0, 1, None, ())),
    Sample((Data((4, 6), values="zeros"),), {"axis": 1}), Sample((Data((3, 5), values="one true"),), {"axis": 1}),
    *(Sample((Data((2, 3, 4, 5), values="near one"),), {"axis": axis}) for axis in ((0, 2), (1, 3))),
)  # fmt: skip
_add(GRADIENTS, (ops.abs, ops.relu, ops.square, ops.silu, ops.gelu, ops.tanh, ops.erf), Sample((_TIES,)))
_add(
    GRADIENTS, (ops.maximum, ops.minimum, ops.hypot, ops.atan2, ops.logaddexp, ops.multiply),
    Sample((_TIES, Data((9, 33), values="ties", seed=1))), Sample((_TIES, 1.0)),
)  # fmt: skip
_LIMITS = Data((33,), values="ties", seed=1), Data((33,), values="ties", seed=2)
_add(GRADIENTS, [ops.clip], Sample((_TIES, -1.0, 1.0)), Sample((_TIES, *_LIMITS)), Sample((_TIES, 1.0, -1.0)))
_shape: tuple[int, ...]
_axis: int | tuple[int, ...] | None
for _axis, _descending in itertools.product((0, 1), (False, True)):
    _add(GRADIENTS, [ops.sort], Sample((_TIES,), {"axis": _axis, "descending": _descending}))
_add(GRADIENTS, [ops.topk], *(Sample((_TIES,), {"axis": axis, "k": 5}) for axis in (0, 1)))
for _order, _values in itertools.product((2.0, 1, 3.0), ("ties", "zeros")):
    _add(GRADIENTS, [ops.vector_norm], Sample((Data((5, 7), values=_values),), {"axis": 1, "ord": _order}))
for _values, _shape in itertools.product(("zeros", "ties"), ((1, 7), (5, 7))):
    _add(GRADIENTS, [ops.std], Sample((Data(_shape, values=_values),), {"axis": 0}))
for _order in (2.0, 1, 3.0, 0, 0.5, INF, -INF):
    _add(VALUES, [ops.vector_norm], Sample((_TIES,), {"axis": 0, "ord": _order}))
    _add(VALUES, [ops.vector_norm], Sample((Data((3, 33), values="normal"),), {"axis": 1, "ord": _order}))

# ---- rows ----------------------------------------------------------------------------------------------------------

_ODD, _EVEN, _MASKED = (Data((12, 37), values=f"{rule} rows") for rule in ("odd", "even", "masked"))
_WEIGHTS = Data((37,), seed=1), Data((37,), seed=2)
_add(VALUES, (ops.softmax, ops.argsort, ops.sort, ops.cumulative_sum), Sample((_ODD,), {"axis": 1}))
_add(VALUES, [ops.log_softmax], Sample((_MASKED,), {"axis": 1}))
_add(GRADIENTS, (ops.softmax, ops.log_softmax, ops.logsumexp), Sample((Data((5, 33), values="deep"),), {"axis": 1}))
_add(GRADIENTS, (ops.softmax, ops.log_softmax), Sample((Data((5, 5)),), {"axis": 0}))  # axes that lengths do not tell
_add(
    VALUES, (ops.max, ops.min, ops.argmax, ops.argmin, ops.any, ops.all, ops.logsumexp, ops.sum, ops.mean),
    *(Sample((_ODD,), {"axis": axis}) for axis in (0, 1)),
)  # fmt: skip
_add(VALUES, (ops.argtopk, ops.topk), Sample((_ODD,), {"axis": 1, "k": 7}))
# equal elements far apart, and nan and infinities in narrow floats
for _data in (Data((2, 5003), "int32", "ties"), *(Data((12, 37), d, "nonfinite") for d in ("float16", "bfloat16"))):
    for _descending in (False, True):
        _add(VALUES, (ops.argsort, ops.sort), Sample((_data,), {"axis": 1, "descending": _descending}))
    _add(VALUES, (ops.argtopk, ops.topk), *(Sample((_data,), {"axis": 1, "k": k}) for k in (5, 30)))
_add(VALUES, [ops.layer_norm], Sample((_EVEN, *_WEIGHTS), {"eps": 0.1}))
_add(VALUES, [ops.rms_norm], Sample((_EVEN, _WEIGHTS[0]), {"eps": 1e-5}))

# 0 times nan or infinity is nan
_PRODUCTS = ops.matrix_product, ops.matmul
for _zeros, _odd in itertools.product(("zeros", "even rows"), ("lone nan", "lone inf", "lone -inf")):
    for _m, _k, _n in ((12, 37, 5), (1, 37, 70), (70, 64, 1), (130, 67, 66)):
        for _x, _y in ((_zeros, _odd), (_odd, _zeros)):
            _add(VALUES, _PRODUCTS, Sample((Data((_m, _k), values=_x), Data((_k, _n), values=_y))))
_add(VALUES, _PRODUCTS, Sample((Data((3, 5, 7), values="zeros"), Data((3, 7, 4), values="lone nan"))))
for _odd, _activation in itertools.product(("lone nan", "lone inf"), (None, "relu")):
    _layer = Data((12, 37), values="zeros"), Data((5, 37), values=_odd), None
    _add(VALUES, [ops.linear], Sample(_layer, {"activation": _activation}))
_flat = Data((12, 37), values="zeros"), Data((5, 37)), None  # relu at 0
_add(GRADIENTS, [ops.linear], Sample(_flat, {"activation": "relu"}))
_dots = Sample((Data((5, 37), values="zeros"), Data((5, 37), values="lone inf")))
_add(VALUES, (ops.vecdot, ops.multiply), _dots)

# ---- complex numbers: branch cuts, and magnitudes whose squares overflow ---------------------------------------------

_ANALYTIC = (
    ops.sqrt, ops.log, ops.log1p, ops.log2, ops.log10, ops.asin, ops.acos, ops.atan, ops.asinh, ops.acosh, ops.atanh,
    ops.exp, ops.expm1, ops.sin, ops.cos, ops.tan, ops.sinh, ops.cosh, ops.tanh,
)  # fmt: skip
_add(VALUES, (*_ANALYTIC, ops.abs, ops.sign, ops.square, ops.reciprocal), Sample((Data((16,), "complex64", "cuts"),)))
_far, _farther = (Data((65,), "complex64", "spread", seed=seed, limit=-(10**38)) for seed in (0, 1))
_add(VALUES, [ops.abs, ops.sign, ops.sqrt, ops.log, ops.reciprocal], Sample((_far,)))
_add(VALUES, [ops.divide], Sample((_far, _farther)))

# complex numbers that differ in one part, or are not finite in one
_pair = Data((9, 33), "complex64", "ties"), Data((9, 33), "complex64", "ties", seed=1)
_add(VALUES, (ops.equal, ops.not_equal, ops.logical_and, ops.logical_or, ops.logical_xor), Sample(_pair))
_add(VALUES, [ops.logical_not], Sample(_pair[:1]))
_add(VALUES, [ops.astype], *(Sample(_pair[:1], {"dtype": dtype}) for dtype in ("bool", "complex128")))
_add(VALUES, (ops.isnan, ops.isinf, ops.isfinite), Sample((Data((9, 33), "complex64", "nonfinite"),)))

# ---- inputs of two dtypes ------------------------------------------------------------------------------------------

for _dtype, _other in (("float16", "float32"), ("bfloat16", "float32"), ("float32", "float16")):
    _few, _rows, _planes = Data((6,), _dtype, seed=1), Data((4, 6), _dtype), Data((3, 4, 6), _dtype)
    _bias = Data((6,), _other, seed=2)
    for _weights in ((_few, _bias), (_bias, _few)):
        _add(VALUES, [ops.layer_norm], Sample((_rows, *_weights), {"eps": 0.1}))
        _add(VALUES, [ops.batch_norm], Sample((_planes, *_weights), {"eps": 0.1}))
        _add(VALUES, [ops.group_norm], Sample((_planes, *_weights), {"eps": 0.1, "groups": 2}))
    _add(VALUES, [ops.linear], Sample((_rows, Data((6, 6), _dtype, seed=1), _bias), {"activation": None}))
    _add(VALUES, [ops.conv], Sample((_planes, Data((6, 2, 6), _dtype, seed=1), _bias)))
for _dtype, _other in itertools.product(("float32", "float16"), ("float16", "bfloat16", "float32")):
    _quantized = Data((3, 64), _dtype), Data((5, 64), "int8", "wide"), Data((5,), _other, "positive", seed=1)  # scales
    _add(VALUES, [ops.quantized_linear], Sample((*_quantized, None), {"activation": None}))

# ---- empty axes ----------------------------------------------------------------------------------------------------

for _shape, _axis in (((0,), 0), ((3, 0), 1), ((0, 3), 0), ((0, 3), None), ((2, 0, 3), (0, 1)), ((3, 0), 0)):
    _add(VALUES, (ops.sum, ops.prod, ops.mean, ops.any, ops.all), Sample((Data(_shape),), {"axis": _axis}))
for _n, _correction in ((1, 1.0), (2, 2.0), (3, 5.0)):  # too few elements for the correction
    _add(VALUES, (ops.var, ops.std), Sample((Data((_n, 4)),), {"axis": 0, "correction": _correction}))
_add(GRADIENTS, _PRODUCTS, Sample((Data((3, 0)), Data((0, 4)))), Sample((Data((2, 3, 0)), Data((2, 0, 4)))))
_bias = Data((4,), seed=1)
for _activation in (None, "silu"):  # of no inputs, a layer returns its activated bias
    _add(GRADIENTS, [ops.linear], Sample((Data((3, 0)), Data((4, 0)), _bias), {"activation": _activation}))
for _shape in ((0, 5, 3), (2, 5, 0)):  # beside the axis that is indexed
    _empty, _into = Data(_shape), Data((_shape[0], 4, _shape[2]), seed=1)
    _at = Data((4,), "int64", "unique", limit=5)
    _add(VALUES, [ops.take], Sample((_empty, _at), {"axis": 1}))
    _add(VALUES, (ops.scatter, ops.scatter_add), Sample((_empty, _at, _into), {"axis": 1}))
_at, _into = Data((5003,), "int64", "index", seed=2, limit=5), Data((5003, 3), seed=1)
_add(VALUES, [ops.scatter], Sample((Data((5, 3)), _at, _into), {"axis": 0}))  # the last update for an index counts
_bits = int(ref.random_bits(2**64 - 1, 2**40 + 1, shape=(5,))[4]) >> 8  # an element whose bits are just enough
for _rate in (0.0, 1.0, 2.0**-24, 1 - 2.0**-24, _bits / 2**24):
    _add(GRADIENTS, [ops.dropout], Sample((Data((3, 33)), 2**64 - 1, 2**40 + 1), {"rate": _rate}))

# ---- 16-bit floats: partial sums that overflow ---------------------------------------------------------------------

_SWINGS, _TALL_SWINGS = Data((3, 1000), "float16", "swings"), Data((1000, 3), "float16", "swings")
_LEFT, _RIGHT, _WEIGHT = (Data(shape, "float16", "few", seed=1) for shape in ((2, 1000), (1000, 2), (3, 1000)))
for _data, _axis in ((_SWINGS, 1), (_TALL_SWINGS, 0), (_SWINGS, None)):
    _add(VALUES, (ops.sum, ops.mean), Sample((_data,), {"axis": _axis}))
_add(VALUES, _PRODUCTS, Sample((_SWINGS, _RIGHT)), Sample((_LEFT, _TALL_SWINGS)))
_add(VALUES, [ops.vecdot], Sample((_SWINGS, _WEIGHT)))

# ---- losses and attention ------------------------------------------------------------------------------------------

for _table, _logits, _targets, _reductions in (
    (VALUES, "normal", "ignored", ["mean"]),  # the mean of no losses
    (GRADIENTS, "nonfinite", "ignored", ("sum", "none")),
    (GRADIENTS, "hundreds", "targets", ("sum", "none", "mean")),
):
    for _reduction, _smoothing in itertools.product(_reductions, (0.0, 0.2, 1.0)):
        _inputs = Data((9, 33), values=_logits), Data((9,), "int64", _targets, seed=1, limit=33)
        _params = {"ignore_index": -100, "label_smoothing": _smoothing, "reduction": _reduction}
        _add(_table, [ops.cross_entropy], Sample(_inputs, _params))
for _shape in ((2, 9, 8), (1, 70, 64)):  # scores above 100, whose exponentials overflow; and no visible keys
    _arrays = Data(_shape, values="hundreds"), Data(_shape, seed=1), Data(_shape, seed=2)
    for _mask, _causal in ((None, False), (None, True), (Data((_shape[1],) * 2, "bool", "none"), False)):
        _params = {"causal": _causal, "scale": None, "dropout_rate": 0.0}
        _add(VALUES, [ops.attention], Sample((*_arrays, _mask, 0, 3), _params))

for _shape, _scale in itertools.product(((2, 1, 8), (1, 70, 64)), (-0.5, 0.0)):  # products near -inf or of any size
    _params = {"causal": False, "scale": _scale, "dropout_rate": 0.0}
    _keys = Data((*_shape[:1], 70, *_shape[2:]), seed=1)
    _add(GRADIENTS, [ops.attention], Sample((Data(_shape), _keys, replace(_keys, seed=2), None, 0, 3), _params))

_high = (*(Data((1, 70, 64), "float16", "hundreds", seed=i) for i in (0, 1)), Data((1, 70, 64), "float16", seed=2))
_params = {"causal": False, "scale": None, "dropout_rate": 0.0}
_add(VALUES, [ops.attention], Sample((*_high, None, 0, 3), _params))  # scores too large for float16

# ---- images: every kind of window ----------------------------------------------------------------------------------

for _op in images.SAMPLES:
    for *_shapes, _params in images.CALLS[_op]:
        _images = [None if s is None else Data(s, seed=i, values="distinct") for i, s in enumerate(_shapes)]
        _add(GRADIENTS, [_op], Sample(tuple(_images), _params))
for _padding in (0, 1):  # the largest element is -inf
    _params = {"kernel": 1 + _padding, "padding": _padding}
    _add(VALUES, [ops.max_pool], Sample((Data((12, 5, 37), values="odd rows"),), _params))
