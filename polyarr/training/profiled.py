"""Profile of a few steps of a training run, as they train."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from polyarr.atomic import write_whole
from polyarr.core.current import get_backend
from polyarr.profiling import profile
from polyarr.training.files import PROFILE

WARM_UP = 3  # steps that capture the training step, record its launches, and bind them
TIMED = 5  # steps after them that are timed without a profile, to compare
PROFILED = 10  # steps after these that are profiled


class StepProfile:
    """Profile of some steps. A run of few steps is profiled from an earlier one on, one that ends early up to its last.

    Attributes:
        first: Index of the first step to profile, within this process.
        profiled: Number of steps that were profiled.
    """

    def __init__(self, steps: int) -> None:
        self.first = max(n for n in (WARM_UP + TIMED, WARM_UP, 0) if n < max(steps, 1))
        self.profiled = self._done = 0
        self._found, self._block = profile(), contextlib.ExitStack()
        self._is_open = False
        self._since: float | None = None  # start of the steps that are timed without a profile
        self._plain: float | None = None  # their seconds per step

    def before_step(self) -> None:
        """Begin or end what is due before the next step."""
        n, self._done = self._done, self._done + 1
        if n == self.first + PROFILED:
            self.pause()
        if self.first == WARM_UP + TIMED and n in (WARM_UP, self.first):
            get_backend().synchronize()
            if self._since is not None:
                self._plain = (time.perf_counter() - self._since) / TIMED
            self._since = time.perf_counter() if n == WARM_UP else None
        if self.first <= n < self.first + PROFILED:
            if not self._is_open:
                get_backend().synchronize()
                self._block.enter_context(self._found)
                self._is_open = True
            self.profiled += 1

    def pause(self) -> None:
        """Leave out what follows, such as an evaluation, up to the next step."""
        self._block.close()
        self._is_open, self._since = False, None

    def save_trace(self, file: Path) -> None:
        """Write the trace for ui.perfetto.dev."""
        self._found.save(file)

    def __str__(self) -> str:
        """Return the table. Measures the device's peaks."""
        each = sum(ended - began for began, ended in self._found.blocks) / self.profiled
        plain = "" if self._plain is None else f", {self._plain * 1e3:,.1f} ms without the profile"
        last = self.first + self.profiled
        return (
            f"steps {self.first + 1} to {last} of this run, {each * 1e3:,.1f} ms each{plain}\n"
            f"{self._found.table(peaks=True)}"
        )


@contextlib.contextmanager
def profiled_steps(
    file: Path | None, folder: Path, steps: int, echo: Callable[[str], None]
) -> Iterator[StepProfile | None]:
    """Profile some of `steps` steps: print a table, keep it in the run's folder, and write a trace file.

    Yields the profile, which is notified of each step, and of work that belongs to none. Without a file it is None:
    nothing is profiled.
    """
    if file is None:
        yield None
        return
    found = StepProfile(steps)
    try:
        yield found
    finally:
        found.pause()
        if found.profiled:
            found.save_trace(file)
            text = str(found)
            write_whole(folder / PROFILE, f"{text}\n".encode())
            echo(f"{text}\n{file} is for ui.perfetto.dev")
