"""The profile of a few steps of a training run."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from polyarr.core.current import get_backend
from polyarr.profiling import profile

WARM_UP, PROFILED = 5, 20  # steps that compile what they need, and those that are profiled then


@contextlib.contextmanager
def profiled_steps(file: Path | None, steps: int, echo: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Gives what is to be called before each of so many steps, and profiles some of them: a table, and a trace in file.

    It tells whether the step is profiled. Of a run of few steps the first ones are, too, and of one that ends early
    those that were done. Without a file none is.
    """
    done, first = 0, WARM_UP if steps > WARM_UP else 0
    found, block = profile(), contextlib.ExitStack()

    def before_step() -> bool:
        nonlocal done
        if file is not None and done == first:
            get_backend().synchronize()
            block.enter_context(found)
        if done == first + PROFILED:
            block.close()
        done += 1
        return file is not None and first < done <= first + PROFILED

    try:
        yield before_step
    finally:
        block.close()
        if file is not None and found.blocks:
            found.save(file)
            last = min(done, first + PROFILED)
            echo(f"steps {first + 1} to {last} of this run; {file} is for ui.perfetto.dev\n{found.table(peaks=True)}")
