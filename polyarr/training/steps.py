"""One training step and one evaluation, as functions that can be compiled."""

from collections.abc import Callable
from itertools import islice
from typing import Any

from polyarr import creation, ops, tree
from polyarr.autograd import value_and_grad
from polyarr.core.array import Array
from polyarr.core.precision import use_matmul_precision
from polyarr.core.spec import float32
from polyarr.distributed import World
from polyarr.models.decoder import LanguageModel
from polyarr.optim import accumulate, loss_scale
from polyarr.text.tokens import IGNORED, Tokens
from polyarr.training.data import evaluation_windows, predicted
from polyarr.training.ranks import ALONE, all_gather
from polyarr.training.recipes import Recipe

State = dict[str, Any]
Step = Callable[[LanguageModel, State, list[Array]], tuple[Array, LanguageModel, State, Array]]
_DONATED = ("model", "state", "grads")  # arguments that a compiled step may overwrite: the run replaces them


def _as_it_is(function: Callable, **_: Any) -> Callable:
    return function


def step_of(
    recipe: Recipe, world: World = ALONE, capture: Callable[..., Callable] = _as_it_is, wire: str | None = None
) -> Step:
    """Return a training step of a recipe: (model, state, windows of each part) -> (loss, model, state, norm).

    The norm is that of all gradients before clipping; it is not finite if float16 gradients overflow.

    Args:
        recipe: The recipe.
        world: The processes whose gradients are averaged.
        capture: polyarr.compile, for a compiled step. With several processes, two functions are compiled: the part
            before gradients are reduced, and the part after.
        wire: Dtype in which processes exchange gradients, "bfloat16"; None: that of the parameters.
    """
    optimizer = recipe.new_optimizer()

    def graded(model: LanguageModel, state: State, batches: list[Array]) -> tuple[Array, LanguageModel]:
        scale = loss_scale(state) if optimizer.loss_scale else None
        loss, grads = gradients(recipe, model, batches, scale, None if is_alone else wire)
        return loss if scale is None else loss / scale, grads

    def updated(model: LanguageModel, state: State, grads: LanguageModel) -> tuple[LanguageModel, State, Array]:
        norm = ops.global_norm(tree.leaves(grads))
        shown = norm / loss_scale(state) if optimizer.loss_scale else norm
        return *optimizer.update(grads, state, model, norm), shown

    is_alone = world.size == 1
    before, after = (graded, updated) if is_alone else (capture(graded), capture(updated, donate=_DONATED))

    def step(model: LanguageModel, state: State, batches: list[Array]) -> tuple[Array, LanguageModel, State, Array]:
        found = before(model, state, batches)
        loss, grads = found if is_alone else world.mean(found)
        model, state, norm = after(model, state, grads)
        return loss, model, state, norm

    return capture(step, donate=_DONATED[:2]) if is_alone else step


def gradients(
    recipe: Recipe,
    model: LanguageModel,
    batches: list[Array],
    scale: Array | float | None = None,
    wire: str | None = None,
) -> tuple[Array, LanguageModel]:
    """Return the mean loss of batches and its gradient, both multiplied by `scale`; `wire` is the gradient's dtype.

    Batches of Records count by their learned tokens, as if they were one batch.
    """

    def scaled(model: LanguageModel, windows: Array, share: Array | None = None) -> Array:
        loss = loss_of(model, windows)
        for factor in (scale, share):
            loss = loss if factor is None else loss * factor
        return loss

    with use_matmul_precision(recipe.precision):
        if wire == recipe.dtype and len(batches) == 1:  # without accumulation, float32 gradients are not needed
            return value_and_grad(scaled)(in_compute_dtype(recipe, model), *batches)
        batched = [*zip(batches, _shares(batches), strict=True)]
        loss, grads = accumulate(lambda m, *batch: scaled(in_compute_dtype(recipe, m), *batch), model, batched)
        return loss, grads if wire is None else grads.astype(wire)


def _shares(batches: list[Array]) -> list[Array | None]:
    """Return by how much the mean loss of each batch counts, 1 on average; None for 1."""
    if len(batches) == 1 or len(batches[0].shape) == 2:
        return [None] * len(batches)
    counts = [ops.sum(ops.astype(batch[:, 1] != IGNORED, dtype=float32)) for batch in batches]
    total = sum(counts[1:], start=counts[0])
    return [count * len(batches) / total for count in counts]


def in_compute_dtype(recipe: Recipe, model: LanguageModel) -> LanguageModel:
    """Return the model in the recipe's dtype, with gradient checkpointing if the recipe has it."""
    model = model.astype(recipe.dtype)  # a new Module, whose attribute may be set
    model.recompute = recipe.recompute
    return model


def loss_of(model: LanguageModel, windows: Array, reduction: str = "mean") -> Array:
    """Return the cross-entropy of predicting each token of windows (B, T + 1) from those before it.

    Windows of Records are inputs and targets (B, 2, T), or with where their records begin (B, 3, T), and the mean is
    over the targets that are learned.
    """
    if len(windows.shape) == 3:
        starts = windows[:, 2] if windows.shape[1] == 3 else None
        return model.loss(windows[:, 0], windows[:, 1], reduction=reduction, padding=starts)
    return model.loss(windows[:, :-1], windows[:, 1:], reduction=reduction)


def summed_loss(model: LanguageModel, windows: Array) -> Array:
    """Return the sum of the losses of all tokens."""
    return loss_of(model, windows, reduction="sum")


def evaluation_loss(
    model: LanguageModel,
    tokens: Tokens,
    batch_size: int,
    limit: int | None = None,
    length: int | None = None,
    loss_in_all: Callable[[LanguageModel, Array], Array] = summed_loss,
    world: World = ALONE,
) -> float:
    """Return the mean loss of a model on a text, without dropout.

    Args:
        model: The model.
        tokens: The text's tokens, as an array or a TokenFile; of Records, only learned tokens count.
        batch_size: Number of windows per batch.
        limit: Number of windows; None: all of the text.
        length: Number of tokens per window; None: the model's context_length.
        loss_in_all: Function from a model and windows (B, T + 1) to the sum of their losses; it may be compiled.
        world: The processes that share the windows, and all get the mean.

    Examples:
        >>> import numpy as np
        >>> from polyarr.models import GPTModel
        >>> from polyarr.training import evaluation_loss
        >>> sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> model = GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False})
        >>> round(evaluation_loss(model, np.arange(11), batch_size=2), 0)  # about log(11)
        2.0
    """
    model, total, count = model.copy().eval(), None, 0
    batches = evaluation_windows(tokens, length or model.config.context_length, batch_size, limit)
    for windows in islice(batches, world.rank, None, world.size):
        part = loss_in_all(model, creation.asarray(windows))
        total = part if total is None else total + part
        count += predicted(windows)
    parts = all_gather(world, [float(0.0 if total is None else total), count])
    return sum(part for part, _ in parts) / sum(size for _, size in parts)
