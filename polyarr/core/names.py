"""The error on a name that polyarr does not have: what to write instead, by the tables of hints.py."""

import difflib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from polyarr.core.hints import COMPILE_SENTENCES, HINTS, SENTENCES


def hint(place: str, name: str) -> str:
    """Return what to do instead of using a name of another library, as the end of an error message, or ""."""
    code = HINTS.get(place, {}).get(name)
    if not code and place not in ("Module", "Optimizer", "Generator", "compile", "polyarr.random"):
        homes = ("polyarr", *(() if place == "Array" else ("polyarr.nn", "polyarr.optim", "polyarr.linalg")))
        own = (home for home in homes if home != place and name in getattr(sys.modules.get(home), "__all__", ()))
        code = next((f"pa{home.removeprefix('polyarr')}.{name}" for home in own), None)
        code = code or next((HINTS[home][name] for home in homes if name in HINTS[home]), None)
    if code:
        return f"; write {code}"
    text = (COMPILE_SENTENCES if place == "compile" else SENTENCES).get(name) or _elsewhere(place, name)
    return f": {text}" if text else ""


def _elsewhere(place: str, name: str) -> str:
    """Return which function of NumPy or SciPy to call instead, or ""."""
    library = {
        "polyarr": "numpy", "polyarr.random": "numpy.random", "polyarr.linalg": "scipy.linalg",
        "polyarr.fft": "scipy.fft", "polyarr.special": "scipy.special",
    }.get(place)  # fmt: skip
    if library is None or name.startswith("_") or importlib.util.find_spec(library.partition(".")[0]) is None:
        return ""
    found = getattr(importlib.import_module(library), name, None)
    if not callable(found) or isinstance(found, type):
        return ""
    if place == "polyarr.random":
        return f"draw them by {library}.{name}, and convert by pa.asarray"
    return f"polyarr has none; {library}.{name} computes it of x.numpy()"


def unknown(place: str, name: str, known: Iterable[str]) -> str:
    """Return the error message for a name that a module does not have."""
    if found := hint(place, name):
        return f"{place} has no {name!r}{found}"
    if not name.startswith("_") and _is_module(f"{place}.{name}"):
        return f"{place} has no {name!r} until that is imported; write import {place}.{name}"
    # Comparing all names takes a while, and pytest asks each module that a test file imports for private ones.
    close = [] if name.startswith("_") else difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"{place} has no {name!r}" + (f"; did you mean {close[0]}?" if close else "")


def _is_module(name: str) -> bool:
    """Return whether there is such a module in a package that is imported."""
    parent = sys.modules.get(name.rpartition(".")[0])
    return hasattr(parent, "__path__") and importlib.util.find_spec(name) is not None


def answering(place: str, known: Iterable[str]) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module, which answers names that the module does not have."""

    def answer(name: str) -> NoReturn:
        raise AttributeError(unknown(place, name, known))

    return answer


def answer_attribute(place: str) -> Callable[[Any, str], NoReturn]:
    """Return the `__getattr__` of a class, which answers names that its objects do not have."""

    def answer(self: Any, name: str) -> NoReturn:
        if not (found := hint(place, name)):
            object.__getattribute__(self, name)  # Python's own error, which may be from inside a property
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{found}", name=name, obj=self)

    answer.__name__, answer.__qualname__ = "__getattr__", f"{place}.__getattr__"
    return answer


def renamed(module: str, name: str, names: Mapping[str, str]) -> str:
    """Return the new name of a module's attribute, with a DeprecationWarning.

    Args:
        module: Name of the module.
        name: Attribute that the module does not have.
        names: Old name -> new name.

    Raises:
        AttributeError: The attribute never had this name.
    """
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    message = f"{module}.{name} is called {names[name]} now; the old name goes with version 1.0"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return names[name]
