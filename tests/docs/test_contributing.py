"""The recipe for an op in CONTRIBUTING.md, applied literally to a copy of the package."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.helpers.root import ROOT

STEP = re.compile(r"^```python\n# (polyarr/\S+\.py)(?:, in (\w+|from .* \())?: [^\n]*\n(.*?)^```", re.M | re.S)

KIT, OTHERS = "polyarr/testing/conformance.py", ("tests/ops/test_gradients.py", "tests/test_architecture.py")
# All checks on NumPy; on OpenCL only two, because each has to compile.
CHOSEN = "softsign and not opencl or opencl-forward-softsign or opencl-backward-softsign"


def run(folder, *command):
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def follow(folder, steps):
    """Insert each step's lines at the end of its file, or at the start of the table or import that it names."""
    for file, table, lines in steps:
        text = (folder / file).read_text()
        opening = re.escape(table) if "import" in table else rf"{table}(?:: \S.*)? = {{"
        start = re.search(rf"^ *{opening}\n", text, re.M).end() if table else len(text)
        (folder / file).write_text(text[:start] + ("" if table else "\n\n") + lines + text[start:])


def test_five_edits_are_an_op(tmp_path):
    pytest.importorskip("pyopencl")
    steps = STEP.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(steps) == 5
    for part in ("polyarr", "tests/typed"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "tests/conftest.py", "tests/passed.py", "tests/skips.py", *OTHERS):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    follow(tmp_path, steps)
    assert run(tmp_path, "tests.typed.stubs").split() == ["wrote", "polyarr/ops/catalogue.pyi"]
    assert "\nsoftsign: _Unary\n" in (tmp_path / "polyarr/ops/catalogue.pyi").read_text()
    found = run(tmp_path, "pytest", "-v", "-p", "no:cacheprovider", KIT, *OTHERS, "-k", CHOSEN)
    passed = set(re.findall(r"\[(\S*softsign)\] PASSED", found))
    assert {f"{b}-{check}-softsign" for b in ("numpy", "opencl") for check in ("forward", "backward")} < passed
    assert len(re.findall(r"(test_gradient|documented|sample_and_a_gradient)\[softsign\] PASSED", found)) == 3
