"""Training runs: their state, their beginning, resuming and saving."""

import math
import platform
import uuid
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyarr import random
from polyarr.core.current import get_backend
from polyarr.core.spec import described, float32
from polyarr.distributed import World
from polyarr.models.decoder import Config, LanguageModel
from polyarr.models.families import new_model, settings_of
from polyarr.nn import shapes_only
from polyarr.nn.quantized import quantized_layers, with_codes
from polyarr.text import Corpus, Tokenizer, same_tokens
from polyarr.text.chat import Part
from polyarr.text.records import shown_record
from polyarr.text.tokens import Records, Tokens
from polyarr.training.checkpoint import Checkpoint
from polyarr.training.data import shuffled_windows
from polyarr.training.ranks import ALONE, split_step
from polyarr.training.recipes import Recipe
from polyarr.version import __version__

_SAMPLE = 1000  # tokens of a record that a checkpoint shows
_MAY_DIFFER = ("context_length", "drop_rate")  # settings that fine-tuning may change


@dataclass
class Run:
    """Training run: its recipe, its data and its state.

    Attributes:
        recipe: The recipe.
        tokenizer: The tokenizer.
        tokens: Tokens for training.
        validation: Tokens for validation.
        seed: Seed of the weights, the shuffling and dropout.
        model: The model.
        state: State of the optimizer.
        preset: Name of the recipe.
        data: Path of the text or of the prepared tokens; None: it is not known.
        text: Digest of the corpus.
        base: Path of the pretrained weights, or None.
        id: Id of the run, by which its checkpoints are recognized.
        history: One row per evaluation.
        curve: Tuples (step, mean training loss since the row before).
        is_drawn: Whether the initial weights were drawn from the seed.
        since: Step at which this text became the run's; losses on different texts do not compare.
        world: The processes that train together.
        wire: Dtype of gradients between processes; None: that of the parameters.
        seconds: Seconds spent on steps, without evaluations.
        stopped_by: Number of the signal that stopped the run, or 0.
    """

    recipe: Recipe
    tokenizer: Tokenizer
    tokens: Tokens
    validation: Tokens
    seed: int
    model: LanguageModel
    state: dict[str, Any]
    preset: str = "GPT"
    data: str | None = None
    text: str = ""
    base: str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    history: list[dict[str, Any]] = field(default_factory=list)
    curve: list[tuple[Any, ...]] = field(default_factory=list)
    is_drawn: bool = True
    since: int = 0
    world: World = ALONE
    wire: str | None = None
    seconds: float = 0.0
    stopped_by: int = 0

    @property
    def step(self) -> int:
        """Number of steps that are done."""
        return self.state["step"]

    @property
    def best(self) -> float:
        """Smallest validation loss."""
        return min(self._losses, default=math.inf)

    @property
    def is_stale(self) -> bool:
        """Return whether as many evaluations as the recipe's patience were no better than the best before them."""
        losses, patience = self._losses, self.recipe.patience
        return patience is not None and bool(losses) and len(losses) - 1 - losses.index(min(losses)) >= patience

    @property
    def _losses(self) -> list[float]:
        return [row["val"] for row in self.history if row["step"] > self.since]

    def windows(self, step: int) -> list[np.ndarray]:
        """Return the windows of this process in a step, int32 as from `shuffled_windows`, for each part of the step.

        Raises:
            ValueError: The file has tokens that the tokenizer lacks, or the processes cannot share the step equally.
        """
        length, (rank, size) = self.recipe.length, (self.world.rank, self.world.size)
        parts, windows = split_step(self.recipe, size)
        draws = ((step * parts + part) * size + rank for part in range(parts))
        found = [shuffled_windows(self.tokens, length, windows, self.seed, draw) for draw in draws]
        largest = max(int((part if part.ndim == 2 else part[:, :2]).max()) for part in found)
        if largest >= self.tokenizer.vocab_size:
            raise ValueError(f"{self.data} is damaged: it has a token {largest}; prepare it again")
        return found

    def check_unchanged(self) -> None:
        """Raise ValueError if the file of the tokens was changed since it was opened."""
        if not isinstance(self.tokens, np.ndarray):
            self.tokens.check_unchanged()  # the validation tokens are in the same file


def new_run(
    corpus: Corpus | str,
    recipe: Recipe,
    seed: int,
    preset: str = "GPT",
    data: str | None = None,
    model: LanguageModel | None = None,
    base: str | None = None,
    world: World = ALONE,
) -> Run:
    """Return a run at its beginning, on the current backend. It seeds polyarr.random.

    Args:
        corpus: A corpus, or a text whose characters become tokens.
        recipe: The recipe.
        seed: Seed of the weights, the shuffling and dropout.
        preset: Name of the recipe, which checkpoints state.
        data: Path of the corpus, which checkpoints state.
        model: A model to fine-tune; `train` may overwrite its arrays. The recipe's context_length may be shorter than
            the model's, with a RuntimeWarning of what is lost, and its drop_rate may differ. None: a new model.
        base: Path of that model, which checkpoints state.
        world: The processes that train together, each with a run like this one. All begin with the first one's arrays,
            and each draws its own dropout.

    Raises:
        TypeError: `corpus` or `recipe` is of another type.
        ValueError: The model's sizes are not the recipe's, the processes cannot share a step equally, or the recipe's
            adapters do not fit the model.

    Examples:
        >>> from polyarr.training import Recipe, new_run
        >>> sizes = {"context_length": 4, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> model = {**sizes, "drop_rate": 0.0, "qkv_bias": False}
        >>> recipe = Recipe(model, batch_size=2, steps=10, lr=1e-3, min_lr=1e-4, warmup=1)
        >>> run = new_run("to be or not to be", recipe, seed=1)
        >>> run.step, run.model.config.vocab_size
        (0, 7)
    """
    corpus = Corpus.of_text(corpus) if isinstance(corpus, str) else corpus
    for name, value, kind in (("corpus", corpus, Corpus), ("recipe", recipe, Recipe)):
        if not isinstance(value, kind):
            raise TypeError(f"new_run: {name} is {described(value)}; it must be a {kind.__name__}")
    corpus = corpus.fitting(recipe.length, recipe.packing)
    split_step(recipe, world.size)
    initial = _initial_state(recipe, recipe.config(corpus.tokenizer.vocab_size), seed, model, world)
    return Run(
        recipe, corpus.tokenizer, corpus.train, corpus.validation, seed, *initial, preset, data, corpus.digest,
        base=base, is_drawn=model is None, world=world,
    )  # fmt: skip


def restart(run: Run) -> None:
    """Take a run back to its beginning; its weights must have been drawn from its seed."""
    config = run.recipe.config(run.tokenizer.vocab_size)
    run.model, run.state = _initial_state(run.recipe, config, run.seed, None, run.world)
    run.history, run.curve, run.seconds = [], [], 0.0


def _initial_state(
    recipe: Recipe, config: Config, seed: int, model: LanguageModel | None, world: World
) -> tuple[LanguageModel, dict[str, Any]]:
    """Return the initial model and optimizer state of a run."""
    random.seed(seed)
    if model is not None and recipe.lora is None and quantized_layers(model):
        raise ValueError("new_run: the model has quantized weights; train adapters beside them (--lora RANK)")
    model = recipe.adapted(new_model(config) if model is None else _reconfigured(model, config, world))
    first: LanguageModel = world.broadcast(model)
    world.split_random()
    return first, recipe.new_optimizer().init(first)


def _reconfigured(model: LanguageModel, config: Config, world: World) -> LanguageModel:
    """Return a model of another configuration with the arrays of a given one."""
    before, after = settings_of(model.config), settings_of(config)
    differing = [name for name, value in before.items() if name not in _MAY_DIFFER and after.get(name) != value]
    if differing:
        wrong = f"its {differing[0]} is {before[differing[0]]!r}, in the recipe {after.get(differing[0])!r}"
        raise ValueError(f"new_run: a model was given, {wrong}; only {' and '.join(_MAY_DIFFER)} may differ")
    if model.config.context_length != config.context_length:
        model = with_shorter_context(model, config.context_length, world)
    codes = {path: (layer.codes, layer.scale) for path, layer in quantized_layers(model).items()}
    with shapes_only():
        new = with_codes(new_model(config), codes)
    return new.load_parameters(model.named_parameters())


def with_shorter_context(model: LanguageModel, length: int, world: World = ALONE) -> LanguageModel:
    """Return the model with a shorter context; a RuntimeWarning of the first process says what is lost.

    Raises:
        ValueError: `length` is not from 1 to the model's own context_length.
    """
    found, own = model.with_context(length), model.config.context_length
    if length < own and not world.rank:
        dropped = model.num_parameters() - found.num_parameters()
        lost = f", and {dropped:,} numbers of its later positions are dropped" if dropped else ""
        text = f"the model's context becomes {length:,} tokens of {own:,}, for good{lost}"
        text += "; `polyarr train --set window=N` trains on shorter texts, and leaves it as it is"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return found


def resumed_run(
    corpus: Corpus | str, saved: Checkpoint, recipe: Recipe, data: str | None = None, world: World = ALONE
) -> Run:
    """Return a run that continues from a checkpoint.

    With another text than before, "best" begins anew, since losses on different texts do not compare. The number of
    processes may differ from before.

    Args:
        corpus: A corpus, or a text, which the checkpoint's tokenizer encodes.
        saved: The checkpoint.
        recipe: The checkpoint's recipe, or a changed one.
        data: Path of the corpus, which checkpoints state.
        world: The processes that train together.

    Raises:
        ValueError: The text has characters that the tokenizer does not know, the corpus has another tokenizer, or the
            processes cannot share a step equally.
    """
    corpus = Corpus.of_text(corpus, saved.tokenizer) if isinstance(corpus, str) else corpus
    if not same_tokens(corpus.tokenizer, saved.tokenizer):
        raise ValueError("resumed_run: the corpus is of another tokenizer; it must be of the one that the run has")
    corpus = corpus.fitting(recipe.length, recipe.packing)
    split_step(recipe, world.size)
    info, own = saved.info, {"data": data, "text": corpus.digest, "is_drawn": False, "world": world}
    named = {"preset": info["preset"], "id": info["run"], "base": info.get("base"), **own}
    tokens = saved.tokenizer, corpus.train, corpus.validation
    run = Run(recipe, *tokens, info["seed"], saved.model, {}, **named)
    resume(run, saved)
    run.since = info.get("since", 0) if run.text == info["text"] else run.step
    return run


def resume(run: Run, saved: Checkpoint) -> None:
    """Take a run to the step at which a checkpoint of it was saved."""
    info, optimizer = saved.info, run.recipe.new_optimizer()
    before = Recipe.from_dict(info["recipe"]).optimizer
    if info["step"] and run.recipe.optimizer != before:
        given = f"resumed_run: the recipe's optimizer is {run.recipe.optimizer!r}"
        raise ValueError(f"{given}; it must stay {before!r}, whose state the checkpoint has")
    random.set_state(tuple(info["random_state"]))
    run.world.split_random()
    model, state = saved.model.astype(float32), dict(saved.state)  # an imported model may be of 16 bits
    if not info["step"]:  # it was not trained yet
        state = optimizer.init(model)
    scale = state.pop("loss_scale", None)  # the recipe's dtype may have changed
    if optimizer.loss_scale:
        state["loss_scale"] = scale or optimizer.loss_scale.init()
    run.model, run.state = model, state
    run.history, run.curve, run.seconds = info["history"], info["curve"], info["seconds"]


def device(world: World = ALONE) -> str:
    """Return the number of ranks, the backend and the hardware as text."""
    backend = get_backend()
    return f"{f'{world.size} x ' * (world.size > 1)}{backend.name} ({backend.hardware})"[:1000]


def checkpoint_of(run: Run, val_loss: float | None) -> Checkpoint:
    """Return the checkpoint of a run as it is now."""
    info = {
        "run": run.id,
        "preset": run.preset,
        "data": run.data,
        "text": run.text,
        "base": run.base,
        "recipe": run.recipe.to_dict(),
        "seed": run.seed,
        "step": run.step,
        "since": run.since,
        "device": device(run.world),
        "val_loss": val_loss,
        "seconds": run.seconds,
        "random_state": random.get_state(),
        "history": run.history,
        "curve": run.curve,
        **({"record": _sample(run.tokens, run)} if isinstance(run.tokens, Records) else {}),
        "versions": {"polyarr": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }
    return Checkpoint(run.model, run.tokenizer, run.state, info)


def _sample(records: Records, run: Run) -> list[Part]:
    """Return the beginning of the first record as text in parts, each with whether it is learned."""
    tokens, is_learned = (part[: min(run.recipe.length + 1, _SAMPLE)] for part in records.record(0))
    return shown_record(tokens, is_learned, run.tokenizer)


def perplexity(loss: float) -> float:
    """Return exp(loss), or inf where that would overflow."""
    return math.inf if loss >= 700 else math.exp(loss)


def speed(run: Run) -> float:
    """Return tokens per second, without the time of evaluations."""
    per_step = run.recipe.batch_size * run.recipe.accumulation * run.recipe.length
    return run.step * per_step / max(run.seconds, 1e-9)
