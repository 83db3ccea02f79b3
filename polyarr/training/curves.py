"""Line charts as coordinates for an SVG picture."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from polyarr.extras import extra

WIDTH, HEIGHT = 760, 260  # size of a chart, in pixels
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 32  # margins around the lines, in pixels
_LETTER = 7  # width of the widest digit in a tick's text of 11 pixels
MAX_POINTS = 800  # points of a line; in longer lines, neighbors are drawn as their mean
TICKS = 6

Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """Line of a chart, with or without a dot at each point."""

    name: str
    points: Points
    dots: bool = False


def chart(title: str, lines: Sequence[Line], from_zero: bool = False) -> dict[str, Any] | None:
    """Return lines over steps, scaled to a picture, as paths, dots and ticks; None if there are no points."""
    lines = [line._replace(points=downsampled(line.points)) for line in lines if line.points]
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
    """Scale from values to positions along an axis."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.high = (low, high) if high > low else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
        self.begin, self.end = begin, end

    def place(self, value: float) -> float:
        # Halves, because the whole range may overflow a float.
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self) -> list[dict[str, Any]]:
        found = extra("matplotlib.ticker").MaxNLocator(TICKS).tick_values(self.low, self.high)
        inside = [float(value) for value in found if self.low <= value <= self.high]
        return [self._tick(value) for value in inside]

    def _tick(self, value: float) -> dict[str, Any]:
        """Return a tick; along x its text is centered on it, but does not go beyond the right edge."""
        place, text = self.place(value), f"{value:,.6g}"
        return {"place": place, "text": text, "middle": min(place, WIDTH - _LETTER * len(text) / 2)}


def _drawn(line: Line, x: _Axis, y: _Axis) -> dict[str, Any]:
    places = [(x.place(step), y.place(value)) for step, value in line.points]
    dots = [
        {"x": a, "y": b, "text": f"step {step:,.6g}: {value:.6g}"}
        for (a, b), (step, value) in zip(places, line.points, strict=True)
    ]
    path = "M" + " L".join(f"{a} {b}" for a, b in places)
    return {"name": line.name, "path": path, "dots": dots if line.dots or len(dots) == 1 else []}


def downsampled(points: Points) -> list[tuple[float, float]]:
    """Return at most MAX_POINTS points, each the mean of an equal number of neighbors."""
    if len(points) <= MAX_POINTS:
        return [(float(step), float(value)) for step, value in points]
    cuts = [i * len(points) // MAX_POINTS for i in range(MAX_POINTS + 1)]
    groups = [zip(*points[a:b], strict=True) for a, b in itertools.pairwise(cuts)]
    return [(sum(steps) / len(steps), sum(values) / len(values)) for steps, values in groups]
