"""The training loop. It reads the loss now and then, and nothing else, so that the device is never kept waiting."""

import contextlib
import math
import platform
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polyarr import creation, ops, random
from polyarr.capture.compile import compile
from polyarr.core.array import Array
from polyarr.core.precision import use_matmul_precision
from polyarr.extras import extra
from polyarr.models.decoder import LanguageModel
from polyarr.models.families import new_model
from polyarr.optim import accumulate, loss_scale
from polyarr.saving import alone_in
from polyarr.text import Corpus, Tokenizer
from polyarr.training.checkpoint import Checkpoint, check, path_of, save_checkpoint
from polyarr.training.data import evaluation_windows, prefetched, shuffled_windows
from polyarr.training.files import CURVE, remove_left_overs
from polyarr.training.plot import save_curve
from polyarr.training.profiled import profiled_steps
from polyarr.training.recipes import Recipe
from polyarr.version import __version__

Step = Callable[[LanguageModel, dict[str, Any], list[Array]], tuple[Array, LanguageModel, dict[str, Any]]]
READ_EVERY = 10  # steps between two reads of the loss


class DivergenceError(RuntimeError):
    """The loss is no longer a number."""


@dataclass
class Run:
    """A training run: what it is made of, and how far it has come."""

    recipe: Recipe
    tokenizer: Tokenizer
    tokens: np.ndarray
    validation: np.ndarray
    seed: int
    model: LanguageModel
    state: dict[str, Any]
    preset: str = "GPT"
    data: str | None = None  # the path of the text, or of the prepared tokens
    text: str = ""  # the digest of its corpus
    id: str = field(default_factory=lambda: uuid.uuid4().hex)  # tells the checkpoints of two runs apart
    history: list[dict] = field(default_factory=list)  # one row per evaluation
    curve: list[tuple] = field(default_factory=list)  # (step, mean training loss since the row before)
    best: float = math.inf
    seconds: float = 0.0  # spent on steps, without evaluations
    stopped_by: int = 0  # the signal

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self.state["step"]

    def windows(self, step: int) -> list[np.ndarray]:
        """What a step learns from: (B, T + 1) for each part of it.

        Errors:  ValueError for tokens that the tokenizer does not have
        """
        recipe, length = self.recipe, self.model.config.context_length
        draws = range(step * recipe.accumulation, (step + 1) * recipe.accumulation)
        found = [shuffled_windows(self.tokens, length, recipe.batch_size, self.seed, draw) for draw in draws]
        largest = max(int(part.max()) for part in found)
        if largest >= self.tokenizer.vocab_size:
            raise ValueError(f"{self.data} is damaged: it has a token {largest}; prepare it again")
        return found


def new_run(corpus: Corpus | str, recipe: Recipe, seed: int, preset: str = "GPT", data: str | None = None) -> Run:
    """A run at its beginning, on the current backend, of a corpus or the characters of a text. Seeds polyarr.random.

    preset, data  what its checkpoints say of the recipe's name and the corpus's path
    """
    corpus = Corpus.of_text(corpus) if isinstance(corpus, str) else corpus
    random.seed(seed)
    model = new_model(recipe.config(corpus.tokenizer.vocab_size))
    state = recipe.optimizer().init(model)
    tokens = corpus.tokenizer, corpus.train, corpus.validation
    return Run(recipe, *tokens, seed, model, state, preset, data, corpus.digest)


def resumed_run(corpus: Corpus | str, saved: Checkpoint, recipe: Recipe, data: str | None = None) -> Run:
    """A run that goes on from a checkpoint, with its recipe or a changed one, and the corpus, or the text, at a path.

    With another text than before, "best" begins anew: losses on two texts do not compare.

    Errors:  ValueError if the text has characters that the checkpoint does not know, or the corpus another tokenizer
    """
    corpus = Corpus.of_text(corpus, saved.tokenizer) if isinstance(corpus, str) else corpus
    if corpus.tokenizer.to_dict() != saved.tokenizer.to_dict():
        raise ValueError("resumed_run: the corpus is of another tokenizer; it must be of the one that the run has")
    info = saved.info
    random.set_state(tuple(info["random_state"]))
    named = {"preset": info["preset"], "data": data, "text": corpus.digest, "id": info["run"]}
    state, scaling = dict(saved.state), recipe.optimizer().loss_scale
    if state.keys() == {"step"}:  # of a model that was not trained here yet
        state = recipe.optimizer().init(saved.model)
    before = state.pop("loss_scale", None)  # the recipe's dtype may be another now
    if scaling:
        state["loss_scale"] = before or scaling.init()
    tokens = saved.tokenizer, corpus.train, corpus.validation
    run = Run(recipe, *tokens, info["seed"], saved.model, state, **named)
    run.history, run.curve, run.seconds = info["history"], info["curve"], info["seconds"]
    if run.text == info["text"]:
        run.best = min((row["val"] for row in run.history), default=math.inf)
    return run


def train(
    run: Run,
    folder: Path,
    echo: Callable[[str], None] | None = None,
    profile: Path | None = None,
    compiled: bool = True,
) -> Run:
    """Train to the recipe's last step, or to Ctrl-C or SIGTERM. Saves "best" and "last" checkpoints and loss.png.

    profile   a file for the trace of a few steps, of which a table is printed, too. Those are not captured, so that the
              table can tell whose gradient took the time
    compiled  capture a step and an evaluation once each, and run what was captured: the same bits, sooner. The arrays
              of the run's model and state are given away then

    Errors:  DivergenceError if the loss is not finite; OSError if the folder cannot be written to,
             or another training writes to it
    """
    check(checkpoint_of(run, None))  # now, rather than at the first evaluation
    with alone_in(folder, "training"):
        remove_left_overs(folder)
        _train(run, folder, echo or _echo, profile, compiled)
        validation = [(row["step"], row["val"]) for row in run.history]
        save_curve(folder / CURVE, run.curve, validation, f"{run.preset}: {run.step:,} steps", run.tokenizer.unit)
    return run


def _train(run: Run, folder: Path, echo: Callable[[str], None], profile: Path | None, compiled: bool) -> None:
    recipe = run.recipe
    plain, loss_in_all = step_of(recipe), summed_loss
    step = plain
    if compiled:  # a step may write over what it is given, which the run is done with
        step, loss_in_all = compile(plain, donate=("model", "state")), compile(loss_in_all)
    profiled = profiled_steps(profile, recipe.steps - run.step, echo)
    ahead = prefetched(run.windows, run.step)
    with _interrupt() as interruption, _progress(run) as bar, profiled as before_step, ahead as windows:
        unread: list[Array] = []
        started = time.perf_counter()
        while run.step < recipe.steps and not interruption():
            unread.append(_one_step(run, plain if before_step() else step, windows()))
            is_due = run.step % recipe.eval_every == 0 or run.step == recipe.steps
            if is_due or run.step % READ_EVERY == 0:
                mean, unread = _read(unread, run), []
                run.seconds, started = run.seconds + time.perf_counter() - started, time.perf_counter()
                run.curve.append((run.step, mean))
                _advance(bar, run, mean)
            if is_due:
                _evaluate_and_save(run, mean, folder, echo, loss_in_all)
                started = time.perf_counter()
        if run.step < recipe.steps:
            run.stopped_by = interruption()
            _read(unread, run)
            run.seconds += time.perf_counter() - started
        if run.step < recipe.steps or not path_of(folder, "last").exists():
            _save_as_it_is(run, folder)


def _one_step(run: Run, step: Step, windows: list[np.ndarray]) -> Array:
    """One step of the optimiser; its loss, unread."""
    loss, run.model, run.state = step(run.model, run.state, [creation.asarray(part) for part in windows])
    return loss


def step_of(recipe: Recipe) -> Step:
    """A step of the recipe's optimiser as a function: (model, state, windows for each part) -> loss, model, state."""
    optimizer = recipe.optimizer()

    def step(
        model: LanguageModel, state: dict[str, Any], batches: list[Array]
    ) -> tuple[Array, LanguageModel, dict[str, Any]]:
        scale = loss_scale(state) if optimizer.loss_scale else None

        def computed(model: LanguageModel, windows: Array) -> Array:
            loss = loss_of(model.astype(recipe.dtype), windows)
            return loss if scale is None else loss * scale

        with use_matmul_precision(recipe.precision):
            loss, grads = accumulate(computed, model, [(windows,) for windows in batches])
        return loss if scale is None else loss / scale, *optimizer.update(grads, state, model)

    return step


def loss_of(model: LanguageModel, windows: Array, reduction: str = "mean") -> Array:
    """The cross-entropy of predicting each token of (B, T + 1) windows from those before it."""
    return model.loss(windows[:, :-1], windows[:, 1:], reduction=reduction)


def summed_loss(model: LanguageModel, windows: Array) -> Array:
    """The sum of the losses of all tokens."""
    return loss_of(model, windows, reduction="sum")


def _read(losses: list[Array], run: Run) -> float:
    """The mean of the losses; waits for the device."""
    if not losses:
        return math.nan
    loss = float(ops.mean(ops.stack(losses)))
    if not math.isfinite(loss):
        raise DivergenceError(
            f"training diverged: the loss is {loss} by step {run.step}; try a lower learning rate (--lr)"
        )
    if float(loss_scale(run.state)) < 1:
        raise DivergenceError(f"training diverged: gradients overflow float16 by step {run.step}; try --dtype bfloat16")
    return loss


def evaluate(
    model: LanguageModel,
    tokens: np.ndarray,
    batch_size: int,
    limit: int | None = None,
    loss_in_all: Callable[[LanguageModel, Array], Array] = summed_loss,
) -> float:
    """The mean loss over windows of a text: all of it, or `limit` windows. Without dropout.

    loss_in_all  summed_loss, or that compiled
    """
    model, total, count = model.copy().eval(), None, 0
    for windows in evaluation_windows(tokens, model.config.context_length, batch_size, limit):
        part = loss_in_all(model, creation.asarray(windows))
        total = part if total is None else total + part
        count += windows[:, 1:].size
    return float(total) / count


def _evaluate_and_save(
    run: Run,
    loss: float,
    folder: Path,
    echo: Callable[[str], None],
    loss_in_all: Callable[[LanguageModel, Array], Array] = summed_loss,
) -> None:
    recipe = run.recipe
    with use_matmul_precision(recipe.precision):
        model = run.model.astype(recipe.dtype)
        value = evaluate(model, run.validation, 4 * recipe.batch_size, recipe.eval_windows, loss_in_all)
    if not math.isfinite(value):
        raise DivergenceError(
            f"training diverged: the validation loss is {value} at step {run.step}; try a lower --lr"
        )
    run.history.append({"step": run.step, "train": loss, "val": value, "seconds": run.seconds})
    is_best = value < run.best
    run.best = min(run.best, value)
    _save(run, value, folder, is_best)
    echo(
        f"step {run.step:>5}/{recipe.steps}  train loss {loss:.4f}  val loss {value:.4f}  "
        f"perplexity {perplexity(value):.2f}  {speed(run):,.0f} tokens/s"
    )


def _save_as_it_is(run: Run, folder: Path) -> None:
    _save(run, run.history[-1]["val"] if run.history else None, folder, is_best=not run.history)


def _save(run: Run, val_loss: float | None, folder: Path, is_best: bool) -> None:
    """Save "last", and "best" before it: whoever goes on from the last before comes to the same best again."""
    for name in ("best", "last") if is_best or not path_of(folder, "best").exists() else ("last",):
        save_checkpoint(folder, name, checkpoint_of(run, val_loss))
    if len(run.history) <= 1:
        (folder / CURVE).unlink(missing_ok=True)  # of a run that this one replaces


def checkpoint_of(run: Run, val_loss: float | None) -> Checkpoint:
    """What is saved of a run."""
    info = {
        "run": run.id,
        "preset": run.preset,
        "data": run.data,
        "text": run.text,
        "recipe": run.recipe.to_dict(),
        "seed": run.seed,
        "step": run.step,
        "val_loss": val_loss,
        "seconds": run.seconds,
        "random_state": random.get_state(),
        "history": run.history,
        "curve": run.curve,
        "versions": {"polyarr": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }
    return Checkpoint(run.model, run.tokenizer, run.state, info)


def perplexity(loss: float) -> float:
    """exp(loss), which is infinite rather than an error for the loss of a run that goes astray."""
    return math.exp(loss) if loss < 700 else math.inf


def speed(run: Run) -> float:
    """Tokens per second, without the time for evaluations."""
    per_step = run.recipe.batch_size * run.recipe.accumulation * run.model.config.context_length
    return run.step * per_step / max(run.seconds, 1e-9)


# ---- progress and interruption -------------------------------------------------------------------------------


def _echo(line: str) -> None:
    """A line above the bar, at once: whoever follows a log waits for it."""
    extra("tqdm").tqdm.write(line)
    sys.stdout.flush()


def _progress(run: Run) -> Any:
    """A bar on a terminal; elsewhere a line now and then."""
    interval, file = 0.2 if sys.stderr.isatty() else 10, _Forgiving(sys.stderr)
    return extra("tqdm").tqdm(
        total=run.recipe.steps, initial=run.step, unit="step", mininterval=interval, file=file
    )


class _Forgiving:
    """A stream for the bar, which must not stop a run because nothing can be written there any more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __eq__(self, other: object) -> bool:
        return other is self._stream  # tqdm.write looks for bars on the terminal

    __hash__ = object.__hash__

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _advance(bar: Any, run: Run, loss: float) -> None:
    bar.set_postfix_str(f"loss {loss:.3f}, {speed(run):,.0f} tokens/s", refresh=False)
    bar.update(run.step - bar.n)


@contextlib.contextmanager
def _interrupt() -> Iterator[Callable[[], int]]:
    """Ctrl-C and SIGTERM ask the loop to stop after the step that it is in; a second one stops at once.

    Gives a function: the signal that came, or 0.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only that one receives signals
        yield lambda: 0
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: Any) -> None:
        came.append(number)
        restore()

    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: came[0] if came else 0
    finally:
        restore()
