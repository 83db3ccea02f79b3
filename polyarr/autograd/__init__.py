"""Gradient transforms: grad, value_and_grad, vjp, jvp, checkpoint, custom_vjp and stop_gradient."""

from typing import TYPE_CHECKING

from polyarr.autograd.transforms import checkpoint, custom_vjp, grad, jvp, stop_gradient, value_and_grad, vjp
from polyarr.core.names import answering

__all__ = ["checkpoint", "custom_vjp", "grad", "jvp", "stop_gradient", "value_and_grad", "vjp"]

if not TYPE_CHECKING:  # to a type checker, every name would seem to be there
    __getattr__ = answering(__name__, __all__)
