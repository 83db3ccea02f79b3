"""The tests that `make check` chooses."""

import subprocess

import pytest

from tests.changed import changed_files, select_tests

FILES = (
    "tests/test_tree.py", "tests/test_optim.py", "tests/ops/test_sets.py",
    "tests/backends/opencl/attention/test_tiles.py", "tests/docs/test_pages.py", "tests/helpers/pages.py",
    "tests/testing/test_kit.py", "tests/testing/faults/table.py",
)  # fmt: skip


@pytest.fixture
def root(tmp_path):
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["polyarr/ops/sets.py"], ["tests/ops"]),
        (["polyarr/backends/opencl/attention/tiles.py"], ["tests/backends/opencl/attention"]),
        (["polyarr/backends/opencl/kernels/rows.cl"], ["tests/backends/opencl"]),
        (["polyarr/backends/opencl/attention/a.py", "polyarr/backends/kernels.py"], ["tests/backends"]),
        (["polyarr/tree.py", "polyarr/version.py"], ["tests/test_tree.py"]),
        (["polyarr/optim/schedules.py", "polyarr/saving/trees.py"], ["tests/test_optim.py"]),
        (["tests/ops/test_sets.py", "tests/ops/test_gone.py"], ["tests/ops/test_sets.py"]),
        (["tests/ops/test_sets.py", "polyarr/ops/sets.py"], ["tests/ops"]),
        (["docs/a/page.md", "README.md", "Makefile", "tests/helpers/pages.py"], ["tests/docs"]),
        (["tests/testing/faults/table.py"], ["tests/testing"]),
    ],
)
def test_the_select_tests_changed_packages(root, files, chosen):
    assert select_tests(files, root) == chosen


def test_a_branch_is_compared_with_the_point_where_it_left_main(tmp_path):
    """Committed, changed and new files count; those of main do not."""

    def git(*arguments):
        who = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(name):
        (tmp_path / name).touch()
        git("add", name)
        git("commit", "-m", name)

    git("init", "-b", "main")
    commit("old")
    git("branch", "own")
    commit("of main")
    git("switch", "own")
    commit("committed")
    (tmp_path / "old").write_text("changed")
    (tmp_path / "new").touch()
    assert sorted(changed_files(tmp_path)) == ["committed", "new", "old"]
