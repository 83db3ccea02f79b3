"""Gradients before an optimizer gets them: clipping, and accumulation over batches."""

from collections.abc import Callable, Iterable
from typing import Any

from polyarr import ops, tree
from polyarr.autograd import value_and_grad
from polyarr.core.array import Array
from polyarr.core.number import Number
from polyarr.ops.validation import within


def clip_by_global_norm(grads: Any, max_norm: float) -> tuple[Any, Array]:
    """Scale gradients down if their global norm is above a limit.

    Args:
        grads: Tree of gradients.
        max_norm: Largest global norm, at least 0.

    Returns:
        Tuple (gradients, norm): the scaled gradients, and the global norm of the given ones, an array ().

    Raises:
        ValueError: max_norm is negative or nan.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import optim
        >>> grads, norm = optim.clip_by_global_norm([pa.asarray([3.0, 4.0])], 1.0)
        >>> norm
        Array(5., float32, 'numpy')
    """
    if not isinstance(max_norm, (Array, Number)):
        within("clip_by_global_norm", "max_norm", max_norm, 0)
    norm = ops.global_norm(tree.leaves(grads))
    scale = scale_for(norm, max_norm)
    return tree.map(lambda g: (g.astype(scale.dtype) * scale).astype(g.dtype), grads), norm


def scale_for(norm: Array, max_norm: float) -> Array:
    """Return the factor of gradients of this global norm, an unread array ()."""
    return ops.minimum(max_norm / (norm + 1e-6), 1.0)


def accumulate(
    loss_fn: Callable[..., Any], model: Any, batches: Iterable[tuple[Any, ...]], has_aux: bool = False
) -> tuple[Any, Any]:
    """Return the mean loss over batches and the mean gradient, with the memory of one batch.

    Args:
        loss_fn: Function (model, *batch) with a scalar value.
        model: Tree of arrays.
        batches: Iterable of tuples.
        has_aux: Whether loss_fn returns (value, aux); the result is then ((loss, auxs), gradients), with auxs a list of
            what each batch returned.

    Returns:
        Tuple (loss, gradients).

    Raises:
        ValueError: There is no batch.
        GradientError: As in value_and_grad.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import optim
        >>> loss, grads = optim.accumulate(lambda w, x: w * x, pa.asarray(2.0), [(1.0,), (3.0,)])
        >>> grads
        Array(2., float32, 'numpy')
    """
    step = value_and_grad(loss_fn, has_aux=has_aux)
    loss, grads, count, auxs = None, None, 0, []
    for batch in batches:
        part, part_grads = step(model, *batch)
        if has_aux:
            part, aux = part
            auxs.append(aux)
        loss = part if loss is None else loss + part
        grads = part_grads if grads is None else tree.map(lambda a, b: a + b, grads, part_grads)
        count += 1
    if loss is None:
        raise ValueError("accumulate: got no batches; it needs at least one")
    if count > 1:
        loss, grads = loss / count, tree.map(lambda g: g / count, grads)
    return ((loss, auxs) if has_aux else loss), grads
