"""One step of training, and one evaluation, as functions that can be captured."""

from collections.abc import Callable
from typing import Any

import numpy as np

from polyarr import creation
from polyarr.core.array import Array
from polyarr.core.precision import use_matmul_precision
from polyarr.models.decoder import LanguageModel
from polyarr.optim import accumulate, loss_scale
from polyarr.training.data import evaluation_windows
from polyarr.training.recipes import Recipe

Step = Callable[[LanguageModel, dict[str, Any], list[Array]], tuple[Array, LanguageModel, dict[str, Any]]]


def step_of(recipe: Recipe) -> Step:
    """A step of the recipe's optimiser as a function: (model, state, windows for each part) -> loss, model, state."""
    optimizer = recipe.optimizer()

    def step(
        model: LanguageModel, state: dict[str, Any], batches: list[Array]
    ) -> tuple[Array, LanguageModel, dict[str, Any]]:
        scale = loss_scale(state) if optimizer.loss_scale else None
        loss, grads = gradients(recipe, model, batches, scale)
        return loss if scale is None else loss / scale, *optimizer.update(grads, state, model)

    return step


def gradients(
    recipe: Recipe, model: LanguageModel, batches: list[Array], scale: Array | None = None
) -> tuple[Array, LanguageModel]:
    """The mean loss of batches and its gradient, as the recipe computes them; both times a scale."""

    def computed(model: LanguageModel, windows: Array) -> Array:
        loss = loss_of(as_computed(recipe, model), windows)
        return loss if scale is None else loss * scale

    with use_matmul_precision(recipe.precision):
        return accumulate(computed, model, [(windows,) for windows in batches])


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
