"""Backends for tests, and how thorough hypothesis is.

A test without a device is unmarked; a test with the `backend` fixture runs once on every backend that
--polyarr-backend names (see pyproject.toml), each of which must start. --polyarr-thorough makes hypothesis thorough.
"""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from polyarr.core.backend import Backend
from polyarr.core.current import use_backend

# Function-scoped fixtures are meant, so no health checks; compiling takes its time, so no deadline. A failure names its
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


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile."""
    settings.load_profile("thorough" if config.getoption("polyarr_thorough") else "fast")


def pytest_collection_finish() -> None:
    """Thousands of tests are no garbage, so that nobody who collects it needs to look at them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def backend(polyarr_backend: Backend) -> Backend:
    """Each backend in turn, as the current one."""
    return polyarr_backend


@pytest.fixture
def on_numpy() -> Iterator[Backend]:
    """NumPy as the current backend, whatever the environment says."""
    with use_backend("numpy") as found:
        yield found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were skipped; of its own cases, the conformance kit says so itself."""
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if "conformance.py" not in r.nodeid]
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    for reason in sorted(set(reasons)):
        terminalreporter.write_line(f"{reasons.count(reason)} tests: {reason}", yellow=True)
