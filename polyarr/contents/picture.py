"""Histograms of tensors as a picture."""

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.atomic import write_whole
from polyarr.contents.kinds import Contents
from polyarr.contents.statistics import Statistics, histogram
from polyarr.extras import extra

BINS = 60
MAX_HISTOGRAMS = 300  # histograms in a picture
_MAX_NAME = 40  # characters of a name in the picture


def save_histograms(path: str | Path, contents: Contents) -> int:
    """Plot histograms of the finite numbers of each tensor into a PNG, without a display.

    Tensors without numbers are left out. Of more than 300 tensors, only the largest are shown.

    Args:
        path: The PNG file.
        contents: Contents with statistics.

    Returns:
        The number of histograms.

    Raises:
        OSError: The file cannot be written.
        RuntimeError: The library matplotlib is missing.
    """
    some = [
        (t, blocks, ends)
        for t in contents.tensors
        if (blocks := t.blocks) and t.statistics and (ends := _finite_ends(t.statistics))
    ]
    kept = {id(t) for t, *_ in sorted(some, key=lambda each: -each[0].size)[:MAX_HISTOGRAMS]}
    shown = [each for each in some if id(each[0]) in kept]
    columns = min(6, max(1, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    width, height = 2.6 * columns, 1.5 * rows + 0.6  # inches
    figure = extra("matplotlib.figure").Figure(figsize=(width, height))
    for place, (tensor, blocks, ends) in enumerate(shown):
        row, column = divmod(place, columns)
        left, top = (2.6 * column + 0.2) / width, (1.5 * row + 0.8) / height
        axes = figure.add_axes((left, 1 - top - 0.9 / height, 2.2 / width, 0.9 / height))
        _draw(axes, tensor.name, blocks(), ends)
    left_out = f"; the {len(shown)} largest of {len(some)} tensors" if len(shown) < len(some) else ""
    title = f"{contents.path.name}: {contents.kind}{left_out}; how many numbers there are of each size (logarithm)"
    figure.text(0.2 / width, 1 - 0.3 / height, _plain(title), fontsize=9)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=90)  # a Figure without pyplot draws with Agg, which needs no display
    write_whole(Path(path), picture.getvalue())
    return len(shown)


def _finite_ends(statistics: Statistics) -> tuple[float, float] | None:
    """Return the smallest and the largest number; None if there is none, or their difference is not finite."""
    low, high = statistics.min, statistics.max
    return (low, high) if low is not None and high is not None and math.isfinite(high - low) else None


def _draw(axes: Any, name: str, blocks: Iterator[np.ndarray], ends: tuple[float, float]) -> None:
    low, high = map(float, ends)
    if low == high:
        low, high = low - 0.5 * max(1.0, abs(low)), high + 0.5 * max(1.0, abs(high))
    numbers = histogram(blocks, low, high, BINS)
    axes.stairs(np.log1p(numbers), np.linspace(low, high, BINS + 1), fill=True)
    axes.set_yticks([])
    axes.set_xticks([low, high], [f"{low:.3g}", f"{high:.3g}"], fontsize=6)
    axes.set_title(_plain(_short(name)), fontsize=6)


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"...{name[-_MAX_NAME:]}"


def _plain(text: str) -> str:
    """Return a text without matplotlib's markup, and without characters that its font may lack."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text).replace("$", r"\$")
