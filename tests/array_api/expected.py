"""Pytest plugin for the test suite of the array API standard: marks the failures that expected.toml states.

tests/array_api/run.py loads it. An expected failure that passes is an error, unless its entry says `sometimes`.
"""

import os
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_suffix(".toml")
SUMMARY = "array API suite:"


def entries(backend: str, version: str) -> list[dict[str, Any]]:
    """Return the entries of expected.toml for a backend and a version of the standard."""
    found = tomllib.loads(FILE.read_text())["expected"]
    chosen = {"backends": backend, "versions": version}
    return [e for e in found if all(value in e.get(name, [value]) for name, value in chosen.items())]


def is_meant(text: str, test: str) -> bool:
    """Return whether an entry's text is the id of a test, or of its function."""
    whole = re.compile(re.escape(text).replace(r"\*", ".*"), re.DOTALL)
    return any(whole.fullmatch(name) for name in (test, test.partition("[")[0]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that an entry is for."""
    stated = entries(os.environ["POLYARR_BACKEND"], os.environ["ARRAY_API_TESTS_VERSION"])
    for item in items:
        test = item.nodeid.removeprefix("array_api_tests/")
        for entry in stated:
            if any(is_meant(text, test) for text in entry["tests"]):
                item.add_marker(pytest.mark.xfail(reason=entry["reason"], strict=not entry.get("sometimes", False)))
                break


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the number of tests by outcome, and of expected failures by reason."""
    stats = terminalreporter.stats
    counts = {name: len(stats.get(name, [])) for name in ("passed", "failed", "error", "xfailed", "xpassed", "skipped")}
    where = f"{os.environ['POLYARR_BACKEND']}, version {os.environ['ARRAY_API_TESTS_VERSION']}"
    terminalreporter.write_line(f"{SUMMARY} {where}: " + ", ".join(f"{n} {name}" for name, n in counts.items() if n))
    for reason, n in Counter(report.wasxfail for report in stats.get("xfailed", [])).most_common():
        terminalreporter.write_line(f"  {n} expected to fail: {reason}")
