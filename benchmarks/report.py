"""What benchmarks share: the options --json and --png, and what they write."""

import argparse
import importlib.util
import json
from typing import Any

WIDTH, ROW = 8, 0.32  # inches of a picture, and of each row in it


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, with those that say where to write what was measured, besides the table."""
    parser.add_argument("--json", metavar="FILE", help="write everything to this file as well")
    parser.add_argument("--png", metavar="FILE", help="draw a picture as well; needs matplotlib")
    options = parser.parse_args()
    if options.png and not importlib.util.find_spec("matplotlib"):
        parser.error("--png needs matplotlib: pip install matplotlib")
    return options


def write(
    options: argparse.Namespace, found: dict[str, Any], title: str, unit: str, rows: dict[str, dict[str, float]]
) -> None:
    """Write all that was found as JSON, and rows, by who was measured, as a picture, where that is wanted."""
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1, default=str)
    if options.png:
        _draw(options.png, title, unit, rows)


def _draw(path: str, title: str, unit: str, rows: dict[str, dict[str, float]]) -> None:
    """A group of bars for each row, on a scale of powers of ten."""
    from matplotlib.figure import Figure

    who = list(dict.fromkeys(name for row in rows.values() for name in row))
    figure = Figure(figsize=(WIDTH, 1.2 + ROW * len(rows) * max(len(who), 1)), layout="constrained")
    axes, height = figure.subplots(), 0.8 / max(len(who), 1)
    for i, name in enumerate(who):
        places = [(at + i * height, row[name]) for at, row in enumerate(rows.values()) if name in row]
        axes.barh([place for place, _ in places], [value for _, value in places], height, label=name)
    axes.set_yticks([at + 0.4 - height / 2 for at in range(len(rows))], list(rows))
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel=unit, title=title)
    axes.grid(axis="x", which="both", alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)
