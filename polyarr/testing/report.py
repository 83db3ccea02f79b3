"""The report of the conformance kit: a result per case and a verdict per backend, printed and written as JSON.

pytest loads this module wherever polyarr is installed, so modules that need hypothesis or Jinja are imported on use.
report.schema.json describes the JSON; polyarr/testing/page.py renders it as a page.
"""

import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from polyarr.atomic import write_whole
from polyarr.core.backend import Backend, Fused, family_of
from polyarr.core.errors import BackendError
from polyarr.core.groups import groups, offer
from polyarr.core.op import OPS
from polyarr.core.spec import DTYPES
from polyarr.plugins.diagnosis import no_plugin_warnings, overrides, status
from polyarr.testing import LEVELS, adapters
from polyarr.testing.causes import causes
from polyarr.version import __version__

SCHEMA = 4  # version of the report's format; an incompatible change increments it
OUTCOMES = ("passed", "partly", "failed", "skipped", "not offered", "known failure", "stale")
BAD = ("failed", "stale")
GOOD = ("passed", "partly")
EXCEPTIONS = "passed with exceptions"  # known failures, or ops that sum in no fixed order
VERDICTS = ("failed", "nothing checked", "interrupted", "incomplete", EXCEPTIONS, "passed")  # worst first
WITHOUT_FAILURE = ("passed", EXCEPTIONS, "incomplete")  # verdicts without a failure among the cases that ran
STALE = "[XPASS(strict)] "  # begins pytest's message for a test that was expected to fail and passed
LIBRARIES = ("numpy", "ml_dtypes", "hypothesis", "pytest")
COMPLETED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


CAUSES = 12  # groups of failures printed at the end of a run


class Result(NamedTuple):
    """The result of one case on one backend.

    Attributes:
        outcome: One of OUTCOMES. "partly": it passed, but the backend does not report all that the check looks at;
            "stale": it passed, but is listed as a known failure; "not offered": the backend lacks the op's group.
        reason: First line of the failure or the skip, what was not checked, or why it is known to fail.
        snippet: Python code that repeats the failure, or "".
        uses: Of a failure: the ops whose kernels the case calls.
        covered: Of a pass: dtype -> largest array size in elements, smallest and largest magnitude of a value.
    """

    backend: str
    level: str
    check: str
    subject: str
    outcome: str
    reason: str
    snippet: str
    seconds: float
    uses: list[str] = []  # noqa: RUF012  never modified
    covered: dict[str, list[float]] = {}  # noqa: RUF012

    @property
    def name(self) -> str:
        """Name of the case."""
        return f"{self.check}-{self.subject}"


def load(module: str, option: str) -> Any:
    """Import a module of the kit that an option needs.

    Raises:
        pytest.UsageError: A dependency of the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = "install what it needs with: pip install 'polyarr[testing]'"
        raise pytest.UsageError(f"{option}: {error}; {hint}") from error


class Recorder:
    """Collector of the cases' results; at the end of the session it judges the backends, prints and writes the report.

    It runs in the main process, to which workers of pytest-xdist send their reports.
    """

    def __init__(self, config: pytest.Config, names: list[str]) -> None:
        """Prepare the report's files for the backends that the user named, if any.

        Raises:
            pytest.UsageError: A requested file cannot be written or rendered.
        """
        self.config, self.names = config, names
        self.results: dict[str, Result] = {}   # by test id
        self.report: dict[str, Any] | None = None
        options = {kind: config.getoption(f"polyarr_{kind}") for kind in ("report", "html")}
        self.files = {kind: _writable(f"--polyarr-{kind}", name) for kind, name in options.items() if name}
        if "report" in self.files:
            _journal(self.files["report"]).unlink(missing_ok=True)
        for kind in self.files:
            load("polyarr.testing.page" if kind == "html" else "polyarr.testing.cases", f"--polyarr-{kind}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a case: that of the first phase that does not succeed."""
        facts, outcome = self._facts(report), _outcome(report)
        before = self.results.get(report.nodeid)
        if facts and outcome and (before is None or before.outcome not in BAD):
            snippet = textwrap.dedent(_property(report, "snippet").partition("\n")[2])  # without its introductory line
            seconds = round(report.duration, 4)
            uses = _property(report, "uses").split()
            covered = json.loads(_property(report, "covered") or "{}") if outcome in GOOD else {}
            backend, level, check, subject = facts
            self.results[report.nodeid] = Result(
                backend, level, check, subject, outcome, _reason(report), snippet, seconds, uses, covered
            )
            self._note(self.results[report.nodeid]._asdict())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record in the journal which case starts, in case the process crashes in it."""
        self._note({"running": nodeid})

    def _note(self, what: dict[str, Any]) -> None:
        """Append a line to the journal, a file next to the report that exists until the report is written."""
        if "report" in self.files:
            with _journal(self.files["report"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(what) + "\n")

    def _facts(self, report: pytest.TestReport) -> tuple[str, ...]:
        """Return backend, level, check and subject; () for tests that are not cases."""
        if report.when in PHASES:
            facts = tuple(_property(report, key) for key in Result._fields[:4])
            return facts if all(facts) else ()
        # A crashed worker sends no properties; the test id has the same facts.
        known = self.names or [row.name for row in _rows()]
        names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        found = re.search(rf"::test_({'|'.join(LEVELS)})\[({names})-(backend|.+)-(.+)\]$", report.nodeid)
        return (found[2], found[1], found[3], found[4]) if found else ()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Judge the backends, fail the session unless all passed, and write the requested files."""
        if not (self.results or self.files) or self.config.option.collectonly:
            return
        found = list(self.results.values())
        # A backend of which -k left no case is mentioned only in a report's file.
        names = [name for name in self.names if self.files or name in {r.backend for r in found}]
        self.report = make_report(self.config, names, found, session.exitstatus)
        if self.report["verdict"] not in WITHOUT_FAILURE and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if "report" in self.files:
            write_whole(self.files["report"], f"{json.dumps(self.report, indent=1)}\n".encode())
            _journal(self.files["report"]).unlink(missing_ok=True)
        if "html" in self.files:
            page = load("polyarr.testing.page", "--polyarr-html").render(self.report)
            write_whole(self.files["html"], page.encode())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a block per backend: verdict, counts, causes of failures, reasons of skips, and the files written."""
        if self.report is None:
            return
        terminalreporter.section("polyarr conformance")
        for backend in self.report["backends"]:
            good = backend["verdict"] in ("passed", "not started")
            partly = backend["verdict"] in ("incomplete", EXCEPTIONS)
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
    """Return one of OUTCOMES, or "" if another phase decides."""
    if report.failed:
        return "stale" if str(report.longrepr).startswith(STALE) else "failed"
    if report.skipped:
        return "known failure" if hasattr(report, "wasxfail") else _property(report, "outcome") or "skipped"
    return _property(report, "outcome") or "passed" if report.when == "call" else ""


def _reason(report: pytest.TestReport) -> str:
    """Return the reason of an outcome in one line."""
    if report.passed:
        return _property(report, "reason")
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
    """Return the report in the format of report.schema.json.

    `names` are the backends that the user named, which must start; others that do not start are not judged.
    `status_code` is the exit status of the session.
    """
    kit = load("polyarr.testing.cases", "the report")
    level, effort = config.getoption("polyarr_level"), kit.effort_of(config.getoption)
    wanted = LEVELS[: LEVELS.index(level) + 1]
    order = {case.name: i for i, case in enumerate(kit.cases()) if case.level in wanted}
    is_whole = status_code in COMPLETED
    backends, due = [], {}
    for name in dict.fromkeys([*names, *(r.backend for r in results)]):
        found = [r for r in results if r.backend == name and r.name in order]
        found.sort(key=lambda r: order[r.name])
        due[name] = sum(adapters.applies(case.check, name) for case in kit.cases() if case.name in order)
        backends.append(_of_backend(name, found, is_whole, name in names, len(found) == due[name]))
    verdicts = [b["verdict"] for b in backends if b["verdict"] != "not started"] or ["nothing checked"]
    return {
        "schema": SCHEMA,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "polyarr": __version__,
        "verdict": min(verdicts, key=VERDICTS.index),
        "level": level,
        "cases": max(due.values(), default=len(order)),
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
    """Return the report's section about a backend: its abilities and the result of each case."""
    backend, problem = _started(name)
    exceptions = _exceptions(backend, results)
    return {
        "name": name,
        "verdict": "not started" if problem and not is_named else verdict(results, is_whole, complete, exceptions),
        "exceptions": exceptions,
        "covered": covered_by(results),
        "causes": causes(results),
        "complete": complete,
        "problem": problem,
        "distribution": next((row.distribution for row in _rows() if row.name == family_of(name)), ""),
        **_abilities(name, backend),
        "counts": {level: _counts(r for r in results if r.level == level) for level in LEVELS},
        "results": [{k: v for k, v in r._asdict().items() if k != "backend"} for r in results],
    }


def _exceptions(backend: Backend | None, results: list[Result]) -> list[str]:
    """Return the facts that make a verdict "passed with exceptions"."""
    known = sum(r.outcome == "known failure" for r in results)
    unordered = sorted(op.name for op in backend.unordered) if backend else []
    found = [f"{known} known failure{'s' * (known > 1)}"] if known else []
    return found + [f"no fixed order of sums, and so of bits, in {', '.join(unordered)}"] * bool(unordered)


def verdict(results: list[Result], is_whole: bool, complete: bool, exceptions: Iterable[str] = ()) -> str:
    """Return the verdict on a backend, one of VERDICTS."""
    outcomes = {r.outcome for r in results}
    if outcomes & {*BAD}:
        return "failed"
    if not outcomes & {*GOOD}:
        return "nothing checked"
    if not is_whole:
        return "interrupted"
    return "incomplete" if not complete else EXCEPTIONS if exceptions else "passed"


def _counts(results: Iterable[Result]) -> dict[str, int]:
    found = Counter(r.outcome for r in results)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def _abilities(name: str, backend: Backend | None) -> dict[str, Any]:
    kernels = {} if backend is None else {op: k for op, k in backend.kernels.items() if op in OPS}
    fused = [op for op, kernel in kernels.items() if isinstance(kernel, Fused)]
    return {
        "hardware": "" if backend is None else backend.hardware,
        "dtypes": [] if backend is None else [d.name for d in DTYPES if d in backend.dtypes],
        "kernels": len(kernels) - len(fused),
        "fused": len(fused),
        "groups": {} if backend is None else {group: offer(backend, group) for group in groups()},
        "replaced": {row.op: row.distribution for row in overrides() if backend and row.backend == backend.name},
        "capabilities": {
            "tells of writes out of bounds": backend is not None and backend.guarded is not None,
            "reports its memory": backend is not None and bool(backend.memory()),
            "ops that add in no fixed order": [] if backend is None else sorted(op.name for op in backend.unordered),
        },
    }


def _rows() -> list:
    with no_plugin_warnings():  # as errors, they would end the session here
        return status()


def _started(name: str) -> tuple[Backend | None, str]:
    """Return the backend and "", or None and the reason why it does not start."""
    try:
        with no_plugin_warnings():
            return adapters.find(name), ""
    except BackendError as error:
        return None, str(error)


# ---- headline and files ----------------------------------------------------------------------------------------


def _headline(report: dict[str, Any], backend: dict[str, Any]) -> str:
    where = f"{backend['name']} on {backend['hardware']}" if backend["hardware"] else backend["name"]
    line = f"level {report['level']} {backend['verdict']}"
    if backend["problem"]:
        line = f"did not start: {backend['problem']}"
    elif backend["verdict"] == "nothing checked":
        line = "no case passed: nothing was checked"
    if backend["exceptions"] and backend["verdict"] == EXCEPTIONS:
        line += f": {'; '.join(backend['exceptions'])}"
    if backend["results"] and not backend["complete"]:
        line += f" ({len(backend['results'])} of {report['cases']} cases ran)"
    return f"polyarr conformance: {where}: {line}"


def _details(backend: dict[str, Any]) -> Iterator[str]:
    for level, counts in backend["counts"].items():
        if any(counts.values()):
            yield f"{level:8} " + ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n)
    for cause in backend["causes"][:CAUSES]:
        yield cause["message"]
    if len(backend["causes"]) > CAUSES:
        yield f"and {len(backend['causes']) - CAUSES} more groups of failures, which the report has"
    for dtype, found in backend["covered"].items():
        yield f"covered  {dtype} {_extent(*found)}"
    for outcome in ("partly", "not offered", "skipped"):
        left_out = {} if backend["problem"] else grouped(backend["results"], outcome)
        for reason, cases in left_out.items():
            yield f"{outcome:8} {len(cases)}: {reason}"


def covered_by(results: list[Result]) -> dict[str, list[float]]:
    """Return dtype -> the largest array size, the smallest and the largest magnitude of a value in what passed."""
    found: dict[str, list[float]] = {}
    for r in results:
        for dtype, (size, low, high) in r.covered.items():
            most, lowest, highest = found.get(dtype, (0, low, high))
            found[dtype] = [max(most, size), min(lowest, low), max(highest, high)]
    return {d.name: found[d.name] for d in DTYPES if d.name in found}


def _extent(size: float, low: float, high: float) -> str:
    """Return a phrase about the sizes of arrays and the magnitudes of their values."""
    values = f", values of {low:.2g} to {high:.2g}" if high else ""
    return f"up to {int(size):,} elements{values}"


def grouped(results: list[dict[str, Any]], outcome: str) -> dict[str, list[str]]:
    """Return case names by reason for one outcome, the most frequent reason first; op names in reasons are ignored."""
    found: dict[str, list[str]] = {}
    for r in results:
        if r["outcome"] == outcome:
            of_op = r["check"] not in ("backend", "layer")
            name = rf"(?<!the group )\b{re.escape(r['subject'])}\b"  # the group eig has the name of its op
            reason = re.sub(name, "...", r["reason"]) if of_op else r["reason"]
            found.setdefault(reason, []).append(f"{r['check']}-{r['subject']}")
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _writable(option: str, name: str) -> Path:
    """Return the absolute path of a file after checking that it can be written.

    Raises:
        pytest.UsageError: The folder does not exist, or the file cannot be written.
    """
    path = Path(name).absolute()  # the session may change its working directory
    if not path.parent.is_dir():
        raise pytest.UsageError(f"{option}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise pytest.UsageError(f"{option}: {path} cannot be written")
    return path


def _journal(report: Path) -> Path:
    """Return the path of the journal: one line per result, which remains if the process ends before the report."""
    return report.with_name(f"{report.name}.journal")
