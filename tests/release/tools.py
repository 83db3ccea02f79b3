"""Commands of the release checks, run by uv, which `make` installs in an environment of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers.root import ROOT

COPIED = ("tests", "docs", "examples", "README.md", "pyproject.toml")


class CommandError(Exception):
    """A command ended with another exit code than 0; the text is what it printed last."""


def run(*command: str | Path, cwd: Path = ROOT, **settings: str) -> str:
    """Return what a command prints.

    Args:
        *command: The program and its arguments.
        cwd: Folder in which it runs.
        **settings: Environment variables, which replace all of polyarr's and Python's.

    Returns:
        Its standard output.

    Raises:
        CommandError: The exit code is not 0.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POLYARR_", "PYTHON"))}
    done = subprocess.run(command, cwd=cwd, env={**kept, **settings}, capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-15:]
        title = f"exit code {done.returncode}: {' '.join(map(str, command[:6]))}"
        raise CommandError("\n    ".join([title, *said]))
    return done.stdout


def uv(*arguments: str | Path) -> str:
    """Return what a command of uv prints."""
    return run(sys.executable, "-m", "uv", *arguments)


def build(folder: Path) -> tuple[Path, Path]:
    """Return a wheel and a source distribution, built in isolation as `python -m build` does."""
    uv("tool", "run", "--from", "build", "pyproject-build", "--outdir", folder)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def environment(folder: Path, version: str, *requirements: str | Path) -> Path:
    """Return the interpreter of a new environment with these requirements (arguments of `uv pip install`)."""
    uv("venv", "--quiet", "--python", version, folder)
    python = folder / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", python, *requirements)
    return python


def copy_without_package(folder: Path) -> Path:
    """Copy tests and pages into a new folder, without the package; tests there import the installed one."""
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def pytest(python: Path, folder: Path, *arguments: str) -> str:
    """Return the last line of pytest in a copy; polyarr is the one installed beside the interpreter."""
    said = run(python, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, cwd=folder,
               PYTHONPATH=str(folder), OPENBLAS_NUM_THREADS="1")  # fmt: skip
    return said.strip().splitlines()[-1]
