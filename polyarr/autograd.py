"""Gradients as transforms: nodes in order of creation, walked backwards. No op is mentioned by its formula here."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, Protocol, TypeVar

from polyarr import ops, random, tree
from polyarr.core.array import Array
from polyarr.core.current import renewed
from polyarr.core.errors import GradientError, ShapeError
from polyarr.core.precision import get_matmul_precision, use_matmul_precision
from polyarr.core.record import Pair
from polyarr.core.spec import FLOATS, Spec, described, told
from polyarr.core.tape import Node, Result, is_recording, paused, reading, recording, records

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Function = Callable[..., Any]


class OwnGradient(Protocol[P, R]):
    """A function with a gradient of one's own: what custom_vjp gives."""

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        """What the function itself gives."""

    def defvjp(self, forward: Function, backward: Function, /) -> None:
        """State the gradient: see custom_vjp."""


def grad(fn: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """A function that gives the gradient of fn's scalar value: see value_and_grad."""
    both = _with_value("grad", fn, argnums, has_aux)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


def value_and_grad(fn: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """A function that gives fn's value and its gradient with respect to the arguments argnums.

    An argument may be any tree of arrays, a Module included; its gradient is a tree of the same shape. Leaves that
    are not floating-point arrays, or are those of a frozen Module, have the gradient None; arrays that do not matter
    have zeros. With has_aux, fn returns (value, aux) and the result is ((value, aux), grads). Transforms nest, to any
    order.

    Errors:  GradientError if fn's value is not a floating-point scalar, or an argument has no floating-point array
    """
    return _with_value("value_and_grad", fn, argnums, has_aux)


def _with_value(asked: str, fn: Function, argnums: int | tuple[int, ...], has_aux: bool) -> Function:
    """value_and_grad, whose errors begin with what was asked for."""
    _check_callable(asked, fn)
    wanted = _wanted(asked, argnums)

    @functools.wraps(fn)
    def wrapped(*given: Any, **kwargs: Any) -> Any:
        args = list(given)
        _check_given(asked, args, wanted)
        with recording(once=True):
            tracked = [_track(args, i, tree.frozen(args[i])) for i in wanted]
            if not any(node for nodes in tracked for node in nodes):
                raise GradientError(f"{asked}: {_without_floats(given, wanted)}")
            value = fn(*args, **kwargs)
        value, aux = _two(value, f"{asked}: fn", "(value, aux), for has_aux") if has_aux else (value, None)
        _check_scalar(asked, value)
        ends = [node for nodes in tracked for node in nodes if node]
        found = iter(_backward([(value.node, ops.ones_like(value))], ends, once=True))
        grads = [_gradient_tree(args[i], nodes, found) for i, nodes in zip(wanted, tracked, strict=True)]
        value = _released(value)
        result = (value, tree.map(_released, aux)) if has_aux else value
        return result, grads[0] if isinstance(argnums, int) else tuple(grads)

    return wrapped


def vjp(fn: Function, *primals: Any) -> tuple[Any, Function]:
    """fn's value at primals, a tree of arrays, and the function that pulls a cotangent of that shape back to them.

    The pull-back may be called many times. It returns one gradient tree per argument. None in place of an array, or of
    a part of the tree, stands for zeros.
    """
    _check_callable("vjp", fn)
    args = list(primals)
    with recording():
        tracked = [_track(args, i) for i in range(len(args))]
        value = fn(*args)
    ends = [node for nodes in tracked for node in nodes if node]
    roots = [leaf.node if type(leaf) is Array else None for leaf in tree.leaves(value)]
    specs = tree.map(lambda leaf: leaf.spec if type(leaf) is Array else leaf, value)

    def pull(cotangent: Any) -> tuple:
        found = iter(_backward([*zip(roots, _cotangents(cotangent, specs), strict=True)], ends, once=False))
        return tuple(_gradient_tree(a, nodes, found) for a, nodes in zip(args, tracked, strict=True))

    return tree.map(_released, value), pull


def jvp(fn: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """fn's value at primals, and its derivative along tangents, by pulling back twice.

    A tangent may be None: nothing moves along it. Integers have none.
    Errors:  GradientError if a tangent belongs to no argument
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
        if type(a := arrays[path]) is Array and (type(tangent) is not Array or tangent.shape != a.shape):
            raise ShapeError(f"jvp: a tangent is {described(tangent)}; it must have the shape of {a.spec}")
    along = [given.get(path) if _carries(a) else None for path, a in arrays.items()]
    return value, push(tree.unflatten(tuple(primals), along))[0]


def stop_gradient(x: Any) -> Any:
    """The same values, through which no gradient flows. Takes any tree."""
    return tree.map(_untracked, x)


def checkpoint(fn: Callable[P, R]) -> Callable[P, R]:
    """fn, whose inner results are not kept for the gradient but computed again when it is pulled.

    What fn closes over, a Module of which it is a method included, has its gradient too, and counts as it was at the
    call; what it rebinds (`h += x`, `h[i] = x`) is as one of its results. Random numbers drawn inside are the same both
    times. The arguments and the result may be trees.

    Errors:  GradientError, when it is pulled, if fn then reads arrays that it did not read before
    Source:  Chen, Xu, Zhang, Guestrin 2016, arXiv:1604.06174
    """
    _check_callable("checkpoint", fn)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not _recorded_here((args, kwargs)):
            return fn(*args, **kwargs)
        settings, args = (random.get_state(), get_matmul_precision()), tree.map(_snapshot, (*args, kwargs))
        with paused(), reading() as read:
            value = _called(fn, tree.map(_untracked, args))
        parents = read.nodes | {leaf.node: leaf.spec for leaf in tree.leaves(value) if _is_tracked(leaf)}
        given = [leaf for leaf in tree.leaves(args) if _is_tracked(leaf)]
        results = {id(leaf) for leaf in tree.leaves(value)}
        captured = [(a, read.before(a)) for a in read.arrays.values()]
        rebound = [a for a, then in captured if _differ(a, then)]
        captured = [(a, then) for a, then in captured if id(a) not in results or _differ(a, then)]

        def pull(g: list) -> list:
            again = tree.map(renewed, list(args))
            with recording(once=True), _as_they_were(captured, *tree.map(renewed, settings)), reading() as read:
                tracked = [_track(again, i) for i in range(len(again))]
                found = tree.map(_snapshot, [_called(fn, again), rebound])
            if read.nodes.keys() - parents.keys():
                raise GradientError("checkpoint: fn read other arrays when it was computed again than the first time")
            ends = [node for nodes in tracked for node in nodes if node]
            roots = [leaf.node if type(leaf) is Array else None for leaf in tree.leaves(found)]
            grads = _backward([*zip(roots, g, strict=True)], [*parents, *ends], once=False)
            # An argument may be of floats and yet untracked: it has an end here, and no parent there.
            wanted = [_is_tracked(leaf) for leaf in tree.leaves(args) if _carries(leaf)]
            return grads[: len(parents)] + [g for g, want in zip(grads[len(parents) :], wanted, strict=True) if want]

        inputs = [*parents.items(), *((leaf.node, leaf.spec) for leaf in given)]
        if not inputs:
            return value
        value, after = _joined([value, [a.snapshot() for a in rebound]], inputs, pull)
        for a, new in zip(rebound, after, strict=True):
            a.rebind(new)
        return value

    return wrapped


def _called(fn: Callable, args: Sequence) -> Any:
    """fn of its arguments, of which the last are those by name."""
    return fn(*args[:-1], **args[-1])


@contextmanager
def _as_they_were(captured: list[tuple[Array, Array]], state: tuple[int, int], precision: str) -> Iterator[None]:
    """Have handles stand for what they stood for earlier; undo that, and what the block does to them.

    In it, random numbers come from a state, and products have a precision.
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
    return a.buf is not b.buf or a.node is not b.node


def custom_vjp(
    fn: Callable[P, R], forward: Function | None = None, backward: Function | None = None
) -> OwnGradient[P, R]:
    """fn with a gradient of one's own, given here or, where this decorates fn, by fn.defvjp(forward, backward).

    forward(*args) -> (value, kept); backward(kept, g) -> one gradient tree, or None, per argument. Arguments, value
    and `kept` may be any trees. Where nothing is recorded, fn itself runs. A higher derivative is that of `backward`.

    Errors:  GradientError if no gradient was given, or forward closes over an array that is being differentiated:
             backward has no way to name it; GradientError or ShapeError, when it is pulled, if backward's result does
             not fit the arguments
    """
    _check_callable("custom_vjp", fn)

    def defvjp(given_forward: Function, given_backward: Function) -> None:
        nonlocal forward, backward
        forward, backward = given_forward, given_backward

    @functools.wraps(fn)
    def own(*args: Any, **named: Any) -> Any:
        args = _by_position(fn, args, named) if named else args
        if not _recorded_here(args) or any(fn is other for other in _in_forward.get()):
            return fn(*args)  # type: ignore[call-arg]
        if forward is None or backward is None:
            raise GradientError(f"custom_vjp: {fn.__name__} has no gradient; state it by defvjp(forward, backward)")
        return _recorded(fn, forward, backward, args)

    wrapped: Any = own
    wrapped.defvjp = defvjp
    return wrapped


def _recorded_here(args: Any) -> bool:
    """True inside a transform, and in a thread that computes with the arrays of one."""
    return is_recording() or (records() and any(map(_is_tracked, tree.leaves(args))))


# The functions of custom_vjp whose forward runs: there they are themselves, so that forward may call them.
_in_forward: ContextVar[tuple[Callable, ...]] = ContextVar("polyarr_custom_vjp_forward", default=())


def _recorded(fn: Callable, forward: Callable, backward: Callable, args: tuple) -> Any:
    """forward's value at args, with backward as its gradient."""
    # Handles of their own, here and in what is kept: others may be rebound before the gradient is pulled.
    args = tree.map(_snapshot, args)
    tracked = [_is_tracked(leaf) for leaf in tree.leaves(args)]
    inputs = [(leaf.node, leaf.spec) for leaf in tree.leaves(args) if _is_tracked(leaf)]
    with reading() as read:
        inner = list(args)
        for i in range(len(inner)):
            _track(inner, i)
        token = _in_forward.set((*_in_forward.get(), fn))
        try:
            value, kept = _two(forward(*inner), "custom_vjp: forward", "(value, kept)")
        finally:
            _in_forward.reset(token)
    value = tree.map(_untracked, value)
    if read.nodes:
        node, spec = next(iter(read.nodes.items()))
        raise GradientError(
            f"custom_vjp: {_name_of(node, forward, fn)} ({spec}) is differentiated and is no argument of fn; "
            "make it one, or use stop_gradient on it"
        )
    if not inputs:
        return value
    kept, results = tree.map(_snapshot, kept), tree.leaves(value)

    def pull(g: list) -> list:
        full = [_zeros(o) if part is None else part for part, o in zip(g, results, strict=True)]
        grads = _checked(backward(kept, tree.unflatten(value, full)), args)
        flat = [leaf for a, found in zip(args, grads, strict=True) for leaf in _aligned(a, found)]
        return [leaf for leaf, is_tracked in zip(flat, tracked, strict=True) if is_tracked]

    return _joined(value, inputs, pull)


def _by_position(fn: Callable, args: tuple, named: dict[str, Any]) -> tuple:
    """The arguments of a call of fn, all by position: that is how its gradient takes them."""
    bound = inspect.signature(fn).bind(*args, **named)
    if bound.kwargs:
        raise GradientError(f"custom_vjp: {', '.join(bound.kwargs)} is keyword-only; fn must take it by position")
    return bound.args


def _checked(grads: Any, args: tuple) -> Any:
    """What backward returned, if it can be the gradients of args: as many, and each array of its argument's shape."""
    if not isinstance(grads, (tuple, list)) or len(grads) != len(args):
        given = f"{len(grads)} gradients" if isinstance(grads, (tuple, list)) else type(grads).__name__
        required = f"a tuple of {len(args)}, one gradient or None for each argument"
        raise GradientError(f"custom_vjp: backward returned {given}; it must return {required}")
    for arg, found in zip(args, grads, strict=True):
        for leaf, g in zip(tree.leaves(arg), _aligned(arg, found), strict=True):
            if type(g) is Array and type(leaf) is Array and g.shape != leaf.shape:
                raise ShapeError(f"custom_vjp: backward returned {g.spec} for {leaf.spec}; it must have that shape")
    return grads


def _name_of(node: Node, *functions: Callable) -> str:
    """What functions call the array with this node, among what they close over."""
    for fn in functions:
        for path, leaf in tree.items(_held_by(fn)):
            if type(leaf) is Array and leaf.node is node:
                return repr(".".join(map(str, path)))
    return "an array"


def _held_by(fn: Callable) -> dict[str, Any]:
    """What a function reads that is no argument, by name."""
    own = {"self": fn.__self__} if inspect.ismethod(fn) else {}
    plain = inspect.unwrap(getattr(fn, "__func__", fn))
    if not inspect.isfunction(plain):
        return own
    found = inspect.getclosurevars(plain)
    return {**found.globals, **found.nonlocals, **own}


def _joined(value: Any, inputs: list[tuple[Node, Spec]], pull: Callable) -> Any:
    """value with its floating-point arrays as results of one node. pull gets their cotangents, None for zeros."""
    outputs = [_untracked(o) for o in tree.leaves(value)]
    nodes, specs = zip(*inputs, strict=True)
    join = Node(nodes, specs, lambda node, g: pull(g), results=(None,) * len(outputs))
    return tree.unflatten(value, [_result(join, i, o) for i, o in enumerate(outputs)])


def _result(join: Node, i: int, output: Any) -> Any:
    """The i-th result of a node with several, as an Array of its own."""
    return Array(output.backend, output.buf, output.spec, Result(join, i)) if _carries(output) else output


def _snapshot(leaf: Any) -> Any:
    return leaf.snapshot() if type(leaf) is Array else leaf


def _untracked(leaf: Any) -> Any:
    return leaf.untracked() if type(leaf) is Array else leaf


def _is_tracked(leaf: Any) -> bool:
    return type(leaf) is Array and leaf.node is not None


def _carries(leaf: Any) -> bool:
    """True for what may have a gradient."""
    return type(leaf) is Array and leaf.dtype in FLOATS


def _zeros(leaf: Any) -> Array | None:
    return ops.zeros_like(leaf) if type(leaf) is Array else None


def _aligned(arg: Any, g: Any) -> list:
    """The gradient's leaves in the argument's order; None where there is none."""
    found = {} if g is None else dict(tree.items(g))
    return [found.get(path) for path, _ in tree.items(arg)]


# ---- the walk ------------------------------------------------------------------------------------------------


def _track(args: list, i: int, frozen: list[bool] | None = None) -> list[Node | None]:
    """Replace the floating-point arrays in args[i] by handles with a fresh node each; the nodes, aligned."""
    leaves = tree.leaves(args[i])
    left = frozen or [False] * len(leaves)
    tracked = [_leaf(a) if _carries(a) and not out else a for a, out in zip(leaves, left, strict=True)]
    args[i] = tree.unflatten(args[i], tracked)
    return [t.node if t is not a else None for t, a in zip(tracked, leaves, strict=True)]


def _leaf(a: Array) -> Array:
    """A handle with a node of its own; if a is recorded already, gradients flow on through it."""
    node = Node((a.node,), (a.spec,), lambda node, g: [g]) if a.node else Node()
    return Array(a.backend, a.buf, a.spec, node)


def _released(leaf: Any) -> Any:
    """A result as the caller gets it: without a node, unless an outer transform records."""
    return leaf.untracked() if type(leaf) is Array and not is_recording() else leaf


def _backward(seeds: list[tuple[Node | None, Array | None]], ends: list[Node], once: bool) -> list[Array | None]:
    """The gradients at the nodes `ends`, given the cotangents at some roots. None: no path leads there."""
    if is_recording():
        return _walked(seeds, ends, release=False)
    with paused():  # also in a thread that another one's transform started: a transform within it stands alone
        return _walked(seeds, ends, release=once)


def _walked(seeds: list[tuple[Node | None, Array | None]], ends: list[Node], release: bool) -> list[Array | None]:
    grads: dict[Node, Any] = {}
    for root, g in seeds:
        if root is not None and g is not None:
            grads[root] = grads[root] + g if root in grads else g
    finals = set(ends)
    # Creation order is a topological order, so no recursion: sort once, walk down.
    for node in _between(list(grads), finals):
        g = grads.pop(node, None)
        if g is None:
            continue
        if type(node) is Result:
            (owner,) = node.parents
            parts, i = grads.setdefault(owner, [None] * len(owner.results)), node.index
            parts[i] = g if parts[i] is None else parts[i] + g  # a rule that names `out` has results of its own
            continue
        for parent, spec, part in zip(node.parents, node.specs, _pull(node, g), strict=True):
            if part is not None:
                part = part if spec is None else unbroadcast(part, spec)
                grads[parent] = grads[parent] + part if parent in grads else part
        if release:  # what the node kept is freed now, not when the walk is over
            node.pull, node.parents = None, ()
    return [grads.get(end) for end in ends]


def _between(roots: list[Node], ends: set[Node]) -> list[Node]:
    """The nodes on a path from a root down to an end, latest first, the ends excluded."""
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


def _pull(node: Node, g: Any) -> list[Array | None]:
    """A node's gradients. Where the pull itself is recorded, an op with a pair is differentiated through its body."""
    if node.pull is None:
        raise GradientError("this graph was already pulled back; use vjp for a pull-back that can be called again")
    if type(g) is list:
        like = next(part for part in g if part is not None)
        g = [_zeros_of(s, like) if part is None else part for part, s in zip(g, node.results, strict=True)]
    if isinstance(node.pull, Pair):
        grads = None if is_recording() else node.pull(node, g)
        if grads is None or any(part is None for part in grads):
            grads = _pull_body(node.pull, g)
        return grads
    return node.pull(node, g)


def _zeros_of(spec: Spec | None, like: Array) -> Array | None:
    """The cotangent of a result that nobody used."""
    return None if spec is None else ops.full(0, like, shape=spec.shape, dtype=spec.dtype)


def _pull_body(pair: Pair, g: Any) -> list[Array | None]:
    value, pull = vjp(pair.body, *pair.inputs)
    return list(pull(tree.unflatten(value, g) if type(g) is list else g))


def unbroadcast(g: Array, spec: Spec) -> Array:
    """Sum g back to spec's shape: the one place that undoes broadcasting."""
    if g.shape == spec.shape:
        return g
    lead = g.ndim - spec.ndim
    stretched = tuple(i for i in range(g.ndim) if i < lead or spec.shape[i - lead] == 1 != g.shape[i])
    return ops.reshape(ops.sum(g, axis=stretched), shape=spec.shape)


def _gradient_tree(arg: Any, nodes: list[Node | None], found: Iterator[Array | None]) -> Any:
    """The gradients of one argument: zeros where no path led, None for what carries no gradient."""

    def gradient(node: Node | None, leaf: Any) -> Array | None:
        g = next(found) if node else None
        return ops.zeros_like(leaf.untracked()) if node and g is None else g

    grads = tree.unflatten(arg, [gradient(n, leaf) for n, leaf in zip(nodes, tree.leaves(arg), strict=True)])
    if hasattr(type(grads), "is_gradient"):  # a Module of gradients looks like one of parameters
        grads.is_gradient = True
    return grads


def _check_scalar(asked: str, value: Any) -> None:
    if type(value) is not Array:
        raise GradientError(f"{asked}: fn returned {type(value).__name__}; it must return a scalar array")
    if value.shape != () or value.dtype not in FLOATS:
        raise GradientError(f"{asked}: fn returned {value.spec}; it must return a floating-point scalar")


# ---- what the transforms say of what they were given -------------------------------------------------------------


def _check_callable(transform: str, fn: Any) -> None:
    if not callable(fn):
        raise GradientError(f"{transform}: fn is {described(fn)}; it must be a function")


def _wanted(asked: str, argnums: Any) -> tuple[int, ...]:
    found = tuple(argnums) if isinstance(argnums, (tuple, list)) else (argnums,)
    if not found or not all(isinstance(i, int) for i in found):
        raise GradientError(f"{asked}: argnums is {told(argnums)}; it must be an int or a tuple of ints")
    return found


def _check_given(asked: str, args: list, wanted: tuple[int, ...]) -> None:
    for i in wanted:
        if not -len(args) <= i < len(args):
            given = f"argnums names argument {i} of {len(args)} that were given by position"
            raise GradientError(f"{asked}: {given}; what is differentiated must be given so, not by name")


def _without_floats(args: tuple, wanted: tuple[int, ...]) -> str:
    named = " and ".join(f"argument {i} is {described(args[i])}" for i in wanted)
    if any(map(_carries, tree.leaves([args[i] for i in wanted]))):
        return f"all arrays are frozen: {named}; unfreeze() what is to have a gradient"
    return f"no floating-point array among the arguments: {named}; wrap numbers with polyarr.asarray, cast integers"


def _two(found: Any, whose: str, required: str) -> Any:
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise GradientError(f"{whose} returned {described(found)}; it must return {required}")
    return found


def _cotangents(given: Any, due: Any) -> list:
    """The cotangent's leaf for each one of the value's, whose arrays `due` has as Specs; None for zeros."""
    parts = tree.children(due)
    if given is None:
        return [None for _ in tree.leaves(due)]
    if parts is None:
        if type(due) is Spec and (type(given) is not Array or given.shape != due.shape):
            raise ShapeError(f"vjp: a cotangent is {described(given)} for {due}; it must be an array of that shape")
        return [given]
    found = tree.children(given)
    if found is None or found.keys() != parts.keys():
        raise GradientError(f"vjp: a cotangent is {_listed(given)} for {_listed(due)}; they must be alike")
    return [leaf for name, part in parts.items() for leaf in _cotangents(found[name], part)]


def _listed(given: Any) -> str:
    """What was given, with the names or places of its parts."""
    parts = ", ".join(map(str, tree.children(given) or ()))
    return f"{described(given)} with {parts}" if parts else described(given)
