"""Statistics of tensors, computed block by block."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

_NARROW = {np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)}


class Statistics(NamedTuple):
    """Statistics of a tensor, computed in float64.

    Attributes:
        min: Smallest finite number; None if there is none.
        max: Largest finite number; None if there is none.
        mean: Mean of the finite numbers; None if there is none.
        std: Standard deviation of the finite numbers; None if there is none.
        nan: Number of nans.
        inf: Number of infinities.
    """

    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    nan: int
    inf: int


def has_statistics(dtype: np.dtype) -> bool:
    """Return whether a dtype has statistics: real numbers and bools do."""
    return dtype.kind in "biuf" or dtype in _NARROW


class _Sums:
    """Mean and sum of squared deviations, merged block by block with the stable formula of Chan, Golub and LeVeque."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.nan = self.inf = 0
        self.ends: tuple[Any, Any] | None = None

    def add(self, block: np.ndarray) -> None:
        wide = block.astype(np.float64)
        finite = np.isfinite(wide)
        if not finite.all():
            nan = int(np.isnan(wide).sum())
            self.nan, self.inf = self.nan + nan, self.inf + int(wide.size - finite.sum()) - nan
            block = wide = wide[finite]
        if not wide.size:
            return
        exact = block if block.dtype.kind in "iu" else wide  # float64 cannot hold all 64-bit integers
        low, high = exact.min().item(), exact.max().item()
        self.ends = (low, high) if self.ends is None else (min(low, self.ends[0]), max(high, self.ends[1]))
        self._join(wide)

    def _join(self, wide: np.ndarray) -> None:
        count = self.count + wide.size
        mean = float(wide.mean())
        wide -= mean
        apart = mean - self.mean
        self.squares += float(wide @ wide) + apart * apart * self.count * wide.size / count
        self.mean += apart * wide.size / count
        self.count = count


def statistics_of(blocks: Iterable[np.ndarray]) -> Statistics:
    """Return the statistics of the numbers in all blocks, which are of one axis."""
    sums = _Sums()
    with np.errstate(over="ignore", invalid="ignore"):  # squares of very large numbers overflow
        for block in blocks:
            sums.add(block)
    low, high = sums.ends or (None, None)
    mean, std = (sums.mean, math.sqrt(sums.squares / sums.count)) if sums.count else (None, None)
    return Statistics(low, high, mean, std, sums.nan, sums.inf)


def histogram(blocks: Iterable[np.ndarray], low: float, high: float, bins: int) -> np.ndarray:
    """Return a histogram of the finite numbers: counts in `bins` equal parts of [low, high]."""
    found = np.zeros(bins, np.int64)
    for block in blocks:
        wide = block.astype(np.float64)
        found += np.histogram(wide[np.isfinite(wide)], bins, (low, high))[0]
    return found
