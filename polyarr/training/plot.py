"""The loss curve."""

from pathlib import Path

from polyarr.training.extras import extra


def save_curve(path: Path, training: list, validation: list, title: str) -> None:
    """Draw two lists of (step, loss) into a PNG. Needs no display."""
    figure = extra("matplotlib.figure").Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*_columns(training), label="training", linewidth=0.8)
    axes.plot(*_columns(validation), label="validation", marker="o", markersize=3)
    axes.set(xlabel="step", ylabel="loss (nats per character)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png", dpi=130)  # a Figure of its own draws with Agg
    temporary.replace(path)


def _columns(points: list) -> tuple:
    return tuple(zip(*points, strict=True)) if points else ((), ())
