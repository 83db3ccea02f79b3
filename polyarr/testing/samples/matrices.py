"""Entries of vector norms and of the groups linalg and eig: decompositions of matrices, and solvers based on them."""

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing import references as ref
from polyarr.testing.samples.entry import SMALL, Cases, Entry, dtypes, for_each, with_params
from polyarr.testing.strategies import SHAPES, axes, datas, samples

SAMPLES: dict[Op, Entry] = {}
INEXACT = dtypes("inexact")
SQUARES = ((5, 5), (3, 3), (1, 1), (2, 3, 3), (33, 33), (0, 0), (2, 0, 0), (0, 3, 3), (2, 1, 4, 4))
TALL = ((5, 3), (33, 7), (4, 1), (2, 5, 2), (3, 0), (0, 4, 2))
WIDE = ((3, 5), (1, 4), (2, 3, 4), (0, 3))
SMALL_SQUARES, SMALL_TALL, SMALL_WIDE = ((3, 3), (1, 1), (2, 3, 3)), ((4, 2), (2, 3, 2)), ((2, 4), (2, 1, 3))


def _matrices(shapes: Sequence[tuple], values: str, *numbers: float) -> Cases:
    """Return cases with matrices of these values and, if given, one of the numbers."""
    more = [st.sampled_from(numbers)] if numbers else []
    return for_each(shapes, lambda dtype, shape: samples(datas(shape, dtype, (values,)), *more))


def _decomposition(
    op: Op, values: str, reference: Callable, shapes: Sequence[tuple], small: Sequence[tuple], *numbers: float
) -> None:
    SAMPLES[op] = Entry(
        _matrices(shapes, values, *numbers), _matrices(small, values, *numbers[:1]), reference, "composed", INEXACT,
        special="",
    )  # fmt: skip


_ANY, _SMALL_ANY = (*SQUARES, *TALL, *WIDE), (*SMALL_SQUARES, *SMALL_TALL, *SMALL_WIDE)
_decomposition(ops.cholesky, "definite", ref.cholesky, SQUARES, SMALL_SQUARES)
_decomposition(ops.eigh, "definite", ref.eigh, SQUARES, SMALL_SQUARES)
_decomposition(ops.eigvalsh, "definite", lambda x: ref.eigh(x)[0], SQUARES, SMALL_SQUARES)
_decomposition(ops.eig, "definite", ref.eig, SMALL_SQUARES, SMALL_SQUARES)
_decomposition(ops.eigvals, "definite", lambda x: ref.eig(x)[0], SMALL_SQUARES, SMALL_SQUARES)
_decomposition(ops.qr, "regular", ref.qr, (*SQUARES, *TALL), (*SMALL_SQUARES, *SMALL_TALL))
_decomposition(ops.svd, "regular", ref.svd, _ANY, _SMALL_ANY)
_decomposition(ops.svdvals, "regular", lambda x: ref.svd(x)[1], _ANY, _SMALL_ANY)
_decomposition(ops.slogdet, "regular", np.linalg.slogdet, SQUARES, SMALL_SQUARES)
_decomposition(ops.det, "regular", np.linalg.det, SQUARES, SMALL_SQUARES)
_decomposition(ops.inv, "regular", np.linalg.inv, SQUARES, SMALL_SQUARES)
_decomposition(ops.pinv, "regular", lambda x, rtol: np.linalg.pinv(x, rtol), _ANY, _SMALL_ANY, 0.1, 0.5)


def _equations(shapes: Sequence[tuple], values: str = "regular", params: st.SearchStrategy | None = None) -> Cases:
    def draws(dtype: str, pair: tuple) -> st.SearchStrategy:
        return samples(datas(pair[0], dtype, (values,)), datas(pair[1], dtype), params=params)

    return for_each(shapes, draws)


_SMALL_PAIRS = (((3, 3), (3, 2)), ((3, 3), (3, 3)), ((1, 1), (1, 3)), ((2, 1, 3, 3), (4, 3, 2)))
_PAIRS = (*_SMALL_PAIRS, ((33, 33), (33, 5)), ((2, 3, 3), (3, 1)), ((0, 0), (0, 2)), ((3, 3), (3, 0)))
SAMPLES[ops.solve] = Entry(
    _equations(_PAIRS), _equations(_SMALL_PAIRS), np.linalg.solve, "composed", INEXACT, special=""
)

_triangles = "definite", st.fixed_dictionaries({"upper": st.booleans()})  # whose triangles are well-conditioned, too
SAMPLES[ops.solve_triangular] = Entry(
    _equations(_PAIRS, *_triangles), _equations(_SMALL_PAIRS, *_triangles), ref.solve_triangular, "composed", INEXACT,
    special="",
)  # fmt: skip

# ---- norms of vectors ------------------------------------------------------------------------------------------------

_filled = tuple(s for s in SHAPES if 0 not in s)
_orders = (2.0, 1, 3.0, 0, float("inf"), -float("inf"), 0.5)


def _norm_params(orders: Sequence[float]) -> Callable:
    return lambda shape: st.fixed_dictionaries(
        {"axis": axes(shape), "keepdims": st.booleans(), "ord": st.sampled_from(orders)}
    )


SAMPLES[ops.vector_norm] = Entry(
    with_params(_filled, _norm_params(_orders), ("normal", "ties")),
    with_params(SMALL, _norm_params((2.0, 1, 3.0)), ("distinct",)),
    ref.vector_norm,
    "composed",
    INEXACT,
    special="nonfinite",
)
