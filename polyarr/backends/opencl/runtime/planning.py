"""A device on which launchers plan: they choose kernels and layouts, but nothing is allocated, built or enqueued.

Captures trace on it what a function does (Backend.abstract).
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import Plans
from polyarr.backends.opencl.runtime.variants import Verdicts
from polyarr.core.errors import BackendError


class PlanningDevice(Device):
    """A device that allocates and enqueues nothing; whatever it does not say itself is as on the real one.

    A program that was never checked is taken to be sound.
    """

    computes = False

    def __init__(self, device: Device) -> None:
        self._real, self._guards = device, None
        self.plans, self.commands = Plans(self), _Commands()  # type: ignore[assignment]
        self.plans[Verdicts] = lru_cache(partial(_Assumed, device))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def build(self, stem: str, **defines: Any) -> Any:
        """Return a program whose kernels do nothing."""
        return _Program()

    def _allocate(self, nbytes: int) -> Any:
        return _Memory(nbytes)

    scratch = _allocate

    def allocate(self, sizes: Sequence[int]) -> list[Any]:
        """Return memory that is none."""
        return [*map(_Memory, sizes)]

    def part(self, memory: Any, start: int, nbytes: int) -> Any:
        """Return memory that is none."""
        return _Memory(nbytes)

    def download(self, buf: Buffer) -> np.ndarray:
        """Raise, as there is nothing to read.

        Raises:
            BackendError: Always.
        """
        raise BackendError("nothing is computed while launchers plan")


class _Assumed:
    """Verdicts by which a program that was never checked is sound."""

    def __init__(self, device: Device) -> None:
        self._verdicts = device.plans[Verdicts]()
        self.known = self._verdicts.known

    def of_program(self, name: str, macros: dict[str, Any], text: str, check: partial) -> str:
        """Return what is known to be wrong with a program."""
        if self._verdicts.is_found(name, text):
            return self._verdicts.of_program(name, macros, text, check)
        return ""


class _Program:
    """A program with a kernel of any name that is asked for."""

    def __init__(self) -> None:
        self.kernels = defaultdict[str, _Kernel](_Kernel)

    def __getattr__(self, name: str) -> "_Kernel":
        return self.kernels[name]


class _Kernel:
    """A kernel that does nothing."""

    @property
    def twin(self) -> "_Kernel":
        """The kernel."""
        return self

    def __call__(self, *_: Any) -> None:
        """Do nothing."""


class _Commands:
    """A queue that does nothing."""

    def upload(self, *_: Any) -> None:
        """Do nothing."""

    transfer = copy = fill = upload


class _Memory:
    """Memory that is none."""

    def __init__(self, nbytes: int) -> None:
        self.size, self.int_ptr = nbytes, id(self)
