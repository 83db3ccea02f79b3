"""Loops whose state is a tree of arrays: scan over a leading axis, and while_loop."""

from collections.abc import Callable
from typing import Any

from polyarr import ops, tree
from polyarr.autograd.arguments import check_callable, two_values
from polyarr.core.array import Array
from polyarr.core.current import capturing, current_level
from polyarr.core.errors import CaptureError, ShapeError
from polyarr.core.keywords import explained
from polyarr.core.number import user_location
from polyarr.core.spec import bool as bool_
from polyarr.core.spec import described
from polyarr.creation import asarray
from polyarr.ops.validation import whole


@explained
def scan(
    body: Callable[..., Any], carry: Any, xs: Any = None, *, length: int | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Call body for each slice of xs along axis 0, and carry a state from call to call.

    It is a loop of Python: the tape keeps what each step needs, and `compile` records every step. A body that is
    compiled itself is captured once.

    Args:
        body: Function of (carry, x) that returns (carry, y): trees of arrays. The carry keeps its structure, shapes and
            dtypes.
        carry: The first state, a tree of arrays and numbers.
        xs: Tree of arrays of one length along axis 0; None for none.
        length: Number of steps; needed only without xs.
        reverse: Whether the steps run from the last slice to the first; the order of ys is that of xs either way.

    Returns:
        Tuple (carry, ys): the last state, and the values y stacked along a new axis 0.

    Raises:
        ShapeError: The lengths differ, there is none, body changes the structure, a shape or a dtype of the carry, or
            returns a y without the structure and shape of the others, or with a leaf that is no array.
        GradientError: body is no function, or does not return a tuple of two.

    Examples:
        >>> import polyarr as pa
        >>> pa.scan(lambda total, x: (total + x, total * x), pa.asarray(0.0), pa.asarray([1.0, 2.0, 3.0]))
        (Array(6., float32, 'numpy'), Array([0., 2., 9.], float32, 'numpy'))
    """
    check_callable("scan", body)
    count, leaves = _length(xs, length), tree.leaves(xs)
    if not count:
        return carry, _no_values(body, carry, xs)
    slices = [*zip(*map(ops.unstack, leaves), strict=True)] if leaves else [()] * count
    found: list[Any] = [None] * count
    for i in reversed(range(count)) if reverse else range(count):
        value = body(carry, tree.unflatten(xs, slices[i]))
        after, found[i] = two_values(value, "scan: body", "(carry, y)")
        _check_carry("scan", carry, after)
        carry = after
    _check_values(found)
    stacked = [ops.stack([*each], axis=0) for each in zip(*map(tree.leaves, found), strict=True)]
    return carry, tree.unflatten(found[0], stacked)


@explained
def while_loop(cond: Callable[..., Any], body: Callable[..., Any], carry: Any) -> Any:
    """Call body on a state for as long as cond of it is true.

    The condition is read at every step, so a compiled function cannot contain the loop. Under vmap the loop runs until
    it ends for all examples; one that has ended keeps its state. Numbers of the state are arrays then.

    Args:
        cond: Function of the state that returns a bool array without axes, or a Python bool.
        body: Function of the state that returns the next one, with the same structure, shapes and dtypes.
        carry: The first state, a tree of arrays and numbers.

    Returns:
        The last state.

    Raises:
        CaptureError: It is called in a function that is being captured by compile.
        ShapeError: body changes the structure, a shape or a dtype of the state, or cond returns anything else.

    Examples:
        >>> import polyarr as pa
        >>> pa.while_loop(lambda x: x < 100.0, lambda x: x * 2.0, pa.asarray(3.0))
        Array(192., float32, 'numpy')
    """
    check_callable("while_loop", cond)
    check_callable("while_loop", body)
    while _is_true(going := cond(carry)):
        is_choice = type(going) is Array and current_level() is not None
        after = body(carry)
        if is_choice:  # a number may come to differ between the examples
            carry, after = (_as_arrays(state, going) for state in (carry, after))
        _check_carry("while_loop", carry, after)
        carry = _chosen(going, after, carry) if is_choice else after
    return carry


def _length(xs: Any, length: int | None) -> int:
    """Return the number of steps of scan."""
    count = None if length is None else whole("scan", "length", length)
    for path, a in tree.items(xs):
        if type(a) is not Array or not a.shape or (count is not None and a.shape[0] != count):
            required = "an array with an axis" if count is None else f"an array of length {count} along axis 0"
            where = "".join(f"[{name!r}]" for name in path)
            raise ShapeError(f"scan: xs{where} is {described(a)}; it must be {required}")
        count = a.shape[0]
    if count is None or count < 0:
        raise ShapeError("scan: there is no length; give xs, or length=")
    return count


def _no_values(body: Callable, carry: Any, xs: Any) -> Any:
    """Return the values y of no step: arrays of length 0, shaped as body makes them from zeros."""
    blank = tree.map(lambda a: ops.fill(0, a, shape=a.shape[1:], dtype=a.dtype), xs)
    _, y = two_values(body(carry, blank), "scan: body", "(carry, y)")
    _check_values([y])
    return tree.map(lambda a: ops.fill(0, a, shape=(0, *a.shape), dtype=a.dtype), y)


def _check_values(found: list[Any]) -> None:
    """Raise ShapeError unless the values y of all steps are trees of arrays, and of one structure."""
    first = [path for path, _ in tree.items(found[0])]
    for y in found:
        if wrong := [leaf for leaf in tree.leaves(y) if type(leaf) is not Array]:
            raise ShapeError(f"scan: body returned {described(wrong[0])} in y; it must return arrays")
        if [path for path, _ in tree.items(y)] != first:
            raise ShapeError("scan: body returned trees y that differ in structure; it must return one structure")


def _check_carry(loop: str, before: Any, after: Any) -> None:
    """Raise ShapeError unless two states have the same structure, and arrays of the same shapes and dtypes."""
    was, now = ({path: described(leaf) for path, leaf in tree.items(state)} for state in (before, after))
    for path in (*was, *now):
        if was.get(path) != now.get(path):
            where = "carry" + "".join(f"[{name!r}]" for name in path)
            text = f"{where} is {was.get(path, 'absent')} before a step and {now.get(path, 'absent')} after it"
            raise ShapeError(f"{loop}: {text}; it must keep its structure, shapes and dtypes")


def _is_true(going: Any) -> bool:
    """Return whether a loop goes on: under vmap, whether it does for any example."""
    if type(going) is not Array:
        return bool(going)
    if going.shape or going.dtype != bool_:
        raise ShapeError(f"while_loop: cond returned {going.spec}; it must return a bool array without axes")
    return _is_any(going)


def _is_any(going: Array) -> bool:
    capture = capturing.get()
    if capture is None:
        return bool(going)
    if (level := capture.level) is None:
        raise CaptureError(
            f"compile: {user_location()} calls while_loop, whose number of steps depends on values; use scan, or call "
            "it outside of the compiled function"
        )
    found = level.inner(going)
    with level.outside():
        return _is_any(ops.any(found.array) if found.is_mapped else found.array)


def _as_arrays(state: Any, like: Array) -> Any:
    """Return a state whose numbers are arrays on the backend of another array."""
    return tree.map(lambda a: asarray(a, device=like.backend) if type(a) in (bool, int, float, complex) else a, state)


def _chosen(going: Array, after: Any, before: Any) -> Any:
    pairs = zip(tree.leaves(after), tree.leaves(before), strict=True)
    return tree.unflatten(after, [ops.where(going, a, b) if type(a) is Array else a for a, b in pairs])
