"""The cache of tests that passed: what its keys depend on, and which tests run again."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import passed
from tests.conftest import Reuse
from tests.helpers.root import ROOT

FILES = {
    "polyarr/__init__.py": "from polyarr import low",
    "polyarr/low.py": "",
    "polyarr/high.py": "import polyarr\nNAMES = ['polyarr.lazy']",
    "polyarr/lazy.py": "",
    "polyarr/other.py": "",
    "polyarr/table.json": "{}",
    "polyarr/backends/opencl/__init__.py": "from polyarr.backends.opencl import launch",
    "polyarr/backends/opencl/launch.py": "from polyarr import low",
    "polyarr/backends/opencl/kernels/add.cl": "// add",
    "tests/helpers/shared.py": "",
    "tests/test_high.py": "from polyarr.high import NAMES\nfrom tests.helpers import shared",
}


@pytest.fixture
def root(tmp_path):
    """A small repository."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def names(files, root):
    return {path.relative_to(root).as_posix() for path in files}


def test_a_test_depends_on_what_its_file_imports_and_on_the_files_beside(root):
    """Indirectly, too, and on modules named in strings; not on modules that nothing imports, nor on a backend."""
    assert names(passed.dependencies(root / "tests/test_high.py", root=root), root) == {
        "polyarr/__init__.py", "polyarr/low.py", "polyarr/high.py", "polyarr/lazy.py", "polyarr/table.json",
        "tests/helpers/shared.py", "tests/test_high.py",
    }  # fmt: skip


def test_a_backend_is_all_its_files(root):
    assert {"polyarr/backends/opencl/launch.py", "polyarr/backends/opencl/kernels/add.cl", "polyarr/low.py"} <= names(
        passed.backend_files("opencl", root), root
    )


@pytest.mark.parametrize("name", FILES)
def test_a_key_changes_with_each_file_and_no_other(root, name):
    """A changed kernel, launcher or module is another key, and so is a new file."""
    files = passed.dependencies(root / "tests/test_high.py", root=root) | passed.backend_files("opencl", root)
    before = passed.key_of(files, root=root)
    (root / name).write_text(FILES[name] + "\n")
    assert (passed.key_of(files, root=root) == before) == (name == "polyarr/other.py")
    assert passed.key_of({*files, root / "polyarr/other.py"}, root=root) != passed.key_of(files, root=root)


def test_a_key_changes_with_what_is_installed_and_set(root, monkeypatch):
    keys = set()
    for setting in ("1", "2"):
        monkeypatch.setenv("POLYARR_DEVICE", setting)
        passed.environment.cache_clear()
        keys |= {passed.key_of([], root=root), passed.key_of([], "an option", root=root)}
    monkeypatch.setattr(passed, "distributions", lambda: [])
    passed.environment.cache_clear()
    keys.add(passed.key_of([], root=root))
    monkeypatch.undo()
    passed.environment.cache_clear()
    assert len(keys) == 5


def test_a_key_is_the_same_whether_libraries_have_set_their_caches_places(root, monkeypatch):
    """PyOpenCL sets one when it is imported: in workers, and later in the first process."""
    keys = set()
    for place in ("a", "b"):
        monkeypatch.setenv("PYOPENCL_HOME", place)
        passed.environment.cache_clear()
        keys.add(passed.key_of([], root=root))
    assert len(keys) == 1


def test_the_cases_of_the_kit_depend_on_the_kernels_of_their_backend():
    kit = ROOT / "polyarr" / "testing" / "conformance.py"
    assert not [path for path in passed.dependencies(kit) if "opencl" in path.parts]
    found = names(passed.dependencies(kit) | passed.backend_files("numpy"), ROOT)
    assert {"polyarr/testing/checks.py", "polyarr/core/op.py", "polyarr/ops/reduce.py"} < found
    kernels = names((ROOT / "polyarr" / "backends" / "opencl").rglob("*.cl"), ROOT)
    assert kernels and kernels < names(passed.backend_files("opencl"), ROOT)


def test_a_group_holds_what_passed_under_its_key_only(tmp_path):
    first = passed.Group("a/test_b.py opencl", "key", tmp_path)
    first.add(["one"])
    first.add(["two"])
    assert passed.Group("a/test_b.py opencl", "key", tmp_path).passed == {"one", "two"}
    assert passed.Group("a/test_b.py opencl", "other", tmp_path).passed == set()
    first.file.write_text("{")
    assert passed.Group("a/test_b.py opencl", "key", tmp_path).passed == set()


TESTS = """
import os, pytest
pytestmark = pytest.mark.imports_only

def note(name):
    with open("ran", "a") as file:
        print(name, file=file)

def test_good(): note("good")
def test_bad(): note("bad"); assert "MENDED" in os.environ
def test_skipped(): note("skipped"); pytest.skip("not here")
def test_teardown(torn): note("torn")

@pytest.fixture
def torn():
    yield
    assert "MENDED" in os.environ
"""


def test_only_what_passed_in_full_is_left_out(tmp_path):
    """Tests that failed, were skipped or could not be torn down run again, and all tests if the file changes.

    This holds with workers and in one process.
    """
    for name in ("conftest.py", "passed.py", "skips.py"):
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests" / name).write_text((ROOT / "tests" / name).read_text())
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'")
    file = tmp_path / "tests" / "test_four.py"
    file.write_text(TESTS)

    codes = []

    def run(*options, **environment):
        (tmp_path / "ran").write_text("")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "tests"]
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", **environment}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        codes.append(done.returncode)
        found = re.findall(r"^(\d+) tests passed in an earlier run", done.stdout, re.M)
        return {*(tmp_path / "ran").read_text().split()}, found

    every, workers = {"good", "bad", "skipped", "torn"}, ("-n", "2")
    assert run("--reuse") == (every, ["0"])
    assert run("--reuse", *workers) == (every - {"good"}, ["1"])
    assert run("--reuse", *workers, MENDED="1") == (every - {"good"}, ["1"])
    assert run("--reuse") == ({"skipped"}, ["3"])
    assert run("--reuse", *workers, "-k", "not skipped", MENDED="1") == (set(), ["3"])
    assert codes == [1, 1, 0, 0, 0]
    assert run() == (every, [])
    file.write_text(TESTS + "\n")
    assert run("--reuse") == (every, ["0"])


@pytest.mark.parametrize(
    ("status", "reused", "due"), [("OK", 3, "OK"), ("OK", 0, "TESTS_FAILED"), ("TESTS_FAILED", 3, "TESTS_FAILED")]
)
def test_a_kit_of_which_only_skips_are_left_has_passed(status, reused, due):
    """The kit's recorder has set the session's status, because no case passed in this run."""
    reuse, session = Reuse(SimpleNamespace()), SimpleNamespace(exitstatus=pytest.ExitCode.TESTS_FAILED)
    reuse.reused = reused
    reuse.pytest_sessionfinish(session, pytest.ExitCode[status])
    assert session.exitstatus == pytest.ExitCode[due]
