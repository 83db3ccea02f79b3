"""A device on which launchers plan: they choose kernels and layouts, but nothing is allocated, built or enqueued.

Captures trace on it what a function does (Backend.abstract), and first runs learn from it which programs they will
need (replay/ahead.py).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import Plans
from polyarr.backends.opencl.runtime.variants import Verdicts
from polyarr.core.errors import BackendError


class Need(NamedTuple):
    """A check or the build of a program: a function to be called with a device and arguments."""

    is_check: bool
    call: Callable[..., None]
    arguments: tuple[Any, ...]


class PlanningDevice(Device):
    """A device that allocates and enqueues nothing; whatever it does not say itself is as on the real one.

    A program that was never checked is taken to be sound.

    Attributes:
        needs: The checks and builds that launchers ask for, by the program's text; None if nobody does them ahead.
    """

    computes = False

    def __init__(self, device: Device, needs: dict[str, Need] | None = None) -> None:
        self._real, self._guards, self.needs = device, None, needs
        self.plans, self.commands = Plans(self), _Commands()  # type: ignore[assignment]
        self.plans[Verdicts] = lru_cache(partial(_Assumed, device, needs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def build(self, stem: str, **defines: Any) -> Any:
        """Return a program whose kernels do nothing."""
        programs = self._real.programs
        if self.needs is not None and not programs.has(stem, defines):
            text = programs.text(stem, defines)
            if text not in self.needs and programs.is_slow(text):
                self.needs[text] = Need(False, _build, (stem, defines))
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

    def __init__(self, device: Device, needs: dict[str, Need] | None) -> None:
        self._needs, self._verdicts = needs, device.plans[Verdicts]()
        self.known = self._verdicts.known

    def get(self, name: str, find: Callable[[], str]) -> str:
        """Return what is known to be wrong, without finding it."""
        return self.known(name)

    def of_program(self, name: str, macros: dict[str, Any], text: str, check: partial) -> str:
        """Return what is known to be wrong with a program."""
        if self._verdicts.is_found(name, text):
            return self._verdicts.of_program(name, macros, text, check)
        if self._needs is not None:
            self._needs[text] = Need(True, check.func, check.args[1:])
        return ""


class _Program:
    """A program with a kernel of any name that is asked for."""

    def __init__(self) -> None:
        self.kernels = defaultdict[str, _Kernel](_Kernel)

    def __getattr__(self, name: str) -> "_Kernel":
        return self.kernels[name]


class _Kernel:
    """A kernel that does nothing."""

    def twin(self, in_place: Any) -> "_Kernel":
        """Return the kernel."""
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


def _build(device: Device, stem: str, defines: dict[str, Any]) -> None:
    """Build a program, so that the driver has it in its cache."""
    device.build(stem, **defines)
