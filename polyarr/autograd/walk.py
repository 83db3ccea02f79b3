"""Parts of the walk over the tape: its order, and gradients that fit the arrays that they belong to."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from operator import add
from typing import Any, NamedTuple

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


@contextmanager
def around_vmaps(home: Any) -> Iterator[bool]:
    """Run a block around every vmap inside of the vmap `home` (None: around all); yield whether there are any."""
    with ExitStack() as stack:
        is_moved = False
        while (level := current_level()) is not None and level is not home:
            stack.enter_context(level.around())
            is_moved = True
        yield is_moved


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


class Slice(NamedTuple):
    """The gradient g of a slice, with the slice's node and pull function."""

    node: Node
    pull: Any
    g: Array

    def place(self) -> tuple[int, int, int]:
        """Return the axis that the slice cuts, and from where to where; axis -1 if it does not cut one axis."""
        _, (spec, starts, steps), _ = self.pull.work[0]
        axes = [i for i, n in enumerate(spec.shape) if n != self.g.shape[i]]
        if len(axes) != 1 or any(step != 1 for step in steps) or any(type(start) is not int for start in starts):
            return -1, 0, 0
        return axes[0], starts[axes[0]], starts[axes[0]] + self.g.shape[axes[0]]


def with_slices(g: Array | None, slices: list[Slice]) -> Array:
    """Return an array's gradient g, or zeros, plus those of slices of it.

    These are joined by one concat if they cover the array once along an axis; else each is padded and added.
    """
    shape, places = slices[0].node.specs[0].shape, [each.place() for each in slices]
    ordered, (axis, *_) = sorted(range(len(slices)), key=places.__getitem__), places[0]
    starts, stops = [places[i][1] for i in ordered], [places[i][2] for i in ordered]
    is_along_one = axis >= 0 and all(place[0] == axis for place in places)
    if len(slices) > 1 and is_along_one and [*starts, shape[axis]] == [0, *stops]:
        parts = iter([ops.concat([slices[i].g for i in ordered], axis=axis)])
    else:
        parts = (each.pull(each.node, each.g)[0] for each in slices)  # each is as large as the array: one at a time
    return reduce(add, parts) if g is None else reduce(add, parts, g)
