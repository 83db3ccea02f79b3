"""Optimizers as values: init makes a state, update makes a new model and state. Schedules, clipping, accumulation."""

from typing import TYPE_CHECKING

from polyarr.core.names import answering
from polyarr.optim.gradients import accumulate, clip_by_global_norm
from polyarr.optim.methods import SGD, Adagrad, Adam, AdamW, Lion, RMSprop
from polyarr.optim.optimizer import LossScale, Optimizer, Schedule, State, at_least_two_axes, loss_scale, trainable
from polyarr.optim.orthogonal import Muon, hidden_matrices
from polyarr.optim.schedules import constant, warmup_cosine, warmup_linear

__all__ = [
    "SGD", "Adagrad", "Adam", "AdamW", "Lion", "LossScale", "Muon", "Optimizer", "RMSprop", "accumulate",
    "at_least_two_axes", "clip_by_global_norm", "constant", "hidden_matrices", "loss_scale", "warmup_cosine",
    "warmup_linear",
]  # fmt: skip

if not TYPE_CHECKING:  # to a type checker, every name would seem to be there
    __getattr__ = answering(__name__, __all__)
