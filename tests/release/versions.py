"""`make test-versions`: a part of the suite on several versions of Python and of the dependencies.

A version of Python that uv can neither find nor install is named and left out. Each other one gets two
environments with the wheel: one with the oldest direct dependencies that pyproject.toml allows and that have wheels for
that Python, one with the newest. There run the tests of the core and the ops on NumPy, some ops of the conformance kit
on PoCL, and README.md.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.helpers.root import ROOT
from tests.release import tools
from tests.release.tools import CommandError, uv

EXTRAS = ("opencl", "serve", "testing")  # as in README.md
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
VERSIONS = "import numpy, platform; print(platform.python_version(), 'NumPy', numpy.__version__)"
RESOLUTIONS = ("lowest-direct", "highest")
ON_NUMPY = ("tests/core", "tests/ops", "tests/plugins", "tests/test_tree.py", "--polyarr-backend=numpy")
KIT = (
    "--pyargs", "polyarr.testing.conformance", "--polyarr-backend=opencl", "--polyarr-few-shapes",
    "-k", "(forward or backward) and (exp or sum or matmul or softmax or take) or complete",
)  # fmt: skip
README = ("tests/docs/test_pages.py", "-k", "test_the_readme")


def main() -> None:
    """Test each version; the exit code is 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=PYTHONS)
    parser.add_argument("--jobs", default="2")
    given = parser.parse_args()
    failed = list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, _ = tools.build(folder / "dist")
        copy = tools.copy_without_package(folder / "copy")
        for version in given.versions:
            if not is_available(version):
                print(f"Python {version}: cannot be installed here, NOT TESTED", flush=True)
                continue
            for resolution in RESOLUTIONS:
                title = f"Python {version}, {resolution}"
                try:
                    said = test(version, resolution, wheel, copy, folder, given.jobs)
                    print(f"{title}: {said}", flush=True)
                except CommandError as error:
                    print(f"{title}: FAILED {error}", flush=True)
                    failed.append(title)
    sys.exit(f"failed: {'; '.join(failed)}" if failed else 0)


def is_available(version: str) -> bool:
    """Return whether uv finds or installs a version of Python."""
    for command in ("find", "install"):
        try:
            uv("python", command, version)
            return True
        except CommandError:
            continue
    return False


def test(version: str, resolution: str, wheel: Path, copy: Path, folder: Path, jobs: str) -> str:
    """Return pytest's summaries in a new environment, and the versions that they are of."""
    pinned = folder / f"{version}-{resolution}.txt"
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    # Packages from before a version of Python have no wheels for it: no user installs those, and few can build them.
    uv("pip", "compile", "--quiet", "--only-binary", ":all:", "--python-version", version, "--resolution", resolution,
       *extras, ROOT / "pyproject.toml", "--output-file", pinned)  # fmt: skip
    python = tools.environment(
        folder / f"{version}-{resolution}", version, "--requirement", pinned, wheel, "pytest-xdist>=3.6"
    )
    versions = tools.run(python, "-c", VERSIONS)
    said = [tools.pytest(python, copy, "-n", jobs, *part) for part in (ON_NUMPY, KIT, README)]
    return "; ".join([versions.strip(), *said])


if __name__ == "__main__":
    main()
