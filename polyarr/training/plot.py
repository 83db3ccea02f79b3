"""Plots of the losses and the learning rate of a run."""

import io
from pathlib import Path

from polyarr.atomic import write_whole
from polyarr.extras import extra

Points = list[tuple[int, float]]


def save_curves(path: Path, training: Points, validation: Points, rates: Points, title: str, unit: str) -> None:
    """Plot (step, loss) and (step, learning rate) into a PNG, without a display; `unit` is the name of tokens."""
    figure = extra("matplotlib.figure").Figure(figsize=(7, 5.2))
    # Fixed margins, wide enough for six digits: an automatic layout would draw everything twice.
    figure.subplots_adjust(left=0.13, right=0.98, bottom=0.09, top=0.94, hspace=0.06)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot(*_columns(training), label="training", linewidth=0.8)
    above.plot(*_columns(validation), label="validation", marker="o", markersize=3)
    above.set(ylabel=f"loss (nats per {unit.removesuffix('s')})", title=title)
    above.legend()
    below.plot(*_columns(rates), color="tab:green", linewidth=0.8)
    below.set(xlabel="step", ylabel="learning rate")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)  # a Figure without pyplot draws with Agg, which needs no display
    write_whole(path, picture.getvalue())


def _columns(points: Points) -> tuple:
    return tuple(zip(*points, strict=True)) if points else ((), ())
