"""Record of what a case of the conformance kit covered: the sizes of its arrays and the magnitudes of their values."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache

import numpy as np

from polyarr import tree
from polyarr.testing.shaped import SHAPED_VALUES
from polyarr.testing.strategies import Data, Sample

DRAWN = 4096  # elements drawn to estimate the magnitudes of a rule of values

Extent = tuple[int, float, float]
_recorded: ContextVar[dict[str, Extent] | None] = ContextVar("polyarr_covered", default=None)


@contextmanager
def recording() -> Iterator[dict[str, Extent]]:
    """Record the calls checked in this context.

    Yields:
        dtype -> (largest array size, smallest nonzero magnitude, largest magnitude), filled in during the context.
    """
    found: dict[str, Extent] = {}
    token = _recorded.set(found)
    try:
        yield found
    finally:
        _recorded.reset(token)


def note(sample: Sample) -> None:
    """Record a call that a check is about to make."""
    found = _recorded.get()
    if found is None:
        return
    for data in tree.leaves(sample.inputs):
        if isinstance(data, Data):
            size = int(np.prod(data.shape))
            low, high = _magnitudes(replace(data, shape=(DRAWN,), layout="plain", seed=0)) if size else (np.inf, 0.0)
            most, lowest, highest = found.get(data.dtype, (0, np.inf, 0.0))
            found[data.dtype] = (max(most, size), min(lowest, low), max(highest, high))


@lru_cache(maxsize=1024)
def _magnitudes(data: Data) -> tuple[float, float]:
    """Return the smallest nonzero and the largest finite magnitude of an array."""
    if data.values in SHAPED_VALUES:
        data = replace(data, shape=(64, DRAWN // 64))
    with np.errstate(all="ignore"):
        found = np.abs(data.wide()).astype(np.float64)
    found = found[np.isfinite(found) & (found != 0)]
    return (float(found.min()), float(found.max())) if found.size else (np.inf, 0.0)
