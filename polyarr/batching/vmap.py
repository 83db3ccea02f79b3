"""vmap: a function of one example, called for a batch of them."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from polyarr import ops, tree
from polyarr.batching.composed import COMPOSED
from polyarr.batching.level import Batched, Level, spread
from polyarr.batching.rules import all_rules
from polyarr.core.array import Array, spec_of
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, traced
from polyarr.core.errors import BatchingError
from polyarr.core.keywords import explained
from polyarr.core.number import NUMBERS
from polyarr.core.spec import described, shown
from polyarr.ops.create import NATURAL

RULES = all_rules(COMPOSED)
RANDOMNESS = ("error", "same", "different")


@explained
def vmap(
    fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, *, axis_size: int | None = None,
    randomness: str = "error",
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that calls fn for every example of a batch at once.

    fn is written for one example: inside it, a mapped array has the shape of one example. Its ops run once, on all
    examples. An array that is not mapped, or that fn closes over, is the same for all of them. Transforms nest in any
    order: vmap in vmap, in grad and in compile, and each of those in vmap.

    Args:
        fn: Function of trees of arrays, Modules included, whose value is a tree.
        in_axes: Axis of the examples in each positional argument: an int, None for an argument that is not mapped, or a
            tuple with an entry per argument, each of which is an int, None or a tree like the argument. Arguments given
            by name are mapped along axis 0.
        out_axes: Axis of the examples in the value: an int, None for values that are the same for all examples, or a
            tree like the value.
        axis_size: Number of examples; needed only if no argument is mapped.
        randomness: What drawing random numbers does: "error" refuses it, "same" draws the same numbers for all
            examples, "different" draws other numbers for each. Random ops with a mapped key need none of them.

    Returns:
        Function with the same arguments. Each array of its value has one axis more than that of fn; a Python number
        becomes an array.

    Raises:
        BatchingError: The axes do not fit the arguments or the value, or lengths differ. When called: fn reads the
            values of a mapped array, draws random numbers without `randomness`, or writes mapped values into an array
            that is not mapped.

    Examples:
        >>> import polyarr as pa
        >>> x, y = pa.asarray([[1.0, 2.0], [3.0, 4.0]]), pa.asarray([10.0, 1.0])
        >>> pa.vmap(pa.vecdot, in_axes=(0, None))(x, y)
        Array([12., 34.], float32, 'numpy')

        The gradient of each example of a batch:

        >>> loss = lambda w, x: pa.sum(pa.square(w * x))
        >>> pa.vmap(pa.grad(loss), in_axes=(None, 0))(y, x)
        Array([[ 20.,   8.],
               [180.,  32.]], float32, 'numpy')
    """
    if not callable(fn):
        raise BatchingError(f"vmap: fn is {described(fn)}; it must be a function")
    if randomness not in RANDOMNESS:
        raise BatchingError(f"vmap: randomness is {shown(randomness)}; it must be 'error', 'same' or 'different'")

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes = (*_per_argument(in_axes, args), *(0 for _ in kwargs))
        given = [*args, *kwargs.values()]
        names = [*(f"argument {i}" for i in range(len(args))), *kwargs]
        found = [_leaf_axes("in_axes", name, a, axis) for name, a, axis in zip(names, given, axes, strict=True)]
        size = _size(names, given, found, axis_size)
        level = Level(size, randomness, RULES, _backend(given, found))
        inputs = [_input(level, a, each) for a, each in zip(given, found, strict=True)]
        with level.active():
            value = fn(*inputs[: len(args)], **dict(zip(kwargs, inputs[len(args) :], strict=True)))
            outputs = [_lifted(level, leaf) for leaf in tree.leaves(value)]
        places = _leaf_axes("out_axes", "the value", value, out_axes)
        return tree.unflatten(value, [_output(size, *each) for each in zip(outputs, places, strict=True)])

    return mapped


def _per_argument(in_axes: Any, args: tuple) -> tuple:
    if isinstance(in_axes, (tuple, list)):
        if len(in_axes) != len(args):
            given = f"in_axes has {len(in_axes)} entries for {len(args)} arguments given by position"
            raise BatchingError(f"vmap: {given}; it must have one for each")
        return tuple(in_axes)
    return (in_axes,) * len(args)


def _leaf_axes(parameter: str, name: str, given: Any, axes: Any) -> list[int | None]:
    """Return the axis of every leaf of a tree, for an axis or a tree of them that begins like it."""
    if axes is None or (isinstance(axes, int) and not isinstance(axes, bool)):
        return [axes for _ in tree.leaves(given)]
    parts, found = tree.children(given), tree.children(axes)
    if found is None or parts is None or parts.keys() != found.keys():
        text = f"{parameter} is {shown(axes)} for {name}, which is {described(given)}"
        raise BatchingError(f"vmap: {text}; it must be an int, None, or a tree like it")
    return [axis for key, part in parts.items() for axis in _leaf_axes(parameter, name, part, found[key])]


def _size(names: list[str], given: list[Any], axes: list[list[int | None]], axis_size: int | None) -> int:
    """Return the number of examples, on which all mapped arrays must agree."""
    size, of = axis_size, "axis_size"
    for name, length in _lengths(names, given, axes):
        if size is not None and size != length:
            raise BatchingError(f"vmap: {name} has {length} examples, {of} has {size}; they must agree")
        size, of = length, name
    if size is None:
        raise BatchingError("vmap: no argument is mapped; in_axes must name an axis of one, or axis_size the length")
    return size


def _lengths(names: list[str], given: list[Any], axes: list[list[int | None]]) -> Iterator[tuple[str, int]]:
    for name, a, each in zip(names, given, axes, strict=True):
        for (path, leaf), axis in zip(tree.items(a), each, strict=True):
            if axis is None or not (isinstance(leaf, NUMBERS) or hasattr(leaf, "shape")):
                continue  # a string or a function has no axis
            where = name + (f" at {'.'.join(map(str, path))}" if path else "")
            if type(leaf) is not Array:
                raise BatchingError(f"vmap: {where} is {described(leaf)}; it must be an array, or have the axis None")
            if not -leaf.ndim <= axis < leaf.ndim:
                raise BatchingError(f"vmap: {where} is {leaf.spec}; it has no axis {axis}, which in_axes names")
            yield where, leaf.shape[axis]


def _backend(given: list[Any], axes: list[list[int | None]]) -> Backend:
    """Return the backend of the first mapped array, or the current one."""
    leaves = [leaf for a in given for leaf in tree.leaves(a)]
    places = [axis for each in axes for axis in each]
    found = (leaf for leaf, axis in zip(leaves, places, strict=True) if axis is not None and type(leaf) is Array)
    first = next(found, None)
    return get_backend() if first is None else traced(first).backend


def _input(level: Level, given: Any, axes: list[int | None]) -> Any:
    """Return an argument with its mapped arrays as arrays of the level; the argument itself if it has none."""
    if all(axis is None for axis in axes):
        return given
    return tree.unflatten(given, [_mapped(level, *each) for each in zip(tree.leaves(given), axes, strict=True)])


def _mapped(level: Level, leaf: Any, axis: int | None) -> Any:
    if axis is None or type(leaf) is not Array:
        return leaf
    return level.mapped(ops.moveaxis(leaf, source=axis, destination=0) if axis else leaf.snapshot())


class _Result(NamedTuple):
    """A leaf of the value: an array or number, its buffer on the level, and whether it is an array of the level."""

    leaf: Any
    buf: Batched
    is_own: bool


def _lifted(level: Level, leaf: Any) -> Any:
    if type(leaf) is Array:
        return _Result(leaf, level.inner(leaf), level.owns(leaf.backend))
    if isinstance(leaf, NUMBERS):
        number: Any = leaf
        made = ops.fill(number, shape=(), dtype=NATURAL[spec_of(leaf).dtype])
        return _Result(leaf, level.inner(made), False)
    return leaf


def _output(size: int, found: Any, axis: int | None) -> Any:
    if type(found) is not _Result:
        return found
    spec, ndim = found.buf.spec, found.buf.spec.ndim
    if axis is None:
        if found.buf.is_mapped:
            raise BatchingError(f"vmap: out_axes is None for a result {spec} that is mapped; it must be an int")
        return found.buf.array.snapshot() if found.is_own else found.leaf
    if not -ndim - 1 <= axis <= ndim:
        raise BatchingError(f"vmap: out_axes is {axis} for a result {spec}; it must be from {-ndim - 1} to {ndim}")
    whole = spread(found.buf, size)
    return ops.moveaxis(whole, source=0, destination=axis) if axis else whole.snapshot()
