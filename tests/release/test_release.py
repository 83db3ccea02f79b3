"""Faults that release checks find; `make release-check` builds and installs the package itself."""

import zipfile

import pytest

from tests.helpers.installing import child
from tests.helpers.root import ROOT
from tests.release import wheel

FILES = [path.relative_to(ROOT) for path in (ROOT / "polyarr").rglob("*") if path.is_file()]
PACKAGE = [path.as_posix() for path in FILES if "__pycache__" not in path.parts]
KERNEL = "polyarr/backends/opencl/kernels/prelude.cl"


@pytest.fixture
def packed(tmp_path):
    """Return a function that writes files with the same content into a wheel, without compression."""

    def pack(names, content=b""):
        path = tmp_path / "polyarr-0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, content)
        return path

    return pack


def test_a_complete_wheel_has_no_faults(packed):
    assert wheel.faults(packed(PACKAGE)) == []


@pytest.mark.parametrize("name", ["polyarr/py.typed", KERNEL, "polyarr/tree.py"])
def test_a_missing_file_is_named(packed, name):
    assert wheel.faults(packed({*PACKAGE} - {name})) == [f"the wheel lacks {name}"]


def test_foreign_files_and_the_size_are_named(packed):
    content = bytes(wheel.MAX_BYTES // len(PACKAGE) + 1)
    test, size = wheel.faults(packed([*PACKAGE, "tests/test_tree.py"], content))
    assert test == "the wheel holds tests/test_tree.py" and "at most 1,000,000 are allowed" in size


def test_importing_polyarr_loads_its_dependencies_only():
    """PyOpenCL, tokenizers, matplotlib and all other libraries are imported where they are needed."""
    code = """
    import sys
    before = {*sys.modules}
    import polyarr
    print(*{name.partition(".")[0] for name in {*sys.modules} - before} - sys.stdlib_module_names)
    """
    assert {*child(code).stdout.split()} == {"polyarr", "numpy", "ml_dtypes", "pluggy"}
