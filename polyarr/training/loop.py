"""The training loop. It reads only the loss, and only every few steps, so that the device never waits for the host."""

import contextlib
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from polyarr import creation, ops
from polyarr.atomic import alone_in, share
from polyarr.capture.compile import compile
from polyarr.core.array import Array
from polyarr.core.current import get_backend
from polyarr.core.errors import DeviceMemoryError
from polyarr.core.precision import use_matmul_precision
from polyarr.core.spec import as_dtype
from polyarr.distributed import World
from polyarr.models.decoder import LanguageModel
from polyarr.optim import loss_scale
from polyarr.training.checkpoint import NotFiniteError, check, remove_ahead, remove_old, save_checkpoint, thin_out
from polyarr.training.data import prefetched
from polyarr.training.divergence import DivergenceError, explained
from polyarr.training.files import BEST, CURVE, LAST, PROFILE, check_free, name_at, path_of, remove_left_overs
from polyarr.training.interruption import interruption
from polyarr.training.metrics import numbers, read_metrics
from polyarr.training.plot import save_curves
from polyarr.training.profiled import StepProfile, profiled_steps
from polyarr.training.progress import echo as above_the_bar
from polyarr.training.progress import silent
from polyarr.training.ranks import all_max, on_root, split_step
from polyarr.training.reporting import Reports, reporting
from polyarr.training.run import Run, checkpoint_of
from polyarr.training.steps import Step, evaluation_loss, step_of, summed_loss

READ_EVERY = 10  # steps between reads of the loss


class _Due:
    """Timer for an action that is due after every `steps` steps, or `minutes` after it was last done.

    It is due on all ranks at once, as soon as the time has come on one.
    """

    def __init__(self, steps: int | None, minutes: float | None, world: World) -> None:
        self.steps, self.seconds, self.world = steps, None if minutes is None else 60 * minutes, world
        self.done()

    def done(self) -> None:
        self.last = time.monotonic()

    def is_due(self, step: int) -> bool:
        by_time = self.seconds is not None and all_max(self.world, time.monotonic() - self.last >= self.seconds)
        return bool(by_time) or (self.steps is not None and step % self.steps == 0)


def train(
    run: Run,
    folder: str | os.PathLike[str],
    echo: Callable[[str], None] | None = None,
    profile: Path | None = None,
    compiled: bool = True,
    quiet: bool = False,
    tensorboard: bool = False,
    overwrite: bool = True,
) -> Run:
    """Train until the recipe's last step, until its patience ends, or until Ctrl-C, SIGTERM or SIGHUP.

    The folder gets the checkpoints "best" and "last", those of single steps that the recipe keeps, loss.png, and a line
    of metrics.jsonl for every tenth step and every evaluation, which `read_metrics` reads.

    Args:
        run: The run, from `new_run` or `resumed_run`. It is updated in place.
        folder: Folder of the run, which is created if it does not exist.
        echo: Function that prints a line; None: to standard output, above the progress bar.
        profile: File for a trace of a few steps, which run as all others; their table is printed, and kept in the
            folder for the report of the run. None: no profile.
        compiled: Whether to compile the step and the evaluation, which is faster and gives the same bits. The arrays of
            the run's model and state are donated to the step.
        quiet: Whether to print no progress and no evaluations.
        tensorboard: Whether to also write event files into the folder "tensorboard" of the run's folder.
        overwrite: Whether a new run may replace one in the folder.

    Returns:
        The run.

    Raises:
        DivergenceError: The loss is not finite; the error names the first layer that was not.
        OSError: The folder cannot be written to, another training writes to it, or it holds a run that may not be
            replaced.
    """
    folder, tell = Path(folder), silent if run.world.rank else echo or above_the_bar
    with contextlib.ExitStack() as held:
        on_root(run.world, lambda: _enter(run, folder, held, overwrite))
        file = None if run.world.rank else profile
        profiled = profiled_steps(file, folder, run.recipe.steps - run.step, tell)
        try:
            with contextlib.ExitStack() as reported:
                opened = reporting(run, folder, tell, quiet, tensorboard)
                reports = on_root(run.world, lambda: reported.enter_context(opened))
                _train(run, folder, reports, profiled, compiled)
        except DivergenceError as error:
            with run.world.alone():
                raise explained(error, run, folder, silent if quiet else tell) from None
        on_root(run.world, lambda: _finish(run, folder))
    return run


def _enter(run: Run, folder: Path, held: contextlib.ExitStack, overwrite: bool) -> None:
    check(checkpoint_of(run, None))  # fail before training instead of at the first evaluation
    _check_batch(run)
    folder.mkdir(parents=True, exist_ok=True)
    held.enter_context(alone_in(folder, "training"))
    if not (overwrite or run.step):  # within the lock: another training may have ended just before
        check_free(folder)
    remove_left_overs(folder)
    if not run.step:
        (folder / PROFILE).unlink(missing_ok=True)  # of a run which this one replaces


def _check_batch(run: Run) -> None:
    """Raise DeviceMemoryError if not even the embeddings of a batch fit, which takes long to find out otherwise."""
    recipe, backend = run.recipe, get_backend()
    _, windows = split_step(recipe, run.world.size)
    needed = windows * recipe.length * run.model.config.emb_dim * as_dtype(recipe.dtype).itemsize
    limit = backend.memory().get("limit", needed)
    if needed > limit:
        raise DeviceMemoryError(
            f"the embeddings of a batch of {windows:,} x {recipe.length:,} {run.tokenizer.unit} take {needed:,} bytes; "
            f"device {backend.hardware!r} has {limit:,}; take a smaller batch_size, and more accumulation"
        )


def _finish(run: Run, folder: Path) -> None:
    remove_old(folder, run.recipe.keep)  # a process that was killed right after its last save did not get here
    validation = [(row["step"], row["val"]) for row in run.history]
    rates = numbers(read_metrics(folder, run.id), "lr")
    title = f"{run.preset}: {run.step:,} steps"
    save_curves(folder / CURVE, run.curve, validation, rates, title, run.tokenizer.unit)


def _train(
    run: Run,
    folder: Path,
    reports: Reports | None,
    profiled: AbstractContextManager[StepProfile | None],
    compiled: bool,
) -> None:
    recipe, world = run.recipe, run.world
    step, loss_in_all = step_of(recipe, world, wire=run.wire), summed_loss
    if compiled:
        step, loss_in_all = step_of(recipe, world, compile, run.wire), compile(loss_in_all)
    evaluating = _Due(recipe.eval_every, recipe.eval_minutes, world)
    saving = _Due(recipe.save_every, recipe.save_minutes, world)
    ahead = prefetched(run.windows, run.step)
    with interruption() as interrupted, profiled as steps, ahead as windows, contextlib.ExitStack() as compiling:
        compiling.enter_context(world.alone())  # in the first step one rank may compile kernels that others have cached
        unread: list[tuple[Array, Array]] = []
        started, mean, stopped = time.perf_counter(), math.nan, 0
        while run.step < recipe.steps and not run.is_stale and not (stopped := all_max(world, interrupted())):
            if steps:
                steps.before_step()
            unread.append(_one_step(run, step, windows()))
            compiling.close()
            evaluates = evaluating.is_due(run.step) or run.step == recipe.steps
            saves = evaluates or saving.is_due(run.step)
            if saves or run.step % READ_EVERY == 0:
                mean = _report(run, unread, started, reports)
                unread, started = [], time.perf_counter()
            if saves and steps:
                steps.pause()
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
            if unread:
                _report(run, unread, started, reports)
        if not is_over or not all_max(world, world.rank == 0 and path_of(folder, LAST).exists()):
            _save_as_it_is(run, folder, reports)


def _one_step(run: Run, step: Step, windows: list[np.ndarray]) -> tuple[Array, Array]:
    """Do one step of the optimizer; return its loss and the norm of the gradients, without reading them."""
    loss, run.model, run.state, norm = step(run.model, run.state, [creation.asarray(part) for part in windows])
    return loss, norm


def _report(run: Run, unread: list[tuple[Array, Array]], started: float, reports: Reports | None) -> float:
    """Add steps that began at a time to the run's curve and reports; return their mean loss."""
    mean, norm = _read(unread, run)
    run.seconds += time.perf_counter() - started
    run.curve.append((run.step, mean))
    thin_out(run.curve)
    if reports:
        reports.steps(mean, norm)
    return mean


def _read(unread: list[tuple[Array, Array]], run: Run) -> tuple[float, float]:
    """Return the means of the losses and of the norms; waits for the device."""
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
    reports: Reports | None,
    loss_in_all: Callable[[LanguageModel, Array], Array] = summed_loss,
) -> None:
    recipe = run.recipe
    run.check_unchanged()  # raises before anything is saved
    with use_matmul_precision(recipe.precision), run.world.alone():
        model = run.model.astype(recipe.dtype)
        _, windows = split_step(recipe, run.world.size)
        value = evaluation_loss(
            model, run.validation, 4 * windows, recipe.eval_windows, recipe.length, loss_in_all, run.world
        )
    if not math.isfinite(value):
        raise DivergenceError(f"the validation loss is {value} after step {run.step:,}", run.step)
    is_best = value < run.best
    run.history.append({"step": run.step, "train": loss, "val": value, "seconds": run.seconds})
    thin_out(run.history, lambda row: row["val"] == run.best)
    if reports:
        reports.evaluation(value)
    _save(run, value, folder, is_best, reports)
    if reports:
        reports.progress(loss, value)


def _save_as_it_is(run: Run, folder: Path, reports: Reports | None) -> None:
    run.check_unchanged()
    _save(run, run.history[-1]["val"] if run.history else None, folder, not run.history, reports)


def _save(run: Run, val_loss: float | None, folder: Path, is_best: bool, reports: Reports | None) -> None:
    """Save "best" if it is due, then "last": a run that resumes from the old "last" comes to the same best again."""
    try:
        on_root(run.world, lambda: _write(run, val_loss, folder, is_best))
    except NotFiniteError as error:
        raise DivergenceError(f"{error} after step {run.step:,}", run.step) from None
    if reports:
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
        (folder / CURVE).unlink(missing_ok=True)  # it may be that of a run which this one replaces
