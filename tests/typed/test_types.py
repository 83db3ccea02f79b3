"""Type checking of polyarr: correct programs pass, errors are found, and the stubs are current."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarr.core.array import NUMBERS
from polyarr.core.binding import bound_by_name
from polyarr.core.op import Op
from polyarr.core.spec import Spec, as_dtype
from polyarr.testing import SAMPLES, Data, Sample
from tests.helpers.root import ROOT
from tests.typed.stubs import stubs

GOOD, BAD = ROOT / "tests/typed/good.py", ROOT / "tests/typed/bad.py"
HEAD = "from polyarr import Array, ops\n\n\ndef calls(x: Array, inf: float, nan: float) -> None:\n"


def test_the_stubs_are_what_make_stubs_writes() -> None:
    for path, text in stubs().items():
        assert path.read_text() == text, f"{path.name} is not current: run make stubs"


def test_mypy_accepts_what_is_right_and_finds_what_is_wrong(tmp_path: Path) -> None:
    """From outside: with its own settings, and polyarr as an installed package."""
    calls = tmp_path / "calls.py"
    calls.write_text(HEAD + "".join(f"    r{i}: {call}\n" for i, call in enumerate(sorted(kit_calls()))))
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "--no-pretty"]
    command += ["--cache-dir", str(tmp_path / "cache"), str(GOOD), str(BAD), str(calls)]
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    found = {(Path(f).name, int(n)) for f, n in re.findall(r"^(\S+\.py):(\d+): error:", done.stdout, re.M)}
    assert rejected() and found == rejected(), done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_accepts_what_is_right_and_finds_what_is_wrong(tmp_path: Path) -> None:
    for path in (GOOD, BAD):
        shutil.copy(path, tmp_path)
    settings = {"extraPaths": [str(ROOT)], "pythonVersion": "3.11", "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["pyright", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    found = {(Path(f).name, int(n)) for f, n in re.findall(r"^ *(\S+\.py):(\d+):\d+ - error:", done.stdout, re.M)}
    assert found == rejected(), done.stdout + done.stderr


def rejected() -> set[tuple[str, int]]:
    """Return file and line of each error."""
    lines = enumerate(BAD.read_text().splitlines(), 1)
    return {(BAD.name, n) for n, line in lines if line.endswith("# rejected")}


def kit_calls() -> set[str]:
    """Write the conformance kit's calls of every op with their result types: the stubs must accept all."""
    found = set()

    @settings(max_examples=6)
    @given(data=st.data())
    def draw(data: st.DataObject) -> None:
        for op, entry in SAMPLES.items():
            found.add(call(op, data.draw(entry.cases(entry.dtypes[0]))))

    draw()
    assert {line.split("(")[0].split(".")[-1] for line in found} >= {op.name for op in SAMPLES}
    return found


def call(op: Op, sample: Sample) -> str:
    arguments = [*map(written, sample.inputs), *(f"{name}={value!r}" for name, value in sample.params.items())]
    inputs, params = bound_by_name(op, sample.inputs, sample.params)  # a number may be given by name
    out = op.plan(tuple(map(spec, inputs)), {**op.defaults, **params}).out
    result = "Array" if type(out) is Spec else "tuple[Array | tuple[Array, ...], ...]"
    return f"{result} = ops.{op.name}({', '.join(arguments)})"


def written(a: Any) -> str:
    return "x" if isinstance(a, Data) else f"[{', '.join(map(written, a))}]" if isinstance(a, tuple) else repr(a)


def spec(a: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(map(spec, a))
    return Spec(a.shape, as_dtype(a.dtype)) if isinstance(a, Data) else NUMBERS.get(type(a))
