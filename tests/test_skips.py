"""The summary at the end of `make test` counts every skipped test once, by reason, and lists parts that did not run."""

import re
import subprocess
import sys

import pytest

from tests.helpers.root import ROOT
from tests.skips import PARTS, lines_of, page

MAKEFILE = (ROOT / "Makefile").read_text()


def test_reasons_that_differ_in_names_and_numbers_are_one_line():
    assert [*lines_of(["none for exp: it", "none for log: it"])] == ["     2  none for exp: it (and 1 like it)"]
    reasons = ["Skipped: no 'a' of 1.5", "Skipped: no 'b' of 2", "no CPU", "no 'a' of 1.5", "a\nb", "z", "y"]
    assert [*lines_of(reasons, most=3)] == [
        "     3  no 'a' of 1.5 (and 1 like it)",
        "     1  a",
        "     1  no CPU",
        "     2  for 2 further reasons: pytest -rs lists them",
    ]


def test_the_page_says_what_ran(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/oclgrind")
    text = "\n".join(page({"make suite": {"ran": 1200, "skipped": ["no CPU"]}}, MAKEFILE))
    assert "\nmake suite: 1,200 tests ran, 1 were skipped\n     1  no CPU\n" in text
    again = "\n".join(page({"make suite": {"ran": 200, "reused": 1000, "skipped": []}}, MAKEFILE))
    assert "\nmake suite: 200 tests ran, 1,000 passed in an earlier run, 0 were skipped\n" in again
    assert "\n  ran      every OpenCL kernel under Oclgrind\n" in text
    assert re.search(r"\n  did not  the conformance kit on Intel's OpenCL: make test-intel", text)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "did not  every OpenCL kernel under Oclgrind: install Debian" in "\n".join(page({}, MAKEFILE))
    assert "Intel" not in "\n".join(page({}, "\nsanitize: venv"))


@pytest.mark.parametrize("part", PARTS[:2], ids=lambda part: part.target)
def test_what_make_test_runs_is_a_target(part):
    assert f"\n{part.target}:" in MAKEFILE


def test_pytest_writes_what_the_page_reads(tmp_path):
    (tmp_path / "test_planted.py").write_text(
        "import pytest\ndef test_a(): pytest.skip('no moon')\ndef test_b(): pass\n"
        "@pytest.mark.skipif(True, reason='no sun')\ndef test_c(): pass\n"
    )
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    file = tmp_path / "out" / "planted.json"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, "--skips", file, tmp_path],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "skipped      1  no moon" in done.stdout, done.stdout
    shown = subprocess.run([sys.executable, "-m", "tests.skips", file], cwd=ROOT, capture_output=True, text=True).stdout
    assert "planted: 1 tests ran, 2 were skipped\n     1  no moon\n     1  no sun\n" in shown
