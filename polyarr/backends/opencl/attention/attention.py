"""Attention without the matrix of scores: tiles, online softmax, and a backward pass that recomputes the weights.

The first variant that accepts a problem computes it; otherwise decode attention does (few queries), or the portable
tiled kernels.
"""

import struct
from functools import lru_cache
from math import log, prod
from typing import Any, NamedTuple, cast

import numpy as np

from polyarr.backends.opencl.attention import attention_decode, attention_tiled
from polyarr.backends.opencl.attention.attention_tiled import Call, NewRows, Problem
from polyarr.backends.opencl.copying.copy import dense, write
from polyarr.backends.opencl.elementwise.elementwise import EXPRESSIONS, launch
from polyarr.backends.opencl.elementwise.random import state_of
from polyarr.backends.opencl.gemm.product import terms_of
from polyarr.backends.opencl.reductions.reduce import launcher as reduction
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import (
    Buffer,
    broadcast,
    collapse,
    is_aligned,
    permuted,
    row_major,
    view,
    window,
)
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.core.spec import Spec, float32

SUM = reduction("sum")
KEYS = 1, 2  # the indices of k and v among arrays that begin with q, k, v


VARIANTS = (
    Variant("decode", "one query, or up to 8 that are not causal, rows of up to 512, no dropout",
            lambda device, p: attention_decode if attention_decode.accepts(p) else None),
    Variant("tiled", "all others", lambda device, p: attention_tiled),
)  # fmt: skip


Inputs = tuple[Buffer, Buffer, Buffer, Buffer | None, *tuple[Buffer, ...]]  # q, k, v, mask and gradient


class Saved(NamedTuple):
    """Results of the forward pass: the output, the log-sum-exp of each row, and whether a vendor's variant made them.

    A variant's log-sum-exp is of base 2, in rows of whole tiles.
    """

    out: Buffer
    lse: Buffer
    by_variant: bool


def forward(
    device: Device, out: Spec, q: Buffer, k: Buffer, v: Buffer, mask: Buffer | None,
    key: int | Buffer, counter: int | Buffer, *,
    causal: bool, scale: float, dropout_rate: float, precision: str = "highest",
) -> Any:  # fmt: skip
    """Return the result (..., t, e) and a Saved. Memory is laid out (..., t, heads, e), so joining the heads is free,
    unless it is decode attention and the rows of a head lie one after the other in q, as grouped queries do.

    Returns NotImplemented if rows are so long that no tile fits into the device's local memory, forward or backward.
    """
    if not device.plans[attention_tiled.fits](q.dtype.itemsize, q.shape[-2], (q.shape[-1], v.shape[-1])):
        return NotImplemented
    result = device.empty(out) if _is_by_heads(q) else _by_rows(device, out.shape, out.dtype)
    numbers = key, counter, causal, scale, dropout_rate, precision
    call = _call(device, out.shape[:-2], (q, k, v, mask), (result,), *numbers)
    found = device.plans[_plan](call.problem)
    by_variant = found not in (attention_decode, attention_tiled)
    return result, Saved(result, found.forward(device, call, result), by_variant)


def forward_storing(
    device: Device, out: Spec, q: Buffer, k: Buffer, v: Buffer, mask: Buffer | None,
    key: int, counter: int, values: tuple[Buffer, ...], position: int, place: Buffer | None = None, *,
    causal: bool, scale: float, dropout_rate: float, precision: str = "highest",
) -> Any:  # fmt: skip
    """Store a row in k and one in v, parts of a cache that nothing else reads, and return what `forward` does.

    `values` are these rows, (1, B, H, 1, D) each, or both in one array. `place` holds the position, int32 (1,), for
    kernels that read it from memory.
    """
    new_k, new_v = [_with_unit_step(device, _part(x, i)) for x in values for i in range(x.shape[0])]
    new = NewRows(new_k, new_v, position, place)
    numbers = causal, scale, dropout_rate, precision
    result = device.empty(out) if _is_by_heads(q) else _by_rows(device, out.shape, out.dtype)
    call = _call(device, out.shape[:-2], (q, k, v, mask), (result,), 0, 0, *numbers)._replace(new=new)
    lse = attention_decode.forward(device, call, result) if attention_decode.accepts(call.problem) else None
    if lse is not None:
        return result, Saved(result, lse, False)
    for cache, row in ((k, new_k), (v, new_v)):
        write(device, window(cache, row.shape, (0, 0, position, 0), (1, 1, 1, 1)), row)
    return forward(device, out, q, k, v, mask, key, counter, causal=causal, scale=scale, dropout_rate=dropout_rate,
                   precision=precision)  # fmt: skip


def _part(values: Buffer, i: int) -> Buffer:
    """Return the i-th array along the first axis."""
    return view(values, values.shape[1:], values.strides[1:], values.offset + i * values.strides[0])


def backward(
    device: Device, g: Buffer, saved: Saved, q: Buffer, k: Buffer, v: Buffer, mask: Buffer | None,
    key: int | Buffer, counter: int | Buffer, *, wanted: tuple[bool, ...], causal: bool, scale: float,
    dropout_rate: float, precision: str = "highest",
) -> tuple[Buffer | None, ...]:  # fmt: skip
    """Return the gradients of q, k and v; the mask gets none."""
    lead = g.shape[:-2]
    gradients = _gradients(device, [Spec((*lead, *x.shape[-2:]), x.dtype) for x in (q, k, v)])
    inputs, results = (q, k, v, mask), (saved.out, *gradients)
    numbers = key, counter, causal, scale, dropout_rate, precision
    call = _call(device, lead, (*inputs, g), results, *numbers)
    family, lse = attention_tiled, saved.lse
    if saved.by_variant:
        family = device.plans[_variant_plan](call.problem)
        if family is None:  # g has a layout that it cannot read
            call = _call(device, lead, (*inputs, dense(device, g)), results, *numbers)
            family = device.plans[_variant_plan](call.problem)
        if family is None:  # its backward pass failed its check on this device
            family, lse = attention_tiled, _as_natural_log(device, call.problem, lse)
    family.backward(device, call, saved.out, lse, gradients, wanted)
    found = zip(gradients, (q, k, v), wanted, strict=False)
    return (*(_unbroadcast(device, dx, x.shape) if want else None for dx, x, want in found), None, None, None)


def _is_by_heads(q: Buffer) -> bool:
    """Return whether there are few queries, and the rows of a head lie one after the other."""
    *_, t, e = q.shape
    return t <= attention_decode.MAX_QUERIES and q.strides[-3:-1] == (t * e, e)


def _plan(device: Device, p: Problem) -> Any:
    """Return what computes a problem, an object with `forward` and `backward`."""
    return choose(device, "attention", (*device.vendor.attention, *VARIANTS), p)


def _variant_plan(device: Device, p: Problem) -> Any:
    """Return the plan of the first of the vendor's variants that accepts a problem; None if none does."""
    return choose(device, "attention", device.vendor.attention, p)


def _as_natural_log(device: Device, p: Problem, lse: Buffer) -> Buffer:
    """Return the natural log-sum-exp of each row, as the portable kernels take it."""
    return launch(device, Spec((p.batch, p.t), float32), lse._replace(shape=(p.batch, p.t)), log(2),
                  expression=EXPRESSIONS["multiply"])  # fmt: skip


def _call(
    device: Device, lead: tuple[int, ...], inputs: Inputs, results: tuple[Buffer, ...],
    key: int | Buffer, counter: int | Buffer, causal: bool, scale: float, rate: float, precision: str,
) -> Call:  # fmt: skip
    """Describe one pass over arrays in any layout."""
    found, at, inner, group = _laid_out(device, lead, inputs, results)
    q, k, v, mask, *rest = found
    state = state_of(device, key, counter, q)
    problem = Problem(
        q.dtype, inputs[3] and mask.dtype, prod(lead), inner, q.shape[-2], k.shape[-2], (q.shape[-1], v.shape[-1]),
        tuple([at[i][8:] for i in range(len(found)) if i != 3]),
        all(map(is_aligned, (q, k, v, *rest))), bool(causal), scale > 0, rate > 0,
        rate > 0 and bool(state.on_device), terms_of(q.dtype, precision), group,
    )  # fmt: skip
    kept = 1 / (1 - rate) if rate < 1 else 0.0
    numbers = inner, problem.t, problem.s, int(causal), scale, *state.arguments, round(rate * 2**24), kept, group
    return Call(problem, found, at, numbers)


def _by_rows(device: Device, shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
    """Return an uninitialized buffer (..., heads, rows, n) whose memory is laid out (..., rows, heads, n).

    Of groups of heads, (..., groups, heads, rows, n), it is (..., rows, groups, heads, n).
    """
    found, strides = device.plans[_rows](shape, dtype)
    return view(device.empty(found), shape, strides, 0)


def _gradients(device: Device, specs: list[Spec]) -> tuple[Buffer, ...]:
    """Return buffers like _by_rows for several arrays; if their shapes are equal, heads lie side by side in one buffer.
    """
    first, count = specs[0], len(specs)
    if specs != [first] * count or len(first.shape) not in (3, 4):
        return tuple([_by_rows(device, spec.shape, spec.dtype) for spec in specs])
    *outer, heads, rows, n = first.shape
    whole = _by_rows(device, (*outer, count * heads, rows, n), first.dtype)
    return tuple([view(whole, first.shape, whole.strides, i * heads * n) for i in range(count)])


def _rows(device: Device, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Spec, tuple[int, ...]]:
    """Return the Spec to allocate for _by_rows, and the strides of the view."""
    order, count = [*range(len(shape))], len(shape)
    order.insert(count - 4 if count > 4 else max(count - 3, 0), order.pop(count - 2))
    found = tuple([shape[i] for i in order])
    steps = dict(zip(order, row_major(found), strict=True))
    return Spec(found, dtype), tuple([steps[i] for i in range(count)])


def _laid_out(
    device: Device, lead: tuple[int, ...], inputs: Inputs, results: tuple[Buffer, ...]
) -> tuple[tuple[Buffer, ...], tuple[bytes, ...], int, int]:
    """Return the broadcast inputs (a mask: to all scores), the arrays' layouts, the inner axis's length, and group.

    group is the number of neighbors on the inner axis that share a matrix of k and v.
    """
    q, k, v, mask, *rest = inputs
    last = [_with_unit_step(device, x) for x in (q, k, v, *rest)]
    found = [broadcast(x, (*lead, *x.shape[-2:])) for x in last]
    found.insert(3, found[0] if mask is None else broadcast(mask, (*lead, q.shape[-2], k.shape[-2])))
    strides, group = tuple([x.strides for x in (*found, *results)]), 1
    layouts = _steps(lead, strides)
    if layouts is None and (layouts := _steps_of_groups(lead, strides)):
        group = lead[-1]
    if layouts is None:
        found = [dense(device, x) for x in found]
        layouts = _steps(lead, tuple([x.strides for x in (*found, *results)]))
    steps, inner = cast("tuple[list[bytes], int]", layouts)  # dense arrays always have them
    starts = [struct.pack("q", x.offset) for x in (*found, *results)]
    return tuple(found), tuple([start + step for start, step in zip(starts, steps, strict=True)]), inner, group


def _with_unit_step(device: Device, x: Buffer) -> Buffer:
    return x if x.strides[-1] == 1 or x.shape[-1] == 1 else dense(device, x)


@lru_cache(maxsize=1024)
def _steps(lead: tuple[int, ...], arrays: tuple[Any, ...]) -> tuple[list[bytes], int] | None:
    """Return the layouts without offsets, and the inner axis's length; None if leading axes do not collapse to two."""
    (*outer, inner), steps = collapse(lead, [strides[:-2] for strides in arrays])
    if len(outer) > 1:
        return None
    pairs = [step if outer else (0, *step) for step in steps]
    return [struct.pack("3q", *pair, a[-2]) for a, pair in zip(arrays, pairs, strict=True)], inner


@lru_cache(maxsize=1024)
def _steps_of_groups(lead: tuple[int, ...], arrays: tuple[Any, ...]) -> tuple[list[bytes], int] | None:
    """Return what `_steps` does for grouped queries, whose k and v are the same along the last leading axis.

    The last two leading axes become the inner one, of which k and v have only the first. None if the two, or the axes
    before them, do not collapse to one.
    """
    steps = [strides[: len(lead)] for strides in arrays]
    if len(lead) < 2 or any(steps[i][-1] for i in KEYS):
        return None
    inner = [own[-2:] if i not in KEYS else (own[-2] * lead[-1], own[-2]) for i, own in enumerate(steps)]
    (count, *others), heads = collapse(lead[-2:], inner)
    lengths, outer = collapse(lead[:-2], [own[:-2] for own in steps])
    if others or len(lengths) > 1:
        return None
    pairs = zip(arrays, outer, heads, strict=True)
    return [struct.pack("4q", 0, *before, *own, strides[-2])[8:] for strides, before, own in pairs], count


def _unbroadcast(device: Device, dx: Buffer, shape: tuple[int, ...]) -> Buffer:
    """Return the sum of dx over the axes along which an input of this shape was broadcast."""
    missing = len(dx.shape) - len(shape)
    axes = (*range(missing), *(missing + i for i, n in enumerate(shape) if n == 1 != dx.shape[missing + i]))
    if not axes:
        return dx
    # Axes in the order of memory, so that neighbors are neighbors in the sum, too.
    order = sorted(range(len(dx.shape)), key=lambda i: dx.strides[i], reverse=True)
    kept = [1 if i in axes else dx.shape[i] for i in order]
    summed = tuple(map(order.index, axes))
    total = SUM(device, Spec(tuple(kept), dx.dtype), permuted(dx, order), axis=summed, keepdims=True)
    total = permuted(total, [order.index(i) for i in range(len(order))])
    return total._replace(shape=shape, strides=total.strides[missing:])
