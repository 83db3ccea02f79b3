"""Reports of a run while it trains: progress for people, metrics.jsonl and TensorBoard.

Reports use only numbers that are on the host already, and read nothing from the device.
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
from polyarr.training.flops import flops_per_token
from polyarr.training.metrics import MetricsFile, Row
from polyarr.training.progress import Bar, Lines, progress_of, silent
from polyarr.training.run import Run, perplexity, speed
from polyarr.version import __version__


class Reports:
    """Reports of one run."""

    def __init__(
        self, run: Run, echo: Callable[[str], None], progress: Bar | Lines | None, metrics: MetricsFile, board: Any
    ) -> None:
        self._run, self._echo, self._progress, self._metrics, self._board = run, echo, progress, metrics, board
        recipe = run.recipe
        self._tokens = recipe.batch_size * recipe.accumulation * recipe.length  # per step
        self._flops = flops_per_token(run.model, recipe.length)
        self._rate = recipe.new_optimizer().learning_rate
        self._before = run.step, run.seconds
        self._has_begun, self._peak = False, run.world.size * _peak(recipe.dtype, recipe.precision)

    def steps(self, loss: float, norm: float) -> None:
        """Report steps whose mean loss was read, and the mean norm of their gradients."""
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
            "tflops": round(1e-12 * rate * self._flops, 6),
            **({"of_peak": round(1e-9 * rate * self._flops / self._peak, 4)} if self._peak else {}),
            **_memory(),
            "seconds": round(run.seconds, 3),
        }
        if self._progress:
            self._progress.show(row)
        self._note(row)

    def _begin(self) -> None:
        """Write the first line of a process: the backend, the hardware and versions."""
        backend = get_backend()
        ranks = self._run.world.size
        row = {"step": self._before[0], "backend": backend.name, "hardware": backend.hardware}
        row |= {"ranks": ranks} if ranks > 1 else {}
        row |= {"peak_gflops": round(self._peak, 1)} if self._peak else {}
        self._metrics.write(row | {"polyarr": __version__, "python": platform.python_version(), "time": _now()})
        self._has_begun = True

    def evaluation(self, value: float) -> None:
        """Report an evaluation, before its checkpoint is saved."""
        run = self._run
        self._note({"step": run.step, "val_loss": value, "seconds": round(run.seconds, 3)})

    def saved(self) -> None:
        """Note that a checkpoint was saved."""
        self._metrics.saved()

    def progress(self, loss: float, value: float) -> None:
        """Print a line about an evaluation."""
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


def _peak(dtype: str, precision: str) -> float:
    """Return the peak GFLOP/s of the device for a run's dtype and precision; 0 if it is unknown."""
    peaks = get_backend().peaks()
    return peaks.get(products_in(dtype, precision)) or peaks.get("GFLOP/s", 0.0)


def _now() -> float:
    return round(time.time(), 3)


def _memory() -> dict[str, int]:
    """Return the memory of the device in use and its peak, as far as the backend knows them."""
    found = get_backend().memory()
    return {name: found[key] for name, key in (("memory", "in use"), ("memory_peak", "peak")) if key in found}


@contextlib.contextmanager
def reporting(
    run: Run, folder: Path, echo: Callable[[str], None], quiet: bool, tensorboard: bool
) -> Iterator[Reports]:
    """Open the Reports of a run, which write into its folder, and to standard error unless `quiet`."""
    with MetricsFile(folder, run.id, run.step) as metrics, contextlib.ExitStack() as opened:
        board = None
        if tensorboard:  # purge_step hides events of a killed process beyond the step it saved
            writer = extra("tensorboardX", "tensorboard").SummaryWriter
            purged = run.step + 1 if run.step else None
            # Files are named by the second; the suffix keeps a run that is resumed at once from overwriting its own.
            board = writer(str(folder / BOARD), purge_step=purged, filename_suffix=f".{run.step:012}")
            opened.callback(board.close)
        progress = None if quiet else progress_of(run.recipe.steps, run.step)
        if progress:
            opened.callback(progress.close)
        yield Reports(run, silent if quiet else echo, progress, metrics, board)
