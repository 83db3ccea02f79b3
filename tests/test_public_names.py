"""The public names: what dir() and star-imports show, and that the reference has each of them."""

import importlib
import re
from types import ModuleType

import pytest

import polyarr as pa
from polyarr.core.op import Op
from polyarr.models import GPTModel
from tests.helpers.installing import child
from tests.helpers.root import ROOT

MODULES = """autograd batching contents creation distributed fft inspection linalg models nn ops optim plugins profiling
random saving special testing text training tree""".split()
PAGES = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
DIRECTIVES = re.findall(r"^::: ([\w.]+)$(?:\n    options: {members: \[(.*)\]})?", PAGES, re.M)
PLAIN = (bool, int, float, str, tuple, dict, list, type(None))


def test_dir_has_the_public_names_and_nothing_else():
    """In a process of its own: other tests import internal modules."""
    code = "import polyarr; print(*(name for name in dir(polyarr) if not name.startswith('__')))"
    assert child(code).stdout.split() == sorted(pa.__all__)
    assert len({*pa.__all__}) == len(pa.__all__)
    assert {"__version__", "__array_namespace_info__", "__array_api_version__", "__all__"} <= {*dir(pa)}


def test_every_public_name_is_in_the_reference():
    shown = {id(value) for module, names in DIRECTIVES for value in members(importlib.import_module(module), names)}
    missing = [
        name for name in pa.__all__
        if not (isinstance(value := getattr(pa, name), Op) or id(value) in shown or f"`polyarr.{name}`" in PAGES)
    ]  # fmt: skip
    assert missing == ["ops"]  # whose pages docs/reference.py generates


def members(page: ModuleType, names: str) -> list[object]:
    """Return what mkdocstrings shows of a module."""
    own = [n for n, v in vars(page).items() if getattr(v, "__module__", page.__name__) == page.__name__]
    chosen = names.split(", ") if names else getattr(page, "__all__", own)
    return [page, *(getattr(page, name) for name in chosen)]


@pytest.mark.parametrize("name", ["", *(f".{name}" for name in MODULES)])
def test_a_star_import_carries_no_internals(name):
    module, names = importlib.import_module(f"polyarr{name}"), {}
    exec(f"from {module.__name__} import *", names)
    del names["__builtins__"]
    assert names.keys() == {*module.__all__}
    assert [n for n in names if n.startswith("_") and n != "__array_namespace_info__"] == []
    homes = {name: home_of(value) for name, value in names.items() if not isinstance(value, PLAIN)}
    assert {n for n, home in homes.items() if home not in ("polyarr", "numpy")} <= {"hookimpl"}


def home_of(value: object) -> str:
    """Return the top-level package in which an object was made."""
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", type(value).__module__)
    return home.partition(".")[0]


@pytest.mark.parametrize("name", MODULES)
def test_a_name_that_a_module_lacks_is_an_attribute_error(name):
    """Libraries look for functions of others by getattr with a default."""
    assert getattr(importlib.import_module(f"polyarr.{name}"), "no_such_name", None) is None


def test_every_public_module_has_a_stability():
    """Each is in one row of the table, and the names with another stability are in its `__all__`."""
    text = (ROOT / "docs" / "stability.md").read_text()
    rows = re.findall(r"^\| (`polyarr[^|]*) \| (stable|provisional) \| ([^|]*)\|$", text, re.M)
    modules = [module for names, _, _ in rows for module in re.findall(r"`([\w.]+)`", names)]
    assert sorted(modules) == sorted(["polyarr", *(f"polyarr.{name}" for name in MODULES)])
    for names, _, exceptions in rows:
        module = importlib.import_module(re.findall(r"`([\w.]+)`", names)[0])
        assert {*re.findall(r"`([A-Za-z_]+)`", exceptions)} <= {*module.__all__}


def test_the_citation_has_the_version():
    assert f"\nversion: {pa.__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("ops", "full", "fill"), ("ops", "arange", "iota"), ("training", "evaluate", "evaluation_loss"),
        ("nn", "quantised", "quantized"),
        ("testing.checks", "check_fused_pair", "check_fused"),
    ],
)  # fmt: skip
def test_an_old_name_warns(module, old, new):
    home = importlib.import_module(f"polyarr.{module}")
    with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now"):
        assert getattr(home, old) is getattr(home, new)
    assert old not in dir(home)


def test_the_old_name_of_a_quantized_model_warns():
    sizes = {"vocab_size": 3, "context_length": 4, "emb_dim": 32, "n_heads": 2, "n_layers": 1}
    with pytest.warns(DeprecationWarning, match="quantised is called quantized now"):
        small = GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False}).quantised("int8")
    assert small.out_head.codes.dtype == pa.int8


def test_the_old_name_of_a_decomposition_warns():
    with pytest.warns(DeprecationWarning, match="body is called decomposition now"):
        assert pa.ops.softmax.body is pa.ops.softmax.decomposition
