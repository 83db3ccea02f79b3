"""The examples in docstrings print what they say, on the NumPy backend: one test per module that has examples."""

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import polyarr
from polyarr.core.current import use_backend
from polyarr.core.op import Op

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
PROMPT = re.compile(r"^ *>>> ", re.M)
PACKAGE = Path(polyarr.__file__).parent
NUMBER = re.compile(r"-?\b\d+\.?\d*(?:e[-+]?\d+)?")


class Rounded(doctest.OutputChecker):
    """Compares floats with a tolerance: the last digit of a sine differs between processors."""

    def check_output(self, want: str, got: str, flags: int) -> bool:
        if super().check_output(want, got, flags):
            return True
        texts = ["".join(NUMBER.sub("#", text).split()) for text in (want, got)]
        due, found = (list(map(float, NUMBER.findall(text))) for text in (want, got))
        return texts[0] == texts[1] and found == pytest.approx(due, rel=1e-5, abs=1e-6)


def modules_with_examples() -> list[str]:
    """Return the names of polyarr's modules whose source holds an example."""
    files = sorted(path for path in PACKAGE.rglob("*.py") if PROMPT.search(path.read_text()))
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files]
    return [name.removesuffix(".__init__") for name in names]


def examples_of(module: ModuleType) -> Iterator[doctest.DocTest]:
    """Yield the docstrings of a module that hold examples: of functions, classes and methods, and of ops."""
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        if test.examples:
            yield test
    parser = doctest.DocTestParser()
    for name, value in vars(module).items():
        if isinstance(value, Op) and value.__module__ == module.__name__ and PROMPT.search(value.__doc__ or ""):
            yield parser.get_doctest(value.__doc__, {}, f"{module.__name__}.{name}", inspect.getsourcefile(module), 0)


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_print_what_they_say(name: str, tmp_path, monkeypatch) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith("polyarr"):
            raise
        pytest.skip(f"{name} needs {error.name}")
    monkeypatch.chdir(tmp_path)
    runner, said = doctest.DocTestRunner(Rounded(), optionflags=FLAGS, verbose=False), []
    state = polyarr.random.get_state()
    try:
        with use_backend("numpy"):
            for test in examples_of(module):
                polyarr.random.seed(0)
                test.globs = {"__name__": "__main__"}
                runner.run(test, out=said.append)
    finally:
        polyarr.random.set_state(state)
    assert not runner.failures, "".join(said)
    assert runner.tries, f"{name} has examples that belong to no public docstring"


@pytest.mark.parametrize(
    ("line", "printed", "failed"),
    [("1 + 1", "3", 1), ("1 + 1", "2", 0), ("0.1 + 0.2", "0.3", 0), ("0.1 + 0.2", "0.31", 1), ("'a 1'", "'b 1'", 1)],
)
def test_an_example_that_prints_something_else_fails(line: str, printed: str, failed: int) -> None:
    (test,) = examples_of(ModuleType("planted", f"A module.\n\n>>> {line}\n{printed}\n"))
    runner = doctest.DocTestRunner(Rounded(), optionflags=FLAGS)
    assert runner.run(test, out=lambda text: None).failed == failed
