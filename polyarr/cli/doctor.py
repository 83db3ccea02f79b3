"""`polyarr doctor`: check the installation and every backend, and say how to fix problems."""

import contextlib
import difflib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import polyarr
from polyarr.cli.devices import features_of
from polyarr.cli.ranks import here, join, of_mpi, of_ranks
from polyarr.cli.redaction import redacted
from polyarr.cli.train import choose_backend
from polyarr.cli.values import FileName
from polyarr.core.announce import observers
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import BackendError
from polyarr.distributed import World, init
from polyarr.plugins.diagnosis import (
    BackendStatus,
    caches,
    devices,
    diagnose,
    failures,
    no_plugin_warnings,
    overrides,
    status,
    without_backend,
)  # fmt: skip
from polyarr.plugins.hooks import DeviceInfo, Diagnosis
from polyarr.plugins.loading import BUILT_IN, reason_of
from polyarr.plugins.starting import lacks_library
from polyarr.settings import NAMES, SECRETS, unknown
from polyarr.training.ranks import all_gather

# Program of the probe process. It gets this process's import path; -m would add the current folder to it.
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from polyarr.cli.doctor import examine; examine(json.loads(sys.argv[2]))"
)
STEP_TIMEOUT = 300  # seconds for one step, which may compile kernels
COLOURS = {"ok": "green", "note": "blue", "warning": "yellow", "error": "red"}


@click.command()
@click.option("--verbose", is_flag=True, help="Also show notes on the drivers, which need no action.")
@click.option(
    "--report", "file", type=FileName(dir_okay=False), metavar="FILE",
    help="Also write all of it to a file for an issue, without private data.",
)  # fmt: skip
def command(verbose: bool, file: Path | None) -> None:
    """Start every backend, compute something on it, and report problems and how to fix them.

    Everything that may crash or hang runs in a probe process, so that a bad driver is one line among others. The exit
    code is 1 if something is broken, else 0.
    """
    world = join(_begin)
    ranks = all_gather(world, here()) if world.size > 1 else []
    if world.rank:
        return
    report = _Report(verbose)
    report.section("Environment", _environment())
    _examine(report)
    report.section("Processes that mpiexec started", of_ranks(ranks) if ranks else [])
    broken, more = report.errors, report.left_out
    click.echo(f"\n{broken} problem{'s' * (broken != 1)} found" if broken else "\nno problem found")
    if more:
        click.echo(f"{more} note{'s' * (more != 1)} on drivers: polyarr doctor --verbose")
    if file:
        file.write_text(redacted(report.text, (row["host"] for row in ranks)), encoding="utf-8")
        click.echo(f"wrote {file}; read it before you attach it to an issue")
    raise click.exceptions.Exit(1 if broken else 0)


def _begin() -> World:
    """Join the ranks on the backend of `polyarr train`, or on NumPy if it does not start; the report explains why."""
    try:
        choose_backend(None)
        return choose_backend(None, init)
    except BackendError:
        return init("numpy")


class _Report:
    """Report that is printed as it grows, with the number of its errors and of notes that were left out.

    Attributes:
        text: All lines with their titles, also the notes that were left out.
    """

    def __init__(self, verbose: bool) -> None:
        self.errors = self.left_out = 0
        self.text = ""
        self._verbose, self._title = verbose, ""

    def section(self, title: str, lines: list[Diagnosis]) -> None:
        """Print lines, after the title of their section unless it was printed last."""
        self.text += "".join(f"{title}: {line.level}: {line.text}\n" for line in lines)
        wanted = [line for line in lines if self._verbose or line.level != "note"]
        self.left_out += len(lines) - len(wanted)
        if wanted and title != self._title:
            click.echo(f"\n{title}")
            self._title = title
        for line in wanted:
            click.echo(f"  {click.style(f'{line.level:8}', fg=COLOURS[line.level])} {line.text}")
        sys.stdout.flush()
        self.errors += sum(line.level == "error" for line in lines)


# ---- the probe process -------------------------------------------------------------------------------------------


def _examine(report: _Report) -> None:
    """Run all steps in a probe process; if it dies, report the step and continue in another one."""
    done, title, caches = list[str](), "Backends", list[str]()
    while True:
        step, is_finished, announced = "", False, ""
        with _ProbeProcess(done) as probe:
            for message in probe:
                step, caches, announced = message["step"], message.get("caches", caches), message.get("announced", "")
                title = message.get("title", title)
                if "lines" in message:
                    report.section(title, [Diagnosis(*line) for line in message["lines"]])
                    done.append(step)
                    step = ""
                is_finished = "finished" in message
        if is_finished and not probe.end:
            return
        end = probe.end or "ended before it was done"  # a plugin may exit with code 0
        report.section(title, [_of_death(step or "to look for plugins", end, caches, announced)])
        if not step:
            return
        done.append(step)


def _of_death(step: str, end: str, caches: list[str], announced: str) -> Diagnosis:
    hint = f"; if that goes on, delete {' and '.join(caches)}, where compiled kernels are kept" if caches else ""
    where = f", last seen in {announced}" if announced else ""
    return _error(f"{step}: the process that tried it {end}{where}{hint}")


class _ProbeProcess:
    """Probe process that runs `examine`, and its messages."""

    def __init__(self, done: list[str]) -> None:
        self.end = ""  # how it died; empty if it did not die
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(sys.path), json.dumps(done)], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "_ProbeProcess":
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while line := self._line():
            yield json.loads(line)

    def _line(self) -> str:
        timer = threading.Timer(STEP_TIMEOUT, self._give_up)
        timer.start()
        try:
            return self._process.stdout.readline()  # type: ignore[union-attr]
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self.end = f"gave no answer for {STEP_TIMEOUT} seconds"
        self._process.kill()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._process.kill()
        self._process.stdout.close()  # type: ignore[union-attr]
        code = self._process.wait()
        if code < 0:
            self.end = self.end or f"was ended by signal {-code} ({signal.Signals(-code).name})"
        elif code > 0:
            self.end = f"ended with exit code {code}"


def examine(done: list[str]) -> None:
    """Run all steps that are not done, in the probe process, with a message before and after each."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # text that a driver prints must not mix with the messages

    def say(**message: Any) -> None:
        print(json.dumps(message), file=out, flush=True)

    def announce(step: str, announced: Any) -> None:
        say(step=step, announced=announced)

    with no_plugin_warnings():
        for title, step, lines in _steps():
            if step not in done:
                say(title=title, step=step, caches=caches())
                observers[:] = [partial(announce, step)]
                say(title=title, step=step, lines=lines())
    say(step="", finished=True)
    out.close()


def _steps() -> Iterator[tuple[str, str, Callable[[], list[Diagnosis]]]]:
    """Yield the title of a section, the name of a step, and its function."""
    names = list(dict.fromkeys(row.name for row in status()))
    for name in names:
        yield "Backends", f"backend {name}", partial(_try, name)
    yield "Backends", "POLYARR_BACKEND", partial(_chosen, names)
    yield "Devices", "devices", lambda: [_of_device(row) for row in devices()]
    yield "Kernels that plugins replace", "overrides", _replaced
    yield "What the backends say", "what the backends say", diagnose
    yield "Several processes", "MPI", of_mpi
    yield "Hooks that failed", "hooks", _of_hooks


# ---- the steps ---------------------------------------------------------------------------------------------------


def _chosen(names: list[str]) -> list[Diagnosis]:
    """Return what is wrong with POLYARR_BACKEND, unless it names a backend that has its own line."""
    name = os.environ.get("POLYARR_BACKEND", "")
    try:
        if name and name not in names:
            get_backend(name)
    except BackendError as error:
        return [_error(f"POLYARR_BACKEND={name}: {error}")]
    return []


def _of_device(row: DeviceInfo) -> Diagnosis:
    """Return a note with what a driver says of a device."""
    about = ", ".join(filter(None, (row.name, row.platform, row.version, row.driver)))
    return Diagnosis("note", f"{row.backend}:{row.index} {about}: {row.problem or features_of(row)}")


def _replaced() -> list[Diagnosis]:
    rows = [f"{row.backend}: {row.op} is that of {row.entry_point} ({row.distribution})" for row in overrides()]
    return [Diagnosis("ok", row) for row in rows] + [Diagnosis("warning", line) for line in without_backend()]


def _of_hooks() -> list[Diagnosis]:
    """Return the failures that are not shown among the backends: a hook may lack the library that its backend lacks."""
    shown = [f for f in failures() if f.stage in ("import", "register", "start")]
    lacking = {(f.distribution, f.entry_point) for f in shown if lacks_library(f.exception)}
    return [
        Diagnosis("warning" if lacks_library(f.exception) else "error", str(f))
        for f in failures()
        if f not in shown and not (lacks_library(f.exception) and (f.distribution, f.entry_point) in lacking)
    ]


def _environment() -> list[Diagnosis]:
    versions = f"Python {platform.python_version()} ({sys.executable}), {platform.platform()}"
    lines = [Diagnosis("ok", f"polyarr {_version('polyarr')}"), Diagnosis("ok", versions)]
    lines += [Diagnosis("ok", f"{name} {_version(name)}") for name in ("numpy", "ml_dtypes", "pluggy")]
    settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith("POLYARR_")}
    settings |= {name: "(not shown)" for name in SECRETS if name in settings}
    lines += [Diagnosis("ok", f"{name}={value}") for name, value in settings.items() if name in NAMES]
    return lines + [Diagnosis("warning", _nobody_reads(name)) for name in unknown()]


def _nobody_reads(name: str) -> str:
    close = difflib.get_close_matches(name, NAMES, 1)
    return f"{name} is set, and means nothing to polyarr" + "".join(f"; did you mean {other}?" for other in close)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed: running from a source tree)"


def _try(name: str) -> list[Diagnosis]:
    with contextlib.suppress(BackendError):  # the row of the backend has the reason
        get_backend(name)
    rows = [row for row in status() if row.name == name]
    return [_explained(row) if row.backend is None else _computed(row, row.backend) for row in rows]


def _computed(row: BackendStatus, backend: Backend) -> Diagnosis:
    try:
        _compute(row.name)
    except Exception as error:  # drivers may raise anything, and the report must go on
        return _error(f"{row.name} ({row.distribution}) starts, but: {reason_of(error)}")
    return Diagnosis("ok", f"{row.name} ({row.distribution}) computes on {backend.hardware}")


def _explained(row: BackendStatus) -> Diagnosis:
    """Return a warning if a built-in backend lacks an optional library, and an error for every other failure."""
    error = row.failure.exception if row.failure else None
    if error and lacks_library(error) and row.name in BUILT_IN:
        return Diagnosis("warning", f"{row.name}: not available ({reason_of(error)}); to have it: {row.install_hint}")
    if row.failure and row.failure.stage in ("import", "register"):
        return _error(f"{row.reason}; update or uninstall it, or leave it out by POLYARR_PLUGINS")
    return _error(row.reason)


def _error(text: str) -> Diagnosis:
    return Diagnosis("error", text)


def _compute(name: str) -> None:
    """Compute a small matrix product and its sum, whose value is known."""
    with use_backend(get_backend(name)):
        x = polyarr.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
        found = float(polyarr.sum(x @ polyarr.permute_dims(x, axes=(1, 0))))
    if found != 83.0:
        raise ArithmeticError(f"a small matrix product came out as {found}, not 83.0")
