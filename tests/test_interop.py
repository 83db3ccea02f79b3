"""polyarr registers with einops when both are imported, in either order, and does not import it.

A package with the one class that matters stands for einops here; tests/interop asks the real one.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import polyarr as pa
from polyarr.core.backend import Backend
from polyarr.interop import EinopsBackend
from tests.helpers.root import ROOT

EINOPS = {
    "__init__.py": "from einops import _backends\n",
    "_backends.py": "class AbstractBackend:\n    def layers(self):\n        return 'none'\n",
}
ASK = """
import sys
found = sys.modules["einops._backends"].AbstractBackend.__subclasses__()
assert [kind.framework_name for kind in found] == ["polyarr"], found
assert found[0]().layers() == "none" and found[0]().is_appropriate_type(pa.zeros(2))
"""
ORDERS = {
    "einops first": "import einops\nimport polyarr as pa",
    "polyarr first": "import sys\nimport polyarr as pa\nassert 'einops' not in sys.modules\nimport einops",
    "again": "import polyarr as pa\nimport einops, importlib\nimportlib.reload(einops)",
}


def run(folder: Path, code: str) -> None:
    paths = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]\n"
    done = subprocess.run([sys.executable, "-c", paths + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", ORDERS)
def test_registered_in_either_order(tmp_path: Path, order: str) -> None:
    (tmp_path / "einops").mkdir()
    for name, text in EINOPS.items():
        (tmp_path / "einops" / name).write_text(text)
    run(tmp_path, f"{ORDERS[order]}\n{ASK}")


def test_an_einops_that_finds_libraries_otherwise_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "einops.py").write_text("there = True\n")
    run(tmp_path, "import polyarr\nimport einops\nassert einops.there")


def test_an_einops_that_is_not_installed_is_reported_as_ever(tmp_path: Path) -> None:
    code = "try:\n    import einops\nexcept ModuleNotFoundError as error:\n    assert error.name == 'einops'\n"
    run(tmp_path, f"import polyarr\nsys.path[:] = []\n{code}else:\n    raise SystemExit(1)")


def test_what_einops_asks_of_a_library(backend: Backend) -> None:
    einops, x = EinopsBackend(), pa.reshape(pa.arange(6, dtype=pa.float32), (2, 3))
    assert einops.is_appropriate_type(x) and not einops.is_appropriate_type(x.numpy())
    assert einops.is_float_type(x.astype(pa.bfloat16)) and not einops.is_float_type(einops.arange(0, 3))
    assert einops.transpose(einops.reshape(x, [3, 2]), [1, 0]).tolist() == [[0, 2, 4], [1, 3, 5]]
    assert einops.reduce(x, "max", (0,)).tolist() == [3, 4, 5]
    assert einops.add_axes(x, 4, {0: 2, 2: 5}).shape == (2, 2, 5, 3) and einops.add_axis(x, 1).shape == (2, 1, 3)
    assert einops.tile(x, (1, 2)).shape == (2, 6) and einops.concat([x, x], 0).shape == (4, 3)
    assert einops.stack_on_zeroth_dimension([x, x]).shape == (2, 2, 3)
    assert einops.einsum("ab,cb->ac", x, x).tolist() == [[5, 14], [14, 50]]
    assert einops.from_numpy(einops.to_numpy(x)).tolist() == x.tolist()
