"""A run as one page of HTML, which needs nothing besides itself."""

import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from polyarr.extras import extra
from polyarr.saving import write_whole
from polyarr.training.checkpoint import read_info
from polyarr.training.curves import Line, chart
from polyarr.training.files import REPORT, newest, path_of
from polyarr.training.metrics import Row, numbers, read_metrics
from polyarr.training.progress import amount, duration
from polyarr.training.run import perplexity
from polyarr.version import __version__

_EVALUATIONS = 500  # rows of the table, the last ones
_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {  # of the last line of numbers: as what, and how
    "tokens_per_second": ("tokens/s", "{:,.4g}".format),
    "tflops": ("TFLOP/s", "{:,.4g}".format),
    "of_peak": ("of the device's peak", "{:.1%}".format),
    "memory_peak": ("memory of the device, at most", amount),
}


def write_report(folder: str | Path, samples: Sequence[str] = ()) -> Path:
    """Write report.html into a run's folder: its curves, evaluations, recipe, environment, and texts that it wrote.

    Errors:  OSError if there is no checkpoint, or it cannot be read, or the page cannot be written; ValueError if it
             is damaged; RuntimeError without the libraries of the extra "train"
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
    page = rendered(info, read_metrics(folder, info["run"]), samples)
    write_whole(path, page.encode("utf-8", "backslashreplace"))
    return path


def rendered(info: Mapping[str, Any], rows: Sequence[Row], samples: Sequence[str] = ()) -> str:
    """The page of a run, of what its checkpoint and its metrics say."""
    jinja2 = extra("jinja2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"duration": duration, "perplexity": perplexity}
    template = environment.from_string(files("polyarr.training").joinpath("report.html.jinja").read_text("utf-8"))
    return template.render(
        info=info,
        facts=_facts(info, rows),
        charts=_charts(info, rows),
        evaluations=info["history"][-_EVALUATIONS:],
        recipe=list(_flat(info["recipe"])),
        places=_environment(info, rows),
        samples=samples,
        polyarr=__version__,
    )


def _facts(info: Mapping[str, Any], rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What is to be seen first."""
    history, recipe = info["history"], info["recipe"]
    best = min(history, key=lambda row: row["val"], default=None)
    found = [("steps", f"{info['step']:,} of {recipe['steps']:,}"), ("time", duration(info["seconds"]))]
    if best:
        found.append(("best validation loss", f"{best['val']:.4f} at step {best['step']:,}"))
        found.append(("its perplexity", f"{perplexity(best['val']):,.2f}"))
    if info["curve"]:
        found.append(("training loss", f"{info['curve'][-1][1]:.4f}"))
    last = [(name, numbers(rows, name)[-1:]) for name in _SHOWN]
    return found + [(_SHOWN[name][0], _SHOWN[name][1](value)) for name, values in last for _, value in values]


def _charts(info: Mapping[str, Any], rows: Sequence[Row]) -> list[dict[str, Any]]:
    validation = [(row["step"], row["val"]) for row in info["history"]]
    losses = [Line("training", info["curve"]), Line("validation", validation, dots=True)]
    found = [chart("Loss", losses), chart("Learning rate", [Line("learning rate", numbers(rows, "lr"))])]
    found.append(chart("Norm of the gradients", [Line("before clipping", numbers(rows, "grad_norm"))], from_zero=True))
    found.append(chart("Tokens per second", [Line("tokens/s", numbers(rows, "tokens_per_second"))], from_zero=True))
    return [one for one in found if one]


def _flat(settings: Mapping[str, Any], before: str = "") -> Any:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _environment(info: Mapping[str, Any], rows: Sequence[Row]) -> list[tuple[str, Any]]:
    found = [(name, version) for name, version in info["versions"].items()]
    computed = dict.fromkeys(f"{row['backend']} ({row.get('hardware')})" for row in rows if "backend" in row)
    found += [("computed on", name) for name in computed]
    kind = info["tokenizer"]["kind"]
    return [*found, ("tokenizer", kind), ("text", info["data"] or "the source of Python's standard library"),
            ("seed", info["seed"]), ("run", info["run"]), ("report written on", platform.platform())]  # fmt: skip
