"""Report of a run as one self-contained HTML page."""

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from polyarr.atomic import write_whole
from polyarr.extras import extra
from polyarr.files import read_regular
from polyarr.schema import flattened
from polyarr.training.checkpoint import read_info
from polyarr.training.curves import Line, chart
from polyarr.training.files import PROFILE, REPORT, newest, path_of
from polyarr.training.metrics import Row, numbers, read_metrics
from polyarr.training.progress import format_bytes, format_seconds
from polyarr.training.run import perplexity
from polyarr.version import __version__

_EVALUATIONS = 500  # evaluations in the table: the last ones
_MAX_PROFILE = 2**24  # bytes of the table
_RATES: dict[str, tuple[str, Callable[[float], str]]] = {  # title and format of metrics that are averaged
    "tokens_per_second": ("tokens/s", "{:,.4g}".format),
    "tflops": ("TFLOP/s", "{:,.4g}".format),
    "of_peak": ("of the device's peak", "{:.1%}".format),
}


def write_report(folder: str | Path, samples: Sequence[str] = ()) -> Path:
    """Write report.html into the folder of a run: its curves, evaluations, profile, recipe, environment and samples.

    Raises:
        OSError: There is no checkpoint, it cannot be read, or the page cannot be written.
        ValueError: The checkpoint is damaged.
        RuntimeError: A library of the extra "train" is missing.
    """
    folder = Path(folder)
    checkpoint = path_of(folder, newest(folder))
    if not checkpoint.is_file():
        raise FileNotFoundError(f"{folder}: no checkpoint is here; a report is of a run that was saved")
    try:
        info = read_info(checkpoint)
    except ValueError as error:
        raise ValueError(f"{checkpoint}: damaged checkpoint: {error}") from error
    path = folder / REPORT
    profile = read_regular(folder / PROFILE, _MAX_PROFILE).decode() if (folder / PROFILE).exists() else ""
    page = rendered(info, read_metrics(folder, info["run"]), samples, profile)
    write_whole(path, page.encode("utf-8", "backslashreplace"))
    return path


def rendered(info: Mapping[str, Any], rows: Sequence[Row], samples: Sequence[str] = (), profile: str = "") -> str:
    """Return the HTML page of a run, from the info of its checkpoint, its metrics, and the table of its profile."""
    jinja2 = extra("jinja2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"duration": format_seconds, "perplexity": perplexity}
    template = environment.from_string(files("polyarr.training").joinpath("report.html.jinja").read_text("utf-8"))
    return template.render(
        info=info,
        facts=_facts(info, rows),
        charts=_charts(info, rows),
        evaluations=info["history"][-_EVALUATIONS:],
        recipe=list(flattened(info["recipe"])),
        places=_environment(info, rows),
        samples=samples,
        profile=profile,
        polyarr=__version__,
    )


def _facts(info: Mapping[str, Any], rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return titles and texts for the top of the page."""
    history, recipe = info["history"], info["recipe"]
    best = min(history, key=lambda row: row["val"], default=None)
    found = [("steps", f"{info['step']:,} of {recipe['steps']:,}"), ("time", format_seconds(info["seconds"]))]
    if best:
        found.append(("best validation loss", f"{best['val']:.4f} at step {best['step']:,}"))
        found.append(("its perplexity", f"{perplexity(best['val']):,.2f}"))
    if info["curve"]:
        found.append(("training loss", f"{info['curve'][-1][1]:.4f}"))
    for name, (title, shown) in _RATES.items():
        if (rate := _average(rows, name)) is not None:
            found.append((title, shown(rate)))
    if peaks := [value for _, value in numbers(rows, "memory_peak")]:
        found.append(("memory of the device, at most", format_bytes(max(peaks))))
    return found


def _average(rows: Sequence[Row], name: str) -> float | None:
    """Return the mean of a rate over the run's time: each row is weighted by the seconds since the row before."""
    weights, values, before = [], [], 0.0
    for row in rows:
        for (_, value), (_, seconds) in zip(numbers([row], name), numbers([row], "seconds"), strict=False):
            weights.append(max(seconds - before, 0.0))
            values.append(float(value))
            before = max(seconds, before)
    total = math.fsum(weights)
    return math.fsum(w / total * v for w, v in zip(weights, values, strict=True)) if total else None


def _charts(info: Mapping[str, Any], rows: Sequence[Row]) -> list[dict[str, Any]]:
    validation = [(row["step"], row["val"]) for row in info["history"]]
    losses = [Line("training", info["curve"]), Line("validation", validation, dots=True)]
    found = [chart("Loss", losses), chart("Learning rate", [Line("learning rate", numbers(rows, "lr"))])]
    found.append(chart("Norm of the gradients", [Line("before clipping", numbers(rows, "grad_norm"))], from_zero=True))
    found.append(chart("Tokens per second", [Line("tokens/s", numbers(rows, "tokens_per_second"))], from_zero=True))
    return [one for one in found if one]


def _environment(info: Mapping[str, Any], rows: Sequence[Row]) -> list[tuple[str, Any]]:
    found = [(name, version) for name, version in info["versions"].items()]
    computed = dict.fromkeys(f"{row['backend']} ({row.get('hardware')})" for row in rows if "backend" in row)
    found += [("computed on", name) for name in computed]
    kind = info["tokenizer"]["kind"]
    return [*found, ("tokenizer", kind), ("text", info["data"] or "the source of Python's standard library"),
            ("seed", info["seed"]), ("run", info["run"]), ("report written on", platform.platform())]  # fmt: skip
