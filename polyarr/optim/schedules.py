"""Schedules: learning rates as functions of the number of steps done."""

import math
from dataclasses import dataclass, fields
from typing import Any

from polyarr.core.array import Array
from polyarr.core.number import Number
from polyarr.ops.validation import within


def _check_numbers(schedule: Any) -> None:
    """Raise TypeError or ValueError unless all fields of a schedule are numbers of at least 0."""
    for f in fields(schedule):
        value = getattr(schedule, f.name)
        if not isinstance(value, (Array, Number)):
            within(type(schedule).__name__, f.name, value, 0)


@dataclass(frozen=True)
class constant:  # noqa: N801  called like a function, compares and prints as a value
    """Schedule with the same learning rate at every step.

    Args:
        lr: Learning rate.

    Examples:
        >>> from polyarr import optim
        >>> optim.constant(0.1)(500)
        0.1
    """

    lr: float

    def __post_init__(self) -> None:
        _check_numbers(self)

    def __call__(self, step: int) -> float:
        return self.lr


@dataclass(frozen=True)
class _Warmup:
    """Schedule that rises linearly from 0 to lr in `warmup` steps, then falls to min_lr at `steps`, where it stays."""

    lr: float
    warmup: int
    steps: int
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        _check_numbers(self)

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.lr * (step + 1) / (self.warmup + 1)
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.min_lr + self._left(progress) * (self.lr - self.min_lr)

    def _left(self, progress: float) -> float:
        """Return the remaining part of the decay, from 1 to 0."""
        raise TypeError(f"{type(self).__name__} is no schedule; take warmup_cosine or warmup_linear")


@dataclass(frozen=True)
class warmup_cosine(_Warmup):  # noqa: N801
    """Schedule that rises linearly to lr in `warmup` steps, then falls along half a cosine to min_lr at `steps`.

    Args:
        lr: Learning rate after the warmup.
        warmup: Number of steps of the warmup.
        steps: Step at which min_lr is reached; it stays from there on.
        min_lr: Learning rate at the end.

    Examples:
        >>> from polyarr import optim
        >>> schedule = optim.warmup_cosine(1.0, warmup=1, steps=11)
        >>> [round(schedule(step), 3) for step in (0, 1, 6, 11)]
        [0.5, 1.0, 0.5, 0.0]
    """

    def _left(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class warmup_linear(_Warmup):  # noqa: N801
    """Schedule that rises linearly to lr in `warmup` steps, then falls linearly to min_lr at `steps`.

    Args:
        lr: Learning rate after the warmup.
        warmup: Number of steps of the warmup.
        steps: Step at which min_lr is reached; it stays from there on.
        min_lr: Learning rate at the end.

    Examples:
        >>> from polyarr import optim
        >>> schedule = optim.warmup_linear(1.0, warmup=1, steps=11)
        >>> [round(schedule(step), 3) for step in (0, 1, 6, 11)]
        [0.5, 1.0, 0.5, 0.0]
    """

    def _left(self, progress: float) -> float:
        return 1 - progress
