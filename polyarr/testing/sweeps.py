"""Values that cover a dtype's range without gaps: every 16-bit pattern, every exponent, every kind of nan."""

import functools

import numpy as np

from polyarr.core.spec import FLOATS
from polyarr.creation import finfo

# The default nan, one with its sign bit set, and two with other payloads, whose upper bits survive in narrower dtypes.
NANS = np.array([0x7FF8 << 48, 0xFFF8 << 48, 0x7FFABCDE << 32, 0xFFFFF << 44], np.uint64).view(np.float64)
WIDE_COUNT = 2**14  # values in the sweep of a dtype of more than 16 bits
ORDERED_SEEDS = 10  # sweeps with a seed below this are ordered by bit pattern


def with_nans(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return x with each nan replaced by any of NANS."""
    return np.where(np.isnan(x), rng.choice(NANS, x.shape), x)


def sweep(dtype: np.dtype, seed: int, size: int) -> np.ndarray:
    """Return every value of a dtype of up to 16 bits; of a wider one, values of every magnitude and sign.

    A seed below ORDERED_SEEDS keeps the order of the bit patterns and starts that many exponents later, so that two
    such sweeps have values of similar magnitude side by side. Other seeds permute the values.
    """
    found = _all_values(dtype)
    if seed >= ORDERED_SEEDS:
        return np.resize(np.random.default_rng(seed).permutation(found), size)
    return np.resize(np.roll(found, seed * (len(found) // 256 + 1)), size)


def quiet(x: np.ndarray) -> np.ndarray:
    """Return x without signaling nans: libraries differ in the result of one of them with an infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(x), np.array(np.nan, x.dtype), x) if x.dtype in FLOATS else x


@functools.cache
def _all_values(dtype: np.dtype) -> np.ndarray:
    bits, unsigned = 8 * dtype.itemsize, np.dtype(f"u{dtype.itemsize}")
    if dtype.kind == "b":
        return np.array([False, True])
    if bits <= 16:
        return np.arange(2**bits).astype(unsigned).view(dtype)
    rng = np.random.default_rng(bits)
    if dtype in FLOATS:
        return _every_exponent(rng, dtype)
    widths = rng.integers(1, bits + 1, WIDE_COUNT).astype(np.uint64)
    drawn = rng.integers(0, 2**64, WIDE_COUNT, np.uint64) >> (np.uint64(64) - widths)
    return np.where(rng.random(WIDE_COUNT) < 0.5, drawn, ~drawn).astype(unsigned).view(dtype)


def _every_exponent(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
    """Return for every exponent values of both signs: the smallest and largest fractions, and random ones."""
    unsigned, fraction = np.dtype(f"u{dtype.itemsize}"), -int(np.log2(finfo(dtype).eps))
    count = 2 ** (8 * dtype.itemsize - 1 - fraction)
    ends = np.broadcast_to(np.array([0, 1, 2**fraction - 1], np.uint64), (count, 3))
    between = rng.integers(0, 2**fraction, (count, max(1, WIDE_COUNT // (2 * count) - 3)), np.uint64)
    exponents = np.arange(count, dtype=np.uint64)[:, None] << np.uint64(fraction)
    signs = np.array([0, 1], np.uint64) << np.uint64(8 * dtype.itemsize - 1)
    positive = exponents | np.concatenate([ends, between], axis=1)
    return (positive[..., None] | signs).reshape(-1).astype(unsigned).view(dtype)


@functools.cache
def corners(dtype: np.dtype) -> np.ndarray:
    """Return the values at which functions of two arguments have special cases, to be combined in all pairs."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype not in FLOATS:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        near = {0, 1, 2, 3, 7, 10, 100, high, high - 1, high // 2, high // 2 + 1}
        near |= {-1, -2, -3, -7, -10, -100, low, low + 1, low // 2} if low else set()
        return np.array(sorted(near), dtype)
    info = finfo(dtype)
    tiny, top = float(info.smallest_normal), float(info.max)
    positive = [0.0, tiny * float(info.eps), tiny / 2, tiny, float(info.eps), 1e-4, 0.5, 1 - float(info.eps) / 2, 1.0]
    positive += [1 + float(info.eps), 1.5, 2.0, 2.5, 3.0, 20.0, 100.0, 2.0**24 - 1, top**0.5, top / 2, top, np.inf]
    with np.errstate(all="ignore"):
        return np.concatenate([positive, [-a for a in positive], NANS]).astype(dtype)
