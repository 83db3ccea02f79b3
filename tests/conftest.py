"""Backends for tests, and how thorough hypothesis is.

A test without a device is unmarked; a test with the `backend` fixture runs once on every backend that starts here.
POLYARR_HYPOTHESIS (or --hypothesis-profile) picks the profile: dev, ci or thorough.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError
from polyarr.plugins import get_backend, use_backend

BACKENDS = ("numpy", "opencl")

# Function-scoped fixtures are meant, so no health checks; compiling takes its time, so no deadline. A failure names its
# sample, so hypothesis need not explain it.
_common = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": False,
    "database": None,
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
}
settings.register_profile("dev", max_examples=12, derandomize=True, **_common)
settings.register_profile("ci", max_examples=12, derandomize=True, **_common)
settings.register_profile("thorough", max_examples=200, **_common)
settings.load_profile(os.environ.get("POLYARR_HYPOTHESIS", "dev"))


def started(name: str) -> Backend:
    """The backend, or a skip with the reason; on CI every backend must start."""
    try:
        return get_backend(name)
    except BackendError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each backend in turn, as the current one."""
    with use_backend(started(request.param)) as found:
        yield found


@pytest.fixture
def on_numpy() -> Iterator[Backend]:
    """NumPy as the current backend, whatever the environment says."""
    with use_backend("numpy") as found:
        yield found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were skipped: a backend that did not start must not go unseen."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    for reason in sorted(set(reasons)):
        terminalreporter.write_line(f"{reasons.count(reason)} tests: {reason}", yellow=True)
