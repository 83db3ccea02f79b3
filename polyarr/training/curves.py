"""Lines through points, as what a page draws with SVG."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from polyarr.extras import extra

WIDTH, HEIGHT = 760, 260  # of a chart
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 32  # of what lies around the lines
MOST = 800  # points of a line; of more, neighbours are drawn as their mean
TICKS = 6

Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """A line of a chart, with or without a dot at each point."""

    name: str
    points: Points
    dots: bool = False


def chart(title: str, lines: Sequence[Line], from_zero: bool = False) -> dict[str, Any] | None:
    """Lines over steps, scaled into one picture: paths, dots and ticks. None if there is nothing to draw."""
    lines = [line._replace(points=thinned(line.points)) for line in lines if line.points]
    if not lines:
        return None
    steps, values = zip(*(point for line in lines for point in line.points), strict=True)
    x = _Axis(min(steps), max(steps), LEFT, WIDTH - RIGHT)
    y = _Axis(min(*values, 0) if from_zero else min(values), max(values), HEIGHT - BOTTOM, TOP)
    return {
        "title": title,
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "bottom": HEIGHT - BOTTOM,
        "x_ticks": x.ticks(), "y_ticks": y.ticks(),
        "lines": [_drawn(line, x, y) for line in lines],
    }  # fmt: skip


class _Axis:
    """Numbers to places along an axis."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.high = (low, high) if high > low else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
        self.begin, self.end = begin, end

    def place(self, value: float) -> float:
        # Halves, for the whole range may be more than a float.
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self) -> list[dict[str, Any]]:
        found = extra("matplotlib.ticker").MaxNLocator(TICKS).tick_values(self.low, self.high)
        inside = [float(value) for value in found if self.low <= value <= self.high]
        return [{"place": self.place(value), "text": f"{value:,.6g}"} for value in inside]


def _drawn(line: Line, x: _Axis, y: _Axis) -> dict[str, Any]:
    places = [(x.place(step), y.place(value)) for step, value in line.points]
    dots = [
        {"x": a, "y": b, "text": f"step {step:,.6g}: {value:.6g}"}
        for (a, b), (step, value) in zip(places, line.points, strict=True)
    ]
    path = "M" + " L".join(f"{a} {b}" for a, b in places)
    return {"name": line.name, "path": path, "dots": dots if line.dots or len(dots) == 1 else []}


def thinned(points: Points) -> list[tuple[float, float]]:
    """At most MOST points: each the mean of as many neighbours."""
    if len(points) <= MOST:
        return [(float(step), float(value)) for step, value in points]
    cuts = [i * len(points) // MOST for i in range(MOST + 1)]
    groups = [points[a:b] for a, b in itertools.pairwise(cuts)]
    return [tuple(sum(column) / len(group) for column in zip(*group, strict=True)) for group in groups]
