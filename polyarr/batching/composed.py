"""Batching rules of composed ops that backends have fused kernels for: the op itself runs on all examples.

A rule returns NotImplemented for a call that the op's decomposition must serve, such as one whose weights are mapped.
"""

from typing import Any

from polyarr import ops
from polyarr.batching.level import Batched, Call, Rule, is_mapped, plain, spread
from polyarr.batching.rules import aligned, along_axes, along_axis, elementwise, matrices
from polyarr.core.op import Op
from polyarr.ops.shape import one_axis


def rows(call: Call, x: Any, *weights: Any, **params: Any) -> Any:
    """Call an op that treats the last axis of x, any number of axes before it, and weights that examples share."""
    if not is_mapped(x) or any(map(is_mapped, weights)):
        return NotImplemented
    return call.op(x.array, *map(plain, weights), **params)


def embedding(call: Call, weight: Batched, indices: Batched) -> Any:
    """Look up the indices of all examples at once, in a weight that they share."""
    return NotImplemented if weight.is_mapped else ops.embedding(weight.array, indices.array)


def attention(call: Call, q: Any, k: Any, v: Any, mask: Any, *dropout: Any, dropout_rate: float, **params: Any) -> Any:
    """Attend in all examples at once. The random bits of dropout depend on `randomness`, so it is decomposed."""
    if dropout_rate:
        return NotImplemented
    ndim = len(call.out.shape)
    if not any(map(is_mapped, (q, k, v))):  # the axes of a mask do not add to those of the scores
        q = Batched(spread(q, call.size), True)
    return ops.attention(*[aligned(a, ndim) for a in (q, k, v, mask)], **params)


def cross_entropy(call: Call, logits: Batched, targets: Batched, *, reduction: str, **params: Any) -> Any:
    """Return the losses of all rows; a mean or sum over the rows of each example is decomposed."""
    if reduction != "none":
        return NotImplemented
    both = spread(logits, call.size), spread(targets, call.size)
    return ops.cross_entropy(*both, reduction=reduction, **params)


def folded(call: Call, x: Any, *weights: Any, **params: Any) -> Any:
    """Fold the examples into the leading axis of x, which the op treats one by one."""
    if not is_mapped(x) or any(map(is_mapped, weights)):
        return NotImplemented
    a = x.array
    found = call.op(ops.reshape(a, shape=(a.shape[0] * a.shape[1], *a.shape[2:])), *map(plain, weights), **params)
    return ops.reshape(found, shape=(call.size, *call.out.shape))


def take_along_axis(call: Call, x: Batched, indices: Batched, *, axis: int) -> Any:
    """Gather in all examples at once; what they share broadcasts."""
    both = [b.array if b.is_mapped else ops.expand_dims(b.array, axis=0) for b in (x, indices)]
    return ops.take_along_axis(both[0], both[1], axis=axis + 1)


def scatter_add_along_axis(call: Call, x: Batched, indices: Batched, updates: Batched, *, axis: int) -> Any:
    """Scatter in all examples at once."""
    at = one_axis("scatter_add_along_axis", x.spec, axis)
    return call.op(*[spread(b, call.size) for b in (x, indices, updates)], axis=at + 1)


COMPOSED: dict[Op, Rule] = {
    ops.clip: elementwise,
    ops.gelu: elementwise,
    **dict.fromkeys((ops.softmax, ops.log_softmax, ops.sort, ops.argtopk, ops.topk), along_axis),
    **dict.fromkeys((ops.dft_of_real, ops.dft_to_real), along_axis),
    ops.dft: along_axes,
    **dict.fromkeys((ops.layer_norm, ops.rms_norm, ops.linear, ops.quantized_linear), rows),
    ops.solve_triangular: matrices,
    ops.embedding: embedding,
    ops.attention: attention,
    ops.cross_entropy: cross_entropy,
    ops.take_along_axis: take_along_axis,
    ops.scatter_add_along_axis: scatter_add_along_axis,
    **dict.fromkeys((ops.windows, ops.sum_windows, ops.conv_product, ops.conv_input_gradient), folded),
    **dict.fromkeys((ops.conv, ops.conv_transpose, ops.max_pool, ops.mean_pool), folded),
    **dict.fromkeys((ops.adaptive_mean_pool, ops.interpolate, ops.group_norm, ops.instance_norm), folded),
}
