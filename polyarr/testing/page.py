"""Rendering of the conformance kit's report as one self-contained HTML page."""

from importlib.resources import files
from typing import Any

import jinja2

from polyarr.testing.cases import columns
from polyarr.testing.report import BAD, LEVELS, grouped

SYMBOLS = {
    "passed": "✓", "partly": "◐", "failed": "✗", "skipped": "–", "not offered": "○", "known failure": "k", "stale": "!",
}  # fmt: skip


def render(report: dict[str, Any]) -> str:
    """Return the HTML page of a report in the format of report.schema.json."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files("polyarr.testing").joinpath("report.html.jinja").read_text("utf-8"))
    sections = [_section(backend) for backend in report["backends"]]
    return template.render(report=report, sections=sections, columns=columns(), symbols=SYMBOLS)


def _section(backend: dict[str, Any]) -> dict[str, Any]:
    """Return the values that the template shows for a backend in addition to its own facts."""
    results, known = backend["results"], set(columns())
    return {
        "backend": backend,
        "matrix": _matrix([r for r in results if r["check"] in known]),
        "others": [r for r in results if r["check"] not in known],
        "failures": [r for r in results if r["outcome"] in BAD],
        "skips": {outcome: grouped(results, outcome) for outcome in ("partly", "not offered", "skipped")},
        "known": [r for r in results if r["outcome"] == "known failure"],
    }


def _matrix(results: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Return level -> op -> check -> result; an op is listed at the first level that has a case of it."""
    home: dict[str, str] = {}
    for r in results:
        level = home.get(r["subject"], r["level"])
        home[r["subject"]] = min(level, r["level"], key=LEVELS.index)
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for r in sorted(results, key=lambda r: (LEVELS.index(home[r["subject"]]), r["subject"])):
        found.setdefault(home[r["subject"]], {}).setdefault(r["subject"], {})[r["check"]] = r
    return found
