"""Calls whose result a documented special case defines: ties, zeros, empty axes, constant rows, targets all ignored.

Values and gradients are compared as in all checks; drawn examples seldom or never contain these points.
"""

import itertools
from collections.abc import Callable, Iterator

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing.samples import images
from polyarr.testing.samples.entry import Entry
from polyarr.testing.strategies import Data, Sample

Calls = Callable[[], Iterator[Sample]]
VALUES: dict[Op, list[Calls]] = {}  # calls with a documented value
GRADIENTS: dict[Op, list[Calls]] = {}  # calls with a documented value and gradient
INF = float("inf")


def promises(op: Op, entry: Entry) -> Iterator[tuple[Sample, bool]]:
    """Yield the calls of an op in float32, and whether their gradients are documented, too."""
    for table, gradients in ((VALUES, False), (GRADIENTS, True)):
        for calls in table.get(op, ()):
            yield from ((sample, gradients) for sample in calls())


def is_promised(op: Op) -> bool:
    """Return whether the op has such calls."""
    return op in VALUES or op in GRADIENTS


def _promise(table: dict[Op, list[Calls]], *found: Op) -> Callable[[Calls], Calls]:
    def enter(calls: Calls) -> Calls:
        for op in found:
            table.setdefault(op, []).append(calls)
        return calls

    return enter


# ---- ties and zeros ------------------------------------------------------------------------------------------------

_TIES = Data((9, 33), values="ties")


@_promise(GRADIENTS, ops.max, ops.min, ops.prod, ops.sum, ops.mean)
def _tied_reductions() -> Iterator[Sample]:
    for axis in (0, 1, None, ()):
        yield Sample((Data((5, 7), values="ties", seed=2),), {"axis": axis})
    yield Sample((Data((4, 6), values="zeros"),), {"axis": 1})
    yield Sample((Data((3, 5), values="one true"),), {"axis": 1})


@_promise(GRADIENTS, ops.abs, ops.relu, ops.square, ops.silu, ops.gelu, ops.tanh, ops.erf)
def _at_zero() -> Iterator[Sample]:
    yield Sample((_TIES,))


@_promise(GRADIENTS, ops.maximum, ops.minimum, ops.hypot, ops.atan2, ops.logaddexp, ops.multiply)
def _tied_pairs() -> Iterator[Sample]:
    yield Sample((_TIES, Data((9, 33), values="ties", seed=1)))
    yield Sample((_TIES, 1.0))


@_promise(GRADIENTS, ops.clip)
def _at_limits() -> Iterator[Sample]:
    yield Sample((_TIES, -1.0, 1.0))
    yield Sample((_TIES, Data((33,), values="ties", seed=1), Data((33,), values="ties", seed=2)))
    yield Sample((_TIES, 1.0, -1.0))


@_promise(GRADIENTS, ops.sort)
def _tied_orders() -> Iterator[Sample]:
    for axis, descending in itertools.product((0, 1), (False, True)):
        yield Sample((_TIES,), {"axis": axis, "descending": descending})


@_promise(GRADIENTS, ops.topk)
def _tied_tops() -> Iterator[Sample]:
    yield from (Sample((_TIES,), {"axis": axis, "k": 5}) for axis in (0, 1))


@_promise(GRADIENTS, ops.vector_norm)
def _norms_of_zeros() -> Iterator[Sample]:
    for order, values in itertools.product((2.0, 1, 3.0), ("ties", "zeros")):
        yield Sample((Data((5, 7), values=values),), {"axis": 1, "ord": order})


@_promise(VALUES, ops.vector_norm)
def _norms_of_all_orders() -> Iterator[Sample]:
    for order in (2.0, 1, 3.0, 0, 0.5, INF, -INF):
        yield Sample((_TIES,), {"axis": 0, "ord": order})
        yield Sample((Data((3, 33), values="normal"),), {"axis": 1, "ord": order})


# ---- rows ----------------------------------------------------------------------------------------------------------

_ROWS = Data((12, 37), values="odd rows")


@_promise(VALUES, ops.softmax, ops.argsort, ops.sort, ops.cumulative_sum)
def _odd_rows() -> Iterator[Sample]:
    yield Sample((_ROWS,), {"axis": 1})


@_promise(VALUES, ops.log_softmax)
def _masked_rows() -> Iterator[Sample]:
    yield Sample((Data((12, 37), values="masked rows"),), {"axis": 1})


@_promise(VALUES, ops.max, ops.min, ops.argmax, ops.argmin, ops.any, ops.all, ops.logsumexp, ops.sum, ops.mean)
def _odd_rows_reduced() -> Iterator[Sample]:
    for axis in (0, 1):
        yield Sample((_ROWS,), {"axis": axis})


@_promise(VALUES, ops.argtopk, ops.topk)
def _odd_tops() -> Iterator[Sample]:
    yield Sample((_ROWS,), {"axis": 1, "k": 7})


_WEIGHTS = Data((37,), seed=1), Data((37,), seed=2)


@_promise(VALUES, ops.layer_norm)
def _odd_rows_normalized() -> Iterator[Sample]:
    yield Sample((Data((12, 37), values="even rows"), *_WEIGHTS), {"eps": 0.1})


@_promise(VALUES, ops.rms_norm)
def _odd_rows_scaled() -> Iterator[Sample]:
    yield Sample((Data((12, 37), values="even rows"), _WEIGHTS[0]), {"eps": 1e-5})


@_promise(VALUES, ops.matrix_product, ops.matmul)
def _zeros_beside_odd_ones() -> Iterator[Sample]:
    """Yield calls in which 0 is multiplied by nan or infinity, which gives nan."""
    for zeros, odd in itertools.product(("zeros", "even rows"), ("lone nan", "lone inf", "lone -inf")):
        for m, k, n in ((12, 37, 5), (1, 37, 70), (70, 64, 1), (130, 67, 66)):
            yield Sample((Data((m, k), values=zeros), Data((k, n), values=odd)))
            yield Sample((Data((m, k), values=odd), Data((k, n), values=zeros)))
    yield Sample((Data((3, 5, 7), values="zeros"), Data((3, 7, 4), values="lone nan")))


@_promise(VALUES, ops.linear)
def _layers_of_zeros() -> Iterator[Sample]:
    for odd, activation in itertools.product(("lone nan", "lone inf"), (None, "relu")):
        yield Sample((Data((12, 37), values="zeros"), Data((5, 37), values=odd), None), {"activation": activation})


@_promise(VALUES, ops.vecdot, ops.multiply)
def _dots_of_zeros() -> Iterator[Sample]:
    yield Sample((Data((5, 37), values="zeros"), Data((5, 37), values="lone inf")))


# ---- empty axes ----------------------------------------------------------------------------------------------------


@_promise(VALUES, ops.sum, ops.prod, ops.mean, ops.any, ops.all)
def _of_nothing() -> Iterator[Sample]:
    for shape, axis in (((0,), 0), ((3, 0), 1), ((0, 3), 0), ((0, 3), None), ((2, 0, 3), (0, 1)), ((3, 0), 0)):
        yield Sample((Data(shape),), {"axis": axis})


@_promise(VALUES, ops.var, ops.std)
def _too_few_for_the_correction() -> Iterator[Sample]:
    for n, correction in ((1, 1.0), (2, 2.0), (3, 5.0)):
        yield Sample((Data((n, 4)),), {"axis": 0, "correction": correction})


@_promise(GRADIENTS, ops.matmul, ops.matrix_product)
def _of_no_terms() -> Iterator[Sample]:
    yield Sample((Data((3, 0)), Data((0, 4))))
    yield Sample((Data((2, 3, 0)), Data((2, 0, 4))))


@_promise(GRADIENTS, ops.dropout)
def _all_or_nothing() -> Iterator[Sample]:
    for rate in (0.0, 1.0, 2.0**-24, 1 - 2.0**-24):
        yield Sample((Data((3, 33)), 2**64 - 1, 2**40 + 1), {"rate": rate})


# ---- 16-bit floats: partial sums that overflow ---------------------------------------------------------------------

_SWINGS = Data((3, 1000), "float16", "swings")


@_promise(VALUES, ops.sum, ops.mean)
def _swings() -> Iterator[Sample]:
    yield Sample((_SWINGS,), {"axis": 1})
    yield Sample((Data((1000, 3), "float16", "swings"),), {"axis": 0})
    yield Sample((_SWINGS,), {"axis": None})


@_promise(VALUES, ops.matmul, ops.matrix_product)
def _products_of_swings() -> Iterator[Sample]:
    yield Sample((_SWINGS, Data((1000, 2), "float16", "few", seed=1)))
    yield Sample((Data((2, 1000), "float16", "few", seed=1), Data((1000, 3), "float16", "swings")))


@_promise(VALUES, ops.vecdot)
def _dots_of_swings() -> Iterator[Sample]:
    yield Sample((_SWINGS, Data((3, 1000), "float16", "few", seed=1)))


# ---- losses --------------------------------------------------------------------------------------------------------


def _losses(logits: str, targets: str, reductions: tuple) -> Iterator[Sample]:
    for reduction, smoothing in itertools.product(reductions, (0.0, 0.2, 1.0)):
        params = {"ignore_index": -100, "label_smoothing": smoothing, "reduction": reduction}
        yield Sample((Data((9, 33), values=logits), Data((9,), "int64", targets, seed=1, limit=33)), params)


@_promise(VALUES, ops.cross_entropy)
def _means_of_no_loss() -> Iterator[Sample]:
    yield from _losses("normal", "ignored", ("mean",))


@_promise(GRADIENTS, ops.cross_entropy)
def _nan_that_is_ignored() -> Iterator[Sample]:
    yield from _losses("nonfinite", "ignored", ("sum", "none"))
    yield from _losses("hundreds", "targets", ("sum", "none", "mean"))


@_promise(VALUES, ops.attention)
def _steep_attention() -> Iterator[Sample]:
    """Yield attention with scores above 100, whose exponentials overflow, and with no visible keys."""
    params = {"causal": False, "scale": None, "dropout_rate": 0.0}
    for shape in ((2, 9, 8), (1, 70, 64)):
        arrays = (Data(shape, values="hundreds"), Data(shape, seed=1), Data(shape, seed=2))
        for causal in (False, True):
            yield Sample((*arrays, None, 0, 3), {**params, "causal": causal})
        yield Sample((*arrays, Data((shape[1], shape[1]), "bool", "none"), 0, 3), params)


# ---- images: every kind of window ----------------------------------------------------------------------------------


def _every_window(op: Op) -> Calls:
    def calls() -> Iterator[Sample]:
        for *shapes, params in images.CALLS[op]:
            inputs = (None if s is None else Data(s, seed=i, values="distinct") for i, s in enumerate(shapes))
            yield Sample(tuple(inputs), params)

    return calls


for _op in images.SAMPLES:
    _promise(GRADIENTS, _op)(_every_window(_op))
