"""Work of a call, by its Specs: bytes that it must read and write, and floating-point operations of products."""

from collections.abc import Callable
from typing import Any

from polyarr import ops
from polyarr.core.array import flatten
from polyarr.core.spec import Spec
from polyarr.core.watch import Call


def _product(out: Spec, x: Spec, *others: Any, **params: Any) -> float:
    products = sum(type(other) is tuple for other in others) or 1  # a fused step has a tuple for each weight
    return 2 * out.size * x.shape[-1] * products


def _attention(out: Spec, q: Spec, k: Spec, *_: Any, causal: bool = False, **params: Any) -> float:
    t, s = q.shape[-2], k.shape[-2]
    seen = t * s - t * (t - 1) / 2 if causal and s >= t else t * s
    return 2 * (q.size + out.size) / max(t, 1) * seen


# Op -> (floating-point operations of (out, *specs, **params), factor for its gradient)
OPERATIONS: dict[Any, tuple[Callable[..., float], float]] = {
    ops.matrix_product: (_product, 2),
    ops.matmul: (_product, 2),
    ops.linear: (_product, 2),
    ops.quantized_linear: (_product, 1),
    ops.grouped_linear: (_product, 2),
    ops.quantized_grouped_linear: (_product, 1),
    ops.attention: (_attention, 2.5),
}
# Ops whose result may be a view, so that the number of bytes moved is unknown.
VIEWS = {ops.reshape, ops.permute_dims, ops.broadcast_to, ops.slice}
# Op -> index of the input of which only as many bytes as the result has are read.
PARTLY_READ = {ops.take: 0, ops.take_along_axis: 0, ops.embedding: 0}


def operations(call: Call) -> float:
    """Return the floating-point operations of a call of a product; 0 if unknown."""
    if call.op not in OPERATIONS:
        return 0
    count, more = OPERATIONS[call.op]
    if call.part == "backward":
        return more * count(*call.specs, **call.params)
    return count(call.out, *call.specs, **call.params)


def moved(call: Call) -> int:
    """Return the bytes that a call must read and write at least; 0 if unknown."""
    if call.op in VIEWS:
        return 0
    read = list(call.specs)
    if call.op is ops.cache_update:
        return 2 * sum(map(nbytes, call.specs[1:3]))
    if call.op in PARTLY_READ:
        at = PARTLY_READ[call.op] + (call.part == "backward")
        read[at] = None if call.part == "backward" else call.out
    return sum(nbytes(s) for s in flatten((*read, call.out)))


def nbytes(spec: Any) -> int:
    """Return the bytes of an array; 0 for a number or None."""
    return spec.size * spec.dtype.itemsize if type(spec) is Spec and not spec.is_number else 0
