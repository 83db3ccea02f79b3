"""Gradient transforms: grad, value_and_grad, vjp, jvp, checkpoint, custom_vjp and stop_gradient."""

from polyarr.autograd.transforms import checkpoint, custom_vjp, grad, jvp, stop_gradient, value_and_grad, vjp

__all__ = ["checkpoint", "custom_vjp", "grad", "jvp", "stop_gradient", "value_and_grad", "vjp"]
