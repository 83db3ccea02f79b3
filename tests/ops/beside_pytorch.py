"""Helpers for comparisons with the samples of PyTorch's op_db: one sample is run by PyTorch and by polyarr."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import polyarr as pa

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch.testing needs it, but torch does not install it
WITHIN = {"float64": {"rtol": 1e-10, "atol": 1e-10}, "float32": {"rtol": 2e-4, "atol": 2e-4}}
PARTS = {"complex128": "float64", "complex64": "float32"}  # dtype of the parts of complex numbers
DTYPES = (*WITHIN, *PARTS)
COUNTS: Counter = Counter()  # samples that agree, by backend


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


def samples(info, dtype: str) -> Iterator:
    """Yield the samples, with as many orders of gradients as PyTorch has; for values, also in other dtypes.

    Equal samples, which PyTorch uses in other ways, are yielded once. In single precision, those without elements are
    left out: there is nothing to round.
    """
    orders = (1 + info.supports_gradgrad) if info.supports_autograd else 0
    wide = torch.complex128 if dtype in PARTS else torch.float64
    kinds = [(wide, orders)] + [(other, 0) for other in (torch.int64, torch.bool) if dtype == "float64"]
    single = dtype in ("float32", "complex64")
    for kind, most in kinds:
        seen = set()
        if info.supports_dtype(kind, "cpu"):
            for sample in info.sample_inputs("cpu", kind, requires_grad=most > 0):
                if content(sample) not in seen and not (single and any(not a.numel() for a in tensors(sample))):
                    yield sample, most
                seen.add(content(sample))


def content(sample) -> str:
    """Return what a sample consists of."""
    of = lambda a: (a.dtype, a.shape, a.requires_grad, host(a).tobytes())
    return str(mapped(of, [sample.input, *sample.args, *sample.kwargs.items()]))


def compare_all(info, reference: Callable, function: Callable, backend, dtype: str, most: int = 2) -> Counter:
    """Compare every sample of an entry of op_db; return how many agree, and why others were not compared.

    Gradients are compared up to most orders, of complex64 the first. Only integers and bools may be refused for their
    dtype.
    """
    most = 1 if dtype == "complex64" else most
    if dtype not in [d.name for d in backend.dtypes]:
        pytest.skip(f"no {dtype}")
    found, rng = Counter(), np.random.default_rng(1)
    for sample, orders in samples(info, dtype):
        try:
            compare(reference, function, sample, rng, dtype, min(orders, most))
            found["agree"] += 1
        except Absent:
            found["asks for what polyarr does not have"] += 1
        except pa.DtypeError:
            assert not any(a.is_floating_point() or a.is_complex() for a in tensors(sample)[:1])
            found["refused dtype"] += 1
    COUNTS[backend.name] += found["agree"]
    print(f"{info.name} in {dtype} on {backend.name}: {dict(found)}; {COUNTS[backend.name]} so far")
    return found


def compare(reference: Callable, function: Callable, sample, rng, dtype: str = "float64", orders: int = 2) -> None:
    """Compare values, gradients and gradients of gradients with PyTorch's, which computes in float64 or complex128.

    Inputs are rounded to dtype, or if they are real to that of its parts, for both. PyTorch's gradient of a real
    function of z = x + iy is df/dx + i df/dy, the conjugate of polyarr's: of the former the conjugate is taken.
    Raises Absent if polyarr lacks what the sample needs.
    """
    within = WITHIN[PARTS.get(dtype, dtype)]
    at = [i for i, a in enumerate(tensors(sample)) if a.requires_grad]
    given = [rounded(a.detach().clone(), dtype) for a in tensors(sample)]
    arrays = [pa.asarray(host(a), dtype=narrow(a, dtype)) for a in given]
    mine = list(flat(called(function, sample, arrays)))
    given = [a.requires_grad_(i in at) for i, a in enumerate(given)]
    theirs = list(flat(called(reference, sample, given)))
    assert len(mine) == len(theirs), (len(mine), len(theirs))
    for found, want in zip(mine, theirs, strict=True):
        from_integers = want.dtype in (torch.float32, torch.complex64)  # both compute in single precision then
        assert not from_integers or f"torch.{found.dtype.name}" == str(want.dtype), (found.dtype, want.dtype, sample)
        same(found, want, sample, **WITHIN["float32"] if from_integers else within)
    taken = [i for i, want in enumerate(theirs) if want.requires_grad]
    if not (at and taken and orders):
        return

    cotangents = {i: normal(rng, theirs[i], dtype) for i in taken}
    starts = [given[i] for i in at]
    weighted = sum((theirs[i] * wide(cotangents[i])).sum().real for i in taken)
    first = torch.autograd.grad(weighted, starts, create_graph=orders > 1, materialize_grads=True)
    first = [t.conj() for t in first]

    def loss(*a):
        filled = dict(zip(at, a, strict=True))
        found = list(flat(called(function, sample, [filled.get(i, b) for i, b in enumerate(arrays)])))
        return sum(pa.real(pa.sum(found[i] * pa.asarray(cotangents[i]))) for i in taken)

    every = tuple(range(len(at)))
    own = [arrays[i] for i in at]
    gradient = pa.grad(loss, argnums=every)
    for found, want in zip(gradient(*own), first, strict=True):
        same(found, want, sample, **within)
    if orders < 2:
        return
    turns = [normal(rng, a, dtype) for a in starts]
    # Maps a gradient t to t / sqrt(1 + |t|^2): the cosine of a large t would be as good as random.
    turned = [(t * torch.rsqrt(1 + (t * t.conj()).real), wide(v)) for t, v in zip(first, turns, strict=True)]
    turned = sum((t * v).sum().real for t, v in turned)
    turned = turned + sum(a.sum().real for a in starts) * 0
    second = torch.autograd.grad(turned, starts, materialize_grads=True)
    turn = lambda t, v: pa.real(pa.sum(t * pa.rsqrt(1 + pa.real(t * pa.conj(t))) * pa.asarray(v)))
    dot = lambda *a: sum(turn(t, v) for t, v in zip(gradient(*a), turns, strict=True))
    for found, want in zip(pa.grad(dot, argnums=every)(*own), second, strict=True):
        same(found, want.conj(), sample, **within)


def narrow(a, dtype: str) -> str | None:
    """Return the dtype of a tensor's kind and of the precision of dtype; None for integers and bools."""
    parts = PARTS.get(dtype, dtype)
    if a.is_complex():
        return next(name for name, real in PARTS.items() if real == parts)
    return parts if a.is_floating_point() else None


def rounded(a, dtype: str):
    """Return a tensor with its values rounded as polyarr gets them."""
    return a if narrow(a, dtype) is None else a.to(getattr(torch, narrow(a, dtype))).to(a.dtype)


def normal(rng, a, dtype: str) -> np.ndarray:
    """Return normal numbers of the shape and kind of a tensor, in the precision of dtype."""
    draw = lambda: rng.standard_normal(tuple(a.shape))
    return np.asarray(draw() + 1j * draw() if a.is_complex() else draw(), dtype=narrow(a, dtype))


def wide(array: np.ndarray):
    """Return an array as a tensor in float64 or complex128."""
    return torch.from_numpy(array.astype("D" if array.dtype.kind == "c" else "d"))


def host(a) -> np.ndarray:
    """Return a tensor's values."""
    return a.detach().resolve_conj().resolve_neg().numpy()


def same(mine, theirs, sample, *, rtol: float, atol: float) -> None:
    """Assert that two results agree."""
    mine, theirs = mine.numpy(), host(theirs)
    assert mine.shape == theirs.shape, (mine.shape, theirs.shape, sample)
    assert (mine.dtype.kind == "c") == (theirs.dtype.kind == "c"), (mine.dtype, theirs.dtype, sample)
    if mine.dtype.kind in "biu":
        np.testing.assert_array_equal(mine, theirs, err_msg=str(sample))
        return
    np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol, err_msg=str(sample))
