"""The page of benchmarks, from the JSON that they write with --json into docs/benchmarks/."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def page_of_measurements(files: Iterable[Path]) -> str:
    """Return a section with a table for each file, or one line if there is none."""
    sections = [_section(json.loads(path.read_text())) for path in sorted(files)]
    return "# Benchmarks\n\n" + ("\n".join(sections) or "No measurements are kept in docs/benchmarks/ yet.\n")


def _section(found: dict[str, Any]) -> str:
    names = list(dict.fromkeys(name for row in found["rows"].values() for name in row))
    unit = f" In {found['unit']}." if found["unit"] else ""
    where = f"{found['machine']}; polyarr {found['polyarr']}, {found['date']}; `{found['command']}`.{unit}"
    rows = (f"| {key} | {' | '.join(_number(row.get(name)) for name in names)} |" for key, row in found["rows"].items())
    head = [f"## {found['title']}\n\n{where}\n", f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    return "\n".join([*head, *rows, ""])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
