"""A run that diverged: where its first nan or inf came from, and what to do."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from polyarr import creation, ops, random, tree
from polyarr.core.array import Array
from polyarr.core.precision import use_matmul_precision
from polyarr.core.spec import FLOATS
from polyarr.models.decoder import LanguageModel
from polyarr.nn import Module
from polyarr.optim import loss_scale
from polyarr.training.checkpoint import CheckpointError, load_checkpoint
from polyarr.training.files import newest, path_of
from polyarr.training.ranks import told
from polyarr.training.run import Run, begin_again, resume
from polyarr.training.steps import as_computed, gradients, loss_of, step_of


class DivergenceError(RuntimeError):
    """The loss is no longer a number.

    done  how many steps were done when it came out
    """

    def __init__(self, reason: str, done: int) -> None:
        super().__init__(f"training diverged: {reason}")
        self.reason, self.done = reason, done


def explained(error: DivergenceError, run: Run, folder: Path, echo: Callable[[str], None]) -> DivergenceError:
    """The error with the layer that was first, what to try, and what is saved.

    Takes the run back to what is saved, and on from there.
    """
    name, is_back = _go_back(run, folder)
    saved = f"{path_of(folder, name)} is from before, with {run.step:,} steps" if name else "nothing was saved before"
    first = None
    if is_back:
        echo(f"training diverged; looking for the layer: steps {run.step + 1:,} to {error.done + 1:,} once more")
        with contextlib.suppress(KeyboardInterrupt, MemoryError, RuntimeError):  # what is known is said in any case
            first = _first(run, error.done)
    first = first or "which layer was first could not be found"
    return DivergenceError("; ".join((error.reason, first, _advice(run), saved)), error.done)


def _advice(run: Run) -> str:
    if run.recipe.dtype == "float16":
        return "try --dtype bfloat16, or a lower learning rate (--lr)"
    return "try a lower learning rate (--lr), a longer warm-up (--set warmup=...) or a smaller --set clip=..."


def _go_back(run: Run, folder: Path) -> tuple[str | None, bool]:
    """Take the run to its newest checkpoint, or to its beginning: that one's name, and whether it could be done."""
    run.model, run.state = None, {"step": 0}  # they hold nan, and their memory is needed
    name = told(run.world, newest(folder))[0]
    with contextlib.suppress(OSError, CheckpointError):
        saved = load_checkpoint(folder, name, run.world)
        if saved.info["run"] == run.id:
            resume(run, saved)
            return name, True
    if run.is_drawn:
        begin_again(run)
    return None, run.is_drawn


def _first(run: Run, done: int) -> str | None:
    """The first layer with nan or inf in the step after so many ones, or in the one before."""
    step = step_of(run.recipe, run.world, wire=run.wire)
    while run.step <= done:
        parts = [creation.asarray(part) for part in run.windows(run.step)]
        if run.step >= done - 1:
            found = told(run.world, _in_activations(run, parts) or _in_gradients(run, parts))
            if first := next(filter(None, found), None):
                return f"the first nan or inf is in {first} of step {run.step + 1:,}"
        _, run.model, run.state, _ = step(run.model, run.state, parts)
    return None


def _in_activations(run: Run, parts: list[Array]) -> str | None:
    """The first layer, of those that are called, whose result is not finite; the innermost one."""
    found: list[str] = []
    model = _watched(as_computed(run.recipe, run.model), found.append)
    with random.restored(random.get_state()), use_matmul_precision(run.recipe.precision):
        is_finite = all(_are_finite(loss_of(model, part)) for part in parts)
    return f"the output of {found[0]}" if found else None if is_finite else "the head's logits or their loss"


def _in_gradients(run: Run, parts: list[Array]) -> str | None:
    """The parameter nearest to the loss whose gradient is not finite."""
    scale = loss_scale(run.state) if "loss_scale" in run.state else None
    if scale is not None and float(scale) >= 1:  # such a step is left out, and the next one has a smaller scale
        return None
    with random.restored(random.get_state()):
        _, grads = gradients(run.recipe, run.model, parts, scale)
    wrong = [name for name, g in tree.by_name(grads).items() if not _are_finite(g)]
    return f"the gradient of {wrong[-1]}" if wrong else None


def _watched(model: LanguageModel, note: Callable[[str], None]) -> LanguageModel:
    """A copy each of whose layers notes its path when what it computes is not finite."""
    model = model.copy()
    for path, layer in _layers(model):
        kind = type(layer)
        layer.__class__ = type(kind.__name__, (kind,), {"__call__": _noting(kind.__call__, path, note)})
    return model


def _noting(called: Callable, path: str, note: Callable[[str], None]) -> Callable:
    def noted(*args: Any, **kwargs: Any) -> Any:
        found = called(*args, **kwargs)
        if not _are_finite(found):
            note(path)
        return found

    return noted


def _layers(node: Any, path: tuple = ()) -> Iterator[tuple[str, Module]]:
    """Every Module inside of a tree with its path, the inner ones first."""
    for name, child in (tree.children(node) or {}).items():
        yield from _layers(child, (*path, str(name)))
    if path and isinstance(node, Module):
        yield ".".join(path), node


def _are_finite(found: Any) -> bool:
    leaves = (leaf for leaf in tree.leaves(found) if type(leaf) is Array and leaf.dtype in FLOATS)
    return all(bool(ops.all(ops.isfinite(leaf))) for leaf in leaves)
