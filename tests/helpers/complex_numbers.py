"""Complex numbers for tests of functions, and the error of the results."""

import numpy as np

import polyarr as pa

FUNCTIONS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log10", "log1p",
    "log2", "reciprocal", "rsqrt", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh",
)  # fmt: skip
NUMPY = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "reciprocal": lambda z: 1 / z, "rsqrt": lambda z: 1 / np.sqrt(z), "sign": lambda z: z / abs(z),
    "log1p": lambda z: np.where(abs(z) < 0.5, 2 * np.arctanh(z / (2 + z)), np.log(1 + z)),
}  # fmt: skip


def normal(*shape, dtype=pa.complex64, seed=0):
    """Return fixed complex numbers of normally distributed parts."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def numbers(dtype, n=300):
    """Return numbers of every magnitude, and near branch points, zeros and the limits of exponentials."""
    rng, info = np.random.default_rng(3), np.finfo(dtype)
    low, high = np.log10(float(info.tiny)) + 1, np.log10(float(info.max)) - 0.01

    def spread(least, most):
        return 10 ** rng.uniform(least, most, n) * rng.choice([-1, 1], n)

    limit = 90.0 if dtype == pa.complex64 else 711.0
    centers = (1, -1, 1j, -1j, 0, np.pi / 2, 1j * np.pi / 2)
    near = [center + spread(-12, -1) + 1j * spread(-12, -1) for center in centers]
    wide = [spread(low, high) + 1j * spread(low, high), spread(-8, 4) + 1j * spread(-8, 4)]
    edges = [rng.uniform(-limit, limit, n) + 1j * spread(-3, 2), spread(-3, 2) + 1j * rng.uniform(-limit, limit, n)]
    far = [spread(high - 1, high) + 1j * spread(high - 1, high), spread(low, low + 2) + 1j * spread(low, low + 2)]
    circle = [np.exp(1j * rng.uniform(-np.pi, np.pi, n)) * (1 + spread(-9, -1)), spread(-5, 3), 1j * spread(-5, 3)]
    return np.concatenate([*near, *wide, *edges, *far, *circle, normal(n), 10 * normal(n)]).astype(dtype)


def ulps(found, due):
    """Return the largest error of a part, in ulp of the larger part, where the result is finite and not subnormal."""
    info = np.finfo(found.dtype)
    size = np.maximum(abs(np.real(due)), abs(np.imag(due)))
    with np.errstate(all="ignore"):
        error = np.maximum(abs(np.real(found) - np.real(due)), abs(np.imag(found) - np.imag(due)))
        counts = (size < float(info.max) * 0.99) & (size > float(info.tiny) * 4)
        return float(np.max(error[counts] / size[counts])) / float(info.eps)


def exactly(name, *z):
    """Return a function's value in longer precision."""
    with np.errstate(all="ignore"):
        return (NUMPY.get(name) or getattr(np, name))(*[a.astype(np.clongdouble) for a in z])
