"""Backends for tests, and the hypothesis profiles.

Every buffer argument of an OpenCL kernel is checked in tests: see POLYARR_CHECK_LAUNCHES.

A test that needs no device is unmarked. A test with the `backend` fixture runs once on every backend that
--polyarr-backend names (see pyproject.toml), each of which must start. --polyarr-thorough selects the thorough profile,
and runs all of the kit's cases: otherwise those of signed or of unsigned integers of a width, and of complex64, of an
op without a kernel only what does not follow from the ops that it is made of, and not the longest one.
"""

import functools
import gc
import importlib
import json
import os
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.core.op import OPS
from tests.passed import BACKENDS, MARK, ROOT, Group, group_of
from tests.skips import lines_of

KIT = ROOT / "polyarr" / "testing" / "conformance.py"
# What holds for a call if it holds for every call of an op that it is made of.
FOLLOWING = ("bounds", "purity", "determinism", "lasting", "threads", "memory")
LONGEST = "captured-beta"  # compiles 50 programs; gamma and betaln, of which beta is made, are captured on their own

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
    """Declare --skips and --reuse."""
    parser.addoption("--skips", metavar="FILE", help="write why tests were skipped, for `python -m tests.skips`")
    parser.addoption("--reuse", action="store_true", help="run no test again that passed here: see tests/passed.py")


def pytest_configure(config: pytest.Config) -> None:
    """Load the hypothesis profile, register the plugins of this file, and declare a marker."""
    settings.load_profile("thorough" if config.getoption("polyarr_thorough") else "fast")
    config.addinivalue_line("markers", f"{MARK}: the tests depend on nothing but what their file imports")
    config.pluginmanager.register(Garbage(), "polyarr-garbage")
    if config.getoption("reuse"):
        config.pluginmanager.register(Reuse(config), "polyarr-reuse")


class Garbage:
    """Keeps garbage collections short, where one of a process's millions of objects takes a second.

    It is a plugin because hooks of this file are not called for the kit's cases, which are in another folder.
    """

    def __init__(self) -> None:
        self.collections = 0  # full ones until the last one whose survivors were frozen

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Collect no garbage before all tests are collected."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()
            self.freeze()

    def pytest_runtest_logfinish(self) -> None:
        """Freeze what a full collection during a test has left, now that no object of a test is in use."""
        if gc.get_stats()[2]["collections"] > self.collections:
            self.freeze()

    def freeze(self) -> None:
        """Collect garbage, and have later collections skip all other objects."""
        gc.collect()
        gc.freeze()
        self.collections = gc.get_stats()[2]["collections"]


class Reuse:
    """Leaves out tests that passed before, and notes in the first process which tests pass."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.is_worker = config, hasattr(config, "workerinput")
        self.passed: dict[tuple[str, str], set[str]] = {}  # by file and backend
        self.reused = 0

    def group(self, file: str, backend: str) -> Group:
        """Return the group of tests of a file on a backend."""
        names = ("level", "seed", "thorough", "few_shapes")
        options = repr([self.config.getoption(f"polyarr_{name}") for name in names])
        return group_of(ROOT / file, backend, options)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect the tests that passed before, and note in the properties of each other test the group that it is in.

        A deselected test costs nothing, where one that passes at once takes 7 ms in pytest and its workers.
        """
        passed = [item for item in items if self._has_passed(item)]
        if passed:
            self.config.hook.pytest_deselected(items=passed)
            gone = {*passed}
            items[:] = [item for item in items if item not in gone]
        self.reused = len(passed)

    def _has_passed(self, item: pytest.Item) -> bool:
        is_case = item.path == KIT
        backend = item.callspec.params.get("polyarr_backend", "") if hasattr(item, "callspec") else ""
        if not (is_case or item.get_closest_marker(MARK)) or backend not in ("", *BACKENDS):
            return False
        where = str(item.path.relative_to(ROOT)), backend
        item.user_properties.append((MARK, where))
        return item.nodeid in self.group(*where).passed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn from a worker of pytest-xdist, each of which collects all tests, how many were deselected."""
        self.reused = getattr(node, "workeroutput", {}).get("reused", self.reused)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what passed in full: the kit gives an outcome of its own to what it could check only in part."""
        facts = dict(report.user_properties)
        if not self.is_worker and MARK in facts:
            known = self.passed.setdefault(tuple(facts[MARK]), set())
            if report.when == "call" and report.outcome == "passed" and "polyarr_outcome" not in facts:
                known.add(report.nodeid)
            elif report.outcome == "failed":
                known.discard(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write what passed. That nothing was left to run, or only what is skipped, is a success.

        The kit calls it a failure if none of its cases passed, and sets `session.exitstatus` before.
        """
        if self.is_worker:
            self.config.workeroutput["reused"] = self.reused
        for where, tests in self.passed.items():
            if tests:
                self.group(*where).add(tests)
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and self.reused:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print how many tests were not run."""
        terminalreporter.write_line(f"{self.reused} tests passed in an earlier run (build/passed): not run again")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the kit's cases of some dtypes, and those that follow from others, to the thorough profile."""
    if config.getoption("polyarr_thorough"):
        return
    kit = {item: item.callspec.params["case"] for item in items if item.path == KIT}  # type: ignore[attr-defined]
    names = {case.name for case in kit.values()}
    spared = {item for item, case in kit.items() if _other_dtype(case.check, case.subject) in names}
    spared |= {item for item, case in kit.items() if case.check in FOLLOWING and case.subject in _made_of_ops(item)}
    spared |= {item for item, case in kit.items() if case.name == LONGEST}
    if spared:
        config.hook.pytest_deselected(items=[*spared])
        items[:] = [item for item in items if item not in spared]


def _made_of_ops(item: pytest.Item) -> frozenset[str]:
    """Return the names of the ops for which a test's backend has no kernel."""
    backend = item.callspec.params["polyarr_backend"]  # type: ignore[attr-defined]
    return _without_kernel(backend) if backend in BACKENDS else frozenset()


@functools.cache
def _without_kernel(backend: str) -> frozenset[str]:
    table = importlib.import_module(f"polyarr.backends.{backend}.table")
    with_kernel = {*table.KERNELS, *getattr(table, "PAIRS", ())}  # kernels, and kernels with their VJPs
    return frozenset(op.name for op in OPS if op.decomposition is not None and op not in with_kernel)


def _other_dtype(dtype: str, op: str) -> str:
    """Return the name of the case that is run instead of that of a dtype; empty if it is run itself."""
    if dtype == "complex128":
        return f"complex64-{op}"
    width = dtype.removeprefix("u").removeprefix("int")
    signed = zlib.crc32(op.encode()) % 2 == 1  # this op's cases of signed integers are run
    if width not in ("8", "16", "32", "64") or dtype.startswith("u") != signed:
        return ""
    return f"{'' if signed else 'u'}int{width}-{op}"


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
        reuse = terminalreporter.config.pluginmanager.get_plugin("polyarr-reuse")
        ran = sum(len(terminalreporter.stats.get(outcome, [])) for outcome in ("passed", "failed", "xfailed"))
        found = {"ran": ran, "reused": reuse.reused if reuse else 0, "skipped": [r.longrepr[2] for r in skipped]}
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(json.dumps(found))
