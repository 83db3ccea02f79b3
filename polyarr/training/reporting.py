"""What a run says of itself while it trains, and to whom: people, metrics.jsonl, TensorBoard.

All of it is made of numbers that are on the host already; nothing is read from the device for it.
"""

import contextlib
import math
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from polyarr.core.current import get_backend
from polyarr.core.precision import products_in
from polyarr.extras import extra
from polyarr.training.files import BOARD
from polyarr.training.metrics import MetricsFile, Row
from polyarr.training.progress import Progress, progress_of, silent
from polyarr.training.run import Run, perplexity, speed
from polyarr.training.work import operations_per_token
from polyarr.version import __version__


class Reports:
    """What is reported of a run."""

    def __init__(
        self, run: Run, echo: Callable[[str], None], progress: Progress, metrics: MetricsFile, board: Any
    ) -> None:
        self._run, self._echo, self._progress, self._metrics, self._board = run, echo, progress, metrics, board
        recipe = run.recipe
        self._tokens = recipe.batch_size * recipe.accumulation * run.model.config.context_length  # of a step
        self._operations = operations_per_token(run.model)
        self._rate = recipe.optimizer().learning_rate
        self._before = run.step, run.seconds
        self._has_begun, self._peak = False, run.world.size * _peak(recipe.dtype, recipe.precision)

    def steps(self, loss: float, norm: float) -> None:
        """After some steps, whose mean loss was read, and the mean norm of their gradients."""
        run = self._run
        if not self._has_begun:
            self._begin()
        step, seconds = self._before
        self._before = run.step, run.seconds
        rate = (run.step - step) * self._tokens / max(run.seconds - seconds, 1e-9)
        row = {
            "step": run.step,
            "loss": loss,
            "lr": float(self._rate(run.step - 1)),
            **({"grad_norm": norm} if math.isfinite(norm) else {}),
            "tokens_per_second": round(rate, 1),
            "tflops": round(1e-12 * rate * self._operations, 6),
            **({"of_peak": round(1e-9 * rate * self._operations / self._peak, 4)} if self._peak else {}),
            **_memory(),
            "seconds": round(run.seconds, 3),
        }
        self._progress.show(row)
        self._note(row)

    def _begin(self) -> None:
        """The first line of a process: what computes, and with what."""
        backend = get_backend()
        ranks = self._run.world.size
        row = {"step": self._before[0], "backend": backend.name, "hardware": backend.hardware}
        row |= {"ranks": ranks} if ranks > 1 else {}
        row |= {"peak_gflops": round(self._peak, 1)} if self._peak else {}
        self._metrics.write(row | {"polyarr": __version__, "python": platform.python_version(), "time": _now()})
        self._has_begun = True

    def evaluation(self, value: float) -> None:
        """After an evaluation, before what it was of is saved."""
        run = self._run
        self._note({"step": run.step, "val_loss": value, "seconds": round(run.seconds, 3)})

    def saved(self) -> None:
        """After a checkpoint was saved."""
        self._metrics.saved()

    def tell(self, loss: float, value: float) -> None:
        """A line for people about an evaluation."""
        run = self._run
        self._echo(
            f"step {run.step:>5}/{run.recipe.steps}  train loss {loss:.4f}  val loss {value:.4f}  "
            f"perplexity {perplexity(value):.2f}  {speed(run):,.0f} tokens/s"
        )

    def _note(self, row: Row) -> None:
        self._metrics.write(row | {"time": _now()})
        if self._board:
            for name, value in row.items():
                if name != "step":
                    self._board.add_scalar(name, value, row["step"])


class Unheard:
    """What is reported of a run where another process does it: nothing."""

    def steps(self, loss: float, norm: float) -> None:
        """Nothing."""

    def evaluation(self, value: float) -> None:
        """Nothing."""

    def saved(self) -> None:
        """Nothing."""

    def tell(self, loss: float, value: float) -> None:
        """Nothing."""


def _peak(dtype: str, precision: str) -> float:
    """GFLOP/s that the device reaches at most, as a run computes; 0 where unknown."""
    peaks = get_backend().peaks()
    return peaks.get(products_in(dtype, precision)) or peaks.get("GFLOP/s", 0.0)


def _now() -> float:
    return round(time.time(), 3)


def _memory() -> dict[str, int]:
    """Of the device; without a word where the backend cannot tell."""
    found = get_backend().memory()
    return {name: found[key] for name, key in (("memory", "in use"), ("memory_peak", "peak")) if key in found}


@contextlib.contextmanager
def reporting(
    run: Run, folder: Path, echo: Callable[[str], None], quiet: bool, tensorboard: bool
) -> Iterator[Reports]:
    """Reports of a run into its folder, and to standard error unless it is to be quiet."""
    with MetricsFile(folder, run.id, run.step) as metrics, contextlib.ExitStack() as opened:
        board = None
        if tensorboard:  # what a killed process wrote beyond the run's step is not shown
            writer = extra("tensorboardX", "tensorboard").SummaryWriter
            purged = run.step + 1 if run.step else None
            # A file is named by the second, so that a run that goes on at once would overwrite what it did before.
            board = writer(str(folder / BOARD), purge_step=purged, filename_suffix=f".{run.step:012}")
            opened.callback(board.close)
        progress = progress_of(run.recipe.steps, run.step, quiet)
        opened.callback(progress.close)
        yield Reports(run, silent if quiet else echo, progress, metrics, board)
