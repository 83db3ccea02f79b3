"""A polyarr backend on MLX, on its CPU: a table of kernels made of MLX's functions."""

import math

import numpy as np

from polyarr.backends.kernels import make_kernels
from polyarr.core.backend import Backend
from polyarr.core.spec import bfloat16
from polyarr.plugins import hookimpl


@hookimpl
def polyarr_backends(register):
    register("mlx", start, summary="MLX's arrays on the CPU", install_hint="pip install 'mlx[cpu]'", api=2)


def start():
    import mlx.core as mx

    mx.set_default_device(mx.cpu)  # float64 exists on the CPU only
    xp = Standard(mx)

    def started(kernel):  # MLX itself would compute when somebody reads, and synchronize would not wait for it
        def run(out, *bufs, **params):
            found = kernel(out, *bufs, **params)
            mx.async_eval(found)
            return found

        return run

    def upload(host):
        host = np.array(host, order="C")
        if host.dtype == bfloat16:
            return mx.view(mx.array(host.view(np.uint16)), mx.bfloat16)
        return mx.array(host, dtype=getattr(xp, host.dtype.name))

    def download(buf):
        if buf.dtype == mx.bfloat16:
            return np.array(mx.view(buf, mx.uint16), order="C").view(bfloat16)
        return np.array(buf, order="C")

    kernels = {op: started(kernel) for op, kernel in make_kernels(xp).items()}
    return Backend("mlx", kernels, upload=upload, download=download, synchronize=mx.synchronize)


class Standard:
    """The namespace of the array API standard: MLX's functions, and others where MLX has none or means something else.

    Functions of floating-point numbers are computed in float64 where MLX's of float32 lose digits.
    """

    def __init__(self, mx):
        self.mx, self.bool = mx, mx.bool_

    def __getattr__(self, name):
        if name in ("linalg", "logaddexp"):  # one lacks svdvals; the other is computed in float32, and composed instead
            raise AttributeError(name)
        return getattr(self.mx, name)

    # ---- with other parameters ---------------------------------------------------------------------------------

    def asarray(self, x, dtype=None):
        if isinstance(x, int) and dtype == self.mx.uint64:  # MLX reads numbers as int64
            x = np.uint64(x)
        return self.mx.asarray(x, dtype=dtype)

    def full(self, shape, value, dtype=None):
        return self.mx.broadcast_to(self.asarray(value, dtype), shape)

    def reshape(self, x, shape, copy=None):
        if not x.size:  # MLX's sum of an empty array that was transposed and reshaped never returns
            x = self.mx.zeros(x.shape, dtype=x.dtype)
        return self.mx.reshape(x, shape)

    def argsort(self, x, axis=-1, stable=True):
        return self.mx.argsort(x, axis=axis).astype(self.mx.int64)

    def sum(self, x, axis=None, dtype=None):
        return self.mx.sum(x.astype(dtype), axis=axis)

    def prod(self, x, axis=None, dtype=None):
        return self.mx.prod(x.astype(dtype), axis=axis)

    def matmul(self, x, y):
        mx = self.mx
        if mx.issubdtype(x.dtype, mx.floating):
            return mx.matmul(x, y)
        return mx.sum(x[..., :, None] * y[..., None, :, :], axis=-2)  # MLX multiplies no matrices of integers

    def bitwise_left_shift(self, x, y):
        return self.mx.where(y < 8 * x.dtype.size, self.mx.bitwise_left_shift(x, y), 0)

    def bitwise_right_shift(self, x, y):
        return self.mx.bitwise_right_shift(x, self.mx.minimum(y, 8 * x.dtype.size - 1))

    # ---- functions that MLX lacks --------------------------------------------------------------------------------

    def bits(self, x):
        return self.mx.view(x, {2: self.mx.int16, 4: self.mx.int32, 8: self.mx.int64}[x.dtype.size])

    def signbit(self, x):
        return self.bits(x) < 0

    def copysign(self, x, y):
        return self.mx.where(self.signbit(x) == self.signbit(y), x, -x)

    def nextafter(self, x, y):
        mx, b = self.mx, self.bits(x)
        tiny = mx.where(self.signbit(y), self.bits(-mx.zeros_like(x)), 0) + 1
        found = mx.where(x == 0, tiny, b + mx.where((x < y) == (x > 0), 1, -1))
        found = mx.view(found.astype(b.dtype), x.dtype)
        return mx.where((x != x) | (y != y), x + y, mx.where(x == y, y, found))

    # ---- functions that lose digits, or the sign of zero -----------------------------------------------------------

    def wide(self, x):
        return x.astype(self.mx.float64)

    def exp(self, x):
        grown = 1 + self.mx.expm1(self.mx.abs(self.wide(x)))
        return self.mx.where(x < 0, 1 / grown, grown)

    def sin(self, x):
        return self.mx.tan(self.wide(x)) * self.cos(x)

    def cos(self, x):
        whole, half = self.mx.tan(self.wide(x)), self.mx.tan(self.wide(x) / 2)
        return self.copysign(1 / self.mx.sqrt(1 + whole * whole), 1 - half * half)

    def erf(self, x):
        """Return 2 / sqrt(pi) x exp(-x^2) sum of (2 x^2)^n / (3 5 ... (2n + 1)), whose terms are all positive."""
        given, x = x, self.mx.clip(self.wide(x), -6, 6)
        total = self.mx.ones_like(x)
        for n in range(130, 0, -1):
            total = 1 + total * (2 * x * x / (2 * n + 1))
        found = 2 / math.sqrt(math.pi) * x * total / (1 + self.mx.expm1(x * x))
        return self.mx.where(self.mx.abs(given) < 6, found, self.sign(given))

    def sign(self, x):
        return self.mx.where(x != x, x, self.mx.sign(x))
