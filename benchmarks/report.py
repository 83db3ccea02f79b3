"""Options --json and --png of the benchmarks, and the files that they write."""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import sys
from typing import Any

WIDTH, ROW = 8, 0.32  # inches: width of a picture, height of each row in it


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the parsed options, including those for output files."""
    parser.add_argument("--json", metavar="FILE", help="write everything to this file as well")
    parser.add_argument("--png", metavar="FILE", help="draw a picture as well; needs matplotlib")
    options = parser.parse_args()
    if options.png and not importlib.util.find_spec("matplotlib"):
        parser.error("--png needs matplotlib: pip install matplotlib")
    return options


def write(
    options: argparse.Namespace, found: dict[str, Any], title: str, unit: str, rows: dict[str, dict[str, float]]
) -> None:
    """Write the measurements as JSON, and the rows by contender as a picture, if requested.

    The site shows the rows of a JSON file in docs/benchmarks/, with where and when they were measured.
    """
    if options.json:
        shown = {"title": title, "unit": unit, "rows": rows}
        with open(options.json, "w") as file:
            json.dump({**shown, **_circumstances(), "measured": found}, file, indent=1, default=str)
    if options.png:
        _draw(options.png, title, unit, rows)


def _circumstances() -> dict[str, str]:
    """Return where, when and by which command something was measured."""
    import polyarr  # here, so that a process may time its import

    return {
        "machine": f"{polyarr.get_backend().hardware}; {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}",
        "date": datetime.date.today().isoformat(),
        "polyarr": polyarr.__version__,
        "command": " ".join(["python", *sys.argv]),
    }


def _draw(path: str, title: str, unit: str, rows: dict[str, dict[str, float]]) -> None:
    """Draw a group of bars for each row on a logarithmic scale."""
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
