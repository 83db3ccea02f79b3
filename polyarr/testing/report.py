"""What the conformance kit found: a result per case, a verdict per backend, told at the end and written as JSON.

pytest loads this wherever polyarr is installed, so what needs hypothesis or Jinja is loaded when it is used. The
report's form is that of report.schema.json; polyarr/testing/page.py makes a page of it.
"""

import contextlib
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from polyarr.core.backend import Backend, Fused, family_of
from polyarr.core.current import get_backend
from polyarr.core.errors import BackendError
from polyarr.core.groups import groups, offer
from polyarr.core.op import OPS
from polyarr.core.spec import DTYPES
from polyarr.diagnosis import overrides, status
from polyarr.plugins import PluginWarning
from polyarr.testing import LEVELS
from polyarr.version import __version__

SCHEMA = 2  # of the report; a change that readers must know of makes it 3
OUTCOMES = ("passed", "failed", "skipped", "not offered", "known failure", "stale")
BAD = ("failed", "stale")
VERDICTS = ("failed", "nothing checked", "interrupted", "incomplete", "passed")  # the worst first
HELD = ("passed", "incomplete")  # all cases, or those that -k and its like left, hold
STALE = "[XPASS(strict)] "  # begins what pytest says of a test that was marked as failing and passed
LIBRARIES = ("numpy", "ml_dtypes", "hypothesis", "pytest")
KEPT_ON = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class Result(NamedTuple):
    """What became of one case on one backend.

    outcome  one of OUTCOMES; "stale": known to fail, and it passed; "not offered": of a group that the backend lacks
    reason   the first line of the failure or the skip, or why it is known to fail
    snippet  Python that shows the failure again, or ""
    """

    backend: str
    level: str
    check: str
    subject: str
    outcome: str
    reason: str
    snippet: str
    seconds: float

    @property
    def name(self) -> str:
        """The name of its case."""
        return f"{self.check}-{self.subject}"


def load(module: str, option: str) -> Any:
    """Import a part of the kit that an option needs.

    Errors:  pytest.UsageError if what it is made with is not installed
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = "install what it needs with: pip install 'polyarr[testing]'"
        raise pytest.UsageError(f"{option}: {error}; {hint}") from error


class Recorder:
    """Collects the results of the kit's cases; at the end judges the backends, tells and writes.

    Lives in the process that runs the session: workers of pytest-xdist send it their reports.
    """

    def __init__(self, config: pytest.Config, names: list[str]) -> None:
        """names: the backends that the user asked for, if any.

        Errors:  pytest.UsageError if a file that is asked for could not be written or rendered
        """
        self.config, self.names = config, names
        self.results: dict[str, Result] = {}  # by the test's name
        self.report: dict[str, Any] | None = None
        options = {kind: config.getoption(f"polyarr_{kind}") for kind in ("report", "html")}
        self.files = {kind: _writable(f"--polyarr-{kind}", name) for kind, name in options.items() if name}
        if "report" in self.files:
            _journal(self.files["report"]).unlink(missing_ok=True)
        for kind in self.files:
            load("polyarr.testing.page" if kind == "html" else "polyarr.testing.cases", f"--polyarr-{kind}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what became of a case: the first phase that is no success says so."""
        facts, outcome = self._facts(report), _outcome(report)
        before = self.results.get(report.nodeid)
        if facts and outcome and (before is None or before.outcome not in BAD):
            snippet = textwrap.dedent(_property(report, "snippet").partition("\n")[2])  # its first line is for people
            seconds = round(report.duration, 4)
            self.results[report.nodeid] = Result(*facts, outcome, _reason(report), snippet, seconds)
            self._note(self.results[report.nodeid]._asdict())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note which case begins: it is the one to look at if the process ends in it."""
        self._note({"running": nodeid})

    def _note(self, what: dict[str, Any]) -> None:
        """Add a line to the journal, which lies beside the report until that is written."""
        if "report" in self.files:
            with _journal(self.files["report"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(what) + "\n")

    def _facts(self, report: pytest.TestReport) -> tuple[str, ...]:
        """Backend, level, check and subject; nothing for tests that are no cases."""
        if report.when in PHASES:
            facts = tuple(_property(report, key) for key in Result._fields[:4])
            return facts if all(facts) else ()
        # A worker that crashed sends no properties; its test's name says the same.
        names = "|".join(map(re.escape, sorted(self.names or _registered(), key=len, reverse=True)))
        found = re.search(rf"::test_({'|'.join(LEVELS)})\[({names})-(backend|.+)-(.+)\]$", report.nodeid)
        return (found[2], found[1], found[3], found[4]) if found else ()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Judge the backends, make the session fail unless all passed, and write what is asked for."""
        if not (self.results or self.files) or self.config.option.collectonly:
            return
        found = list(self.results.values())
        # Of a backend that -k left out, only a report must say that it was not checked.
        names = [name for name in self.names if self.files or name in {r.backend for r in found}]
        self.report = make_report(self.config, names, found, session.exitstatus)
        if self.report["verdict"] not in HELD and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if "report" in self.files:
            _write(self.files["report"], json.dumps(self.report, indent=1) + "\n")
            _journal(self.files["report"]).unlink(missing_ok=True)
        if "html" in self.files:
            _write(self.files["html"], load("polyarr.testing.page", "--polyarr-html").render(self.report))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A block per backend: the verdict, the counts, why cases were skipped, and where the report is."""
        if self.report is None:
            return
        terminalreporter.section("polyarr conformance")
        for backend in self.report["backends"]:
            good = backend["verdict"] in ("passed", "not started")
            partly = backend["verdict"] == "incomplete"
            headline = _headline(self.report, backend)
            terminalreporter.write_line(headline, green=good, yellow=partly, red=not (good or partly))
            for line in _details(backend):
                terminalreporter.write_line(f"  {line}")
        if not self.report["backends"]:
            terminalreporter.write_line("polyarr conformance: no case ran: nothing was checked", red=True)
        for path in self.files.values():
            terminalreporter.write_line(f"  written: {path}")


# ---- what pytest says of a test --------------------------------------------------------------------------------

PHASES = ("setup", "call", "teardown")


def _property(report: pytest.TestReport, key: str) -> str:
    return str(dict(report.user_properties).get(f"polyarr_{key}", ""))


def _outcome(report: pytest.TestReport) -> str:
    """One of OUTCOMES, or nothing where another phase decides."""
    if report.failed:
        return "stale" if str(report.longrepr).startswith(STALE) else "failed"
    if report.skipped:
        return "known failure" if hasattr(report, "wasxfail") else _property(report, "outcome") or "skipped"
    return "passed" if report.when == "call" else ""


def _reason(report: pytest.TestReport) -> str:
    """In one line."""
    if report.passed:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if hasattr(report, "wasxfail"):
        text = report.wasxfail
    elif report.skipped and isinstance(report.longrepr, tuple):
        text = report.longrepr[2].removeprefix("Skipped: ")
    else:
        text = _property(report, "reason") or (crash.message if crash else str(report.longrepr).removeprefix(STALE))
    return next(iter(text.strip().splitlines()), "")


# ---- the report ------------------------------------------------------------------------------------------------


def make_report(config: pytest.Config, names: list[str], results: list[Result], status_code: int) -> dict[str, Any]:
    """The report, as report.schema.json has it.

    names        the backends that the user asked for, which must start; of others, those that do not are not judged
    status_code  how the session ended
    """
    kit = load("polyarr.testing.cases", "the report")
    level, effort = config.getoption("polyarr_level"), kit.effort_of(config.getoption)
    wanted = LEVELS[: LEVELS.index(level) + 1]
    order = {case.name: i for i, case in enumerate(kit.cases()) if case.level in wanted}
    is_whole = status_code in KEPT_ON
    backends = []
    for name in dict.fromkeys([*names, *(r.backend for r in results)]):
        found = [r for r in results if r.backend == name and r.name in order]
        found.sort(key=lambda r: order[r.name])
        backends.append(_of_backend(name, found, is_whole, name in names, len(found) == len(order)))
    verdicts = [b["verdict"] for b in backends if b["verdict"] != "not started"] or ["nothing checked"]
    return {
        "schema": SCHEMA,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "polyarr": __version__,
        "verdict": min(verdicts, key=VERDICTS.index),
        "level": level,
        "cases": len(order),
        "effort": {
            **effort._asdict(),
            "thorough": effort.examples == kit.THOROUGH,
        },
        "versions": _versions(),
        "backends": backends,
    }


def _versions() -> dict[str, str]:
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "platform": platform.platform(), **libraries}


def _of_backend(name: str, results: list[Result], is_whole: bool, is_named: bool, complete: bool) -> dict[str, Any]:
    """What a backend is, what it can do, and what became of each case."""
    backend, problem = _started(name)
    return {
        "name": name,
        "verdict": "not started" if problem and not is_named else verdict(results, is_whole, complete),
        "complete": complete,
        "problem": problem,
        "distribution": next((row.distribution for row in _rows() if row.name == family_of(name)), ""),
        **_abilities(name, backend),
        "counts": {level: _counts(r for r in results if r.level == level) for level in LEVELS},
        "results": [_without_backend(r) for r in results],
    }


def _without_backend(result: Result) -> dict[str, Any]:
    return {key: value for key, value in result._asdict().items() if key != "backend"}


def verdict(results: list[Result], is_whole: bool, complete: bool) -> str:
    outcomes = {r.outcome for r in results}
    if outcomes & {*BAD}:
        return "failed"
    if "passed" not in outcomes:
        return "nothing checked"
    if not is_whole:
        return "interrupted"
    return "passed" if complete else "incomplete"


def _counts(results: Iterable[Result]) -> dict[str, int]:
    found = Counter(r.outcome for r in results)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def _abilities(name: str, backend: Backend | None) -> dict[str, Any]:
    kernels = {} if backend is None else {op: k for op, k in backend.kernels.items() if op in OPS}
    pairs = [op for op, kernel in kernels.items() if isinstance(kernel, Fused)]
    return {
        "hardware": "" if backend is None else backend.hardware,
        "dtypes": [] if backend is None else [d.name for d in DTYPES if d in backend.dtypes],
        "kernels": len(kernels) - len(pairs),
        "pairs": len(pairs),
        "groups": {} if backend is None else {group: offer(backend, group) for group in groups()},
        "replaced": {row.op: row.distribution for row in overrides() if backend and row.backend == backend.name},
        "capabilities": {
            "tells of writes out of bounds": backend is not None and backend.guarded is not None,
            "reports its memory": backend is not None and bool(backend.memory()),
            "ops that add in no fixed order": [] if backend is None else sorted(op.name for op in backend.unordered),
        },
    }


# Plugins may warn when they are looked for or start; here it would end a session where warnings are errors.
@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        yield


def _rows() -> list:
    with _quietly():
        return status()


def _registered() -> list[str]:
    return [row.name for row in _rows()]


def _started(name: str) -> tuple[Backend | None, str]:
    """The backend, or why there is none."""
    try:
        with _quietly():
            return get_backend(name), ""
    except BackendError as error:
        return None, str(error)


# ---- telling and writing ---------------------------------------------------------------------------------------


def _headline(report: dict[str, Any], backend: dict[str, Any]) -> str:
    where = f"{backend['name']} on {backend['hardware']}" if backend["hardware"] else backend["name"]
    told = f"level {report['level']} {backend['verdict']}"
    if backend["problem"]:
        told = f"did not start: {backend['problem']}"
    elif backend["verdict"] == "nothing checked":
        told = "no case passed: nothing was checked"
    if backend["results"] and not backend["complete"]:
        told += f" ({len(backend['results'])} of {report['cases']} cases ran)"
    return f"polyarr conformance: {where}: {told}"


def _details(backend: dict[str, Any]) -> Iterator[str]:
    for level, counts in backend["counts"].items():
        if any(counts.values()):
            yield f"{level:8} " + ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n)
    for outcome in ("not offered", "skipped"):
        left_out = {} if backend["problem"] else grouped(backend["results"], outcome)
        for reason, cases in left_out.items():
            yield f"{outcome:8} {len(cases)}: {reason}"


def grouped(results: list[dict[str, Any]], outcome: str) -> dict[str, list[str]]:
    """Reason -> the cases with this outcome for it, the most frequent first; the name of the op makes no difference."""
    found: dict[str, list[str]] = {}
    for r in results:
        if r["outcome"] == outcome:
            reason = re.sub(rf"\b{re.escape(r['subject'])}\b", "...", r["reason"])
            found.setdefault(reason, []).append(f"{r['check']}-{r['subject']}")
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _writable(option: str, name: str) -> Path:
    """The path of a file that can be written.

    Errors:  pytest.UsageError
    """
    path = Path(name).absolute()  # the session may go elsewhere
    if not path.parent.is_dir():
        raise pytest.UsageError(f"{option}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise pytest.UsageError(f"{option}: {path} cannot be written")
    return path


def _journal(report: Path) -> Path:
    """Where what is found is noted as it is found, a line each: what is left if the process ends before the report."""
    return report.with_name(f"{report.name}.journal")


def _write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
