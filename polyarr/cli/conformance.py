"""`polyarr conformance`: run the conformance kit on a backend, in any folder."""

import difflib
import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from polyarr.cli.values import FileName
from polyarr.testing import LEVELS, USUAL_LEVEL, adapters

# pytest's exit codes, and the command's exit code for each; for all others it is 1.
INTERRUPTED, WRONG_USAGE, NO_CASES = 2, 4, 5
EXIT_CODES = {0: 0, INTERRUPTED: 130, WRONG_USAGE: 2}
# Ignore the settings of the project in the current folder, and leave no files behind.
OPTIONS = (
    "-c", os.devnull, "--noconftest", "--import-mode=importlib", "--assert=plain",
    "-p", "no:cacheprovider", "-p", "polyarr.testing.pytest_plugin",
)  # fmt: skip
REPORTING = ("-q", "-rN", "--no-header", "--disable-warnings")
_path = FileName()


@click.command()
@click.argument("name", required=False)
@click.option(
    "--adapter", metavar="FRAMEWORK:DEVICE", help="Instead of NAME: check the functions and gradients of another "
    "framework, such as torch:cpu, jax:cpu or keras:jax.",
)  # fmt: skip
@click.option(
    "--level", type=click.Choice(LEVELS), default=USUAL_LEVEL, show_default=True, help="Which cases to run; a level "
    "contains those before it.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the examples.")
@click.option("--thorough", is_flag=True, help="Run many more examples.")
@click.option("--few-shapes", is_flag=True, help="Run one example, for a backend that compiles for each shape.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes.")
@click.option("--known-failures", type=_path, metavar="FILE", help="TOML file: [failures] from case to reason.")
@click.option("--report", type=_path, metavar="FILE", help="Write the results as JSON.")
@click.option("--html", type=_path, metavar="FILE", help="Write the results as an HTML page.")
@click.option("--list", "is_list", is_flag=True, help="List the cases without running them.")
@click.option("-k", "expression", metavar="EXPRESSION", help="Run only the cases that match, as in pytest -k.")
def command(
    name: str | None,
    adapter: str | None,
    level: str,
    seed: int,
    thorough: bool,
    few_shapes: bool,
    jobs: int,
    known_failures: Path | None,
    report: Path | None,
    html: Path | None,
    is_list: bool,
    expression: str | None,
) -> None:
    """Run the conformance kit on the backend NAME, such as opencl or opencl:0.

    The exit code is 0 if all cases hold and at least one was run.
    """
    for library in ("pytest", "hypothesis"):
        _require(library, "'polyarr[testing]'")
    if jobs > 1:
        _require("xdist", "pytest-xdist")
    if (name is None) == (adapter is None):
        raise click.UsageError("name a backend or an --adapter, one of the two")
    if name is None:
        name = f"{adapters.FAMILY}:{adapter}"
        known_failures = known_failures or adapters.known_differences(str(adapter))
    adapters.find(name)  # fail here rather than in every case
    files = {"known-failures": known_failures, "report": report, "html": html}
    arguments = [
        *OPTIONS, *REPORTING, f"--rootdir={Path(__file__).parents[1]}", "--pyargs", "polyarr.testing.conformance",
        f"--polyarr-backend={name}", f"--polyarr-level={level}", f"--polyarr-seed={seed}",
        *(["--polyarr-thorough"] if thorough else []),
        *(["--polyarr-few-shapes"] if few_shapes else []),
        *(f"--polyarr-{option}={path.absolute()}" for option, path in files.items() if path),
        *(["-k", expression] if expression else []),
        *(["-p", "xdist.plugin", "-n", str(jobs)] if jobs > 1 else []),
    ]  # fmt: skip
    if is_list:
        arguments = [a for a in arguments if a not in REPORTING] + ["--collect-only", "-p", "no:terminal"]
    with _alone():
        code = importlib.import_module("pytest").main(arguments, plugins=[_Names()] if is_list else None)
    if code == NO_CASES and expression:
        click.echo()  # end pytest's line
        raise click.UsageError(_no_match(name, level, expression))
    raise click.exceptions.Exit(EXIT_CODES.get(int(code), 1))


class _Names:
    """pytest plugin that prints the name of every selected case."""

    def pytest_collection_finish(self, session: Any) -> None:
        for item in session.items:
            click.echo(item.callspec.params["case"].name)


def _no_match(name: str, level: str, expression: str) -> str:
    """Return the error for a -k that matches no case, with the names of similar cases."""
    known = importlib.import_module("polyarr.testing.cases").cases()
    names = {n for case in known for n in (case.name, case.check, case.subject)}
    near = difflib.get_close_matches(expression, sorted(names), 3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return f"no case of level {level} matches -k {expression!r}; {meant}polyarr conformance {name} --list names them"


def _require(library: str, package: str) -> None:
    """Raise click.ClickException with the command that installs a library, if it cannot be imported."""
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise click.ClickException(f"{library} cannot be imported ({error}); pip install {package}") from error


@contextmanager
def _alone() -> Iterator[None]:
    """Ignore pytest plugins and options from the environment, and delete hypothesis's folder afterwards."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
            os.environ.pop(name, None)
        os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
