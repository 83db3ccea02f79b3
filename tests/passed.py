"""A cache of tests that passed: `pytest --reuse` deselects them until something they depend on changes.

The tests are the cases of the conformance kit and those of files marked `imports_only`. They depend on the modules that
their file imports, directly or not, on the files beside these modules (kernels, schemas), on the backend that they run
on, and on what is installed: libraries, OpenCL drivers, settings in the environment. A hash of all that is the key of a
group of tests, one file on one backend. FOLDER holds a file per group: its key and the tests that passed. A fresh clone
has none, `make clean` removes it, and tests that were skipped or failed are never in it.
"""

import ast
import functools
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from pathlib import Path

from platformdirs import user_config_path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "passed"
MARK = "imports_only"
BACKENDS = ("numpy", "opencl")
# What may change a result, among the variables of the environment and the registered OpenCL drivers.
VARIABLES = ("POLYARR_", "POCL_", "OCL_", "PYOPENCL_", "CL_", "OPENBLAS_", "OMP_", "NPY_")
PLACES = ("PYOPENCL_HOME", "POCL_CACHE_DIR")  # of caches; libraries set them while tests run
DRIVERS = Path(os.environ.get("OCL_ICD_VENDORS", "/etc/OpenCL/vendors"))
LIBRARIES = ("/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/local/lib")

# ---- what a file depends on --------------------------------------------------------------------------------------


def dependencies(*files: Path, root: Path = ROOT) -> set[Path]:
    """Return the files, the modules of polyarr and tests that they import, directly or not, and the files beside those.

    A module that is only named in a string counts as imported, since import_module may get it, except for a backend,
    which a test runs on or not.
    """
    found: set[Path] = set()
    left = [*files]
    while left:
        if (path := left.pop()) not in found:
            found.add(path)
            left += _imported(path, root)
    beside = {other for folder in {path.parent for path in found} for other in folder.iterdir()}
    return found | {path for path in beside if path.suffix not in ("", ".py", ".pyc") and path.is_file()}


@functools.cache
def _imported(path: Path, root: Path) -> frozenset[Path]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {name for name in re.findall(r"\bpolyarr(?:\.\w+)+", node.value) if ".backends." not in name}
    return frozenset(module for name in names for module in _modules(name, root))


def _modules(name: str, root: Path) -> Iterator[Path]:
    """Yield the files of a dotted name: the module, and the packages that it is in. The last part may be no module."""
    if name.partition(".")[0] in ("polyarr", "tests"):
        place = root
        for part in name.split("."):
            place /= part
            yield from filter(Path.is_file, (place.with_suffix(".py"), place / "__init__.py"))


def backend_files(backend: str, root: Path = ROOT) -> set[Path]:
    """Return the files of a built-in backend, and the modules that they import."""
    own = {path for path in (root / "polyarr" / "backends" / backend).rglob("*.*") if path.suffix != ".pyc"}
    return own | dependencies(*(path for path in own if path.suffix == ".py"), root=root)


# ---- keys --------------------------------------------------------------------------------------------------------


@functools.cache
def environment() -> str:
    """Return what is installed here and set in the environment."""
    packages = sorted(f"{found.name} {found.version}" for found in distributions())
    settings = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES) and name not in PLACES}
    variables = sorted(settings.items())
    tuned = user_config_path("polyarr") / "tuned.json"  # what `polyarr tune` wrote
    measured = tuned.read_text() if tuned.exists() else ""
    machine = platform.python_version(), platform.platform(), _processor()
    return repr((machine, packages, variables, measured, _drivers()))


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    return facts.read_text().partition("model name")[2].partition("\n")[0] if facts.exists() else ""


def _drivers() -> list[tuple[str, str, list[tuple[int, int]]]]:
    """Return the registered OpenCL drivers, and the size and time of each one's library."""
    found = []
    for entry in sorted(DRIVERS.glob("*.icd")):
        library = entry.read_text().strip()
        states = [path.stat() for folder in LIBRARIES if (path := Path(folder, library)).exists()]
        found.append((entry.name, library, [(state.st_size, state.st_mtime_ns) for state in states]))
    return found


def key_of(files: Iterable[Path], *more: object, root: Path = ROOT) -> str:
    """Return the hash of the files' names and contents, of the environment, and of more."""
    total = hashlib.sha256(repr((environment(), more)).encode())
    for path in sorted({*files, Path(__file__)}):
        name = path.relative_to(root) if path.is_relative_to(root) else path
        total.update(f"\n{name} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return total.hexdigest()


# ---- what passed -------------------------------------------------------------------------------------------------


class Group:
    """The tests of one key that passed.

    Attributes:
        name: Name of the group: of a test file and a backend, or of another check.
        key: Hash of all that the tests depend on.
        passed: Ids of the tests.
    """

    def __init__(self, name: str, key: str, folder: Path = FOLDER) -> None:
        self.name, self.key = name, key
        self.file = folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}.json"
        self.passed: set[str] = set()
        try:
            stored = json.loads(self.file.read_text())
            self.passed = {*stored["passed"]} if stored["key"] == key else set()
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing is known

    def add(self, tests: Iterable[str]) -> None:
        """Note more tests that passed, in the file as well."""
        self.passed |= {*tests}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({"key": self.key, "passed": sorted(self.passed)}))
        temporary.replace(self.file)


@functools.cache
def group_of(file: Path, backend: str, options: str) -> Group:
    """Return the group of a test file on a backend ("" for none but NumPy)."""
    own = {ROOT / "tests" / "conftest.py", ROOT / "pyproject.toml"}
    files = dependencies(file) | own.union(*(backend_files(name) for name in {"numpy", backend or "numpy"}))
    return Group(f"{file.relative_to(ROOT)} {backend}".strip(), key_of(files, options))
