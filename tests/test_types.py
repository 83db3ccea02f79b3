"""What type checkers see of polyarr: right programs pass, what is wrong is found, and the stubs are current."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.installing import ROOT
from tests.typed.stubs import stubs

GOOD, BAD = ROOT / "tests/typed/good.py", ROOT / "tests/typed/bad.py"


def test_the_stubs_are_what_make_stubs_writes() -> None:
    for path, text in stubs().items():
        assert path.read_text() == text, f"{path.name} is not current: run make stubs"


def test_mypy_accepts_what_is_right_and_finds_what_is_wrong(tmp_path: Path) -> None:
    """From outside: its own settings, and polyarr as a package that is only read."""
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "--no-pretty"]
    command += ["--cache-dir", str(tmp_path / "cache"), str(GOOD), str(BAD)]
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    found = {(Path(f).name, int(n)) for f, n in re.findall(r"^(\S+\.py):(\d+): error:", done.stdout, re.M)}
    wrong = {(BAD.name, n) for n, line in enumerate(BAD.read_text().splitlines(), 1) if line.endswith("# rejected")}
    assert wrong and found == wrong, done.stdout + done.stderr
