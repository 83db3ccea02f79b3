"""One step of training, and one evaluation, as functions that can be captured."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np

from polyarr import creation, ops, tree
from polyarr.autograd import value_and_grad
from polyarr.core.array import Array
from polyarr.core.precision import use_matmul_precision
from polyarr.distributed import World
from polyarr.models.decoder import LanguageModel
from polyarr.optim import accumulate, loss_scale
from polyarr.training.data import evaluation_windows
from polyarr.training.ranks import ALONE, told
from polyarr.training.recipes import Recipe

State = dict[str, Any]
Step = Callable[[LanguageModel, State, list[Array]], tuple[Array, LanguageModel, State, Array]]
_GIVEN_AWAY = ("model", "state", "grads")  # a captured step may write over what it is given, which the run is done with


def _as_it_is(function: Callable, **_: Any) -> Callable:
    return function


def step_of(
    recipe: Recipe, world: World = ALONE, capture: Callable[..., Callable] = _as_it_is, wire: str | None = None
) -> Step:
    """A step of the recipe's optimiser: (model, state, windows for each part) -> loss, model, state, norm.

    norm     that of all gradients together, before they are clipped; of float16's that overflow it is not finite
    world    the processes whose gradients are averaged
    capture  polyarr.compile, for a step that is captured: all of it or, where gradients leave the device for others',
             what is before that and what is after it
    wire     the dtype in which gradients go to the other processes, "bfloat16"; None: that of the parameters
    """
    optimizer = recipe.optimizer()

    def graded(model: LanguageModel, state: State, batches: list[Array]) -> tuple[Array, LanguageModel]:
        scale = loss_scale(state) if optimizer.loss_scale else None
        loss, grads = gradients(recipe, model, batches, scale, None if is_alone else wire)
        return loss if scale is None else loss / scale, grads

    def updated(model: LanguageModel, state: State, grads: LanguageModel) -> tuple[LanguageModel, State, Array]:
        norm = ops.global_norm(tree.leaves(grads))
        shown = norm / loss_scale(state) if optimizer.loss_scale else norm
        return *optimizer.update(grads, state, model, norm), shown

    is_alone = world.size == 1
    before, after = (graded, updated) if is_alone else (capture(graded), capture(updated, donate=_GIVEN_AWAY))
    mean = _as_it_is if is_alone else world.mean

    def step(model: LanguageModel, state: State, batches: list[Array]) -> tuple[Array, LanguageModel, State, Array]:
        loss, grads = mean(before(model, state, batches))
        return loss, *after(model, state, grads)

    return capture(step, donate=_GIVEN_AWAY[:2]) if is_alone else step


def gradients(
    recipe: Recipe, model: LanguageModel, batches: list[Array], scale: Array | None = None, wire: str | None = None
) -> tuple[Array, LanguageModel]:
    """The mean loss of batches and its gradient, as the recipe computes them; both times a scale.

    wire  the dtype of the gradient, if it is not that of the parameters
    """

    def scaled(model: LanguageModel, windows: Array) -> Array:
        loss = loss_of(model, windows)
        return loss if scale is None else loss * scale

    with use_matmul_precision(recipe.precision):
        if wire == recipe.dtype and len(batches) == 1:  # it need not become wide first
            return value_and_grad(scaled)(as_computed(recipe, model), *batches)
        batched = [(windows,) for windows in batches]
        loss, grads = accumulate(lambda m, windows: scaled(as_computed(recipe, m), windows), model, batched)
        return loss, grads if wire is None else grads.astype(wire)


def as_computed(recipe: Recipe, model: LanguageModel) -> LanguageModel:
    """The model in the dtype, and with the memory, that the recipe computes with."""
    model = model.astype(recipe.dtype)  # another Module, which may be switched
    model.recompute = recipe.recompute
    return model


def loss_of(model: LanguageModel, windows: Array, reduction: str = "mean") -> Array:
    """The cross-entropy of predicting each token of (B, T + 1) windows from those before it."""
    return model.loss(windows[:, :-1], windows[:, 1:], reduction=reduction)


def summed_loss(model: LanguageModel, windows: Array) -> Array:
    """The sum of the losses of all tokens."""
    return loss_of(model, windows, reduction="sum")


def evaluate(
    model: LanguageModel,
    tokens: np.ndarray,
    batch_size: int,
    limit: int | None = None,
    loss_in_all: Callable[[LanguageModel, Array], Array] = summed_loss,
    world: World = ALONE,
) -> float:
    """The mean loss over windows of a text: all of it, or `limit` windows. Without dropout.

    loss_in_all  summed_loss, or that compiled
    world        the processes that share the windows, and all get the mean
    """
    model, total, count = model.copy().eval(), None, 0
    batches = evaluation_windows(tokens, model.config.context_length, batch_size, limit)
    for windows in islice(batches, world.rank, None, world.size):
        part = loss_in_all(model, creation.asarray(windows))
        total = part if total is None else total + part
        count += windows[:, 1:].size
    parts = told(world, [float(0.0 if total is None else total), count])
    return sum(part for part, _ in parts) / sum(size for _, size in parts)
