"""Recipes: everything that decides a training run but its text, seed and backend."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np

from polyarr import nn
from polyarr.core.precision import PRECISIONS
from polyarr.models.decoder import Config, LanguageModel
from polyarr.models.families import config_of
from polyarr.optim import AdamW, LossScale, Schedule, warmup_cosine, warmup_linear

COMPUTED = ("float32", "bfloat16", "float16")
# How the learning rate goes on when it has come up: of a recipe, by name.
SCHEDULES: dict[str, Callable[["Recipe"], Schedule]] = {
    "cosine": lambda r: warmup_cosine(r.lr, r.warmup, r.decay_steps, r.min_lr),
    "linear": lambda r: warmup_linear(r.lr, r.warmup, r.decay_steps, r.min_lr),
    "constant": lambda r: warmup_linear(r.lr, r.warmup, r.decay_steps, r.lr),
}


@dataclass(frozen=True)
class Recipe:
    """A model's size and how it is trained.

    model         what config_of takes: a family, GPT's if it is not named, and the keys of its configuration; without
                  vocab_size the tokenizer decides it
    accumulation  how many batches make one step
    eval_every    steps between two evaluations, each of which saves a checkpoint; None: only the last step has one
    eval_minutes  minutes between two evaluations, whichever comes first
    save_every    steps between two checkpoints, beside those of evaluations; save_minutes as well
    keep          how many checkpoints there are, beside the best; of more than one, each has its step in its name
    patience      after how many evaluations in a row without a better loss the run ends
    eval_windows  how many windows of validation text an evaluation takes; None: all of it
    decay_steps   over how many steps the learning rate falls to min_lr, where it then stays; None: steps
    schedule      how the learning rate falls from lr to min_lr, one of SCHEDULES; a constant one does not
    recompute     whether what is inside of a block is not kept for the gradient but computed again: less memory, the
                  same numbers, more time
    dtype         what the model computes in, one of COMPUTED; parameters and moments are float32
    precision     how exact products of float32 are, as set_matmul_precision has it
    lora          what nn.lora takes beside a model, if adapters are all that is trained

    Errors:  ValueError for a value of another type or out of range, and as config_of
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

    def __post_init__(self) -> None:
        if self.decay_steps is None:
            object.__setattr__(self, "decay_steps", self.steps)
        for name, allowed in _ALLOWED.items():
            object.__setattr__(self, name, allowed.checked(name, getattr(self, name)))
        config_of({"vocab_size": 1, **self.model})

    def changed(self, **values: Any) -> Self:
        """The recipe with other values; of model and lora, with other values for some of their settings.

        The schedule belongs to the run: other steps do not change it, so that a run of 100 steps that goes on to 200 is
        one of 200; other decay_steps do. Unless they are named, too, min_lr changes with lr, and warming up takes a
        tenth of other decay_steps at most.

        Errors:  ValueError for names that there are not, and as Recipe
        """
        for table, own in (("model", self.model), ("lora", self.lora or {})):
            if isinstance(values.get(table), Mapping):
                values[table] = {**own, **values[table]}
        new = self.from_dict({**self.to_dict(), **values})
        if "lr" in values and "min_lr" not in values:
            new = replace(new, min_lr=self.min_lr * new.lr / self.lr)
        if new.decay_steps != self.decay_steps and "warmup" not in values:
            new = replace(new, warmup=min(new.warmup, new.decay_steps // 10))
        return new

    def config(self, vocab_size: int) -> Config:
        """The model's configuration for a vocabulary.

        Errors:  ValueError if the model has a vocab_size and it is smaller, and as config_of
        """
        found = config_of({"vocab_size": vocab_size, **self.model})
        if found.vocab_size < vocab_size:  # a larger one is common: models have room for more tokens
            raise ValueError(
                f"Recipe: the model has {found.vocab_size} tokens; it must have the tokenizer's {vocab_size}"
            )
        return found

    def adapted(self, model: LanguageModel) -> LanguageModel:
        """A model with the recipe's adapters, if it has some.

        Errors:  ValueError as nn.lora
        """
        return model if self.lora is None else nn.lora(model, **self.lora)

    def optimizer(self) -> AdamW:
        """AdamW with warm-up, decay and clipping; with a loss scale for float16."""
        schedule = SCHEDULES[self.schedule](self)
        scale = LossScale() if self.dtype == "float16" else None
        return AdamW(
            lr=schedule, betas=self.betas, weight_decay=self.weight_decay, clip=self.clip, loss_scale=scale
        )

    def to_dict(self) -> dict[str, Any]:
        """What from_dict takes, and JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """The recipe that to_dict described, or a file has.

        Errors:  ValueError for keys that are missing or unknown, and as Recipe
        """
        missing = [name for name, default in _DEFAULTS.items() if default is MISSING and name not in saved]
        unknown = [repr(str(name)) for name in saved if name not in _DEFAULTS]
        if missing or unknown:
            wrong = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(unknown)}"
            raise ValueError(f"Recipe: {wrong}; the keys are {', '.join(_DEFAULTS)}")
        return cls(**saved)


# ---- what the fields may be ----------------------------------------------------------------------------------


class _Allowed(NamedTuple):
    """What a field may be: in words, how to tell, and as what it is kept."""

    words: str
    fits: Callable[[Any], bool]
    kept: Callable[[Any], Any] = lambda value: value

    def checked(self, name: str, value: Any) -> Any:
        """As what a field of this name is kept; ValueError for what it may not be."""
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
    """With Python's numbers for NumPy's, which JSON cannot hold."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}


def _is(kind: Any, value: Any) -> bool:
    """Whether it is such a number, of Python's or of NumPy's."""
    return isinstance(value, kind) and not isinstance(value, bool)


_COUNT, _STEPS = _integer(1, 10**9), _integer(1, 10**12)
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
    "recompute": _Allowed("true or false", lambda v: isinstance(v, bool)),
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
