"""Recipes: all settings of a training run but its text, seed and backend."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np

from polyarr import nn
from polyarr.core.precision import PRECISIONS
from polyarr.models.decoder import Config, LanguageModel
from polyarr.models.families import config_of
from polyarr.optim import AdamW, LossScale, Muon, Optimizer, Schedule, warmup_cosine, warmup_linear

COMPUTED = ("float32", "bfloat16", "float16")
# Schedules of the learning rate after warm-up, by name.
SCHEDULES: dict[str, Callable[["Recipe"], Schedule]] = {
    "cosine": lambda r: warmup_cosine(r.lr, r.warmup, r.schedule_steps, r.min_lr),
    "linear": lambda r: warmup_linear(r.lr, r.warmup, r.schedule_steps, r.min_lr),
    "constant": lambda r: warmup_linear(r.lr, r.warmup, r.schedule_steps, r.lr),
}
OPTIMIZERS: dict[str, type[AdamW]] = {"adamw": AdamW, "muon": Muon}


@dataclass(frozen=True)
class Recipe:
    """Architecture of a model and hyperparameters of its training.

    Args:
        model: Settings of the model: "family", "gpt" by default, and the fields of its configuration. Without
            vocab_size, it is the tokenizer's.
        batch_size: Number of windows per batch.
        steps: Number of steps.
        lr: Highest learning rate.
        min_lr: Learning rate at the end of the schedule.
        warmup: Number of steps in which the learning rate rises from 0 to lr.
        eval_every: Number of steps between evaluations, each of which saves a checkpoint; None: only after the last
            step.
        eval_minutes: Minutes between evaluations; with eval_every, whichever comes first.
        save_every: Number of steps between checkpoints, beside those of evaluations.
        save_minutes: Minutes between checkpoints, beside those of evaluations.
        keep: Number of checkpoints beside the best. If it is above 1, each has its step in its name.
        patience: The run ends after this many evaluations in a row without a better loss; None: it does not.
        betas: AdamW's decay rates of the moments.
        weight_decay: Weight decay of matrices.
        clip: Largest norm of the gradients.
        accumulation: Number of batches per step (gradient accumulation).
        eval_windows: Number of windows of the validation text in an evaluation; None: all.
        decay_steps: Number of steps in which the learning rate falls to min_lr, where it stays; None: steps.
        schedule: Schedule of the learning rate after warm-up: "cosine", "linear" or "constant".
        recompute: Whether to recompute the activations inside each block in the backward pass (gradient checkpointing),
            which takes less memory and more time for the same numbers.
        dtype: Dtype of the computation: "float32", "bfloat16" or "float16". Parameters and moments are float32.
        precision: Precision of float32 matrix products, as in set_matmul_precision.
        lora: Arguments of nn.lora, to train only adapters; None: train the model.
        window: Number of tokens per window; None: the context_length of the model. A shorter window leaves the model as
            it is.
        packing: Whether several records, such as conversations, share a window. None attends to another.
        optimizer: "adamw", or "muon": Muon for the matrices of blocks and AdamW for all other arrays.

    Raises:
        ValueError: A value is of another type or out of range.

    Examples:
        >>> from polyarr.training import PRESETS
        >>> recipe = PRESETS["shakespeare-char"]
        >>> recipe.changed(steps=100).steps
        100
    """

    model: Mapping[str, Any]
    batch_size: int
    steps: int
    lr: float
    min_lr: float
    warmup: int
    eval_every: int | None = None
    eval_minutes: float | None = None
    save_every: int | None = None
    save_minutes: float | None = None
    keep: int = 1
    patience: int | None = None
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    clip: float = 1.0
    accumulation: int = 1
    eval_windows: int | None = None
    decay_steps: int | None = None
    schedule: str = "cosine"
    recompute: bool = False
    dtype: str = COMPUTED[0]
    precision: str = PRECISIONS[0]
    lora: Mapping[str, Any] | None = None
    window: int | None = None
    packing: bool = False
    optimizer: str = "adamw"

    def __post_init__(self) -> None:
        if self.decay_steps is None:
            object.__setattr__(self, "decay_steps", self.steps)
        for name, allowed in _ALLOWED.items():
            object.__setattr__(self, name, allowed.checked(name, getattr(self, name)))
        most = config_of({"vocab_size": 1, **self.model}).context_length
        if self.window is not None and self.window > most:
            raise ValueError(f"Recipe: window is {self.window}; it must be at most the model's context_length, {most}")

    @property
    def length(self) -> int:
        """Number of tokens per window."""
        return self.model["context_length"] if self.window is None else self.window

    @property
    def schedule_steps(self) -> int:
        """Number of steps of the learning rate's schedule: `decay_steps`, which is `steps` unless it was given."""
        return self.steps if self.decay_steps is None else self.decay_steps

    def changed(self, **values: Any) -> Self:
        """Return the recipe with other values; `model` and `lora` are merged with the settings they have.

        The learning rate's schedule does not change with `steps`, so that a run of 100 steps which is resumed up to 200
        equals one of 200 steps; it changes with `decay_steps`. Unless they are given too, min_lr changes in proportion
        to lr, and warmup is limited to a tenth of new decay_steps.

        Args:
            **values: New values by field.

        Raises:
            ValueError: A field is unknown, or a value is of another type or out of range.
        """
        for table, own in (("model", self.model), ("lora", self.lora or {})):
            if isinstance(values.get(table), Mapping):
                values[table] = {**own, **values[table]}
        new = self.from_dict({**self.to_dict(), **values})
        if "lr" in values and "min_lr" not in values:
            new = replace(new, min_lr=self.min_lr * new.lr / self.lr)
        if new.decay_steps != self.decay_steps and "warmup" not in values:
            new = replace(new, warmup=min(new.warmup, new.schedule_steps // 10))
        return new

    def config(self, vocab_size: int) -> Config:
        """Return the model's configuration for a vocabulary.

        Raises:
            ValueError: The model's own vocab_size is smaller, or its settings are invalid.
        """
        found = config_of({"vocab_size": vocab_size, **self.model})
        if found.vocab_size < vocab_size:  # a larger one is common: many models round their vocab_size up
            raise ValueError(
                f"Recipe: the model has {found.vocab_size} tokens; it must have the tokenizer's {vocab_size}"
            )
        return found

    def adapted(self, model: LanguageModel) -> LanguageModel:
        """Return the model with the recipe's adapters, if it has any; errors are those of nn.lora."""
        return model if self.lora is None else nn.lora(model, **self.lora)

    def new_optimizer(self) -> Optimizer:
        """Return the optimizer, with the learning rate's schedule, gradient clipping, and for float16 loss scaling."""
        schedule = SCHEDULES[self.schedule](self)
        scale = LossScale() if self.dtype == "float16" else None
        return OPTIMIZERS[self.optimizer](
            lr=schedule, betas=self.betas, weight_decay=self.weight_decay, clip=self.clip, loss_scale=scale
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold and `from_dict` takes."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Return the recipe that `to_dict` or a file describes.

        Raises:
            ValueError: Keys are missing or unknown, or a value is of another type or out of range.
        """
        missing = [name for name, default in _DEFAULTS.items() if default is MISSING and name not in saved]
        unknown = [repr(str(name)) for name in saved if name not in _DEFAULTS]
        if missing or unknown:
            wrong = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(unknown)}"
            model = saved.get("model")
            known = model if isinstance(model, Mapping) else {}
            own = [name for name in saved if name not in _DEFAULTS and name in known]
            hint = f"; the model has {', '.join(f'model.{name}' for name in own)}" if own else ""
            raise ValueError(f"Recipe: {wrong}{hint}; the keys are {', '.join(_DEFAULTS)}")
        return cls(**saved)


# ---- validation of the fields --------------------------------------------------------------------------------


class _Allowed(NamedTuple):
    """Constraint on a field: its description, a predicate, and a conversion of valid values."""

    words: str
    fits: Callable[[Any], bool]
    kept: Callable[[Any], Any] = lambda value: value

    def checked(self, name: str, value: Any) -> Any:
        """Return the converted value of a field; raise ValueError if it is invalid."""
        if value is None and _DEFAULTS[name] is None:
            return None
        if not self.fits(value):
            raise ValueError(f"Recipe: {name} is {value!r}; it must be {self.words}")
        return self.kept(value)


def _integer(least: int, most: int) -> _Allowed:
    return _Allowed(f"an integer from {least} to {most:,}", lambda v: _is(Integral, v) and least <= v <= most, int)


def _number(most: float = 1e30) -> _Allowed:
    return _Allowed(f"a number from 0 to {most:g}", lambda v: _is(Real, v) and 0 <= v <= most, float)


def _positive(most: float = 1e30) -> _Allowed:
    return _Allowed(f"a number above 0, at most {most:g}", lambda v: _is(Real, v) and 0 < v <= most, float)


def _table(**fields: _Allowed) -> _Allowed:
    words = "; ".join(f"{name}, {allowed.words}" for name, allowed in fields.items())

    def fits(value: Any) -> bool:
        return isinstance(value, Mapping) and all(name in fields and fields[name].fits(v) for name, v in value.items())

    def kept(value: Mapping[str, Any]) -> dict[str, Any]:
        return {name: fields[name].kept(v) for name, v in value.items()}

    return _Allowed(f"a table of {words}", fits, kept)


def _word(*words: str) -> _Allowed:
    return _Allowed(f"one of {', '.join(words)}", lambda v: isinstance(v, str) and v in words)


def _are_betas(value: Any) -> bool:
    are_two = isinstance(value, (list, tuple)) and len(value) == 2
    return are_two and all(_is(Real, v) and 0 <= v < 1 for v in value)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with Python's numbers in place of NumPy's, which JSON cannot hold."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}


def _is(kind: Any, value: Any) -> bool:
    """Return whether a value is a number of a kind, of Python or NumPy, and not a bool."""
    return isinstance(value, kind) and not isinstance(value, bool)


_COUNT, _STEPS = _integer(1, 10**9), _integer(1, 10**12)
_FLAG = _Allowed("true or false", lambda v: isinstance(v, bool))
_ALLOWED = {
    "model": _Allowed("a table of settings", lambda v: isinstance(v, Mapping), _plain),
    "batch_size": _COUNT,
    "steps": _STEPS,
    "lr": _positive(),
    "min_lr": _number(),
    "warmup": _integer(0, 10**12),
    "eval_every": _STEPS,
    "eval_minutes": _positive(),
    "save_every": _STEPS,
    "save_minutes": _positive(),
    "keep": _COUNT,
    "patience": _COUNT,
    "betas": _Allowed("two numbers from 0 to below 1", _are_betas, lambda v: tuple(map(float, v))),
    "weight_decay": _number(),
    "clip": _positive(),
    "accumulation": _COUNT,
    "eval_windows": _COUNT,
    "decay_steps": _STEPS,
    "schedule": _word(*SCHEDULES),
    "window": _COUNT,
    "recompute": _FLAG,
    "packing": _FLAG,
    "optimizer": _word(*OPTIMIZERS),
    "dtype": _word(*COMPUTED),
    "precision": _word(*PRECISIONS),
    "lora": _table(
        rank=_COUNT,
        match=_Allowed("a pattern", lambda v: isinstance(v, str) and 0 < len(v) <= 1000),
        alpha=_positive(),
        dropout=_number(1),
    ),
}
_DEFAULTS = {f.name: f.default for f in fields(Recipe)}
