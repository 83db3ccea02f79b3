"""Gradient transforms: grad, vjp, jvp, checkpoint and custom_vjp. Nodes are walked backward in order of creation."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from polyarr import ops, random, tree
from polyarr.autograd.arguments import (
    argument_numbers,
    by_position,
    carries_gradient,
    check_callable,
    check_given,
    check_scalar,
    cotangents,
    name_of_node,
    note_arguments,
    two_values,
    without_floats,
)
from polyarr.autograd.walk import Slice, around_vmaps, between, fitted, is_outside, with_slices, zeros_of
from polyarr.core.array import Array
from polyarr.core.current import current_level, renewed, traced
from polyarr.core.errors import GradientError
from polyarr.core.keywords import explained
from polyarr.core.precision import get_matmul_precision, use_matmul_precision
from polyarr.core.record import FusedPull, Rules, check_gradient
from polyarr.core.spec import Spec, described
from polyarr.core.tape import Node, Result, in_forward, is_recording, paused, reading, recording, records

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Function = Callable[..., Any]


class CustomVJP(Protocol[P, R]):
    """Function with a gradient of its own, as custom_vjp returns it."""

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        """Return the value of the function."""
        ...

    def defvjp(self, forward: Function, backward: Function, /) -> None:
        """State the gradient; see custom_vjp."""


@explained
def grad(fn: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the gradient of the scalar value of fn.

    Args:
        fn: Function whose value is a floating-point scalar array.
        argnums: Int or tuple of ints: the positional arguments to differentiate with respect to.
        has_aux: Whether fn returns (value, aux); the result is then (grads, aux).

    Returns:
        Function of the arguments of fn. Its result is a gradient as value_and_grad describes it.

    Raises:
        GradientError: As in value_and_grad.

    Examples:
        >>> import polyarr as pa
        >>> pa.grad(lambda x: pa.sum(x * x))(pa.asarray([1.0, 2.0]))
        Array([2., 4.], float32, 'numpy')
    """
    both = _with_value("grad", fn, argnums, has_aux)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


@explained
def value_and_grad(fn: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the value of fn and its gradient.

    An argument may be any tree of arrays, a Module included; its gradient is a tree of the same structure. Leaves that
    are not floating-point arrays, and those of a frozen Module, have the gradient None; arrays without influence on the
    value have zeros. Transforms nest, to any order.

    Args:
        fn: Function whose value is a floating-point scalar array.
        argnums: Int or tuple of ints: the positional arguments to differentiate with respect to.
        has_aux: Whether fn returns (value, aux); the result is then ((value, aux), grads).

    Returns:
        Function of the arguments of fn that returns (value, grads): one gradient, or a tuple if argnums is a tuple.

    Raises:
        GradientError: When called: the value is not a floating-point scalar, or an argument has no floating-point
            array.

    Examples:
        >>> import polyarr as pa
        >>> loss = lambda w, x: pa.mean(pa.square(x @ w))
        >>> w, x = pa.asarray([1.0, -1.0]), pa.asarray([[1.0, 2.0], [3.0, 4.0]])
        >>> value, gradient = pa.value_and_grad(loss)(w, x)
        >>> gradient
        Array([-4., -6.], float32, 'numpy')
    """
    return _with_value("value_and_grad", fn, argnums, has_aux)


def _with_value(asked: str, fn: Function, argnums: int | tuple[int, ...], has_aux: bool) -> Function:
    """Return value_and_grad(fn), with errors that name the transform that was called."""
    check_callable(asked, fn)
    wanted = argument_numbers(asked, argnums)

    @functools.wraps(fn)
    def wrapped(*given: Any, **kwargs: Any) -> Any:
        args = list(given)
        check_given(asked, args, wanted)
        note_arguments([args[i] for i in wanted])
        with recording(once=True):
            tracked = [_track(args, i, tree.frozen(args[i])) for i in wanted]
            if not any(node for nodes in tracked for node in nodes):
                raise GradientError(f"{asked}: {without_floats(given, wanted)}")
            value = fn(*args, **kwargs)
        value, aux = two_values(value, f"{asked}: fn", "(value, aux), for has_aux") if has_aux else (value, None)
        check_scalar(asked, value)
        ends = [node for nodes in tracked for node in nodes if node]
        found = iter(_backward([(value.node, ops.ones_like(value))], ends, once=True))
        grads = [_gradient_tree(args[i], nodes, found) for i, nodes in zip(wanted, tracked, strict=True)]
        value = _released(value)
        result = (value, tree.map(_released, aux)) if has_aux else value
        return result, grads[0] if isinstance(argnums, int) else tuple(grads)

    return wrapped


def vjp(fn: Function, *primals: Any) -> tuple[Any, Function]:
    """Return the value of fn and a function that pulls a cotangent back to the arguments.

    Args:
        fn: Function of trees of arrays whose value is a tree of arrays.
        *primals: The arguments of fn.

    Returns:
        Tuple (value, pull). pull(cotangent) returns a tuple with a gradient tree per argument, and may be called many
        times. The cotangent has the structure of value, and each array the shape, dtype and device of its counterpart;
        None stands for zeros, in place of an array or of a whole subtree.

    Raises:
        GradientError: In pull: the structure of the cotangent differs.
        ShapeError: In pull: a cotangent has another shape; likewise DtypeError and BackendError.

    Examples:
        >>> import polyarr as pa
        >>> value, pull = pa.vjp(pa.sin, pa.asarray([0.0, 1.0]))
        >>> pull(pa.asarray([1.0, 1.0]))
        (Array([1.       , 0.5403023], float32, 'numpy'),)
    """
    check_callable("vjp", fn)
    args = list(primals)
    note_arguments(args)
    with recording():
        tracked = [_track(args, i) for i in range(len(args))]
        value = fn(*args)
    ends = [node for nodes in tracked for node in nodes if node]
    roots = [leaf.node if type(leaf) is Array else None for leaf in tree.leaves(value)]
    due = tree.map(lambda leaf: Array(leaf.backend, None, leaf.spec) if type(leaf) is Array else leaf, value)

    def pull(cotangent: Any) -> tuple:
        found = iter(_backward([*zip(roots, cotangents(cotangent, due), strict=True)], ends, once=False))
        return tuple(_gradient_tree(a, nodes, found) for a, nodes in zip(args, tracked, strict=True))

    return tree.map(_released, value), pull


@explained
def jvp(fn: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the value of fn and its derivative along tangents, by pulling back twice.

    Args:
        fn: Function of trees of arrays whose value is a tree of arrays.
        primals: Tuple of the arguments of fn.
        tangents: Tuple of trees like the arguments; each array has the shape, dtype and device of its counterpart. None
            stands for zeros; integers have none.

    Returns:
        Tuple (value, tangent of the value).

    Raises:
        GradientError: A tangent belongs to no argument.
        ShapeError: A tangent has another shape; likewise DtypeError and BackendError.

    Examples:
        >>> import polyarr as pa
        >>> value, tangent = pa.jvp(pa.square, (pa.asarray([3.0]),), (pa.asarray([1.0]),))
        >>> tangent
        Array([6.], float32, 'numpy')
    """
    for name, trees in (("primals", primals), ("tangents", tangents)):
        if not isinstance(trees, (tuple, list)):
            raise GradientError(f"jvp: {name} is {described(trees)}; it must be a tuple, with one entry per argument")
    # The pull-back is linear in the cotangent, so its own pull-back is the push-forward.
    value, pull = vjp(fn, *primals)
    _, push = vjp(pull, tree.map(lambda leaf: ops.zeros_like(leaf) if type(leaf) is Array else leaf, value))
    given, arrays = dict(tree.items(tuple(tangents))), dict(tree.items(tuple(primals)))
    if unknown := given.keys() - arrays.keys():
        raise GradientError(f"jvp: there are tangents at {sorted(unknown, key=str)}, where there is no argument")
    for path, tangent in given.items():
        if type(a := arrays[path]) is Array:
            check_gradient("jvp: a tangent is", tangent, a.spec, a.backend)
    along = [given.get(path) if carries_gradient(a) else None for path, a in arrays.items()]
    return value, push(tree.unflatten(tuple(primals), along))[0]


def stop_gradient(x: Any) -> Any:
    """Return the same values, through which no gradient flows.

    Args:
        x: Any tree of arrays.

    Returns:
        Tree of the same structure and values.

    Examples:
        >>> import polyarr as pa
        >>> pa.grad(lambda x: x * pa.stop_gradient(x))(pa.asarray(3.0))
        Array(3., float32, 'numpy')
    """
    return tree.map(_stopped, x)


def checkpoint(fn: Callable[P, R]) -> Callable[P, R]:
    """Return fn without its intermediate results kept for the gradient: they are computed again when it is pulled.

    Arrays that fn closes over, those of its own Module included, have gradients too, as of the time of the call; an
    array that fn rebinds (`h += x`, `h[i] = x`) counts as one of its results. Random numbers drawn inside are the same
    both times.

    Args:
        fn: Function of trees whose value is a tree.

    Returns:
        Function with the same arguments, value and gradient.

    Raises:
        GradientError: In the backward pass: fn read arrays that it did not read before, or returned other shapes.

    Examples:
        >>> import polyarr as pa
        >>> pa.grad(pa.checkpoint(lambda x: pa.sum(pa.exp(x))))(pa.asarray([0.0]))
        Array([1.], float32, 'numpy')

    Source: Chen, Xu, Zhang, Guestrin 2016, arXiv:1604.06174
    """
    check_callable("checkpoint", fn)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        note_arguments((args, kwargs))
        if not _recorded_here((args, kwargs)):
            return fn(*args, **kwargs)
        if (level := current_level()) is not None and level.transforms[0]:
            return _checkpoint_outside(level, fn, args, kwargs)
        return _checkpointed(level, fn, args, kwargs)

    return wrapped


def _checkpointed(level: Any, fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return the value of a checkpoint at whose call `level` was the innermost vmap."""
    settings, args = (random.get_state(), get_matmul_precision()), tree.map(_snapshot, (*args, kwargs))
    with paused(), reading() as read:
        value = _called(fn, tree.map(_untracked, args))
    first = [*map(described, tree.leaves(value))]
    parents = read.nodes | {leaf.node: leaf.spec for leaf in tree.leaves(value) if _is_tracked(leaf)}
    results = {id(leaf) for leaf in tree.leaves(value)}
    captured = [(a, read.before(a)) for a in read.arrays.values()]
    rebound = [a for a, then in captured if _differ(a, then)]
    captured = [(a, then) for a, then in captured if id(a) not in results or _differ(a, then)]

    def pull(g: list) -> list:
        with around_vmaps(level) as is_moved:  # inside of a vmap, what fn closes over has no node
            note_arguments(args)
            again, state = tree.map(renewed, [list(args), settings])
            with recording(once=not is_moved), _as_they_were(captured, *state), reading() as read:
                tracked = [_track(again, i) for i in range(len(again))]
                found = tree.map(_snapshot, [_called(fn, again), rebound])
        if read.nodes.keys() - parents.keys():
            raise GradientError("checkpoint: fn read other arrays when it was computed again than the first time")
        if (second := [*map(described, tree.leaves(found[0]))]) != first:
            gave = f"{', '.join(second)} when it was computed again, and {', '.join(first)} the first time"
            raise GradientError(f"checkpoint: fn gave {gave}; it must give arrays of the same shapes and dtypes")
        ends = [node for nodes in tracked for node in nodes if node]
        roots = [leaf.node if type(leaf) is Array else None for leaf in tree.leaves(found)]
        grads = _backward([*zip(roots, g, strict=True)], [*parents, *ends], once=False)
        # A floating-point argument that is not tracked has an end here, but no parent in the outer graph.
        wanted = [_is_tracked(leaf) for leaf in tree.leaves(args) if carries_gradient(leaf)]
        return grads[: len(parents)] + [g for g, want in zip(grads[len(parents) :], wanted, strict=True) if want]

    inputs = [*parents.items(), *((leaf.node, leaf.spec) for leaf in tree.leaves(args) if _is_tracked(leaf))]
    if not inputs:
        return value
    value, after = joined([value, [a.snapshot() for a in rebound]], inputs, pull)
    for a, new in zip(rebound, after, strict=True):
        a.rebind(new)
    return value


def _checkpoint_outside(level: Any, fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return the value of a checkpoint inside vmap that a transform around vmap differentiates.

    The checkpoint is that of the batched function. If a transform inside vmap differentiates it as well, nothing is
    computed again: pausing the tape of one would pause that of the other.
    """
    return fn(*args, **kwargs) if level.transforms[1] else level.outward(checkpoint, fn, args, kwargs)


def _called(fn: Callable, args: Sequence) -> Any:
    """Call fn; the last of args is a dict of its arguments by name."""
    return fn(*args[:-1], **args[-1])


@contextmanager
def _as_they_were(captured: list[tuple[Array, Array]], state: tuple[int, int], precision: str) -> Iterator[None]:
    """Have handles stand for earlier arrays in the block; undo that, and what the block does to them.

    In the block, random numbers are drawn from `state`, and products have `precision`.
    """
    today = [(a, a.snapshot()) for a, _ in captured]
    _rebind_all(captured)
    try:
        with random.restored(state), use_matmul_precision(precision):
            yield
    finally:
        _rebind_all(today)


def _rebind_all(pairs: list[tuple[Array, Array]]) -> None:
    for a, other in pairs:
        if _differ(a, other):
            a.rebind(other)


def _differ(a: Array, b: Array) -> bool:
    a, b, level = traced(a), traced(b), current_level()
    if a.buf is b.buf or a.node is not b.node:
        return a.node is not b.node
    return level is None or level.differ(a, b, _differ)


def custom_vjp(
    fn: Callable[P, R], forward: Function | None = None, backward: Function | None = None
) -> CustomVJP[P, R]:
    """Return fn with a custom gradient, given here or, if this decorates fn, by fn.defvjp(forward, backward).

    Outside of a gradient transform, fn itself runs. Higher derivatives are those of `backward`.

    Args:
        fn: Function of trees whose value is a tree. Its arguments can be given by position.
        forward: Function of the arguments that returns (value, saved); saved is any tree.
        backward: Function of (saved, cotangent) that returns a tuple with a gradient tree, or None, per argument. Each
            gradient has the shape, dtype and device of its argument.

    Returns:
        Function with the same arguments and value, and with the method defvjp.

    Raises:
        GradientError: When called: there is no gradient, or forward closes over an array that is differentiated, for
            which backward has no place.
        ShapeError: In the backward pass: a gradient has another shape; likewise DtypeError and BackendError.

    Examples:
        >>> import polyarr as pa
        >>> forward, backward = lambda x: (x, None), lambda saved, g: (pa.clip(g, -1, 1),)
        >>> identity = pa.custom_vjp(lambda x: x, forward, backward)
        >>> pa.grad(lambda x: 5 * identity(x))(pa.asarray(2.0))
        Array(1., float32, 'numpy')
    """
    check_callable("custom_vjp", fn)

    def defvjp(given_forward: Function, given_backward: Function) -> None:
        nonlocal forward, backward
        forward, backward = given_forward, given_backward

    @functools.wraps(fn)
    def own(*args: Any, **named: Any) -> Any:
        args = by_position(fn, args, named) if named else args
        note_arguments(args)
        if not _recorded_here(args) or any(fn is other for other in in_forward.get()):
            return fn(*args)  # type: ignore[call-arg]
        if forward is None or backward is None:
            raise GradientError(f"custom_vjp: {fn.__name__} has no gradient; state it by defvjp(forward, backward)")
        if (level := current_level()) is not None and not any(map(_is_tracked_here, tree.leaves(args))):
            return level.custom_vjp(custom_vjp, fn, forward, backward, args)
        return _recorded(fn, forward, backward, args)

    wrapped: Any = own
    wrapped.defvjp = defvjp
    return wrapped


def _recorded_here(args: Any) -> bool:
    """Return whether a transform records here, or in a thread that computes with arrays of one."""
    return is_recording() or (records() and any(map(_is_tracked, tree.leaves(args))))


def _recorded(fn: Callable, forward: Callable, backward: Callable, args: tuple) -> Any:
    """Return the value of forward at args, with backward as its gradient."""
    args = tree.map(_snapshot, args)  # the caller's handles may be rebound before the gradient is pulled
    tracked = [_is_tracked(leaf) for leaf in tree.leaves(args)]
    inputs = [(leaf.node, leaf.spec) for leaf in tree.leaves(args) if _is_tracked(leaf)]
    with reading() as read:
        inner = list(args)
        for i in range(len(inner)):
            _track(inner, i)
        token = in_forward.set((*in_forward.get(), fn))
        try:
            value, kept = two_values(forward(*inner), "custom_vjp: forward", "(value, saved)")
        finally:
            in_forward.reset(token)
    value = tree.map(_untracked, value)
    if (level := current_level()) is not None and level.transforms[0]:  # the same gradient for a transform outside
        value = level.custom_vjp(custom_vjp, fn, forward, backward, tree.map(_untracked, args))
    if read.nodes:
        node, spec = next(iter(read.nodes.items()))
        raise GradientError(
            f"custom_vjp: {name_of_node(node, forward, fn)} ({spec}) is differentiated and is no argument of fn; "
            "make it one, or use stop_gradient on it"
        )
    if not inputs:
        return value
    kept, results = tree.map(_snapshot, kept), tree.leaves(value)

    def pull(g: list) -> list:
        both = zip(g, results, strict=True)
        full = [ops.zeros_like(o) if part is None and type(o) is Array else part for part, o in both]
        grads = _checked(backward(kept, tree.unflatten(value, full)), args, backward)
        flat = [leaf for a, found in zip(args, grads, strict=True) for leaf in _aligned(a, found)]
        return [leaf for leaf, is_tracked in zip(flat, tracked, strict=True) if is_tracked]

    return joined(value, inputs, pull)


def _checked(grads: Any, args: tuple, backward: Callable) -> Any:
    """Return the result of backward if it is a gradient per argument, each array like its argument; else raise."""
    code = getattr(backward, "__code__", None)
    returned = f"backward{f' ({Path(code.co_filename).name}:{code.co_firstlineno})' if code else ''} returned"
    if not isinstance(grads, (tuple, list)) or len(grads) != len(args):
        given = f"{len(grads)} gradients" if isinstance(grads, (tuple, list)) else type(grads).__name__
        required = f"a tuple of {len(args)}, one gradient or None for each argument"
        raise GradientError(f"custom_vjp: {returned} {given}; it must return {required}")
    for i, (arg, found) in enumerate(zip(args, grads, strict=True)):
        for leaf, g in zip(tree.leaves(arg), _aligned(arg, found), strict=True):
            if g is not None and type(leaf) is Array:
                check_gradient(f"custom_vjp: {returned} at index {i}", g, leaf.spec, leaf.backend)
    return grads


def joined(value: Any, inputs: list[tuple[Node, Spec]], pull: Callable) -> Any:
    """Return value with its floating-point arrays as results of one node. pull gets cotangents, None for zeros."""
    outputs = [_untracked(o) for o in tree.leaves(value)]
    nodes, specs = zip(*inputs, strict=True)
    join = Node(nodes, specs, lambda node, g: pull(g), results=(None,) * len(outputs))
    return tree.unflatten(value, [_result(join, i, o) for i, o in enumerate(outputs)])


def _result(join: Node, i: int, output: Any) -> Any:
    """Return the i-th result of a node with several results, as an Array."""
    return Array(output.backend, output.buf, output.spec, Result(join, i)) if carries_gradient(output) else output


def _snapshot(leaf: Any) -> Any:
    return leaf.snapshot() if type(leaf) is Array else leaf


def _stopped(leaf: Any) -> Any:
    level = current_level()
    return _untracked(leaf) if level is None or type(leaf) is not Array else level.stopped(leaf)


def _untracked(leaf: Any) -> Any:
    return leaf.untracked() if type(leaf) is Array else leaf


def _is_tracked(leaf: Any) -> bool:
    return type(leaf) is Array and leaf.node is not None


def _is_tracked_here(leaf: Any) -> bool:
    """Return whether the tape within the innermost vmap records a leaf; one outside has nodes of its own."""
    return type(leaf) is Array and traced(leaf).node is not None


def _aligned(arg: Any, g: Any) -> list:
    """Return the leaves of a gradient in the order of the argument's leaves; None where there is none."""
    found = {} if g is None else dict(tree.items(g))
    return [found.get(path) for path, _ in tree.items(arg)]


# ---- the walk ------------------------------------------------------------------------------------------------


def _track(args: list, i: int, frozen: list[bool] | None = None) -> list[Node | None]:
    """Replace the floating-point arrays in args[i] by handles with a fresh node each; return the nodes, aligned."""
    leaves = tree.leaves(args[i])
    left = frozen or [False] * len(leaves)
    tracked = [_leaf(a) if carries_gradient(a) and not out else a for a, out in zip(leaves, left, strict=True)]
    args[i] = tree.unflatten(args[i], tracked)
    return [t.node if t is not a else None for t, a in zip(tracked, leaves, strict=True)]


def _leaf(a: Array) -> Array:
    """Return a handle with a node of its own; if a is recorded already, gradients flow on through it."""
    node = Node((a.node,), (a.spec,), lambda node, g: [g]) if a.node else Node()
    a = traced(a)
    return Array(a.backend, a.buf, a.spec, node)


def _released(leaf: Any) -> Any:
    """Return a result for the caller: without a node, unless an outer transform records."""
    return leaf.untracked() if type(leaf) is Array and not is_recording() else leaf


def _backward(seeds: list[tuple[Node | None, Array | None]], ends: list[Node], once: bool) -> list[Array | None]:
    """Return the gradients at the nodes `ends`, given cotangents at some roots; None if no path leads to an end."""
    if is_recording():
        return _walk(seeds, ends, release=False)
    with paused():  # also in a thread that a transform of another thread started
        return _walk(seeds, ends, release=once)


def _walk(seeds: list[tuple[Node | None, Array | None]], ends: list[Node], release: bool) -> list[Array | None]:
    grads: dict[Node, Any] = {}
    slices: dict[Node, list[Slice]] = {}  # gradients of slices, by the node of the array that they were cut from
    for root, g in seeds:
        if root is not None and g is not None:
            grads[root] = grads[root] + g if root in grads else g
    finals = set(ends)
    # Creation order is a topological order, so no recursion: sort once, walk down.
    for node in between(list(grads), finals):
        g = grads.pop(node, None)
        if node in slices:
            g = with_slices(g, slices.pop(node))
        if g is None:
            continue
        if type(node) is Result:
            (owner,) = node.parents
            parts, i = grads.setdefault(owner, [None] * len(owner.results)), node.index
            parts[i] = g if parts[i] is None else parts[i] + g  # a rule that names `out` has results of its own
            continue
        if isinstance(node.pull, Rules) and node.pull.op is ops.slice:
            slices.setdefault(node.parents[0], []).append(Slice(node, node.pull, g))
        else:
            for parent, spec, part in zip(node.parents, node.specs, _pull(node, g), strict=True):
                if part is not None:
                    if spec is not None and (part.shape != spec.shape or part.dtype is not spec.dtype):
                        part = fitted(node, part, spec)
                    grads[parent] = grads[parent] + part if parent in grads else part
        if release:  # free what the node saved now, not after the walk
            node.pull, node.parents = None, ()
    for end, given in slices.items():
        grads[end] = with_slices(grads.get(end), given)
    return [grads.get(end) for end in ends]


def _pull(node: Node, g: Any) -> list[Array | None]:
    """Return the gradients of a node's inputs. A recorded pull of a fused kernel goes through its decomposition."""
    if node.pull is None:
        raise GradientError("this graph was already pulled back; use vjp for a pull-back that can be called again")
    if type(g) is list:
        like = next(part for part in g if part is not None)
        g = [zeros_of(s, like) if part is None else part for part, s in zip(g, node.results, strict=True)]
    if isinstance(node.pull, FusedPull):
        grads = None if is_recording() or is_outside(node.pull) else node.pull(node, g)
        if grads is None or any(part is None for part in grads):
            grads = _pull_decomposition(node.pull, g)
        return grads
    return node.pull(node, g)


def _pull_decomposition(fused: FusedPull, g: Any) -> list[Array | None]:
    value, pull = vjp(fused.decomposition, *fused.inputs)
    return list(pull(tree.unflatten(value, g) if type(g) is list else g))


def _gradient_tree(arg: Any, nodes: list[Node | None], found: Iterator[Array | None]) -> Any:
    """Return the gradients of one argument: zeros where no path led, None for leaves that carry no gradient."""

    def gradient(node: Node | None, leaf: Any) -> Array | None:
        g = next(found) if node else None
        return ops.zeros_like(leaf.untracked()) if node and g is None else g

    grads = tree.unflatten(arg, [gradient(n, leaf) for n, leaf in zip(nodes, tree.leaves(arg), strict=True)])
    if hasattr(type(grads), "is_gradient"):  # a Module of gradients looks like one of parameters
        grads.is_gradient = True
    return grads
