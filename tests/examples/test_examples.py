"""The examples and docs/write-a-backend.md as a reader follows them: installed, found, compared, trained, replaced."""

import contextlib
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
import types
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import polyarr as pa
from polyarr import ops, plugins
from polyarr.backends.kernels import make_kernels
from polyarr.cli import main
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import BackendError
from polyarr.core.groups import groups
from polyarr.core.op import OPS
from polyarr.plugins import PluginWarning, diagnosis, hookimpl
from polyarr.testing import USUAL_LEVEL, Data, Sample, capturing, checks
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import Lacking
from tests.helpers.root import ROOT

EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "write-a-backend.md"
PRIMITIVES = [op for op in OPS if op.decomposition is None and not op.group and op.__module__.startswith("polyarr.")]
BACKENDS = {name: f"polyarr-{name}" for name in ("tiny", "torch", "tinygrad", "mlx", "workers")}
LIBRARIES = {"torch": "torch", "tinygrad": "tinygrad", "mlx": "mlx.core"}
CASES = cases(USUAL_LEVEL)
COMPOSED = {op.name for op in OPS if op.decomposition is not None}
# The cases that depend on a backend's kernels, if it has none for composed ops: decompositions are checked on NumPy.
OF_KERNELS = [case for case in CASES if case.subject not in COMPOSED or case.check in ("forward", "backward")]


@contextlib.contextmanager
def installed(*folders, into):
    """Install the packages in these folders, as `pip install` would, for the duration of the block."""
    before = set(sys.modules)
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = into / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        lines = [f"{name} = {module}\n" for name, module in project["entry-points"]["polyarr"].items()]
        (info / "entry_points.txt").write_text("[polyarr]\n" + "".join(lines))
    paths = [str(into), *map(str, folders)]
    sys.path[:0] = paths
    importlib.invalidate_caches()
    outside = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, outside] if outside else paths)  # for new processes
    try:
        with plugins.fresh(), pa.use_backend("numpy"):
            yield
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ.update({"PYTHONPATH": outside} if outside else {})
        for path in paths:
            sys.path.remove(path)
        for name in set(sys.modules) - before:
            if name.startswith("polyarr_"):
                del sys.modules[name]


@pytest.fixture(params=BACKENDS)
def name(request, tmp_path):
    """Each example that is a backend, installed."""
    if request.param in LIBRARIES:
        pytest.importorskip(LIBRARIES[request.param])
    with installed(EXAMPLES / BACKENDS[request.param], into=tmp_path):
        yield request.param


# ---- backends ------------------------------------------------------------------------------------------------


def test_an_example_is_found_and_complete(name):
    backend = get_backend(name)
    row = next(row for row in diagnosis.status() if row.name == name)
    assert (row.state, row.distribution) == ("running", f"polyarr-{name} 0.1.0") and row.summary
    assert not diagnosis.failures()
    assert set(PRIMITIVES) <= set(backend.kernels)


def failing(backend, effort, cases=CASES):
    """Return the failures of the conformance kit, by case."""
    found = {}
    with pa.use_backend(backend):
        for case in cases:
            try:
                case.run(backend, effort)
            except Lacking:
                continue
            except Exception as error:
                found[case.name] = error
    return found


@pytest.mark.parametrize("check", dict.fromkeys(case.check for case in OF_KERNELS))
def test_the_smallest_one_passes_the_kit(tmp_path, check):
    """All that depends on its kernels, with fewer examples; an example's own tests run the whole kit."""
    with installed(EXAMPLES / BACKENDS["tiny"], into=tmp_path):
        backend = get_backend("tiny")
        assert not COMPOSED & {op.name for op in backend.kernels}
        assert failing(backend, Effort(examples=2), [c for c in OF_KERNELS if c.check == check]) == {}


@pytest.mark.parametrize("name", ["torch", "mlx"], indirect=True)  # tinygrad would compile for minutes
@pytest.mark.parametrize("check", ["forward", "backward", "backend"])
def test_an_example_passes_the_main_checks(name, check):
    file = EXAMPLES / BACKENDS[name] / "known_failures.toml"
    known = tomllib.loads(file.read_text())["failures"] if file.exists() else {}
    found = failing(get_backend(name), Effort(examples=2), [c for c in CASES if c.check == check])
    assert {case: error for case, error in found.items() if case not in known} == {}


def test_the_smallest_one_is_small_and_stands_alone():
    source = (EXAMPLES / "polyarr-tiny" / "polyarr_tiny.py").read_text()
    assert len(source.splitlines()) < 100
    assert "polyarr.backends" not in source


def test_the_one_on_pytorch_says_what_is_missing(tmp_path, monkeypatch):
    """Without PyTorch the plugin is found, and the error and the health check name the remedy."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with installed(EXAMPLES / "polyarr-torch", into=tmp_path):
        with pytest.raises(BackendError, match="install what it needs with: pip install torch"):
            get_backend("torch")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert any("pip install torch" in row.text for row in diagnosis.diagnose() if row.level == "warning")


@pytest.fixture
def written(tmp_path):
    """The package that `polyarr new-backend mine` writes."""
    folder = tmp_path / "polyarr-mine"
    ran = CliRunner().invoke(main, ["new-backend", "mine", "--out", str(folder)])
    assert ran.exit_code == 0, ran.output
    return folder


def test_a_new_backend_passes_the_kit_and_ruff(tmp_path, written):
    with installed(written, into=tmp_path):
        assert get_backend("mine").name == "mine"
        ran = pytest_in(written, "-k", "square or complete", "-n", "0")
        assert re.search(r"^\d+ passed", ran.splitlines()[-1]), ran
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "E,F,W,I,B,UP,N,RUF"]
    checked = subprocess.run([*ruff, "--line-length", "120", written], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_a_new_backend_with_another_name(tmp_path):
    folder = tmp_path / "polyarr-my_gpu"
    ran = CliRunner().invoke(main, ["new-backend", "my_gpu", "--out", str(folder)])
    assert ran.exit_code == 0 and "pytest" in ran.output
    with installed(folder, into=tmp_path):
        assert get_backend("my_gpu").name == "my_gpu"
    text = "".join(path.read_text() for kind in ("*.py", "*.toml", "*.yml") for path in folder.rglob(kind))
    assert "mine" not in text and "${{ matrix.python }}" in text


@pytest.mark.parametrize("name", ["numpy", "opencl", "My", "9x", "a-b", "../x"])
def test_a_new_backend_with_a_wrong_name(name):
    ran = CliRunner().invoke(main, ["new-backend", name])
    assert ran.exit_code == 2 and f"NAME is {name!r}; it must match" in ran.output


def test_a_new_backend_overwrites_nothing(tmp_path, written):
    before = (written / "pyproject.toml").read_text()
    ran = CliRunner().invoke(main, ["new-backend", "mine", "--out", str(written)])
    assert ran.exit_code == 1 and "exists; --out must name" in ran.output
    assert (written / "pyproject.toml").read_text() == before


def pytest_in(folder, *arguments):
    """Return pytest's output in a folder, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout.strip()


def run_source(source):
    """Return the names that a module with this source defines."""
    module = types.ModuleType("typed_in")
    exec(compile(source, "typed_in.py", "exec"), module.__dict__)  # our own files
    return module.__dict__


# ---- replacing kernels ---------------------------------------------------------------------------------------


def toy(name="toy"):
    return Backend(name, make_kernels(np), np.array, lambda buf: np.array(buf, order="C"))


def plugin(title, **hooks):
    """Return a plugin of this process with these hooks."""
    return types.SimpleNamespace(__name__=title, **{hook: hookimpl(fn) for hook, fn in hooks.items()})


def offering(backend):
    def polyarr_backends(register):
        register(backend.name, lambda: backend, api=2)

    return plugin("offering", polyarr_backends=polyarr_backends)


def replacing(title, kernels, asked=None):
    def polyarr_kernels(backend):
        if asked is not None:
            asked.append(backend.name)
        return kernels if backend.name == "toy" else {}

    return plugin(title, polyarr_kernels=polyarr_kernels)


@pytest.fixture
def fresh():
    with plugins.fresh():
        plugins.register_plugin(offering(toy()))
        yield


def doubled(out, x):
    return np.asarray(2 * x, out.dtype)


def test_a_kernel_is_replaced_once_when_the_backend_starts(fresh):
    asked = []
    plugins.register_plugin(replacing("mine", {ops.exp: doubled}, asked))
    x = pa.asarray([1.0, 2.0], device="toy")
    for _ in range(3):
        assert pa.exp(x).tolist() == [2.0, 4.0]
    assert asked.count("toy") == 1
    assert [(r.backend, r.op, r.entry_point) for r in diagnosis.overrides()] == [("toy", "exp", "mine")]
    assert get_backend("numpy").kernels[ops.exp] is not doubled


def test_a_replacement_goes_with_its_plugin(fresh):
    mine = replacing("mine", {ops.exp: doubled})
    plugins.register_plugin(mine)
    assert get_backend("toy").kernels[ops.exp] is doubled
    plugins.unregister_plugin(mine)
    assert get_backend("toy").kernels[ops.exp] is not doubled and not diagnosis.overrides()


def test_what_a_backend_says_of_its_kernels_is_not_said_of_a_replacement():
    with plugins.fresh():
        said = {ops.matmul: ("high",), ops.adamw: ("high",)}
        plugins.register_plugin(offering(toy()._replace(precisions=said, reads={ops.adamw: ("scale",)})))
        plugins.register_plugin(replacing("mine", {ops.adamw: doubled}))
        backend = get_backend("toy")
    assert backend.precisions == {ops.matmul: ("high",)} and backend.reads == {}


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [
        ({"exp": doubled}, "polyarr_kernels gave 'exp'"),
        ({ops.exp: 3}, "polyarr_kernels gave <op exp(x)>: 3"),
        (7, "'int' object is not iterable"),
    ],
)
def test_a_replacement_that_cannot_work_leaves_the_backend_as_it_was(fresh, kernels, reason):
    plugins.register_plugin(replacing("wrong", kernels))
    with pytest.warns(PluginWarning, match="could not replace kernels of 'toy'"):
        backend = get_backend("toy")
    assert backend.kernels.keys() == toy().kernels.keys() and not diagnosis.overrides()
    assert reason in str(diagnosis.failures()[-1])


def test_a_hook_that_fails_leaves_the_backend_as_it_was(fresh):
    plugins.register_plugin(plugin("broken", polyarr_kernels=lambda backend: sys.exit(3)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        assert get_backend("toy").kernels.keys() == toy().kernels.keys()
    assert diagnosis.failures()[-1].stage == "replace kernels of 'toy'"


def test_of_two_plugins_for_one_op_the_first_counts(fresh):
    plugins.register_plugin(replacing("first", {ops.exp: doubled}))
    plugins.register_plugin(replacing("second", {ops.exp: lambda out, x: x, ops.log: doubled}))
    with pytest.warns(PluginWarning, match="exp is already replaced by this process"):
        backend = get_backend("toy")
    assert backend.kernels[ops.exp] is doubled and backend.kernels[ops.log] is not doubled


def test_the_example_that_replaces_gelu(tmp_path):
    with installed(EXAMPLES / "polyarr-faster-gelu", into=tmp_path):
        assert [(r.backend, r.op) for r in diagnosis.overrides()] == [("numpy", "gelu")]
        for approximate in ("tanh", "none"):
            params = {"approximate": approximate}
            for dtype in ("float16", "bfloat16", "float32", "float64"):
                for shape in ((), (0,), (5, 33)):
                    checks.check_fused(ops.gelu, "numpy", Sample((Data(shape, dtype),), params))
            checks.check_gradient(ops.gelu, "numpy", Sample((Data((5, 33)),), params))
            checks.check_purity(ops.gelu, "numpy", Sample((Data((5, 33)),), params))
        shown = CliRunner().invoke(main, ["doctor"]).output
    assert "numpy: gelu is that of numpy.faster-gelu (polyarr-faster-gelu 0.1.0)" in shown
    assert "polyarr-faster-gelu: 100,000 elements in" in shown


# ---- the page ------------------------------------------------------------------------------------------------


def page_files():
    """Return the code blocks of the page by file; blocks for one file are concatenated."""
    files = {}
    for file, block in re.findall(r"```\w+ file=(\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        files[file] = files.get(file, "") + block
    return files


def test_the_page_followed_word_for_word_ends_with_a_backend(tmp_path, written):
    files = page_files()
    for file in ("polyarr_mine.py", "pyproject.toml"):
        assert files[file].startswith((written / file).read_text()), "the page shows what new-backend writes"
    for file, text in files.items():
        (written / file).write_text(text)
    with installed(written, into=tmp_path):
        import polyarr_other

        plugins.register_plugin(polyarr_other)
        found = run_source(files["check.py"])
        assert [step.name for step in found["joined"].programs()[0].steps] == ["multiply+add+tanh"]
        known = "--polyarr-known-failures=known_failures.toml"
        kit = "tanh or exp or sum or scatter or softmax or whole or joined"
        ran = pytest_in(written, "--polyarr-backend=mine", known, "-k", kit)
        assert re.search(r"^\d+ passed", ran.splitlines()[-1]), ran
        assert [(r.backend, r.op) for r in diagnosis.overrides()] == [("mine", "exp")]
        shown = CliRunner().invoke(main, ["doctor"]).output
    assert "ok       mine (polyarr-mine 0.1.0) computes on cpu" in shown
    assert f"polyarr-mine: NumPy {np.__version__}" in shown


@pytest.mark.polyarr_backend("opencl")
def test_the_pages_kernel_in_opencl_c(tmp_path, monkeypatch):
    """The override uses the handle alone; values and gradients hold in every layout."""
    (tmp_path / "polyarr_cl_square.py").write_text(page_files()["polyarr_cl_square.py"])
    monkeypatch.syspath_prepend(tmp_path)
    with plugins.fresh():
        plugins.register_plugin(importlib.import_module("polyarr_cl_square"))
        backend = get_backend("opencl")
        assert [r.op for r in diagnosis.overrides()] == ["square"] and backend.family == "opencl"
        for shape in ((), (0,), (5, 33)):
            for dtype in ("float32", "int32"):
                checks.check_forward(ops.square, backend, Sample((Data(shape, dtype),)))
        checks.check_layout(ops.square, backend, Sample((Data((5, 33)),)))
        checks.check_bounds(ops.square, backend, Sample((Data((5, 33)),)))
        checks.check_backward(ops.square, backend, Sample((Data((5, 33)),)))
        capturing.check_captured(ops.square, backend, Sample((Data((5, 33)),)))
        summed = pa.compile(lambda x: pa.sum(pa.square(x)))
        with use_backend(backend):
            assert [float(summed(pa.asarray([1.0, 2.0, 3.0 + i]))) for i in range(4)] == [14, 21, 30, 41]
            mixed = pa.compile(lambda x: pa.square(x + 1) - x)
            mixed(pa.ones((3,)))
        assert "square(" in str(mixed.programs()[0]), "fused, so not by the plugin's kernel"
    sys.modules.pop("polyarr_cl_square")


def row_of(op):
    meaning = (inspect.getdoc(op) or "").splitlines()[0].replace("|", "\\|")
    told = [name for name in op.defaults if name != "precision"]  # kernels get it only if Backend.precisions names it
    inputs, params = (", ".join(f"`{name}`" for name in names) for names in (op.inputs, told))
    return f"| `{op.name}` | {inputs} | {params} | {meaning} |"


def test_the_pages_list_of_primitives_is_that_of_the_ops():
    assert rows_of("primitives") == sorted(map(row_of, PRIMITIVES))
    for group in groups():
        found = [op for op in OPS if op.group == group and op.__module__.startswith("polyarr.")]
        assert rows_of(group) == sorted(row_of(op) for op in found if op.decomposition is None)
        kernels = "any of " + ", ".join(f"`{op.name}`" for op in found if op.decomposition is not None)
        assert kernels in " ".join(PAGE.read_text().split())


def rows_of(table):
    section = PAGE.read_text().partition(f"<!-- {table}:")[2].partition("<!-- end")[0]
    return sorted(line for line in section.splitlines() if line.startswith("| `"))


def test_the_pages_list_of_checks_is_that_of_the_kit():
    found = [(name, fn.__doc__.splitlines()[0]) for name, fn in vars(checks).items() if name.startswith("check_")]
    listed = re.findall(r"^\| `(check_\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert listed == found


def test_the_pages_links_lead_somewhere():
    for link in re.findall(r"\]\((\.\./[^)]+)\)", PAGE.read_text()):
        assert (PAGE.parent / link).exists(), link
