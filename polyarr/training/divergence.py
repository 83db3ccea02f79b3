"""Diagnosis of a run that diverged: which layer had the first nan or inf, and what to try."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyarr import creation, ops, random, tree
from polyarr.core.array import Array
from polyarr.core.precision import use_matmul_precision
from polyarr.core.spec import FLOATS
from polyarr.models.decoder import LanguageModel
from polyarr.nn.module import named_modules
from polyarr.optim import loss_scale
from polyarr.training.checkpoint import CheckpointError, load_checkpoint
from polyarr.training.files import newest, path_of
from polyarr.training.ranks import all_gather
from polyarr.training.run import Run, restart, resume
from polyarr.training.steps import gradients, in_compute_dtype, loss_of, step_of


class DivergenceError(RuntimeError):
    """Error for a loss that is nan or inf.

    Args:
        reason: Description of the loss that is not finite.
        done: Number of steps that were done before it.
    """

    def __init__(self, reason: str, done: int) -> None:
        super().__init__(f"training diverged: {reason}")
        self.reason, self.done = reason, done


def explained(error: DivergenceError, run: Run, folder: Path, echo: Callable[[str], None]) -> DivergenceError:
    """Return the error with the first layer that was not finite, advice, and the checkpoint that is saved.

    It takes the run back to that checkpoint and repeats steps from there.
    """
    name, is_back = _go_back(run, folder)
    saved = f"{path_of(folder, name)} is from before, with {run.step:,} steps" if name else "nothing was saved before"
    first = None
    if is_back:
        echo(f"training diverged; looking for the layer: steps {run.step + 1:,} to {error.done + 1:,} once more")
        with contextlib.suppress(KeyboardInterrupt, MemoryError, RuntimeError):  # a failed diagnosis hides no error
            first = _first(run, error.done)
    first = first or "which layer was first could not be found"
    return DivergenceError("; ".join((error.reason, first, _advice(run), saved)), error.done)


def _advice(run: Run) -> str:
    if run.recipe.dtype == "float16":
        return "try --dtype bfloat16, or a lower learning rate (--lr)"
    return "try a lower learning rate (--lr), a longer warm-up (--set warmup=...) or a smaller --set clip=..."


def _go_back(run: Run, folder: Path) -> tuple[str | None, bool]:
    """Take the run to its newest checkpoint or its beginning; return the checkpoint's name, and whether it worked."""
    del run.model  # free the memory of the model and its state, which hold nan
    run.state = {"step": 0}
    name = all_gather(run.world, newest(folder))[0]
    with contextlib.suppress(OSError, CheckpointError):
        saved = load_checkpoint(folder, name, run.world)
        if saved.info["run"] == run.id:
            resume(run, saved)
            return name, True
    if run.is_drawn:
        restart(run)
    return None, run.is_drawn


def _first(run: Run, done: int) -> str | None:
    """Return the first layer with nan or inf in the step after `done` steps, or in the one before that."""
    step = step_of(run.recipe, run.world, wire=run.wire)
    while run.step <= done:
        parts = [creation.asarray(part) for part in run.windows(run.step)]
        if run.step >= done - 1:
            found = all_gather(run.world, _in_activations(run, parts) or _in_gradients(run, parts))
            if first := next(filter(None, found), None):
                return f"the first nan or inf is in {first} of step {run.step + 1:,}"
        _, run.model, run.state, _ = step(run.model, run.state, parts)
    return None


def _in_activations(run: Run, parts: list[Array]) -> str | None:
    """Return the first layer, in the order of calls, whose result is not finite; of nested layers the innermost."""
    found: list[str] = []
    model = _with_checks(in_compute_dtype(run.recipe, run.model), found.append)
    with random.restored(random.get_state()), use_matmul_precision(run.recipe.precision):
        is_finite = all(_are_finite(loss_of(model, part)) for part in parts)
    return f"the output of {found[0]}" if found else None if is_finite else "the head's logits or their loss"


def _in_gradients(run: Run, parts: list[Array]) -> str | None:
    """Return the parameter nearest to the loss whose gradient is not finite."""
    scale = loss_scale(run.state) if "loss_scale" in run.state else None
    if scale is not None and float(scale) >= 1:  # an overflow only skips the step and lowers the loss scale
        return None
    with random.restored(random.get_state()):
        _, grads = gradients(run.recipe, run.model, parts, scale)
    wrong = [name for name, g in tree.by_name(grads).items() if not _are_finite(g)]
    return f"the gradient of {wrong[-1]}" if wrong else None


def _with_checks(model: LanguageModel, report: Callable[[str], None]) -> LanguageModel:
    """Return a copy of the model in which each layer reports its path if its result is not finite."""
    model = model.copy()
    _, *layers = named_modules(model)
    for path, layer in layers:
        kind = type(layer)
        layer.__class__ = type(kind.__name__, (kind,), {"__call__": _checked(kind.__call__, path, report)})
    return model


def _checked(called: Callable, path: str, report: Callable[[str], None]) -> Callable:
    def checked(*args: Any, **kwargs: Any) -> Any:
        found = called(*args, **kwargs)
        if not _are_finite(found):
            report(path)
        return found

    return checked


def _are_finite(found: Any) -> bool:
    leaves = (leaf for leaf in tree.leaves(found) if type(leaf) is Array and leaf.dtype in FLOATS)
    return all(bool(ops.all(ops.isfinite(leaf))) for leaf in leaves)
