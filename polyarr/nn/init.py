"""What parameters begin with: functions from a shape to an array, drawn from polyarr.random."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from polyarr import creation, random
from polyarr.core.spec import Spec, float32

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
    return lambda shape: _made(shape, lambda: creation.full(shape, float(value)))


def _made(shape: tuple[int, ...], draw: Callable[[], Any]) -> Any:
    return Spec(shape, float32) if _only_shapes.get() else draw()
