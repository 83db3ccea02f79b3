"""The loss curve."""

import io
from pathlib import Path

from polyarr.extras import extra
from polyarr.saving import write_whole


def save_curve(path: Path, training: list, validation: list, title: str, unit: str) -> None:
    """Draw two lists of (step, loss) into a PNG; unit is what tokens are called. Needs no display."""
    figure = extra("matplotlib.figure").Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*_columns(training), label="training", linewidth=0.8)
    axes.plot(*_columns(validation), label="validation", marker="o", markersize=3)
    axes.set(xlabel="step", ylabel=f"loss (nats per {unit.removesuffix('s')})", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)  # a Figure of its own draws with Agg
    write_whole(path, picture.getvalue())


def _columns(points: list) -> tuple:
    return tuple(zip(*points, strict=True)) if points else ((), ())
