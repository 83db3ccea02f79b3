"""`polyarr doctor`: try everything, say what is wrong and how to mend it."""

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
from typing import Any

import click
import numpy as np

import polyarr
from polyarr.cli.output import no_plugin_warnings
from polyarr.cli.ranks import here, join, of_mpi, of_ranks
from polyarr.cli.train import choose_backend
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import BackendError
from polyarr.diagnosis import BackendStatus, caches, diagnose, failures, overrides, status, without_backend
from polyarr.distributed import World, init
from polyarr.hooks import Diagnosis
from polyarr.loading import BUILT_IN, PluginFailure, reason_of
from polyarr.plugins import lacks_library
from polyarr.settings import NAMES, unknown
from polyarr.training.ranks import told

# What the other process runs, with this one's import path; not as a module, because it is not to look in this folder.
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from polyarr.cli.doctor import examine; examine(json.loads(sys.argv[2]))"
)
PATIENCE = 300  # seconds for one step; compiling takes its time
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
def command() -> None:
    """Start every backend, compute something on it, and say what is wrong and how to mend it.

    All that may fail is tried in other processes, so that a driver which dies or hangs is one line among others. Exit
    code 1 if something is broken, 0 if all is well.
    """
    world = join(_begin)
    ranks = told(world, here()) if world.size > 1 else []
    if world.rank:
        return
    broken = _show("Environment", _environment())
    broken += _examine()
    broken += _show("Processes that mpiexec started", of_ranks(ranks) if ranks else [])
    click.echo(f"\n{broken} problem{'s' * (broken != 1)} found" if broken else "\nno problem found")
    raise click.exceptions.Exit(1 if broken else 0)


def _begin() -> World:
    """The ranks on what polyarr train computes on, if that starts; the report says why not."""
    try:
        choose_backend(None)
        return choose_backend(None, init)
    except BackendError:
        return init("numpy")


def _show(title: str, lines: list[Diagnosis]) -> int:
    """Print a section's title, if there is one, and lines; how many of them are errors."""
    if title and lines:
        click.echo(f"\n{title}")
    for line in lines:
        click.echo(f"  {click.style(f'{line.level:8}', fg=COLOURS[line.level])} {line.text}")
    sys.stdout.flush()
    return sum(line.level == "error" for line in lines)


# ---- the other process -------------------------------------------------------------------------------------------


def _examine() -> int:
    """Run all steps in a process of their own, and go on in another one where it dies; how many errors there are."""
    broken, done, title, caches = 0, list[str](), "", list[str]()
    while True:
        step, is_finished = "", False
        with _Examiner(done) as examiner:
            for message in examiner:
                step, caches = message["step"], message.get("caches", caches)
                lines = [Diagnosis(*line) for line in message.get("lines", ())]
                if lines:
                    broken += _show(message["title"] if message["title"] != title else "", lines)
                    title = message["title"]
                if "lines" in message:
                    done.append(step)
                    step = ""
                is_finished = "finished" in message
        if is_finished and not examiner.end:
            return broken
        end = examiner.end or "ended before it was done"  # a plugin may end the process with code 0
        broken += _show("", [_of_death(step or "to look for plugins", end, caches)])
        if not step:
            return broken
        done.append(step)


def _of_death(step: str, end: str, caches: list[str]) -> Diagnosis:
    hint = f"; if that goes on, delete {' and '.join(caches)}, where compiled kernels are kept" if caches else ""
    return _error(f"{step}: the process that tried it {end}{hint}")


class _Examiner:
    """A process that runs `examine`, and what it says."""

    def __init__(self, done: list[str]) -> None:
        self.end = ""  # how it died; empty if it did not
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(sys.path), json.dumps(done)], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "_Examiner":
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while line := self._line():
            yield json.loads(line)

    def _line(self) -> str:
        timer = threading.Timer(PATIENCE, self._give_up)
        timer.start()
        try:
            return self._process.stdout.readline()  # type: ignore[union-attr]
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self.end = f"gave no answer for {PATIENCE} seconds"
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
    """In the other process: take all steps that are not done, and say so before and after each."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a driver that prints must not be taken for this

    def say(**message: Any) -> None:
        print(json.dumps(message), file=out, flush=True)

    with no_plugin_warnings():
        for title, step, lines in _steps():
            if step not in done:
                say(title=title, step=step, caches=caches())
                say(title=title, step=step, lines=lines())
    say(step="", finished=True)
    out.close()


def _steps() -> Iterator[tuple[str, str, Callable[[], list[Diagnosis]]]]:
    """A section's title, what is tried, and the function that does."""
    names = list(dict.fromkeys(row.name for row in status()))
    for name in names:
        yield "Backends", f"backend {name}", partial(_try, name)
    yield "Backends", "POLYARR_BACKEND", partial(_chosen, names)
    yield "Kernels that plugins replace", "overrides", _replaced
    yield "What the backends say", "what the backends say", diagnose
    yield "Several processes", "MPI", of_mpi
    yield "Hooks that failed", "hooks", lambda: [_of_hook(f) for f in failures() if not _is_shown(f)]


# ---- what it tries -----------------------------------------------------------------------------------------------


def _chosen(names: list[str]) -> list[Diagnosis]:
    """What is wrong with POLYARR_BACKEND, unless it names a backend that has its own line."""
    name = os.environ.get("POLYARR_BACKEND", "")
    try:
        if name and name not in names:
            get_backend(name)
    except BackendError as error:
        return [_error(f"POLYARR_BACKEND={name}: {error}")]
    return []


def _replaced() -> list[Diagnosis]:
    rows = [f"{row.backend}: {row.op} is that of {row.entry_point} ({row.distribution})" for row in overrides()]
    return [Diagnosis("ok", row) for row in rows] + [Diagnosis("warning", line) for line in without_backend()]


def _is_shown(failure: PluginFailure) -> bool:
    """True for failures that already stand among the backends."""
    return failure.stage in ("import", "register", "start")


def _of_hook(failure: PluginFailure) -> Diagnosis:
    return Diagnosis("warning" if lacks_library(failure.exception) else "error", str(failure))


def _environment() -> list[Diagnosis]:
    versions = f"Python {platform.python_version()} ({sys.executable}), {platform.platform()}"
    lines = [Diagnosis("ok", f"polyarr {_version('polyarr')}"), Diagnosis("ok", versions)]
    lines += [Diagnosis("ok", f"{name} {_version(name)}") for name in ("numpy", "ml_dtypes", "pluggy")]
    settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith("POLYARR_")}
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
    with contextlib.suppress(BackendError):  # which its row explains
        get_backend(name)
    rows = [row for row in status() if row.name == name]
    return [_explained(row) if row.backend is None else _computed(row, row.backend) for row in rows]


def _computed(row: BackendStatus, backend: Backend) -> Diagnosis:
    try:
        _compute(row.name)
    except Exception as error:  # whatever a driver does, the report goes on
        return _error(f"{row.name} ({row.distribution}) starts, but: {reason_of(error)}")
    return Diagnosis("ok", f"{row.name} ({row.distribution}) computes on {backend.hardware}")


def _explained(row: BackendStatus) -> Diagnosis:
    """A missing library of a backend that comes with polyarr is a choice; all else that failed is broken."""
    error = row.failure.exception if row.failure else None
    if lacks_library(error) and row.name in BUILT_IN:
        return Diagnosis("warning", f"{row.name}: not available ({error}); to have it: {row.install_hint}")
    if row.failure and row.failure.stage in ("import", "register"):
        return _error(f"{row.reason}; update or uninstall it, or leave it out by POLYARR_PLUGINS")
    return _error(row.reason)


def _error(text: str) -> Diagnosis:
    return Diagnosis("error", text)


def _compute(name: str) -> None:
    """Upload, multiply, add up, download: one small answer that is known."""
    with use_backend(get_backend(name)):
        x = polyarr.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
        found = float(polyarr.sum(x @ polyarr.permute_dims(x, axes=(1, 0))))
    if found != 83.0:
        raise ArithmeticError(f"a small matrix product came out as {found}, not 83.0")
