"""Run the test suite of the array API standard (github.com/data-apis/array-api-tests) on each backend.

    python tests/array_api/run.py SUITE [--examples 200] [--versions 2024.12 2025.12] [--backends numpy opencl]
                                        [arguments of pytest]

SUITE is a checkout with its submodule. On a backend without complex dtypes, the suite needs a default in the maximum
that is widest_complex_dtype of its dtype_helpers.py. Failures that are expected are in expected.toml, each with its
reason; any other failure is an error, and so is an expected one that passes. What the suite needs is in the extra
`interop`.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import polyarr as pa

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VERSIONS = ("2024.12", "2025.12")
MAY_LACK = {"float64", "complex64", "complex128"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", type=Path, help="folder of the suite")
    parser.add_argument("--examples", type=int, default=200, help="examples of each test")
    parser.add_argument("--versions", nargs="+", default=VERSIONS, help="versions of the standard")
    parser.add_argument("--backends", nargs="+", default=("numpy", "opencl"), help="backends")
    asked, further = parser.parse_known_args()
    if not (asked.suite / "array-api" / "spec").is_dir():
        parser.error(
            f"{asked.suite} is no checkout with its submodule: git clone --recurse-submodules "
            "https://github.com/data-apis/array-api-tests"
        )
    runs = [(backend, version) for backend in asked.backends for version in asked.versions]
    outcomes = [run(asked.suite.resolve(), *each, asked.examples, further) for each in runs]
    return max(outcomes, default=0)


def run(suite: Path, backend: str, version: str, examples: int, further: list[str]) -> int:
    """Run the suite once, in its own process, and return pytest's exit status."""
    paths = [str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    lacking = MAY_LACK - pa.__array_namespace_info__().dtypes(device=backend).keys()
    chosen = {
        "ARRAY_API_TESTS_MODULE": "polyarr",
        "ARRAY_API_TESTS_VERSION": version,
        "ARRAY_API_TESTS_SKIP_DTYPES": ",".join(sorted(lacking)),
        "POLYARR_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    command = [
        *(sys.executable, "-P", "-m", "pytest", "array_api_tests", "-q", "-p", "no:polyarr", "-p", "expected"),
        *("-p", "no:cacheprovider", "--disable-deadline", f"--max-examples={examples}", *further),
    ]
    return subprocess.run(command, cwd=suite, env={**os.environ, **chosen}).returncode


if __name__ == "__main__":
    raise SystemExit(main())
