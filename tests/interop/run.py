"""Call other libraries with arrays of each backend, compare with NumPy's results, and write it into docs/interop.md.

    python tests/interop/run.py [--backends numpy opencl] [--only TEXT]

It fails if a result differs from the one with NumPy's arrays, and if the table changes. What it needs is in the extra
`interop`. With --only, nothing is written.
"""

import argparse
import itertools
import re
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[2]))

import numpy as np

import polyarr as pa
from tests.interop.calls import CALLS, samples

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
BEGIN, END = "<!-- begin: written by make interop -->\n", "<!-- end -->\n"
KINDS = ("on the backend", "through the host", "result on the host", "fails")
RTOL, ATOL = 2e-3, 1e-4  # float32 through long computations


class Outcome(NamedTuple):
    """What a call came to, one of KINDS or "wrong", and the error."""

    kind: str
    error: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backends", nargs="+", default=["numpy", "opencl"], help="backends")
    parser.add_argument("--only", default="", help="only the calls whose library or name contains this")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    outcomes = {
        (library, name): [outcome(call, backend) for backend in asked.backends]
        for library, calls in CALLS.items()
        for name, call in calls.items()
        if asked.only in f"{library} {name}"
    }
    text = "\n".join(table(outcomes, asked.backends)) + "\n"
    print(text)
    wrong = any(each.kind == "wrong" for found in outcomes.values() for each in found)
    return int(wrong or (not asked.only and write(text)))


def outcome(call: Any, backend: str) -> Outcome:
    """Run a call with arrays of NumPy and of a backend, and compare the results."""
    due = [np.asarray(value) for value in leaves(call(samples(np.array)))]
    try:
        with pa.use_backend(backend) as started:
            given, before = samples(pa.asarray), pa.transfers()
            found, after = leaves(call(given)), pa.transfers()
    except Exception as error:  # whatever a library raises is what the table is about
        told = re.sub(r" from '[^']*'", "", " ".join(str(error).split()))  # where modules are installed
        return Outcome("fails", f"{type(error).__name__}: {told}")
    try:
        assert len(found) == len(due), f"{len(found)} results instead of {len(due)}"
        for ours, theirs in zip(found, due, strict=True):
            np.testing.assert_allclose(np.asarray(ours), theirs, rtol=RTOL, atol=ATOL)
    except AssertionError as error:
        return Outcome("wrong", " ".join(str(error).split()))
    stays = bool(found) and not any(isinstance(a, (np.ndarray, np.generic)) for a in found)
    assert all(a.device == started.name for a in found if isinstance(a, pa.Array))
    # A read of one element, for a decision, is 8 bytes at most.
    reads = after.download_bytes - before.download_bytes > 8 * (after.downloads - before.downloads)
    return Outcome("result on the host" if not stays else "through the host" if reads else "on the backend")


def leaves(value: Any) -> list[Any]:
    """Return the arrays and numbers of a result: of tuples and lists, and of results of tests of SciPy."""
    if isinstance(value, (list, tuple)):
        return [leaf for member in value for leaf in leaves(member)]
    if hasattr(value, "statistic") and hasattr(value, "pvalue"):
        return [value.statistic, value.pvalue]
    return [] if value is None else [value]


def table(outcomes: dict[tuple[str, str], list[Outcome]], backends: list[str]) -> Iterator[str]:
    """Yield the lines of the table: libraries by the numbers of calls, and below it each call that fails."""
    yield f"| library | version | calls | {' | '.join(KINDS)} |"
    yield "|---|---|---|---|---|---|---|"
    libraries = dict.fromkeys(library for library, _ in outcomes)
    for library in libraries:
        rows = [found for (owner, _), found in outcomes.items() if owner == library]
        counts = [[sum(found[b].kind == kind for found in rows) for b in range(len(backends))] for kind in KINDS]
        cells = (" / ".join(map(str, each)) if len({*each}) > 1 else str(each[0]) for each in counts)
        yield f"| {library} | {version(library.partition('.')[0])} | {len(rows)} | {' | '.join(cells)} |"
    yield f"\nTwo numbers are for {' and '.join(backends)}. *Through the host*: the result is an array of the backend,"
    yield "but the library reads a whole array on the way, to compute with NumPy or to decide.\n"
    yield "| call | backend | error |"
    yield "|---|---|---|"
    for (library, name), found in outcomes.items():
        errors: dict[str, list[str]] = {}
        for backend, each in zip(backends, found, strict=True):
            errors.setdefault(each.error, []).append(backend)
        for error, where in errors.items():
            if error:
                told = (error if len(error) <= 150 else f"{error[:150]}...").replace("<", "&lt;").replace("|", "&#124;")
                yield f"| {library}: {name} | {', '.join(where)} | {told} |"
    yield "\n| library | where | calls |"
    yield "|---|---|---|"
    for library, kind in itertools.product(libraries, KINDS[:-1]):
        calls = {name: {e.kind for e in found} for (owner, name), found in outcomes.items() if owner == library}
        if names := [name for name, kinds in calls.items() if kind in kinds]:
            yield f"| {library} | {kind} | {', '.join(names)} |"


def write(text: str) -> bool:
    """Write the table into the page, and return whether it changed."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    old, _, after = rest.partition(END)
    if changed := old != text:
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}")
        print(f"{PAGE.name} has changed; look at the difference")
    return changed


if __name__ == "__main__":
    raise SystemExit(main())
