"""A training run: what it is made of, how it begins, goes on and is saved."""

import math
import platform
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyarr import random
from polyarr.core.current import get_backend
from polyarr.core.spec import described
from polyarr.distributed import World
from polyarr.models.decoder import Config, LanguageModel
from polyarr.models.families import new_model, settings_of
from polyarr.nn import shapes_only
from polyarr.text import Corpus, Tokenizer, same_tokens
from polyarr.training.checkpoint import Checkpoint
from polyarr.training.data import shuffled_windows
from polyarr.training.ranks import ALONE, shared
from polyarr.training.recipes import Recipe
from polyarr.version import __version__

_MAY_DIFFER = ("context_length", "drop_rate")  # from a model's settings to those that it is trained further with


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
    is_drawn: bool = True  # whether its weights began as its seed draws them
    since: int = 0  # the step from which on the text was this one: losses on two texts do not compare
    world: World = ALONE  # the processes that train it together
    wire: str | None = None  # the dtype in which they send each other gradients, if it is not the parameters'
    seconds: float = 0.0  # spent on steps, without evaluations
    stopped_by: int = 0  # the signal

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self.state["step"]

    @property
    def best(self) -> float:
        """The smallest validation loss."""
        return min(self._losses, default=math.inf)

    @property
    def is_stale(self) -> bool:
        """Whether as many evaluations in a row as the recipe's patience were no better than the best before them."""
        losses, patience = self._losses, self.recipe.patience
        return patience is not None and bool(losses) and len(losses) - 1 - losses.index(min(losses)) >= patience

    @property
    def _losses(self) -> list[float]:
        return [row["val"] for row in self.history if row["step"] > self.since]

    def windows(self, step: int) -> list[np.ndarray]:
        """What this process learns from in a step: (B, T + 1) for each part of it.

        Errors:  ValueError for tokens that the tokenizer does not have, and as shared
        """
        length, (rank, size) = self.model.config.context_length, (self.world.rank, self.world.size)
        parts, windows = shared(self.recipe, size)
        draws = ((step * parts + part) * size + rank for part in range(parts))
        found = [shuffled_windows(self.tokens, length, windows, self.seed, draw) for draw in draws]
        largest = max(int(part.max()) for part in found)
        if largest >= self.tokenizer.vocab_size:
            raise ValueError(f"{self.data} is damaged: it has a token {largest}; prepare it again")
        return found


def new_run(
    corpus: Corpus | str,
    recipe: Recipe,
    seed: int,
    preset: str = "GPT",
    data: str | None = None,
    model: LanguageModel | None = None,
    world: World = ALONE,
) -> Run:
    """A run at its beginning, on the current backend, of a corpus or the characters of a text. Seeds polyarr.random.

    preset, data  what its checkpoints say of the recipe's name and the corpus's path
    model         begin with this one's arrays, which `train` then takes for its own; the recipe's may have a shorter
                  context and another rate of dropout. None: with new ones
    world         the processes that train it together, each with a run like this one; they all begin with the first's
                  arrays, and drop out by themselves

    Errors:  ValueError if the model's sizes are not the recipe's, or for adapters as nn.lora
    """
    corpus = Corpus.of_text(corpus) if isinstance(corpus, str) else corpus
    for name, value, kind in (("corpus", corpus, Corpus), ("recipe", recipe, Recipe)):
        if not isinstance(value, kind):
            raise TypeError(f"new_run: {name} is {described(value)}; it must be a {kind.__name__}")
    shared(recipe, world.size)
    begun = _begun(recipe, recipe.config(corpus.tokenizer.vocab_size), seed, model, world)
    tokens = corpus.tokenizer, corpus.train, corpus.validation
    return Run(recipe, *tokens, seed, *begun, preset, data, corpus.digest, is_drawn=model is None, world=world)


def begin_again(run: Run) -> None:
    """Take a run to its beginning; its weights must have been drawn then."""
    config = run.recipe.config(run.tokenizer.vocab_size)
    run.model, run.state = _begun(run.recipe, config, run.seed, None, run.world)
    run.history, run.curve, run.seconds = [], [], 0.0


def _begun(
    recipe: Recipe, config: Config, seed: int, model: LanguageModel | None, world: World
) -> tuple[LanguageModel, dict[str, Any]]:
    """What a run begins with: a model and the state of its optimiser."""
    random.seed(seed)
    model = recipe.adapted(new_model(config) if model is None else _reconfigured(model, config))
    model = world.broadcast(model)
    world.split_random()
    return model, recipe.optimizer().init(model)


def _reconfigured(model: LanguageModel, config: Config) -> LanguageModel:
    """A model of a configuration with the arrays of another one."""
    before, after = settings_of(model.config), settings_of(config)
    differing = [name for name, value in before.items() if name not in _MAY_DIFFER and after.get(name) != value]
    if differing:
        wrong = f"its {differing[0]} is {before[differing[0]]!r}, in the recipe {after.get(differing[0])!r}"
        raise ValueError(f"new_run: a model was given, {wrong}; only {' and '.join(_MAY_DIFFER)} may differ")
    if model.config.context_length != config.context_length:
        model = model.with_context(config.context_length)
    with shapes_only():
        new = new_model(config)
    return new.load_parameters(model.named_parameters())


def resumed_run(
    corpus: Corpus | str, saved: Checkpoint, recipe: Recipe, data: str | None = None, world: World = ALONE
) -> Run:
    """A run that goes on from a checkpoint, with its recipe or a changed one, and the corpus, or the text, at a path.

    With another text than before, "best" begins anew: losses on two texts do not compare. The processes of a world need
    not be as many as those before.

    Errors:  ValueError if the text has characters that the checkpoint does not know, or the corpus another tokenizer
    """
    corpus = Corpus.of_text(corpus, saved.tokenizer) if isinstance(corpus, str) else corpus
    if not same_tokens(corpus.tokenizer, saved.tokenizer):
        raise ValueError("resumed_run: the corpus is of another tokenizer; it must be of the one that the run has")
    shared(recipe, world.size)
    info, own = saved.info, {"data": data, "text": corpus.digest, "is_drawn": False, "world": world}
    named = {"preset": info["preset"], "id": info["run"], **own}
    tokens = saved.tokenizer, corpus.train, corpus.validation
    run = Run(recipe, *tokens, info["seed"], saved.model, {}, **named)
    resume(run, saved)
    run.since = info.get("since", 0) if run.text == info["text"] else run.step
    return run


def resume(run: Run, saved: Checkpoint) -> None:
    """Take a run to where a checkpoint of it was saved."""
    info, optimizer = saved.info, run.recipe.optimizer()
    random.set_state(tuple(info["random_state"]))
    run.world.split_random()
    state = dict(saved.state)
    if state.keys() == {"step"}:  # of a model that was not trained here yet
        state = optimizer.init(saved.model)
    before = state.pop("loss_scale", None)  # the recipe's dtype may be another now
    if optimizer.loss_scale:
        state["loss_scale"] = before or optimizer.loss_scale.init()
    run.model, run.state = saved.model, state
    run.history, run.curve, run.seconds = info["history"], info["curve"], info["seconds"]


def device(world: World = ALONE) -> str:
    """What is computed on, by all ranks if they are alike."""
    backend = get_backend()
    return f"{f'{world.size} x ' * (world.size > 1)}{backend.name} ({backend.hardware})"[:1000]


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
        "since": run.since,
        "device": device(run.world),
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
