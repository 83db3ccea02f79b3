"""A plugin that replaces one kernel of an existing backend: Fused GELU on polyarr's NumPy backend.

Without it, the backend runs GELU's decomposition: seven ops forward and about fifteen backward, each with an array of
its own. The Fused kernels keep one array and work in place. polyarr calls the hook once, when the backend starts.
"""

import math
import time

import numpy as np

from polyarr import ops
from polyarr.core.backend import Fused
from polyarr.core.spec import Spec
from polyarr.plugins import hookimpl

ROOT = math.sqrt(2 / math.pi)
CUBIC = 0.044715


@hookimpl
def polyarr_kernels(backend):
    """Return Fused GELU for the backend numpy, built on its erf kernel; nothing for other backends."""
    return {ops.gelu: pair(backend.kernels[ops.erf])} if backend.family == "numpy" else {}


def pair(erf):
    """Return Fused gelu(x) = x * p, where p, the normal distribution function or its tanh formula, is saved."""

    def forward(out, x, *, approximate):
        x = wide(x)
        p = probability(x) if approximate == "tanh" else distribution(x)
        return np.asarray(x * p, out.dtype), p

    def backward(g, p, x, *, wanted, approximate):
        x = wide(x)
        slope = tanh_slope(x, p) if approximate == "tanh" else x * np.exp(-0.5 * x * x) * (ROOT / 2)
        return (np.asarray((slope + p) * g, g.dtype),)

    def distribution(x):
        scaled = np.asarray(x * math.sqrt(0.5))
        return 0.5 * erf(Spec(scaled.shape, scaled.dtype), scaled) + 0.5

    return Fused(forward, backward)


def wide(x):
    """Return 16-bit floats as float32."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


def probability(x):
    """Return (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    u = np.asarray(x * x)
    u *= ROOT * CUBIC
    u += ROOT
    u *= x
    np.tanh(u, out=u)
    u += 1
    u *= 0.5
    return u


def tanh_slope(x, p):
    """Return x dp/dx = x * 2 p (1 - p) * du/dx."""
    slope = np.asarray(x * x)
    slope *= 6 * ROOT * CUBIC
    slope += 2 * ROOT
    slope *= x
    slope *= p
    slope *= 1 - p
    return slope


@hookimpl
def polyarr_diagnose():
    """Return one line for `polyarr doctor`: whether the kernel is correct here, and its time."""
    x = np.linspace(-4, 4, 100_001, dtype=np.float32)
    started = time.perf_counter()
    p = probability(x)
    took = time.perf_counter() - started
    if abs(float((x * p)[75_000]) - 1.9545977) > 1e-6:  # gelu(2)
        return [("error", "polyarr-faster-gelu: gelu(2) came out wrong; update NumPy or uninstall the plugin")]
    return [("ok", f"polyarr-faster-gelu: 100,000 elements in {took * 1e3:.1f} ms")]
