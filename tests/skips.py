"""The summary at the end of `make test`: which checks were skipped here, why, and how to run them.

python -m tests.skips FILE...     files that pytest wrote with --skips
"""

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from polyarr.core.op import OPS

ROOT = Path(__file__).parents[1]
MOST = 30  # reasons listed per run of pytest
# Differences between skips for the same reason: quoted names, names of ops and dtypes, and numbers.
_OPS = "|".join(sorted((re.escape(op.name) for op in OPS), key=len, reverse=True))
_DETAIL = re.compile(rf"'[^']*'|\"[^\"]*\"|\b(?:{_OPS})\b|\b\w*\d[\w.]*")


class Part(NamedTuple):
    """Checks that need something of their own.

    Attributes:
        target: Makefile target that runs them.
        ran: Whether `make test` ran them (the summary is printed only if it succeeded).
        remedy: How to run them.
    """

    name: str
    target: str
    ran: Callable[[], bool]
    remedy: str


PARTS = (
    Part("every OpenCL kernel under Oclgrind", "sanitize", lambda: bool(shutil.which("oclgrind")),
         "install Debian's package oclgrind; `make test` then runs them"),
    Part("models and ops beside transformers and PyTorch", "test-transformers",
         lambda: (ROOT / ".venv-transformers" / "ready").is_file(),
         "make test-transformers, which makes an environment of its own; `make test` then runs them"),
    Part("the test suite of the array API standard", "array-api", lambda: False,
         "make array-api SUITE=FOLDER, with a checkout of github.com/data-apis/array-api-tests"),
    Part("SciPy, scikit-learn, einops and others with arrays of polyarr", "interop", lambda: False,
         "make interop, which makes an environment of its own"),
    Part("the conformance kit on Intel's OpenCL", "test-intel", lambda: False,
         "make test-intel, which makes an environment of its own"),
    Part("the conformance kit on rusticl, Mesa's OpenCL", "test-mesa", lambda: False,
         "make test-mesa, with Debian's package mesa-opencl-icd"),
    Part("the conformance kit with many more examples", "thorough", lambda: False, "make thorough"),
)  # fmt: skip


def lines_of(reasons: Iterable[str], most: int = MOST) -> Iterator[str]:
    """Return lines with counts and reasons, most frequent first; reasons equal but for names and numbers are merged."""
    groups: dict[str, Counter[str]] = {}
    for reason in reasons:
        plain = reason.removeprefix("Skipped: ").partition("\n")[0]
        groups.setdefault(_DETAIL.sub("...", plain), Counter())[plain] += 1
    ordered = sorted(groups.values(), key=lambda group: (-group.total(), min(group)))
    for group in ordered[:most]:
        others = f" (and {len(group) - 1} like it)" if len(group) > 1 else ""
        yield f"{group.total():>6}  {min(group)}{others}"
    if rest := ordered[most:]:
        yield f"{sum(group.total() for group in rest):>6}  for {len(rest)} further reasons: pytest -rs lists them"


def page(runs: dict[str, dict], targets: str) -> Iterator[str]:
    """Return the summary.

    `runs` maps names to what --skips wrote: the number of tests run, how many passed in an earlier run instead, and the
    reasons of skips. `targets` are those of the Makefile, which need not have all parts.
    """
    yield "What was not checked here"
    for name, run in runs.items():
        reused = f"{run['reused']:,} passed in an earlier run, " if run.get("reused") else ""
        yield f"\n{name}: {run['ran']:,} tests ran, {reused}{len(run['skipped']):,} were skipped"
        yield from lines_of(run["skipped"])
    parts = [(part, part.ran()) for part in PARTS if f"\n{part.target}:" in targets]
    yield "\nChecks of their own"
    for part, ran in parts:
        yield f"  ran      {part.name}" if ran else f"  did not  {part.name}: {part.remedy}"


def main(files: list[str]) -> None:
    """Print the summary of the files."""
    runs = {Path(file).stem: json.loads(Path(file).read_text()) for file in files}
    print("\n".join(page(runs, (ROOT / "Makefile").read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
