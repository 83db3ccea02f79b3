"""`make release-check`: build the package, and check it in new environments as a user would install it.

All checks run, and each that fails is listed at the end. They need a package index. `make docs` checks links;
`make release-check` runs it first.
"""

import contextlib
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.root import ROOT
from tests.release import tools
from tests.release.tools import CommandError, uv
from tests.release.wheel import faults

PROJECT = ROOT / "pyproject.toml"
PYTHON = "3.11"
DOORS = "opencl,serve,testing"  # extras that README.md installs
NUMPY_ONLY = "import polyarr as pa; print(pa.exp(pa.zeros(2)).tolist())"
OPENCL = "import polyarr as pa\ntry: pa.set_backend('opencl')\nexcept pa.BackendError as error: print(error)"
IMPORT_TIME = (
    "import time, numpy\nbegin = time.perf_counter()\nimport polyarr\nprint(1e3 * (time.perf_counter() - begin))"
)
SCHEMAS = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "vendor.github-actions": ".github/actions/*/action.yml",
    "vendor.citation-file-format": "CITATION.cff",
}
failed = list[str]()


@contextlib.contextmanager
def check(title: str) -> Iterator[None]:
    """Print a title, and record what fails in the block."""
    print(f"{title} ...", flush=True)
    try:
        yield
    except (CommandError, AssertionError) as error:
        print(f"  FAILED {error}", flush=True)
        failed.append(title)


def main() -> None:
    """Run all checks; the exit code is 1 if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        check_all(Path(folder))
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall release checks passed")
    sys.exit(bool(failed))


def check_all(folder: Path) -> None:
    """Run all checks in a folder."""
    wheel, source = tools.build(folder / "dist")
    print(f"{source.name} {source.stat().st_size:,} bytes, {wheel.name} {wheel.stat().st_size:,} bytes")
    with check("twine check --strict"):
        uv("tool", "run", "twine", "check", "--strict", wheel, source)
    with check("files of the wheel"):
        assert not (found := faults(wheel)), "\n  ".join(found)
    with check("the wheel without extras"):
        check_alone(tools.environment(folder / "alone", PYTHON, wheel))
    with check(f"README.md with the extras {DOORS}"):
        doors = tools.environment(folder / "doors", PYTHON, f"polyarr[{DOORS}] @ {wheel.as_uri()}")
        check_readme(doors, folder)
    with check("a package that `polyarr new-backend` writes"):
        check_new_backend(folder / "doors" / "bin" / "python", folder / "polyarr-mine")
    for extra in tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]:
        with check(f"the extra {extra} resolves"):
            uv("pip", "compile", "--quiet", "--python-version", PYTHON, "--extra", extra, PROJECT)
    for schema, pattern in SCHEMAS.items():
        with check(f"{pattern} by {schema}"):
            files = sorted(ROOT.glob(pattern))
            assert files, f"there is no {pattern}"
            uv("tool", "run", "check-jsonschema", "--builtin-schema", schema, *files)
    with check(".pre-commit-hooks.yaml"):
        uv("tool", "run", "pre-commit", "validate-manifest", ROOT / ".pre-commit-hooks.yaml")


def check_alone(python: Path) -> None:
    """Check that polyarr computes on NumPy and names the extra of OpenCL in one line; print its import time."""
    assert tools.run(python, "-c", NUMPY_ONLY).strip() == "[1.0, 1.0]"
    said = tools.run(python, "-c", OPENCL).strip()
    assert "pip install 'polyarr[opencl]'" in said and "\n" not in said, said
    times = [float(tools.run(python, "-c", IMPORT_TIME)) for _ in range(9)]
    print(f"  import polyarr takes {statistics.median(times):.0f} ms after import numpy (median of {len(times)})")


def check_readme(python: Path, folder: Path) -> None:
    """Run the commands and programs of README.md on OpenCL."""
    copy = tools.copy_without_package(folder / "copy")
    said = tools.pytest(python, copy, "tests/docs/test_pages.py", "-k", "test_the_readme")
    assert said.startswith("1 passed"), said


def check_new_backend(python: Path, folder: Path) -> None:
    """Write a backend's package, install it, and run a part of the conformance kit on it."""
    tools.run(python, "-m", "polyarr", "new-backend", "mine", "--out", folder)
    uv("pip", "install", "--quiet", "--python", python, folder)
    tools.run(python, "-m", "polyarr", "conformance", "mine", "-k", "exp or complete")


if __name__ == "__main__":
    main()
