"""The files that `polyarr new-backend` writes, here for a backend "mine"; docs/write-a-backend.md shows two."""

FILES = {
    "polyarr_mine.py": '''"""The polyarr backend "mine": a table of kernels, and two functions that copy."""

import math

import numpy as np  # in your backend: the library that computes, imported in start()

from polyarr.backends.kernels import make_kernels
from polyarr.core.backend import Backend
from polyarr.plugins import hookimpl

erf = np.vectorize(math.erf, "d")  # in your backend: the library's error function


def start():
    """Return the backend. Import heavy libraries here: this runs for users of the backend only."""
    return Backend("mine", make_kernels(np, erf), upload=np.array, download=download)


def download(buf):
    """Return a C-contiguous NumPy array with a copy of a buffer."""
    return np.array(buf, order="C")


@hookimpl
def polyarr_backends(register):
    """Register the backend. This runs for all who have the package installed."""
    hint = "pip install polyarr-mine"
    register("mine", start, summary="my first backend", install_hint=hint, api=2)
''',
    "pyproject.toml": """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "polyarr-mine"
version = "0.1.0"
description = "A backend for polyarr"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["polyarr", "numpy>=2.1"]

[project.optional-dependencies]
test = ["polyarr[testing]", "pytest-xdist"]

[project.entry-points.polyarr]
mine = "polyarr_mine"

[tool.setuptools]
py-modules = ["polyarr_mine"]

[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = "--polyarr-backend=mine --polyarr-known-failures=known_failures.toml"
""",
    "tests/test_conformance.py": '''"""The conformance kit for this backend, which pyproject.toml names."""

from polyarr.testing.conformance import *  # noqa: F403  each case of the kit is a test
''',
    "known_failures.toml": """# Known failures of the conformance kit: the case's name, and why it fails.
# A case that passes again fails the tests until its line is removed.

[failures]
# "float16-tanh" = "the library rounds twice: its issue 123"
""",
    "README.md": """# polyarr-mine

A polyarr backend. `polyarr_mine.py` computes with NumPy until you replace NumPy by your library;
polyarr's page "Write a backend" describes the inputs and results of a kernel.

```
pip install -e '.[test]'
polyarr doctor
pytest -n auto
```

The tests are polyarr's conformance kit: every op, gradient, dtype and memory layout, and a small GPT that
must train to NumPy's losses. Write known failures into `known_failures.toml`, with their reasons.
`polyarr conformance mine --html report.html` draws a page of the results.
`.github/workflows/test.yml` runs the tests on every push.
""",
    ".github/workflows/test.yml": """name: test
on: [push, pull_request]
permissions:
  contents: read
jobs:
  test:
    runs-on: ubuntu-latest
    strategy:
      matrix:
        python: ["3.11", "3.13"]
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: ${{ matrix.python }}
      - run: pip install '.[test]'
      - run: polyarr doctor
        env:
          POLYARR_STRICT_PLUGINS: "1"
      - run: pytest -n auto
""",
    ".gitignore": """__pycache__/
*.egg-info/
build/
dist/
.pytest_cache/
.hypothesis/
""",
}
