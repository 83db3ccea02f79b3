"""Ops of optimizers on lists of arrays: the norm of all gradients, and the update steps. See polyarr/optim/."""

import math

from polyarr.core.array import spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.number import NUMBERS
from polyarr.core.op import composed
from polyarr.core.spec import Spec, check_kind, described, float32, float64, shown
from polyarr.ops.elementwise import add, astype, divide, multiply, square, subtract, where
from polyarr.ops.functions import expm1, sqrt
from polyarr.ops.logic import equal
from polyarr.ops.reduce import sum


@composed
def global_norm(arrays):
    """Return the Euclidean norm of all elements of all arrays.

    Args:
        arrays: List of at least one floating-point array.

    Returns:
        Array (): float64 if one of the arrays is, else float32.

    Raises:
        TypeError: arrays is no list of arrays, or an empty one.

    Examples:
        >>> import polyarr as pa
        >>> pa.global_norm([pa.asarray([3.0]), pa.asarray([[4.0]])])
        Array(5., float32, 'numpy')

    Gradients: arrays; 0 where the norm is 0
    """
    if not isinstance(arrays, tuple) or not arrays or any(a is None or spec_of(a).is_number for a in arrays):
        raise TypeError("global_norm: got no list of arrays; it needs one, with at least one array")
    wide = float64 if any(a.dtype == float64 for a in arrays) else float32
    squares = [sum(square(astype(a, dtype=wide))) for a in arrays]
    total = squares[0]
    for part in squares[1:]:
        total = add(total, part)
    return sqrt(total)


global_norm.vjp(arrays=lambda g, arrays, out: [_norm_grad(g, a, out) for a in arrays])


def _norm_grad(g, a, out):
    scale = divide(g, where(equal(out, 0), 1, out))
    return astype(multiply(astype(a, dtype=scale.dtype), scale), dtype=a.dtype)


def _step(op: str, states: str, numbers: str):
    """Return the shape rule of a step over lists: the new parameters and states have the Specs of the old ones."""
    lists = ("params", "grads", *states.split())

    def infer(*inputs, weight_decay, **_):
        params = inputs[0]
        for name, members in zip(lists, inputs, strict=False):
            _check_list(op, name, members)
            if [a.shape for a in members] != [p.shape for p in params]:
                raise ShapeError(f"{op}: {name} has other shapes than params; every list must match params")
        for name, a in zip(numbers.split(), inputs[len(lists) :], strict=True):
            if type(a) is not Spec or a.shape:
                raise TypeError(f"{op}: {name} is {described(a)}; it must be a number, or an array without axes")
        if type(weight_decay) is not tuple or len(weight_decay) != len(params):
            raise ShapeError(f"{op}: weight_decay is {shown(weight_decay)}; it must be a number for each of params")
        return (params, *inputs[2 : len(lists)])

    return infer


def _check_list(op: str, name: str, members) -> None:
    listed = type(members) is tuple
    for a in members if listed else (members,):
        if not listed or type(a) is not Spec or a.is_number:
            verb = "holds" if listed else "is"
            raise TypeError(f"{op}: {name} {verb} {described(a)}; it must be a list of arrays")
        check_kind(op, f"an array of {name}", a, "floating")


@composed(infer=_step("sgd", "velocity", "lr scale"), numbers="lr scale")
def sgd(params, grads, velocity, lr, scale=1.0, *, momentum, weight_decay, nesterov):
    """Return the parameters and velocities after one step of stochastic gradient descent with momentum.

    g = scale * grad + weight_decay * p; v = momentum * v + g; p = p - lr * v, or with nesterov p - lr * (g + momentum *
    v).

    Args:
        params: List of floating-point arrays.
        grads: List of arrays of the same shapes.
        velocity: List of arrays of the same shapes; their dtype is that of the arithmetic.
        lr: Learning rate, a number or an array without axes.
        scale: Factor of the gradients, a number or an array without axes.
        momentum: Number.
        weight_decay: Tuple with a number for each of params.
        nesterov: Whether to use Nesterov momentum.

    Returns:
        Tuple (params, velocity) of tuples of arrays.

    Raises:
        ShapeError: The lists differ in shapes, or weight_decay in length.
        TypeError: An input is no list of arrays.
        DtypeError: An array is not floating-point.

    Gradients: params, grads, velocity
    """
    new_params, new_velocity = [], []
    for p, g, v, decay in zip(params, grads, velocity, weight_decay, strict=True):
        p_wide = astype(p, dtype=v.dtype)
        g = add(_scaled(g, scale, v.dtype), multiply(p_wide, decay))
        v = add(multiply(v, momentum), g)
        step = add(g, multiply(v, momentum)) if nesterov else v
        new_params.append(astype(subtract(p_wide, multiply(step, lr)), dtype=p.dtype))
        new_velocity.append(v)
    return tuple(new_params), tuple(new_velocity)


@composed(infer=_step("adamw", "m v", "lr step scale"), numbers="lr step scale")
def adamw(params, grads, m, v, lr, step, scale=1.0, *, beta1, beta2, eps, weight_decay, decoupled):
    """Return the parameters and moments after one step of AdamW, or of Adam if not decoupled.

    g = scale * grad; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
    p = p - lr * weight_decay * p - lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps).

    Args:
        params: List of floating-point arrays.
        grads: List of arrays of the same shapes.
        m: List of first moments; their dtype is that of the arithmetic.
        v: List of second moments.
        lr: Learning rate, a number or an array without axes.
        step: Number of this step, counted from 1; a number or an array without axes.
        scale: Factor of the gradients, a number or an array without axes.
        beta1: Decay of the first moments.
        beta2: Decay of the second moments.
        eps: Number added to the root.
        weight_decay: Tuple with a number for each of params.
        decoupled: Whether weight decay acts on the parameters (AdamW); otherwise weight_decay * p is added to g (Adam).

    Returns:
        Tuple (params, m, v) of tuples of arrays.

    Raises:
        ShapeError: The lists differ in shapes, or weight_decay in length.
        TypeError: An input is no list of arrays.
        DtypeError: An array is not floating-point.

    Gradients: params, grads, m, v

    Source: Kingma, Ba 2014, arXiv:1412.6980; Loshchilov, Hutter 2017, arXiv:1711.05101
    """
    found = []
    for p, g, first, second, decay in zip(params, grads, m, v, weight_decay, strict=True):
        p_wide, g = astype(p, dtype=first.dtype), _scaled(g, scale, first.dtype)
        if decay and decoupled:
            shrunk = multiply(p_wide, 1 - lr * decay)
        else:
            shrunk, g = p_wide, add(g, multiply(p_wide, decay)) if decay else g
        first = add(multiply(first, beta1), multiply(g, 1 - beta1))
        second = add(multiply(second, beta2), multiply(square(g), 1 - beta2))
        root = add(sqrt(multiply(second, 1 / _one_minus_power(beta2, step))), eps)
        moved = subtract(shrunk, divide(multiply(first, lr / _one_minus_power(beta1, step)), root))
        found.append((astype(moved, dtype=p.dtype), first, second))
    return tuple(zip(*found, strict=True)) if found else ((), (), ())


def _one_minus_power(beta, step):
    """Return 1 - beta^step; for a step in an array as -expm1(step log(beta)), which keeps its digits in float32."""
    if isinstance(step, NUMBERS) or beta == 0:
        return 1 - beta**step if beta else 1.0
    return -expm1(multiply(astype(step, dtype=float32), math.log(beta)))


def _scaled(g, scale, dtype):
    g = astype(g, dtype=dtype)
    return multiply(g, scale if isinstance(scale, NUMBERS) else astype(scale, dtype=dtype))
