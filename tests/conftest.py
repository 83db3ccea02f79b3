"""Backends for tests, and the hypothesis profiles.

Every buffer argument of an OpenCL kernel is checked in tests: see POLYARR_CHECK_LAUNCHES.

A test that needs no device is unmarked. A test with the `backend` fixture runs once on every backend that
--polyarr-backend names (see pyproject.toml), each of which must start. --polyarr-thorough selects the thorough profile.
"""

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from tests.skips import lines_of

os.environ.setdefault("POLYARR_CHECK_LAUNCHES", "1")  # before any device starts

# Function-scoped fixtures are intended, so no health checks; compiling takes long, so no deadline. A failure names its
# sample, so hypothesis need not explain it.
_common = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": False,
    "database": None,
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
}
settings.register_profile("fast", max_examples=12, derandomize=True, **_common)
settings.register_profile("thorough", max_examples=200, **_common)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare --skips."""
    parser.addoption("--skips", metavar="FILE", help="write why tests were skipped, for `python -m tests.skips`")


def pytest_configure(config: pytest.Config) -> None:
    """Load the hypothesis profile."""
    settings.load_profile("thorough" if config.getoption("polyarr_thorough") else "fast")


def pytest_collection_finish() -> None:
    """Freeze the collected tests, so that later garbage collections skip these many objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def backend(polyarr_backend: Backend) -> Backend:
    """Each backend, as the current one."""
    return polyarr_backend


@pytest.fixture
def on_numpy() -> Iterator[Backend]:
    """NumPy as the current backend, whatever the environment selects."""
    with use_backend("numpy") as found:
        yield found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why tests were skipped, except for cases of the conformance kit, which prints its own reasons."""
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if isinstance(r.longrepr, tuple)]
    for line in lines_of(r.longrepr[2] for r in skipped if "conformance.py" not in r.nodeid):
        terminalreporter.write_line(f"skipped {line}", yellow=True)
    if file := terminalreporter.config.getoption("skips"):
        ran = sum(len(terminalreporter.stats.get(outcome, [])) for outcome in ("passed", "failed", "xfailed"))
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(json.dumps({"ran": ran, "skipped": [r.longrepr[2] for r in skipped]}))
