"""Batching rules of the primitives. The examples are along axis 0 of mapped inputs and of results."""

import math
from typing import Any

from polyarr import ops
from polyarr.batching.level import Batched, Call, Rule, Rules, is_mapped, plain, spread
from polyarr.core.array import Array, flatten
from polyarr.core.current import use_backend
from polyarr.core.errors import BatchingError
from polyarr.core.number import user_location
from polyarr.core.op import Op
from polyarr.core.spec import int64
from polyarr.ops.create import iota
from polyarr.ops.declare import ELEMENTWISE
from polyarr.ops.index import checked_positions


def aligned(buf: Any, ndim: int) -> Any:
    """Return an input such that it broadcasts against others whose examples have `ndim` axes."""
    if not is_mapped(buf):
        return plain(buf)
    a, missing = buf.array, ndim - (buf.array.ndim - 1)
    return ops.reshape(a, shape=(a.shape[0], *(1,) * missing, *a.shape[1:])) if missing > 0 else a


def elementwise(call: Call, *bufs: Any, **params: Any) -> Any:
    """Call the op on inputs whose examples broadcast."""
    return call.op(*[aligned(b, len(call.out.shape)) for b in bufs], **params)


# ---- reductions, and what runs along some axes -------------------------------------------------------------------


def along_axes(call: Call, x: Batched, *, axis: tuple[int, ...], **params: Any) -> Any:
    """Run along the same axes of every example."""
    return call.op(x.array, axis=tuple(a + 1 for a in axis), **params)


def arg_extreme(call: Call, x: Batched, *, axis: int | None, **params: Any) -> Any:
    """Search along an axis, or in each flattened example."""
    a = x.array
    if axis is not None:
        return call.op(a, axis=axis + 1, **params)
    found = call.op(ops.reshape(a, shape=(call.size, math.prod(a.shape[1:]))), axis=1)
    return ops.reshape(found, shape=(call.size, *call.out.shape))


def along_axis(call: Call, x: Batched, *, axis: int, **params: Any) -> Any:
    """Run along the same axis of every example."""
    return call.op(x.array, axis=axis + 1, **params)


# ---- shapes ------------------------------------------------------------------------------------------------------


def reshape(call: Call, x: Batched, *, shape: tuple[int, ...]) -> Any:
    """Reshape every example."""
    return ops.reshape(x.array, shape=(call.size, *shape))


def permute_dims(call: Call, x: Batched, *, axes: tuple[int, ...]) -> Any:
    """Permute the axes of every example."""
    return ops.permute_dims(x.array, axes=(0, *(a + 1 for a in axes)))


def broadcast_to(call: Call, x: Batched, *, shape: tuple[int, ...]) -> Any:
    """Broadcast every example."""
    return ops.broadcast_to(aligned(x, len(shape)), shape=(call.size, *shape))


def concat(call: Call, arrays: tuple, *, axis: int) -> Any:
    """Join the examples of each array."""
    return ops.concat(tuple(spread(a, call.size) for a in arrays), axis=axis + 1)


def slice(call: Call, x: Batched, starts: tuple, *, steps: tuple, shape: tuple) -> Any:
    """Slice every example at the same place; at places that differ by example, one by one."""
    if any(map(is_mapped, starts)):
        return looped(call, x, starts, steps=steps, shape=shape)
    return ops.slice(x.array, (0, *plain(starts)), steps=(1, *steps), shape=(call.size, *shape))


def slice_update(call: Call, x: Batched, value: Batched, starts: tuple, *, steps: tuple) -> Any:
    """Update the same slice of every example; slices that differ by example one by one."""
    if any(map(is_mapped, starts)):
        return looped(call, x, value, starts, steps=steps)
    whole, new = spread(x, call.size), spread(value, call.size)
    return ops.slice_update(whole, new, (0, *plain(starts)), steps=(1, *steps))


# ---- products ----------------------------------------------------------------------------------------------------


def matrix_product(call: Call, x: Batched, y: Batched, **params: Any) -> Any:
    """Multiply; matrices that all examples share are multiplied once by the rows of all examples."""
    shape = (call.size, *call.out.shape)
    if not y.is_mapped and y.array.ndim == 2:
        rows = ops.reshape(x.array, shape=(math.prod(x.array.shape[:-1]), x.array.shape[-1]))
        return ops.reshape(call.op(rows, y.array, **params), shape=shape)
    if not x.is_mapped and x.array.ndim == 2 and y.array.ndim == 3 and y.array.shape[2] == 1:
        rows = ops.reshape(y.array, shape=y.array.shape[:2])  # a column for each example
        return ops.reshape(call.op(rows, ops.matrix_transpose(x.array), **params), shape=shape)
    return matrices(call, x, y, **params)


def matrices(call: Call, *bufs: Batched, **params: Any) -> Any:
    """Call an op on matrices, with the examples among the leading axes."""
    out = call.out[0] if type(call.out) is tuple else call.out
    ndim = max(len(out.shape), *(len(b.spec.shape) for b in bufs))
    return call.op(bufs[0].array, **params) if len(bufs) == 1 else call.op(*[aligned(b, ndim) for b in bufs], **params)


# ---- indices -----------------------------------------------------------------------------------------------------


def take(call: Call, x: Batched, indices: Batched, *, axis: int) -> Any:
    """Gather from every example, or for every example from one array."""
    if not indices.is_mapped:
        return ops.take(x.array, indices.array, axis=axis + 1)
    if not x.is_mapped:
        found = ops.take(x.array, indices.array, axis=axis)
        return ops.moveaxis(found, source=axis, destination=0)
    n, many = x.array.shape[axis + 1], indices.array.ndim
    found = ops.take(_rows(x.array, axis), _row_numbers(indices.array, n), axis=0)  # (size, *indices, *rest)
    rest = found.ndim - many
    order = (0, *range(many, many + axis), *range(1, many), *range(many + axis, many + rest))
    return ops.permute_dims(found, axes=order)


def scattered(call: Call, x: Batched, indices: Batched, updates: Batched, *, axis: int) -> Any:
    """Scatter into every example."""
    whole, new = spread(x, call.size), spread(updates, call.size)
    if not indices.is_mapped:
        return call.op(whole, indices.array, new, axis=axis + 1)
    n, many = whole.shape[axis + 1], indices.array.ndim - 1
    last = range(axis + 1 + many, new.ndim)
    new = ops.permute_dims(new, axes=(0, *range(axis + 1, axis + 1 + many), *range(1, axis + 1), *last))
    found = call.op(_rows(whole, axis), _row_numbers(indices.array, n), new, axis=0)
    lengths = [m for i, m in enumerate(whole.shape) if i != axis + 1]
    found = ops.reshape(found, shape=(lengths[0], n, *lengths[1:]))
    return ops.moveaxis(found, source=1, destination=axis + 1)


def _rows(x: Array, axis: int) -> Array:
    """Return x (size, *before, n, *after) as (size * n, *before, *after), n being along `axis` of an example."""
    moved = ops.moveaxis(x, source=axis + 1, destination=1)
    return ops.reshape(moved, shape=(moved.shape[0] * moved.shape[1], *moved.shape[2:]))


def _row_numbers(indices: Array, n: int) -> Array:
    """Return the rows of `_rows` that the indices (size, ...) of each example name."""
    size = indices.shape[0]
    first = ops.reshape(iota(0, n, indices, size=size, dtype=int64), shape=(size, *(1,) * (indices.ndim - 1)))
    return ops.add(checked_positions(indices, n), first)


# ---- creation ----------------------------------------------------------------------------------------------------


def fill(call: Call, value: Any, like: Any, *, shape: tuple[int, ...], dtype: Any) -> Any:
    """Create one array for all examples, unless the value differs between them."""
    if is_mapped(value):
        each = ops.astype(aligned(value, len(shape)), dtype=dtype)
        return ops.broadcast_to(each, shape=(call.size, *shape))
    return _shared(call, plain(value), like=like, shape=shape, dtype=dtype)


def iota_rule(call: Call, start: Any, step: Any, like: Any, *, size: int, dtype: Any) -> Any:
    """Create one array for all examples."""
    return _shared(call, start, step, like=like, size=size, dtype=dtype)


def random_bits(call: Call, key: Any, counter: Any, like: Any, *, shape: tuple[int, ...]) -> Any:
    """Draw as `randomness` of vmap says; with a key or counter that is mapped, for each example from its own."""
    if is_mapped(key) or is_mapped(counter):
        return looped(call, key, counter, None if like is None else Batched(like.array, False), shape=shape)
    if call.randomness == "error":
        given = f"{user_location()} draws random numbers from a key that all examples share"
        raise BatchingError(f"vmap: {given}; say randomness='different' or 'same', or map over keys")
    key, counter = plain(key), plain(counter)
    if call.randomness == "same":
        return _shared(call, key, counter, like=like, shape=shape)
    return _shared(call, key, counter, like=like, shape=(call.size, *shape)).array


def _shared(call: Call, *args: Any, like: Any, **params: Any) -> Batched:
    """Create an array on the inner backend."""
    if like is not None:
        return Batched(call.op(*args, like.array, **params), False)
    with use_backend(call.inner):
        return Batched(call.op(*args, None, **params), False)


# ---- any primitive -----------------------------------------------------------------------------------------------


def looped(call: Call, *bufs: Any, **params: Any) -> Any:
    """Call the op for one example after the other, and stack the results."""
    if not call.size:
        like = next(b.array for b in flatten(bufs) if is_mapped(b))
        return _empty(call.out, like)
    found = [call.op(*[_example(b, i) for b in bufs], **params) for i in range(call.size)]
    return _stacked(found)


def _example(buf: Any, i: int) -> Any:
    if type(buf) is tuple:
        return tuple(_example(b, i) for b in buf)
    return buf.array[i] if is_mapped(buf) else plain(buf)


def _stacked(found: list) -> Any:
    if type(found[0]) is tuple:
        return tuple(_stacked([*parts]) for parts in zip(*found, strict=True))
    return ops.stack(found, axis=0)


def _empty(out: Any, like: Array) -> Any:
    if type(out) is tuple:
        return tuple(_empty(o, like) for o in out)
    return ops.fill(0, like, shape=(0, *out.shape), dtype=out.dtype)


CREATION: dict[Op, Rule] = {ops.fill: fill, ops.iota: iota_rule, ops.random_bits: random_bits}
PRIMITIVES: dict[Op, Rule] = {
    **CREATION,
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys((ops.where, ops.astype), elementwise),
    **dict.fromkeys((ops.sum, ops.prod, ops.max, ops.min), along_axes),
    **dict.fromkeys((ops.argmax, ops.argmin), arg_extreme),
    **dict.fromkeys((ops.cumulative_sum, ops.argsort), along_axis),
    ops.reshape: reshape,
    ops.permute_dims: permute_dims,
    ops.broadcast_to: broadcast_to,
    ops.concat: concat,
    ops.slice: slice,
    ops.slice_update: slice_update,
    ops.matrix_product: matrix_product,
    ops.take: take,
    ops.scatter: scattered,
    ops.scatter_add: scattered,
    **dict.fromkeys((ops.cholesky, ops.eigh, ops.eig, ops.qr, ops.svd, ops.slogdet, ops.solve), matrices),
}


def all_rules(composed: dict[Op, Rule]) -> Rules:
    """Return the rules of the primitives and of the composed ops that have one."""
    return Rules({**PRIMITIVES, **composed}, frozenset(CREATION), looped)
