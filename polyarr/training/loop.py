"""The training loop. It reads the loss now and then, and nothing else, so that the device is never kept waiting."""

import contextlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from polyarr import creation, ops
from polyarr.capture.compile import compile
from polyarr.core.array import Array
from polyarr.core.precision import use_matmul_precision
from polyarr.distributed import World
from polyarr.models.decoder import LanguageModel
from polyarr.optim import loss_scale
from polyarr.saving import alone_in, share
from polyarr.training.checkpoint import NotFiniteError, check, remove_ahead, remove_old, save_checkpoint
from polyarr.training.data import prefetched
from polyarr.training.divergence import DivergenceError, explained
from polyarr.training.files import BEST, CURVE, LAST, name_at, path_of, remove_left_overs
from polyarr.training.interruption import interruption
from polyarr.training.metrics import numbers, read_metrics
from polyarr.training.plot import save_curves
from polyarr.training.profiled import profiled_steps
from polyarr.training.progress import echo as above_the_bar
from polyarr.training.progress import silent
from polyarr.training.ranks import largest, once, shared
from polyarr.training.reporting import Reports, Unheard, reporting
from polyarr.training.run import Run, checkpoint_of
from polyarr.training.steps import Step, evaluate, step_of, summed_loss

READ_EVERY = 10  # steps between two reads of the loss


class _Due:
    """Whether something is to be done again: after every so many steps, or so many minutes after it was last done.

    On all ranks at once: when the time has come for one.
    """

    def __init__(self, steps: int | None, minutes: float | None, world: World) -> None:
        self.steps, self.seconds, self.world = steps, None if minutes is None else 60 * minutes, world
        self.done()

    def done(self) -> None:
        self.last = time.monotonic()

    def is_due(self, step: int) -> bool:
        by_time = self.seconds is not None and largest(self.world, time.monotonic() - self.last >= self.seconds)
        return bool(by_time) or (self.steps is not None and step % self.steps == 0)


def train(
    run: Run,
    folder: Path,
    echo: Callable[[str], None] | None = None,
    profile: Path | None = None,
    compiled: bool = True,
    quiet: bool = False,
    tensorboard: bool = False,
) -> Run:
    """Train to the recipe's last step, to the end of its patience, or to Ctrl-C or SIGTERM.

    Saves "best" and "last" checkpoints, those that the recipe keeps beside them, and loss.png.

    Every tenth step is a line of metrics.jsonl, which read_metrics reads, and so is an evaluation.

    profile   a file for the trace of a few steps, of which a table is printed, too. Those are not captured, so that the
              table can tell whose gradient took the time
    compiled  capture a step and an evaluation once each, and run what was captured: the same bits, sooner. The arrays
              of the run's model and state are given away then
    quiet     show no progress, and no evaluations
    tensorboard  write event files, too, into the folder's "tensorboard"

    Errors:  DivergenceError if the loss is not finite, with the layer that was first; OSError if the folder cannot be
             written to, or another training writes to it
    """
    tell = silent if run.world.rank else echo or above_the_bar
    with contextlib.ExitStack() as held:
        once(run.world, lambda: _enter(run, folder, held))
        profiled = profiled_steps(None if run.world.rank else profile, run.recipe.steps - run.step, tell)
        try:
            with contextlib.ExitStack() as reported:
                opened = reporting(run, folder, tell, quiet, tensorboard)
                reports = once(run.world, lambda: reported.enter_context(opened)) or Unheard()
                _train(run, folder, reports, profiled, compiled)
        except DivergenceError as error:
            with run.world.alone():
                raise explained(error, run, folder, silent if quiet else tell) from None
        once(run.world, lambda: _finish(run, folder))
    return run


def _enter(run: Run, folder: Path, held: contextlib.ExitStack) -> None:
    check(checkpoint_of(run, None))  # now, rather than at the first evaluation
    held.enter_context(alone_in(folder, "training"))
    remove_left_overs(folder)


def _finish(run: Run, folder: Path) -> None:
    remove_old(folder, run.recipe.keep)  # also those of a process that was killed when it had saved its last
    validation = [(row["step"], row["val"]) for row in run.history]
    rates = numbers(read_metrics(folder, run.id), "lr")
    title = f"{run.preset}: {run.step:,} steps"
    save_curves(folder / CURVE, run.curve, validation, rates, title, run.tokenizer.unit)


def _train(
    run: Run, folder: Path, reports: Reports | Unheard, profiled: AbstractContextManager, compiled: bool
) -> None:
    recipe, world = run.recipe, run.world
    plain, loss_in_all = step_of(recipe, world, wire=run.wire), summed_loss
    step = plain
    if compiled:
        step, loss_in_all = step_of(recipe, world, compile, run.wire), compile(loss_in_all)
    evaluating = _Due(recipe.eval_every, recipe.eval_minutes, world)
    saving = _Due(recipe.save_every, recipe.save_minutes, world)
    ahead = prefetched(run.windows, run.step)
    with interruption() as interrupted, profiled as before_step, ahead as windows, contextlib.ExitStack() as compiling:
        compiling.enter_context(world.alone())  # one rank may find compiled what another has to compile
        unread: list[tuple[Array, Array]] = []
        started = time.perf_counter()
        while run.step < recipe.steps and not run.is_stale and not (stopped := largest(world, interrupted())):
            unread.append(_one_step(run, plain if before_step() else step, windows()))
            compiling.close()
            evaluates = evaluating.is_due(run.step) or run.step == recipe.steps
            saves = evaluates or saving.is_due(run.step)
            if saves or run.step % READ_EVERY == 0:
                (mean, norm), unread = _read(unread, run), []
                run.seconds, started = run.seconds + time.perf_counter() - started, time.perf_counter()
                run.curve.append((run.step, mean))
                reports.steps(mean, norm)
            if evaluates:
                _evaluate_and_save(run, mean, folder, reports, loss_in_all)
                evaluating.done()
            elif saves:
                _save_as_it_is(run, folder, reports)
            if saves:
                saving.done()
                started = time.perf_counter()
        is_over = run.step == recipe.steps or run.is_stale
        if not is_over:
            run.stopped_by = stopped
            _read(unread, run)
            run.seconds += time.perf_counter() - started
        if not is_over or not largest(world, world.rank == 0 and path_of(folder, LAST).exists()):
            _save_as_it_is(run, folder, reports)


def _one_step(run: Run, step: Step, windows: list[np.ndarray]) -> tuple[Array, Array]:
    """One step of the optimiser; its loss and the gradients' norm, unread."""
    loss, run.model, run.state, norm = step(run.model, run.state, [creation.asarray(part) for part in windows])
    return loss, norm


def _read(unread: list[tuple[Array, Array]], run: Run) -> tuple[float, float]:
    """The means of losses and of norms; waits for the device."""
    if not unread:
        return math.nan, math.nan
    stacked = ops.stack([ops.stack(column) for column in zip(*unread, strict=True)])  # (2, steps)
    loss, norm = ops.mean(stacked, axis=1).numpy().tolist()
    if not math.isfinite(loss):
        values = stacked.numpy()[0]
        first = int(np.argmin(np.isfinite(values)))
        done = run.step - len(unread) + first
        raise DivergenceError(f"the loss is {values[first]} at step {done + 1:,}", done)
    if float(loss_scale(run.state)) < 1:
        raise DivergenceError(f"gradients overflow float16 by step {run.step:,}", run.step)
    return loss, norm


def _evaluate_and_save(
    run: Run,
    loss: float,
    folder: Path,
    reports: Reports | Unheard,
    loss_in_all: Callable[[LanguageModel, Array], Array] = summed_loss,
) -> None:
    recipe = run.recipe
    with use_matmul_precision(recipe.precision), run.world.alone():
        model = run.model.astype(recipe.dtype)
        _, windows = shared(recipe, run.world.size)
        value = evaluate(model, run.validation, 4 * windows, recipe.eval_windows, loss_in_all, run.world)
    if not math.isfinite(value):
        raise DivergenceError(f"the validation loss is {value} after step {run.step:,}", run.step)
    is_best = value < run.best
    run.history.append({"step": run.step, "train": loss, "val": value, "seconds": run.seconds})
    reports.evaluation(value)
    _save(run, value, folder, is_best, reports)
    reports.tell(loss, value)


def _save_as_it_is(run: Run, folder: Path, reports: Reports | Unheard) -> None:
    _save(run, run.history[-1]["val"] if run.history else None, folder, not run.history, reports)


def _save(run: Run, val_loss: float | None, folder: Path, is_best: bool, reports: Reports | Unheard) -> None:
    """Save "last", and "best" before it: whoever goes on from the last before comes to the same best again."""
    try:
        once(run.world, lambda: _write(run, val_loss, folder, is_best))
    except NotFiniteError as error:
        raise DivergenceError(f"{error} after step {run.step:,}", run.step) from None
    reports.saved()


def _write(run: Run, val_loss: float | None, folder: Path, is_best: bool) -> None:
    saved, keep = checkpoint_of(run, val_loss), run.recipe.keep
    if is_best or not path_of(folder, BEST).exists():
        save_checkpoint(folder, BEST, saved)
    save_checkpoint(folder, LAST if keep == 1 else name_at(run.step), saved)
    if keep > 1:
        share(path_of(folder, name_at(run.step)), path_of(folder, LAST))
    remove_ahead(folder, run.step)
    remove_old(folder, keep)
    if len(run.history) <= 1:
        (folder / CURVE).unlink(missing_ok=True)  # of a run that this one replaces
