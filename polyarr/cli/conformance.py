"""`polyarr conformance`: put a backend to every case of the kit, wherever the user stands."""

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from polyarr.core.current import get_backend
from polyarr.testing import LEVELS

# What pytest says by its exit code, and what this command does. All else that is not 0 is 1.
INTERRUPTED, WRONG_USAGE = 2, 4
EXIT_CODES = {0: 0, INTERRUPTED: 130, WRONG_USAGE: 2}
# Not the settings of the project that the user stands in, and nothing that stays behind.
OPTIONS = (
    "-c", os.devnull, "--noconftest", "--import-mode=importlib", "--assert=plain",
    "-p", "no:cacheprovider", "-p", "polyarr.testing.pytest_plugin", "-q", "-rN", "--no-header", "--disable-warnings",
)  # fmt: skip
_path = click.Path(path_type=Path)


@click.command()
@click.argument("name")
@click.option(
    "--level", type=click.Choice(LEVELS), default=LEVELS[-1], show_default=True, help="How far to go; each contains "
    "those before it.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Draw other examples.")
@click.option("--thorough", is_flag=True, help="Draw many more examples.")
@click.option("--few-shapes", is_flag=True, help="Draw one, for a backend that compiles for every shape.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="How many processes.")
@click.option("--known-failures", type=_path, metavar="FILE", help="TOML: [failures] from case to reason.")
@click.option("--report", type=_path, metavar="FILE", help="Write the results as JSON.")
@click.option("--html", type=_path, metavar="FILE", help="Write the results as a page.")
@click.option("-k", "expression", metavar="EXPRESSION", help="Only the cases that match, as pytest -k has it.")
def command(
    name: str,
    level: str,
    seed: int,
    thorough: bool,
    few_shapes: bool,
    jobs: int,
    known_failures: Path | None,
    report: Path | None,
    html: Path | None,
    expression: str | None,
) -> None:
    """Put the backend NAME, such as opencl or opencl:0, to the cases of the conformance kit.

    Exit code 0 if all hold, and something was checked.
    """
    for library in ("pytest", "hypothesis"):
        _require(library, "'polyarr[testing]'")
    if jobs > 1:
        _require("xdist", "pytest-xdist")
    get_backend(name)  # or an error now, not one per case
    files = {"known-failures": known_failures, "report": report, "html": html}
    arguments = [
        *OPTIONS, f"--rootdir={Path(__file__).parents[1]}", "--pyargs", "polyarr.testing.conformance",
        f"--polyarr-backend={name}", f"--polyarr-level={level}", f"--polyarr-seed={seed}",
        *(["--polyarr-thorough"] if thorough else []),
        *(["--polyarr-few-shapes"] if few_shapes else []),
        *(f"--polyarr-{option}={path.absolute()}" for option, path in files.items() if path),
        *(["-k", expression] if expression else []),
        *(["-p", "xdist.plugin", "-n", str(jobs)] if jobs > 1 else []),
    ]  # fmt: skip
    with _alone():
        code = importlib.import_module("pytest").main(arguments)
    raise click.exceptions.Exit(EXIT_CODES.get(int(code), 1))


def _require(library: str, package: str) -> None:
    """Errors:  click.ClickException with the command that installs it"""
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise click.ClickException(f"{library} cannot be imported ({error}); pip install {package}") from error


@contextmanager
def _alone() -> Iterator[None]:
    """No plugins and options that the environment adds to pytest, and no folder that hypothesis leaves behind."""
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
