"""Parts of the walk over the tape: its order, and gradients that fit the arrays that they belong to."""

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.current import current_level
from polyarr.core.record import FusedPull, check_gradient
from polyarr.core.spec import Spec
from polyarr.core.tape import Node


def between(roots: list[Node], ends: set[Node]) -> list[Node]:
    """Return the nodes on a path from a root down to an end, latest first, without the ends."""
    first = min((end.number for end in ends), default=0)
    found, todo = set(), roots
    while todo:
        node = todo.pop()
        if node not in found and node not in ends and node.number > first:
            found.add(node)
            todo.extend(node.parents)
    needed, path = set(ends), []
    for node in sorted(found, key=lambda n: n.number):
        if any(parent in needed for parent in node.parents):
            needed.add(node)
            path.append(node)
    return path[::-1]


def is_outside(pull: FusedPull) -> bool:
    """Return whether a Fused kernel ran outside of the vmap that pulls here, whose cotangents it cannot take."""
    level = current_level()
    return level is not None and type(pull) is FusedPull and not level.owns(pull.backend)


def zeros_of(spec: Spec | None, like: Array) -> Array | None:
    """Return the cotangent of a result that was not used."""
    return None if spec is None else ops.fill(0, like, shape=spec.shape, dtype=spec.dtype)


def fitted(node: Node, g: Array, spec: Spec) -> Array:
    """Return g, a gradient of an input, summed back to the shape of spec: the one place that undoes broadcasting.

    Raises:
        ShapeError: g cannot be the gradient of an array of this shape; DtypeError for another dtype.
    """
    lead = g.ndim - spec.ndim
    stretched = tuple(i for i in range(g.ndim) if i < lead or spec.shape[i - lead] == 1 != g.shape[i])
    fits = lead >= 0 and all(g.shape[i] == n for i, n in enumerate(spec.shape, lead) if i not in stretched)
    if not fits or g.dtype != spec.dtype:
        op = getattr(node.pull, "op", None)
        check_gradient(f"{op.name if op else 'autograd'}: the gradient of an input is", g, spec)
    g = ops.sum(g, axis=stretched, keepdims=not lead) if stretched else g
    return g if g.shape == spec.shape else ops.reshape(g, shape=spec.shape)
