"""Per-device caches of launch decisions: programs, tiles, and launch parameters."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

MAX_RESULTS = 8192  # cached results of one function; the least recently used go first


class Plans(dict[Callable, Callable]):
    """A cache: plans[make](*args) is make(device, *args), computed at the first call.

    Arguments are what decides how to launch: shapes, strides, dtypes. Values that change between calls, such as a
    position, a rate or a step, are not; they go to the kernel. The plans live as long as their device.
    """

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._device = device

    def __missing__(self, make: Callable) -> Callable:
        kept = self[make] = lru_cache(maxsize=MAX_RESULTS)(partial(make, self._device))
        return kept

    def renew(self, *but: Callable) -> None:
        """Forget everything but the results of these functions."""
        for make in self.keys() - {*but}:
            del self[make]


class LaunchPlan(NamedTuple):
    """Everything that a launch of a kernel needs besides arrays and dynamic scalars; numbers are its last arguments."""

    kernel: Any
    work: tuple[int, ...]
    group: tuple[int, ...]
    numbers: tuple[int, ...]
