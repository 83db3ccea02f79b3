"""Training of language models: recipes, batches, the training loop and checkpoints."""

from typing import TYPE_CHECKING

from polyarr.core.names import renamed
from polyarr.training.checkpoint import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from polyarr.training.data import check_length, evaluation_windows, shuffled_windows
from polyarr.training.divergence import DivergenceError
from polyarr.training.loop import train
from polyarr.training.metrics import read_metrics
from polyarr.training.presets import PRESETS
from polyarr.training.recipes import Recipe
from polyarr.training.run import Run, new_run, resumed_run
from polyarr.training.steps import evaluation_loss

__all__ = [
    "PRESETS",
    "Checkpoint",
    "CheckpointError",
    "DivergenceError",
    "Recipe",
    "Run",
    "check_length",
    "evaluation_loss",
    "evaluation_windows",
    "load_checkpoint",
    "new_run",
    "read_metrics",
    "resumed_run",
    "save_checkpoint",
    "shuffled_windows",
    "train",
]

if not TYPE_CHECKING:  # to a type checker, every name would seem to be there

    def __getattr__(name: str) -> object:
        return globals()[renamed(__name__, name, {"evaluate": "evaluation_loss"})]
