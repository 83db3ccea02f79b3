"""What parameters begin with: functions from a shape to an array, drawn from polyarr.random."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from polyarr import creation, random
from polyarr.core.errors import ShapeError
from polyarr.core.spec import Spec, described, float32, told
from polyarr.ops.validation import number

Initialiser = Callable[[tuple[int, ...]], Any]
_only_shapes: ContextVar[bool] = ContextVar("polyarr_only_shapes", default=False)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Inside the block, layers get Specs for parameters: a model of any size, without memory or time.

    Such a model can be counted and printed, and load_parameters gives it arrays.
    """
    token = _only_shapes.set(True)
    try:
        yield
    finally:
        _only_shapes.reset(token)


def normal(std: float = 1.0) -> Initialiser:
    """Normally distributed around 0."""
    return lambda shape: _made(shape, lambda: random.normal(shape, std=std))


def uniform(bound: float) -> Initialiser:
    """Uniform between -bound and bound."""
    return lambda shape: _made(shape, lambda: random.uniform(shape, low=-bound, high=bound))


def constant(value: float) -> Initialiser:
    """The same number everywhere."""
    value = float(number("nn.constant", "value", value))
    return lambda shape: _made(shape, lambda: creation.full(shape, value))


def begun(layer: str, init: Initialiser, *shape: int) -> Any:
    """What a parameter of a layer begins with.

    Errors:  TypeError for what is no initialiser; ShapeError for one that gives another shape
    """
    if not callable(init):
        raise TypeError(f"{layer}: init is {told(init)}; it must be a function of a shape, such as nn.normal(0.02)")
    made = init(shape)
    if getattr(made, "shape", None) != shape:
        raise ShapeError(f"{layer}: init gave {described(made)}; it must be {list(shape)}")
    return made


def _made(shape: tuple[int, ...], draw: Callable[[], Any]) -> Any:
    return Spec(shape, float32) if _only_shapes.get() else draw()
