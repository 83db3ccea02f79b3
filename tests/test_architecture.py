"""The rules of the house, read off the syntax trees: imports go down, nothing knows a backend's name, nothing grows."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import polyarr
from polyarr.backends.opencl.runtime.source import needed
from polyarr.core.op import OPS
from polyarr.ops import catalogue, inner
from polyarr.testing import SAMPLES

PACKAGE = Path(polyarr.__file__).parent

# Each module's layer: it may import its own layer and those below. The longest prefix counts.
LAYERS = {
    "polyarr.core.errors": 0,
    "polyarr.core.spec": 0,
    "polyarr.tree": 0,
    "polyarr.core.number": 0,
    "polyarr.core.program": 0,
    "polyarr.version": 0,
    "polyarr.core.hints": 0,
    "polyarr.core.names": 0,
    "polyarr.core.keywords": 0,
    "polyarr.extras": 0,
    "polyarr.files": 0,
    "polyarr.interrupts": 0,
    "polyarr.atomic": 0,
    "polyarr.schema": 0,
    "polyarr.settings": 0,
    "polyarr.core.tuning": 0,
    "polyarr.core.announce": 0,
    "polyarr.core.backend": 1,
    "polyarr.core.tape": 1,
    "polyarr.core.current": 1,
    "polyarr.core": 2,
    "polyarr.plugins": 3,
    "polyarr.ops": 3,
    "polyarr.autograd": 4,
    "polyarr.batching": 4,
    "polyarr.creation": 4,
    "polyarr.fft": 5,
    "polyarr.linalg": 5,
    "polyarr.special": 5,
    "polyarr.saving": 5,
    "polyarr.random": 4,
    "polyarr.inspection": 4,
    "polyarr.backends": 4,
    "polyarr.interop": 5,
    "polyarr.capture": 5,
    "polyarr.profiling": 5,
    "polyarr.nn": 5,
    "polyarr.optim": 5,
    "polyarr.distributed": 5,
    "polyarr.text": 5,
    "polyarr.models": 6,
    "polyarr.training": 6,
    "polyarr.contents": 6,
    "polyarr.serving": 6,
    "polyarr.cli": 7,
    "polyarr.__main__": 7,
    "polyarr.testing": 7,
}
# Importing the package itself loads all of it: only the top layer may, and __init__ is no layer.
TOP = 7
# Heavy third-party libraries, which only a command or a backend's start may load.
HEAVY = {"pyopencl", "matplotlib", "tqdm", "hypothesis", "tokenizers", "torch", "mpi4py"}
RUNTIME = "polyarr.backends.opencl.runtime"  # a device and its driver, below all launchers
SHARED = "polyarr.backends.kernels"  # what a backend may be made of; it knows none of them
BACKEND_NAMES = {"numpy", "opencl"}
# What reads a file, by the name that is called. Files that a user names are read through polyarr.files, which neither
# waits for a pipe nor reads without a limit; these modules read others, or only write.
READERS = {
    "open", "read_text", "read_bytes", "memmap", "fromfile", "loadtxt", "genfromtxt", "safe_open",
    "load_file", "ZipFile", "open_memmap", "from_file",
}  # fmt: skip
MAY_READ = {
    "polyarr.files": "the guarded reader itself",
    "polyarr.atomic": "temporary files that it makes, and folders that it locks",
    "polyarr.schema": "schemas of the package",
    "polyarr.text.library": "the sources of Python's standard library",
    "polyarr.text.corpus": "its own temporary file, by another descriptor",
    "polyarr.text.panics": "its own temporary file, and standard error by its descriptor",
    "polyarr.text.sandbox_worker": "/proc/self/statm",
    "polyarr.training.report": "a template of the package",
    "polyarr.testing.page": "a template of the package",
    "polyarr.testing.report": "its own journal, which it writes",
    "polyarr.contents.stored": "zip archives in files that polyarr.files opened",
    "polyarr.cli.output": "/dev/null",
    "polyarr.distributed.start": "/proc/self/maps",
    "polyarr.plugins.loading": "metadata of installed distributions",
    "polyarr.backends.opencl.runtime.compiled": "/proc/cpuinfo",
    "polyarr.backends.opencl.runtime.pocl": "/proc/cpuinfo and /proc/self/mem",
    "polyarr.backends.opencl.runtime.source": "kernels of the package",
    "polyarr.backends.opencl.runtime.caches": "its own entries, which it made and checks",
    "polyarr.backends.opencl.tuning.tuning": "a table of the package",
}
MAX_FILE, MAX_FUNCTION = 600, 40


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(p for p in PACKAGE.rglob("*.py"))
SOURCES = {module_name(p): p.read_text() for p in FILES}


@cache
def parsed() -> dict[str, ast.AST]:
    """The syntax trees of all modules, parsed when a test asks: every worker of pytest imports this file."""
    return {name: ast.parse(text) for name, text in SOURCES.items()}


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes of a tree, which many tests walk."""
    return tuple(ast.walk(tree))


@cache
def imported(tree: ast.AST) -> tuple[str, ...]:
    """The modules (and names) that a tree imports."""
    return tuple(target for node in nodes(tree) for target in imports(node))


def layer(module: str) -> int | None:
    found = [prefix for prefix in LAYERS if f"{module}.".startswith(f"{prefix}.")]
    return LAYERS[max(found, key=len)] if found else None


def imports(node: ast.AST, package: str = "") -> list[str]:
    """The modules (and names) that an import statement names."""
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "imports are absolute"
        return [f"{node.module}.{a.name}" for a in node.names]
    return []


def upward(trees: dict[str, ast.AST]) -> list[str]:
    """Every import of a layer above the importer's, of another backend, of autograd by one, of launchers by runtime."""
    found = []
    for name, tree in trees.items():
        here = layer(name)
        for target in imported(tree):
            if here is None or not target.startswith("polyarr"):
                continue
            there = layer(target)
            if (TOP if there is None else there) > here or _strays(name, target):
                found.append(f"{name} imports {target}")
    return found


def _strays(name: str, target: str) -> bool:
    if not name.startswith("polyarr.backends."):
        return False
    own = ".".join(name.split(".")[:3])
    others = target.startswith("polyarr.backends.") and not f"{target}.".startswith((f"{own}.", f"{SHARED}."))
    above = name.startswith(f"{RUNTIME}.") and target.startswith(own) and not target.startswith(RUNTIME)
    return others or above or target.startswith("polyarr.autograd")


def in_functions(trees: dict[str, ast.AST]) -> list[str]:
    """Imports inside functions, except of heavy third-party libraries in commands and backends' own start."""
    found = []
    for name, tree in trees.items():
        for function in (n for n in nodes(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))):
            for target in (t for node in ast.walk(function) for t in imports(node)):
                if not _may_import(name, function.name, target):
                    found.append(f"{name}.{function.name} imports {target}")
    return found


def _may_import(module: str, function: str, target: str) -> bool:
    if target.split(".")[0] in HEAVY:
        return module.startswith(("polyarr.cli", "polyarr.backends", "polyarr.training"))
    # A backend's plugin module is read at discovery; what it starts is loaded when it starts.
    own = ".".join(module.split(".")[:3])
    return module == own and module.startswith("polyarr.backends.") and target.startswith(own)


def compared(trees: dict[str, ast.AST]) -> list[str]:
    """Comparisons with a backend's name outside its folder: a value says what it can do, not its name."""
    found = []
    for name, tree in trees.items():
        for node in (n for n in nodes(tree) if isinstance(n, (ast.Compare, ast.Match))):
            names = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
            names = {n.split(":")[0] for n in names} & BACKEND_NAMES
            found += [f"{name}:{node.lineno} compares with {n!r}" for n in names if f".backends.{n}" not in name]
    return found


def readers(trees: dict[str, ast.AST]) -> list[str]:
    """Calls, and functions handed on, that read a file elsewhere than in polyarr.files."""
    found = []
    for name, tree in trees.items():
        if name in MAY_READ:
            continue
        for node in nodes(tree):
            used = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if used in READERS and isinstance(node.ctx, ast.Load):
                found.append(f"{name}:{node.lineno} uses {used}")
    return found


def third_party(trees: dict[str, ast.AST], library: str) -> set[str]:
    return {name for name, tree in trees.items() for t in imported(tree) if t.split(".")[0] == library}


def test_every_module_has_a_layer() -> None:
    without = [n for n in SOURCES if layer(n) is None]
    assert without == ["polyarr"]


def test_imports_only_go_down() -> None:
    assert upward(parsed()) == []


def test_no_imports_inside_functions() -> None:
    assert in_functions(parsed()) == []


def test_no_code_asks_for_a_backends_name() -> None:
    assert compared(parsed()) == []


def test_pyopencl_stays_in_its_backend() -> None:
    strangers = {n for n in third_party(parsed(), "pyopencl") if not n.startswith("polyarr.backends.opencl")}
    assert strangers == set()


def test_files_are_read_through_the_guarded_reader() -> None:
    assert readers(parsed()) == []
    unneeded = {name for name in MAY_READ if not {*_names(parsed()[name])} & READERS}
    assert unneeded == set()


def _names(tree: ast.AST) -> Iterator[str]:
    for node in nodes(tree):
        yield getattr(node, "attr", getattr(node, "id", ""))


def test_hypothesis_stays_in_testing() -> None:
    assert {n for n in third_party(parsed(), "hypothesis") if not n.startswith("polyarr.testing")} == set()


def test_the_top_imports_nobody_who_imports_it() -> None:
    """Nothing outside cli and testing imports them, and the kit knows no command."""
    for top, users in {
        "polyarr.cli": ("polyarr.cli.", "polyarr.__main__."),
        "polyarr.testing": ("polyarr.cli.", "polyarr.testing."),
    }.items():
        strangers = {
            name for name, tree in parsed().items() for t in imported(tree)
            if f"{t}.".startswith(f"{top}.") and not f"{name}.".startswith(users)
        }  # fmt: skip
        assert strangers == set()


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_size_of_files_and_functions(path: Path) -> None:
    text, tree = SOURCES[module_name(path)], parsed()[module_name(path)]
    assert len(text.splitlines()) <= MAX_FILE
    long = {
        n.name: size
        for n in nodes(tree)
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and (size := code_lines(n, text)) > MAX_FUNCTION
    }
    assert not long


def code_lines(function: ast.AST, text: str) -> int:
    """The lines of a function without its docstring, comments and empty lines."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    if not body:
        return 0
    lines = text.splitlines()[body[0].lineno - 1 : body[-1].end_lineno]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_module_says_what_it_is(path: Path) -> None:
    text = SOURCES[module_name(path)]
    if text.strip():
        assert ast.get_docstring(parsed()[module_name(path)])
    assert not re.search(r"\b(TODO|FIXME|XXX|raise NotImplementedError)\b", text)


OPENCL = [text for name, text in SOURCES.items() if name.startswith("polyarr.backends.opencl")]
KERNELS = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.cl"))}


@pytest.mark.parametrize("path", KERNELS, ids=lambda p: p.name)
def test_kernel_files_have_their_launcher_and_header(path: Path) -> None:
    text = KERNELS[path]
    assert text.lstrip().startswith(("//", "/*"))
    if path.stem not in ("prelude", "functions"):
        launchers = {file.stem for file in FILES if file.is_relative_to(PACKAGE / "backends" / "opencl")}
        families = path.stem, path.stem.removesuffix("_gpu"), path.stem.split("_")[0]
        others = [source for file, source in KERNELS.items() if file != path]
        named = any(f'"{path.name}"' in source for source in (*OPENCL, *others))  # loaded, or included
        assert named or any(name in launchers for name in families)
        assert needed(path.stem) or "#error" in text or "#define" not in text
    assert len(text.splitlines()) <= MAX_FILE


# ---- ops ---------------------------------------------------------------------------------------------------------

SECTIONS = ("Args:", "Returns:", "Gradients:")
OURS = [op for op in OPS if op.__module__.startswith("polyarr.")]


@pytest.mark.parametrize("op", OURS, ids=lambda op: op.name)
def test_every_op_is_documented(op: polyarr.core.op.Op) -> None:
    lines = inspect.cleandoc(op.__doc__ or "").splitlines()
    assert lines and lines[0].endswith("."), "the first line is a sentence"
    missing = [section for section in SECTIONS if not any(line.startswith(section) for line in lines)]
    assert not missing
    arguments = lines[lines.index("Args:") + 1 : lines.index("Returns:")]
    described = set(re.findall(r"^    ([\w, ]+):", "\n".join(arguments), re.M))
    named = [*op.inputs, *op.defaults]
    assert sorted(name for names in described for name in names.split(", ")) == sorted(named)
    assert op.name not in catalogue.__all__ or "Examples:" in lines


@pytest.mark.parametrize("op", OURS, ids=lambda op: op.name)
def test_every_op_has_a_sample_and_a_gradient(op: polyarr.core.op.Op) -> None:
    assert op in SAMPLES
    assert op.decomposition is not None or op.rules, "a primitive states its gradient"


def test_every_op_is_listed_once() -> None:
    """By name in ops/catalogue.py or ops/inner.py."""
    assert sorted(catalogue.__all__ + inner.__all__) == sorted(op.name for op in OURS)
    assert len({op.name for op in OURS}) == len(OURS)


def test_a_backend_must_supply_at_most_sixty_primitives() -> None:
    assert len([op for op in OURS if op.decomposition is None and not op.group]) <= 60


# ---- the checks themselves can fail ------------------------------------------------------------------------------


def planted(module: str, source: str) -> dict[str, ast.AST]:
    return {module: ast.parse(source)}


@pytest.mark.parametrize(
    ("check", "module", "source"),
    [
        (upward, "polyarr.ops.nn", "from polyarr.autograd import grad"),
        (upward, "polyarr.core.spec", "from polyarr.core.op import OPS"),
        (upward, "polyarr.core.op", "from polyarr.plugins import DeviceInfo"),
        (upward, "polyarr.ops.nn", "import polyarr"),
        (upward, "polyarr.backends.opencl.table", "from polyarr.backends.numpy import start"),
        (upward, "polyarr.backends.kernels", "from polyarr.backends.numpy.table import KERNELS"),
        (upward, "polyarr.backends.kernels", "from polyarr.autograd import grad"),
        (upward, "polyarr.backends.opencl.runtime.device", "from polyarr.backends.opencl.copying import copy"),
        (upward, "polyarr.backends.opencl.table", "from polyarr import autograd"),
        (upward, "polyarr.nn.linear", "def f():\n    from polyarr.training import loop"),
        (in_functions, "polyarr.nn.linear", "def f():\n    import json"),
        (in_functions, "polyarr.nn.linear", "def f():\n    import pyopencl"),
        (readers, "polyarr.nn.linear", "file = open(path)"),
        (readers, "polyarr.nn.linear", "text = Path(path).read_text()"),
        (readers, "polyarr.nn.linear", "read = partial(open, path, 'rb')"),
        (readers, "polyarr.nn.linear", "data = np.memmap(path)"),
        (compared, "polyarr.nn.linear", "if x.device == 'opencl': pass"),
        (compared, "polyarr.nn.linear", "ok = name in ('numpy', 'cpu')"),
        (compared, "polyarr.cli.main", "match name:\n    case 'opencl:0': pass"),
    ],
)
def test_planted_violations_are_found(check, module: str, source: str) -> None:
    assert check(planted(module, source))
