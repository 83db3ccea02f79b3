"""Whole derivatives: jacobians and hessians, by vmap over pull-backs and push-forwards; and linearize."""

import functools
from collections.abc import Callable
from typing import Any

from polyarr import ops, tree
from polyarr.autograd.arguments import argument_numbers, carries_gradient, check_callable, check_given, two_values
from polyarr.autograd.transforms import vjp
from polyarr.batching.vmap import vmap
from polyarr.core.array import Array
from polyarr.core.errors import GradientError
from polyarr.core.keywords import explained
from polyarr.core.record import check_gradient
from polyarr.core.spec import described
from polyarr.ops.create import fill, iota


def linearize(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the value of fn and the linear function that maps tangents of its arguments to the tangent of its value.

    fn runs once; the function that is returned may be called many times, also under vmap.

    Args:
        fn: Function of trees of arrays whose value is a tree of arrays.
        *primals: The arguments of fn.

    Returns:
        Tuple (value, push). push(*tangents) takes a tree like each argument, whose arrays have the shape, dtype and
        device of their counterparts; None stands for zeros, and integers have none. It returns a tree like the value.

    Raises:
        GradientError: In push: a tangent belongs to no argument.
        ShapeError: In push: a tangent has another shape; likewise DtypeError and BackendError.

    Examples:
        >>> import polyarr as pa
        >>> value, push = pa.linearize(pa.square, pa.asarray([1.0, 3.0]))
        >>> push(pa.asarray([1.0, 0.5]))
        Array([2., 3.], float32, 'numpy')
    """
    check_callable("linearize", fn)
    # The pull-back is linear in the cotangent, so its own pull-back is the push-forward.
    value, pull = vjp(fn, *primals)
    _, transposed = vjp(pull, tree.map(lambda leaf: ops.zeros_like(leaf) if type(leaf) is Array else leaf, value))
    due = {path: (leaf.spec, leaf.backend) if type(leaf) is Array else None for path, leaf in tree.items(primals)}
    has_tangent = [carries_gradient(leaf) for leaf in tree.leaves(primals)]

    def push(*tangents: Any) -> Any:
        given = dict(tree.items(tangents))
        if len(tangents) != len(primals) or (given.keys() - due.keys()):
            raise GradientError(f"linearize: tangents are {described(tangents)}; they must be like the arguments")
        for path, tangent in given.items():
            if (expected := due[path]) is not None:
                check_gradient("linearize: a tangent is", tangent, *expected)
        along = [given.get(path) if has else None for path, has in zip(due, has_tangent, strict=True)]
        return transposed(tree.unflatten(primals, along))[0]

    return value, push


@explained
def jacrev(fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the jacobian of fn by pulling back every element of its value.

    Cheaper than jacfwd if the value has fewer elements than the arguments.

    Args:
        fn: Function of trees of arrays whose value is a tree of floating-point arrays.
        argnums: Int or tuple of ints: the positional arguments to differentiate with respect to.
        has_aux: Whether fn returns (value, aux); the result is then (jacobian, aux).

    Returns:
        Function of the arguments of fn. Its result is a tree like the value, with a tree like the argument in place of
        each array, or a tuple of them if argnums is a tuple. Each array has the shape of the value's array,
        followed by the shape of the argument's array; integers have None.

    Raises:
        GradientError: When called: a value or an argument has no floating-point array.

    Examples:
        >>> import polyarr as pa
        >>> pa.jacrev(lambda x: x[:2] * x[2])(pa.asarray([1.0, 2.0, 3.0]))
        Array([[3., 0., 1.],
               [0., 3., 2.]], float32, 'numpy')
    """
    wanted = _checked("jacrev", fn, argnums)

    @functools.wraps(fn)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        call, chosen, aux = _of_chosen("jacrev", fn, args, kwargs, wanted, has_aux)
        value, pull = vjp(call, *chosen)
        leaves = tree.leaves(value)
        _check_floats("jacrev", leaves)
        parts = [_rows(pull, value, i) for i in range(len(leaves))]
        found = tree.unflatten(value, [part[0] if isinstance(argnums, int) else part for part in parts])
        return (found, *aux) if has_aux else found

    return jacobian


@explained
def jacfwd(fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the jacobian of fn by pushing forward every element of its arguments.

    Cheaper than jacrev if the arguments have fewer elements than the value.

    Args:
        fn: Function of trees of arrays whose value is a tree of floating-point arrays.
        argnums: Int or tuple of ints: the positional arguments to differentiate with respect to.
        has_aux: Whether fn returns (value, aux); the result is then (jacobian, aux).

    Returns:
        Function of the arguments of fn; its result is that of jacrev.

    Raises:
        GradientError: When called: a value or an argument has no floating-point array.

    Examples:
        >>> import polyarr as pa
        >>> pa.jacfwd(pa.square)(pa.asarray([1.0, 2.0]))
        Array([[2., 0.],
               [0., 4.]], float32, 'numpy')
    """
    wanted = _checked("jacfwd", fn, argnums)

    @functools.wraps(fn)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        call, chosen, aux = _of_chosen("jacfwd", fn, args, kwargs, wanted, has_aux)
        value, push = linearize(call, *chosen)
        _check_floats("jacfwd", tree.leaves(value))
        leaves = tree.leaves(chosen)
        columns = [_columns(push, chosen, i) if carries_gradient(a) else None for i, a in enumerate(leaves)]
        rows = [[None if c is None else c[j] for c in columns] for j in range(len(tree.leaves(value)))]
        parts = [tree.unflatten(tuple(chosen), row) for row in rows]
        found = tree.unflatten(value, [part[0] if isinstance(argnums, int) else part for part in parts])
        return (found, *aux) if has_aux else found

    return jacobian


@explained
def hessian(fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the second derivatives of fn: jacfwd of jacrev.

    Args:
        fn: Function of trees of arrays whose value is a tree of floating-point arrays, usually one scalar.
        argnums: Int or tuple of ints: the positional arguments to differentiate with respect to.
        has_aux: Whether fn returns (value, aux); the result is then (hessian, aux).

    Returns:
        Function of the arguments of fn. The shape of an array of its result is that of the value, followed twice by
        that of the argument.

    Raises:
        GradientError: As jacrev.

    Examples:
        >>> import polyarr as pa
        >>> pa.hessian(lambda x: x[0] ** 2 * x[1])(pa.asarray([1.0, 2.0]))
        Array([[4., 2.],
               [2., 0.]], float32, 'numpy')
    """
    return jacfwd(jacrev(fn, argnums, has_aux), argnums, has_aux)


def _checked(asked: str, fn: Any, argnums: Any) -> tuple[int, ...]:
    check_callable(asked, fn)
    return argument_numbers(asked, argnums)


def _of_chosen(asked: str, fn: Callable, args: tuple, kwargs: dict, wanted: tuple[int, ...], has_aux: bool) -> tuple:
    """Return fn as a function of the chosen arguments, these, and a list that receives aux when it is called."""
    check_given(asked, list(args), wanted)
    aux: list[Any] = []

    def call(*chosen: Any) -> Any:
        given = list(args)
        for i, a in zip(wanted, chosen, strict=True):
            given[i] = a
        value = fn(*given, **kwargs)
        if has_aux:
            value, aux[:] = _with_aux(asked, value)
        return value

    chosen = [args[i] for i in wanted]
    if not any(map(carries_gradient, tree.leaves(chosen))):
        listed = " and ".join(f"argument {i} is {described(args[i])}" for i in wanted)
        raise GradientError(f"{asked}: no floating-point array among the arguments: {listed}")
    return call, chosen, aux


def _with_aux(asked: str, value: Any) -> tuple[Any, list]:
    found, aux = two_values(value, f"{asked}: fn", "(value, aux), for has_aux")
    return found, [tree.map(lambda leaf: leaf.untracked() if type(leaf) is Array else leaf, aux)]


def _check_floats(asked: str, leaves: list[Any]) -> None:
    for leaf in leaves:
        if not carries_gradient(leaf):
            raise GradientError(f"{asked}: fn returned {described(leaf)}; it must return floating-point arrays")


def _basis(a: Array) -> Array:
    """Return the elements of the standard basis of arrays like a, along a new axis 0."""
    n = a.size
    places = iota(0, 1, a, size=n, dtype="int64")
    ones = ops.astype(ops.equal(ops.reshape(places, shape=(n, 1)), places), dtype=a.dtype)
    return ops.reshape(ones, shape=(n, *a.shape))


def _rows(pull: Callable, value: Any, i: int) -> tuple:
    """Return the derivatives of the i-th array of the value, as a tree for each argument."""
    leaves = tree.leaves(value)
    like = leaves[i].untracked()

    def pulled(g: Array) -> Any:
        return pull(tree.unflatten(value, [g if j == i else None for j in range(len(leaves))]))

    if not like.size:
        return tree.map(lambda a: fill(0, a, shape=(*like.shape, *a.shape), dtype=a.dtype), pulled(like))
    found = vmap(pulled, randomness="same")(_basis(like))  # a pull may draw again what the function drew
    return tree.map(lambda a: ops.reshape(a, shape=(*like.shape, *a.shape[1:])), found)


def _columns(push: Callable, chosen: list, i: int) -> list[Array]:
    """Return the derivatives of every array of the value with respect to the i-th array of the arguments."""
    leaves = tree.leaves(chosen)
    like = leaves[i].untracked()

    def pushed(tangent: Array) -> Any:
        return push(*tree.unflatten(chosen, [tangent if j == i else None for j in range(len(leaves))]))

    if not like.size:
        return [fill(0, a, shape=(*a.shape, *like.shape), dtype=a.dtype) for a in tree.leaves(pushed(like))]
    found = tree.leaves(vmap(pushed, out_axes=-1, randomness="same")(_basis(like)))
    return [ops.reshape(a, shape=(*a.shape[:-1], *like.shape)) for a in found]
