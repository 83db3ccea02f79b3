"""Initializers of parameters: functions from a shape to an array, drawn from polyarr.random."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from polyarr import creation, random
from polyarr.core.errors import ShapeError
from polyarr.core.names import answering
from polyarr.core.spec import Spec, described, float32, shown
from polyarr.ops.validation import number

Initializer = Callable[[tuple[int, ...]], Any]
_only_shapes: ContextVar[bool] = ContextVar("polyarr_only_shapes", default=False)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Have layers hold Specs instead of arrays inside the block: a model of any size, without memory or time.

    Such a model can be counted and printed, and load_parameters gives it arrays.

    Examples:
        >>> from polyarr import nn
        >>> with nn.shapes_only():
        ...     layer = nn.Linear(100_000, 100_000)
        >>> layer.num_parameters()
        10000100000
    """
    token = _only_shapes.set(True)
    try:
        yield
    finally:
        _only_shapes.reset(token)


def normal(std: float = 1.0) -> Initializer:
    """Return an initializer with the normal distribution around 0.

    Args:
        std: Standard deviation.

    Returns:
        Function from a shape to an array.

    Examples:
        >>> from polyarr import nn
        >>> nn.normal(0.02)((2, 3)).shape
        (2, 3)
    """
    return lambda shape: _made(shape, lambda: random.normal(shape, std=std))


def uniform(bound: float) -> Initializer:
    """Return an initializer with the uniform distribution between -bound and bound.

    Args:
        bound: Largest magnitude.

    Returns:
        Function from a shape to an array.

    Examples:
        >>> from polyarr import nn
        >>> nn.uniform(0.1)((2, 3)).shape
        (2, 3)
    """
    return lambda shape: _made(shape, lambda: random.uniform(shape, low=-bound, high=bound))


def constant(value: float) -> Initializer:
    """Return an initializer with one number everywhere.

    Args:
        value: Number.

    Returns:
        Function from a shape to an array.

    Examples:
        >>> from polyarr import nn
        >>> nn.constant(1)((2,))
        Array([1., 1.], float32, 'numpy')
    """
    value = float(number("nn.constant", "value", value))
    return lambda shape: _made(shape, lambda: creation.full(shape, value))


def initial_value(layer: str, init: Initializer, *shape: int) -> Any:
    """Return the initial value of a parameter of a layer.

    Raises:
        TypeError: init is not a function.
        ShapeError: init returned another shape.
    """
    if not callable(init):
        raise TypeError(f"{layer}: init is {shown(init)}; it must be a function of a shape, such as nn.normal(0.02)")
    made = init(shape)
    if getattr(made, "shape", None) != shape:
        raise ShapeError(f"{layer}: init gave {described(made)}; it must be {list(shape)}")
    return made


def _made(shape: tuple[int, ...], draw: Callable[[], Any]) -> Any:
    return Spec(shape, float32) if _only_shapes.get() else draw()


if not TYPE_CHECKING:  # to a type checker, every name would seem to be there
    __getattr__ = answering(__name__, ["constant", "normal", "shapes_only", "uniform"])
