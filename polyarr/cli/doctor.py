"""`polyarr doctor`: try everything, say what is wrong and how to mend it."""

import importlib.metadata
import os
import platform
import sys

import click
import numpy as np

import polyarr
from polyarr.cli.output import no_plugin_warnings
from polyarr.hooks import Diagnosis
from polyarr.loading import PluginFailure, reason_of
from polyarr.plugins import (
    KNOWN,
    BackendStatus,
    diagnose,
    failures,
    get_backend,
    lacks_library,
    overrides,
    status,
    use_backend,
)

COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
def command() -> None:
    """Start every backend, compute something on it, and say what is wrong and how to mend it.

    Exit code 1 if something is broken, 0 if all is well.
    """
    with no_plugin_warnings():
        broken = _show("Environment", _environment())
        broken += _show("Backends", [_try(row) for row in status(start=True)])
        broken += _show("Kernels that plugins replace", _replaced())
        broken += _show("What the backends say", diagnose())
        broken += _show("Hooks that failed", [_of_hook(f) for f in failures() if not _is_shown(f)])
    click.echo(f"\n{broken} problem{'s' * (broken != 1)} found" if broken else "\nno problem found")
    raise click.exceptions.Exit(1 if broken else 0)


def _show(title: str, lines: list[Diagnosis]) -> int:
    """Print a section, if there is anything in it; how many lines are errors."""
    if lines:
        click.echo(f"\n{title}")
    for line in lines:
        click.echo(f"  {click.style(f'{line.level:8}', fg=COLOURS[line.level])} {line.text}")
    return sum(line.level == "error" for line in lines)


def _replaced() -> list[Diagnosis]:
    rows = [f"{row.backend}: {row.op} is that of {row.entry_point} ({row.distribution})" for row in overrides()]
    return [Diagnosis("ok", row) for row in rows]


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
    return lines + [Diagnosis("ok", f"{name}={value}") for name, value in settings.items()]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed: running from a source tree)"


def _try(row: BackendStatus) -> Diagnosis:
    if row.backend is None:
        return _explained(row)
    try:
        _compute(row.name)
    except Exception as error:  # whatever a driver does, the report goes on
        return _error(f"{row.name} ({row.distribution}) starts, but: {reason_of(error)}")
    return Diagnosis("ok", f"{row.name} ({row.distribution}) computes on {row.backend.device}")


def _explained(row: BackendStatus) -> Diagnosis:
    """A missing library of a backend that comes with polyarr is a choice; all else that failed is broken."""
    error = row.failure.exception if row.failure else None
    if lacks_library(error) and row.name in KNOWN:
        return Diagnosis("warning", f"{row.name}: not available ({error}); to have it: {KNOWN[row.name]}")
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
