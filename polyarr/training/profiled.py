"""Profile of a few steps of a training run."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from polyarr.core.current import get_backend
from polyarr.profiling import profile

WARM_UP, PROFILED = 5, 20  # steps that compile kernels, and steps that are profiled after them


@contextlib.contextmanager
def profiled_steps(file: Path | None, steps: int, echo: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Yield a function to call before each of `steps` steps, which profiles some of them into a table and a trace file.

    A run of few steps is profiled from its first step on, and one that ends early up to its last. Without a file no
    step is profiled.
    """
    done, first = 0, WARM_UP if steps > WARM_UP else 0
    found, block = profile(), contextlib.ExitStack()

    def before_step() -> None:
        nonlocal done
        if file is not None and done == first:
            get_backend().synchronize()
            block.enter_context(found)
        if done == first + PROFILED:
            block.close()
        done += 1

    try:
        yield before_step
    finally:
        block.close()
        if file is not None and found.blocks:
            found.save(file)
            last = min(done, first + PROFILED)
            echo(f"steps {first + 1} to {last} of this run; {file} is for ui.perfetto.dev\n{found.table(peaks=True)}")
