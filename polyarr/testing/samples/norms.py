"""Entries of batch, group and instance normalization."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing import references as ref
from polyarr.testing.samples.entry import Cases, Entry, dtypes, narrow_first, ordinary
from polyarr.testing.strategies import Data, Sample, datas, memoized, samples

SAMPLES: dict[Op, Entry] = {}

# Axes of distinct lengths, so that a confused axis is noticed; with no, one or many positions.
IMAGES = ((3, 4, 6), (5, 3, 2, 4), (4, 2, 3, 33), (2, 33, 4), (3, 5, 1), (2, 3, 2, 2, 4), (3, 2, 70))
ROWS = ((33, 3), (9, 31), (4, 1))  # without spatial axes
ONE = ((1, 4, 6), (1, 33, 3, 2))  # a batch of one
NONE = ((0, 3, 6), (2, 0, 3))


def _params(channels: int, grouped: bool, activated: bool) -> Iterator[dict[str, Any]]:
    for eps in (0.1, 1e-5, 1e-2):
        for groups in (d for d in (3, 2, 1, 11, channels) if grouped and channels % d == 0):
            yield {"groups": groups, "eps": eps}
        if not grouped:
            yield {"eps": eps}
    if activated:
        yield {"eps": 1e-2, "activation": "silu"}


def _parts(sample: Sample, single: bool) -> np.ndarray:
    """Return what is normalized to variance 1, as rows."""
    x = sample.inputs[0].wide()
    if not single:
        return x.reshape(-1, x.shape[-1]).T
    groups = sample.params.get("groups", x.shape[-1])
    return np.moveaxis(x, -1, 1).reshape(x.shape[0] * groups, x[0].size // groups)


def _is_steady(sample: Sample, single: bool) -> bool:
    """Return whether the gradients are well conditioned: no rounding error is divided by a small deviation.

    The gradient of the weight for a constant cotangent is 0 except for the rounding error of the mean.
    """
    if 0 in sample.inputs[0].shape:
        return True
    parts = _parts(sample, single)
    peak, variance = abs(parts).max(1) ** 2, parts.var(1) + sample.params["eps"]
    far = sample.g == "broadcast" and np.any(peak > 1000 * variance)
    return not far and bool(np.all(variance > 1e-5 * peak + 0.05))


def _norm(
    shapes: tuple, single: bool = False, grouped: bool = False, moments: bool = False, activated: bool = False
) -> Cases:
    """Return cases with x, mean and variance if they are given, and two weights, each of which may be None."""

    def drawn(dtype: str, shape: tuple, params: dict) -> SearchStrategy[Sample]:
        size = shape[-1:]
        given = (datas(size, dtype), datas(size, dtype, ("positive",))) if moments else ()
        weight = st.one_of(datas(size, dtype), datas(size, dtype), st.none())
        return samples(datas(shape, dtype, ordinary(dtype)), *given, weight, weight, params=st.just(params))

    def cases(dtype: str) -> SearchStrategy[Sample]:
        calls = [(shape, params) for shape in shapes for params in _params(shape[-1], grouped, activated)]
        found = st.sampled_from(range(len(calls))).flatmap(memoized(lambda i: drawn(dtype, *calls[i])))
        return found if moments else found.filter(lambda sample: _is_steady(sample, single))

    return cases


def _beside_wider(*more: Data, **params: Any) -> Callable[[str], Sample]:
    """Return a narrow image with float32 weights and float32 mean and variance."""
    weights = (Data((6,), "float32", seed=1), Data((6,), "float32", seed=2))
    return lambda dtype: Sample((Data((3, 4, 6), dtype), *more, *weights), {"eps": 0.1, **params})


def _enter(op: Op, reference: Callable, shapes: tuple, narrow: Callable[[str], Sample], **how: bool) -> None:
    small = tuple(s for s in shapes if np.prod(s) < 300)
    cases, smooth = (narrow_first(narrow, _norm(some, **how)) for some in (shapes, small))
    SAMPLES[op] = Entry(cases, smooth, reference, "composed", dtypes("floating"), special="nan")


_moments = Data((6,), "float32", seed=3), Data((6,), "float32", "positive", seed=4)
_enter(ops.batch_norm, ref.batch_norm, (*IMAGES, *ROWS), _beside_wider(activation="silu"), activated=True)
_enter(
    ops.batch_norm_inference, ref.batch_norm_inference, (*IMAGES, *ROWS, *NONE), _beside_wider(*_moments), moments=True
)
_each = {"single": True}
_enter(
    ops.group_norm, ref.group_norm, (*IMAGES, *ROWS[:2], *ONE, *NONE), _beside_wider(groups=3), grouped=True, **_each
)
_enter(ops.instance_norm, ref.instance_norm, (*IMAGES, *ONE, *NONE), _beside_wider(), **_each)
