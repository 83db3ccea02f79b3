"""Faults of a wheel: missing and foreign files, and its size."""

import zipfile
from pathlib import Path

from tests.helpers.root import ROOT

MAX_BYTES = 1_000_000
KINDS = ("*.py", "*.cl", "*.json", "*.jinja", "*.toml", "*.pyi", "py.typed")
FOREIGN = ("tests/", "benchmarks/", "docs/", "examples/", "build/")


def faults(wheel: Path) -> list[str]:
    """Return a line for each missing file of the package, each foreign file, and a size that is too large."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = (path for kind in KINDS for path in (ROOT / "polyarr").rglob(kind))
    needed = {path.relative_to(ROOT).as_posix() for path in files}
    lines = [f"the wheel lacks {name}" for name in sorted(needed - names)]
    lines += [f"the wheel holds {name}" for name in sorted(names) if name.startswith(FOREIGN)]
    if (size := wheel.stat().st_size) > MAX_BYTES:
        lines.append(f"the wheel has {size:,} bytes; at most {MAX_BYTES:,} are allowed")
    return lines
