"""What is worked out once per device and kept: programs, tiles, and how kernels are launched."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

MOST = 8192  # results of one function; those that were not used for longest go first


class Plans(dict[Callable, Callable]):
    """plans[make](*args) is make(device, *args), worked out at the first call.

    What decides how to launch is an argument: shapes, strides, dtypes. What changes from call to call is not, such as
    a position, a rate or a step: it goes to the kernel. The plans belong to a device, and go with it.
    """

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._device = device

    def __missing__(self, make: Callable) -> Callable:
        kept = self[make] = lru_cache(maxsize=MOST)(partial(make, self._device))
        return kept

    def renew(self, *but: Callable) -> None:
        """Forget everything but what these functions made."""
        for make in self.keys() - {*but}:
            del self[make]


class LaunchPlan(NamedTuple):
    """What a kernel needs at every launch, besides arrays and numbers that change; numbers are its last arguments."""

    kernel: Any
    work: tuple[int, ...]
    group: tuple[int, ...]
    numbers: tuple[int, ...]
