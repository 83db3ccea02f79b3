"""Helpers for comparisons with the samples of PyTorch's op_db: one sample is run by PyTorch and by polyarr."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import polyarr as pa

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch.testing needs it, but torch does not install it
WITHIN = {"float64": {"rtol": 1e-10, "atol": 1e-10}, "float32": {"rtol": 2e-4, "atol": 2e-4}}


class Absent(Exception):  # noqa: N818 (it is no error)
    """The exception for a sample that polyarr does not support: it is not compared."""


def infos() -> list:
    """Return op_db, which takes a while to import."""
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def mapped(fn: Callable, value: Any) -> Any:
    """Return the value with fn applied to each tensor in it."""
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(fn, v) for v in value])
    return fn(value) if isinstance(value, torch.Tensor) else value


def flat(value: Any) -> Iterator:
    """Return the arrays or tensors in a result."""
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from flat(v)
    else:
        yield value


def tensors(sample) -> list:
    """Return the tensors in a sample's arguments, in order."""
    found: list = []
    mapped(found.append, [sample.input, *sample.args, *sample.kwargs.values()])
    return found


def called(function: Callable, sample, arrays) -> Any:
    """Return a function's result for a sample, with these arrays instead of its tensors."""
    left = iter(arrays)
    taken = [mapped(lambda _: next(left), a) for a in (sample.input, *sample.args)]
    named = {n: mapped(lambda _: next(left), a) for n, a in sample.kwargs.items()}
    return function(*taken, **named)


def compare(reference: Callable, function: Callable, sample, rng, dtype: str = "float64", orders: int = 2) -> None:
    """Compare values, gradients and gradients of gradients with PyTorch's, which computes in float64.

    Inputs are rounded to dtype for both. Raises Absent if polyarr lacks what the sample needs.
    """
    within = WITHIN[dtype]
    floating = lambda a: a.dtype == torch.float64
    at = [i for i, a in enumerate(tensors(sample)) if a.requires_grad]
    given = [a.detach().clone() for a in tensors(sample)]
    given = [a.to(getattr(torch, dtype)).to(torch.float64) if floating(a) else a for a in given]
    arrays = [pa.asarray(a.numpy(), dtype=dtype if floating(a) else None) for a in given]
    mine = list(flat(called(function, sample, arrays)))
    given = [a.requires_grad_(i in at) for i, a in enumerate(given)]
    theirs = list(flat(called(reference, sample, given)))
    assert len(mine) == len(theirs), (len(mine), len(theirs))
    for found, want in zip(mine, theirs, strict=True):
        same(found, want, sample, **within)
    taken = [i for i, want in enumerate(theirs) if want.requires_grad]
    if not (at and taken and orders):
        return

    spread = lambda a: np.asarray(rng.standard_normal(tuple(a.shape))).astype(dtype)
    cotangents = {i: spread(theirs[i]) for i in taken}
    starts = [given[i] for i in at]
    weighted = sum((theirs[i] * torch.from_numpy(cotangents[i].astype("d"))).sum() for i in taken)
    first = torch.autograd.grad(weighted, starts, create_graph=orders > 1, materialize_grads=True)

    def loss(*a):
        filled = dict(zip(at, a, strict=True))
        found = list(flat(called(function, sample, [filled.get(i, b) for i, b in enumerate(arrays)])))
        return sum(pa.sum(found[i] * pa.asarray(cotangents[i])) for i in taken)

    every = tuple(range(len(at)))
    own = [arrays[i] for i in at]
    gradient = pa.grad(loss, argnums=every)
    for found, want in zip(gradient(*own), first, strict=True):
        same(found, want, sample, **within)
    if orders < 2:
        return
    turns = [spread(a) for a in starts]
    # Maps a gradient t to t / sqrt(1 + t * t): the cosine of a large t would be as good as random.
    turned = [(t * torch.rsqrt(1 + t * t), torch.from_numpy(v.astype("d"))) for t, v in zip(first, turns, strict=True)]
    turned = sum((t * v).sum() for t, v in turned)
    turned = turned + sum(a.sum() for a in starts) * 0
    second = torch.autograd.grad(turned, starts, materialize_grads=True)
    turn = lambda t, v: pa.sum(t * pa.rsqrt(1 + t * t) * pa.asarray(v))
    dot = lambda *a: sum(turn(t, v) for t, v in zip(gradient(*a), turns, strict=True))
    for found, want in zip(pa.grad(dot, argnums=every)(*own), second, strict=True):
        same(found, want, sample, **within)


def same(mine, theirs, sample, *, rtol: float, atol: float) -> None:
    """Assert that two results agree."""
    mine, theirs = mine.numpy(), theirs.detach().numpy()
    assert mine.shape == theirs.shape, (mine.shape, theirs.shape, sample)
    if mine.dtype.kind in "biu":
        np.testing.assert_array_equal(mine, theirs, err_msg=str(sample))
        return
    np.testing.assert_allclose(mine.astype("d"), theirs.astype("d"), rtol=rtol, atol=atol, err_msg=str(sample))
