"""pytest's fixtures `xp` and `device` for a project's own array-API tests, and the summary of their graph breaks.

    pytest --xp polyarr:opencl --xp array_api_strict --xp-breaks

    def test_distance(xp, device): ...      # runs once per namespace
"""

import contextlib
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from polyarr.core.current import use_backend
from polyarr.core.errors import BackendError
from polyarr.testing.xp import GraphBreak, graph_breaks, lines_of

OURS = "polyarr"
PROPERTY = "polyarr_xp_breaks"  # of a test's reports: its graph breaks and how often it met each


def names_of(given: list[str]) -> list[str]:
    """Return the namespaces that the values of --xp name, each once."""
    names = (name.strip() for value in given for name in value.split(","))
    return [*dict.fromkeys(filter(None, names))]


def plugin_of(names: list[str]) -> object:
    """Return a plugin of pytest with the fixtures; a project's own fixtures of these names override them."""

    class Namespaces:
        @pytest.fixture(params=names)
        def xp(self, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
            """Array namespace that --xp names.

            A backend of polyarr is the current one during the test. A namespace that cannot be imported, or a backend
            that does not start, fails the test.
            """
            module, colon, backend = request.param.partition(":")
            with contextlib.ExitStack() as stack:
                try:
                    if colon and module != OURS:
                        raise ImportError(f"only {OURS} has backends; write {module}")
                    namespace = importlib.import_module(module)
                    if colon:
                        stack.enter_context(use_backend(backend))
                except (ImportError, BackendError) as error:
                    raise pytest.fail.Exception(f"--xp {request.param}: {error}", pytrace=False) from None
                yield namespace

        @pytest.fixture
        def device(self, xp: ModuleType) -> Any:
            """Default device of the namespace `xp`: for polyarr, the name of the backend; None if it says nothing."""
            return xp.__array_namespace_info__().default_device() if hasattr(xp, "__array_namespace_info__") else None

    return Namespaces()


class Breaks:
    """Plugin of pytest that records the graph breaks of each test, and prints them by line at the end."""

    def __init__(self) -> None:
        self.tests: Counter[GraphBreak] = Counter()
        self.times: Counter[GraphBreak] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Attach to a test's reports what breaks in its call, except what the test files themselves read."""
        folders = (item.path.parent, *item.path.parent.parents)
        ignored = {str(item.path), *(str(Path(folder, "conftest.py")) for folder in folders)}
        with graph_breaks(ignored=ignored) as found:
            try:
                return (yield)
            finally:
                item.user_properties.append((PROPERTY, [[*place, count] for place, count in found.counts.items()]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the graph breaks of a test, which another process may have run."""
        found: Any = dict(report.user_properties).get(PROPERTY, ())
        for *place, count in found if report.when == "call" else ():
            self.tests[GraphBreak(*place)] += 1
            self.times[GraphBreak(*place)] += count

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a table of the graph breaks by file and line, with how many tests met each."""
        terminalreporter.section("polyarr: graph breaks")
        rows: list[tuple[tuple[int, ...], GraphBreak]] = []
        rows += [((tests, self.times[place]), place) for place, tests in sorted(self.tests.items())]
        for line in lines_of(rows, "tests", "times"):
            terminalreporter.write_line(line)
