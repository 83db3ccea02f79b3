"""Recipes: everything that decides a training run but its text, seed and backend."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from polyarr.core.precision import PRECISIONS
from polyarr.models.decoder import Config
from polyarr.models.families import config_of
from polyarr.models.gpt import GPT_CONFIG_124M
from polyarr.optim import AdamW, LossScale, warmup_cosine

COMPUTED = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Recipe:
    """A model's size and how it is trained.

    model         what config_of takes: a family, GPT's if it is not named, and the keys of its configuration; without
                  vocab_size the tokenizer decides it
    accumulation  how many batches make one step
    eval_every    steps between two evaluations, each of which saves a checkpoint
    eval_windows  how many windows of validation text an evaluation takes; None: all of it
    decay_steps   over how many steps the learning rate falls to min_lr, where it then stays; None: steps
    dtype         what the model computes in, one of COMPUTED; parameters and moments are float32
    precision     how exact products of float32 are, as set_matmul_precision has it

    Errors:  ValueError for a number that is not positive, or for another dtype or precision
    """

    model: Mapping[str, Any]
    batch_size: int
    steps: int
    lr: float
    min_lr: float
    warmup: int
    eval_every: int
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    clip: float = 1.0
    accumulation: int = 1
    eval_windows: int | None = None
    decay_steps: int | None = None
    dtype: str = COMPUTED[0]
    precision: str = PRECISIONS[0]

    def __post_init__(self) -> None:
        if self.decay_steps is None:
            object.__setattr__(self, "decay_steps", self.steps)
        for name in ("batch_size", "steps", "lr", "eval_every", "accumulation", "clip", "decay_steps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Recipe: {name} is {getattr(self, name)}; it must be positive")
        for name, known in (("dtype", COMPUTED), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"Recipe: {name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")

    def changed(self, **values: Any) -> Self:
        """The recipe with other values for those that are not None.

        The schedule belongs to the run: other steps do not change it, so that a run of 100 steps that goes on to 200 is
        one of 200; other decay_steps do. Warming up takes a tenth of them at most.
        """
        new = replace(self, **{name: value for name, value in values.items() if value is not None})
        if values.get("lr") is not None:
            new = replace(new, min_lr=self.min_lr * new.lr / self.lr)
        return replace(new, warmup=min(new.warmup, new.decay_steps // 10))

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

    def optimizer(self) -> AdamW:
        """AdamW with warm-up, cosine decay and clipping; with a loss scale for float16."""
        schedule = warmup_cosine(self.lr, self.warmup, self.decay_steps, self.min_lr)
        scale = LossScale() if self.dtype == "float16" else None
        return AdamW(
            lr=schedule, betas=self.betas, weight_decay=self.weight_decay, clip=self.clip, loss_scale=scale
        )

    def to_dict(self) -> dict[str, Any]:
        """What from_dict takes, and JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The recipe that to_dict described.

        Errors:  TypeError for other keys
        """
        return cls(**{**saved, "betas": tuple(saved["betas"])})


_SMALL = {
    "context_length": 64,
    "emb_dim": 128,
    "n_heads": 4,
    "n_layers": 4,
    "drop_rate": 0.0,
    "qkv_bias": True,
    "tie_embeddings": False,
}
_LARGE = {name: value for name, value in GPT_CONFIG_124M.items() if name != "vocab_size"}

PRESETS = {
    # About two minutes on two CPU cores.
    "demo": Recipe(
        _SMALL, batch_size=12, steps=3600, lr=2e-3, min_lr=2e-4, warmup=100, eval_every=600, eval_windows=256
    ),
    # The sizes and schedule that nanoGPT publishes for a CPU, with a validation loss of 1.88; its embeddings are tied.
    "shakespeare-char": Recipe(
        _SMALL, batch_size=12, steps=2000, lr=1e-3, min_lr=1e-4, warmup=100, eval_every=250
    ),
    # For a GPU: the size of GPT-2 small; its vocabulary is that of --tokenizer.
    "gpt2-124m": Recipe(
        _LARGE,
        batch_size=4,
        accumulation=8,
        steps=5000,
        lr=6e-4,
        min_lr=6e-5,
        warmup=200,
        betas=(0.9, 0.95),
        eval_every=250,
        eval_windows=64,
    ),
}
