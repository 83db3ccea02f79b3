"""Recipes in TOML files: presets that come with polyarr, by name, and users' own."""

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from polyarr.files import read_regular
from polyarr.schema import in_one_line
from polyarr.training.recipes import Recipe

SUFFIX = ".toml"
_MAX_RECIPE = 2**20  # bytes
_BARE = re.compile(r"[A-Za-z*?][A-Za-z0-9_.*?-]*")  # a word that may be given without TOML's quotes


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a TOML file: the fields of a Recipe, with `model` and `lora` as tables.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not regular, not TOML or not a recipe.
    """
    text = read_regular(path, _MAX_RECIPE)
    try:
        return Recipe.from_dict(tomllib.loads(text.decode()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {in_one_line(error)}") from error


def named_recipe(name: str) -> tuple[str, Recipe]:
    """Return the name and the recipe of a preset, or of a TOML file.

    Raises:
        OSError: The file cannot be read.
        ValueError: There is no such preset, or the file is not a recipe.
    """
    if name.endswith(SUFFIX):
        return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).stem)[:100], read_recipe(Path(name))
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise ValueError(f"no preset called {name!r}: it is neither a file that ends in {SUFFIX} nor one of {known}")
    return name, PRESETS[name]


def parsed_settings(given: Iterable[str]) -> dict[str, Any]:
    """Return the settings in `key=value` texts, as Recipe.changed takes them; `model.n_layers=6` is a model's field.

    A value is any TOML value, a word without quotes, or none.

    Raises:
        ValueError: A text has another form.
    """
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not re.fullmatch(r"((model|lora)\.)?\w+", key):
            raise ValueError(f"{text!r} sets nothing; it must be KEY=VALUE, such as lr=1e-3 or model.n_layers=6")
        parent, _, name = key.rpartition(".")
        if not isinstance(table := found.setdefault(parent, {}) if parent else found, dict):
            raise ValueError(f"{text!r} sets a part of {parent}, and another --set the whole; one of them must go")
        table[name] = _parsed(text, value)
    return found


def _parsed(text: str, value: str) -> Any:
    try:
        found = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        found = {"value": None if value == "none" else value} if _BARE.fullmatch(value) else {}
    if found.keys() != {"value"}:  # or there was more than one line
        raise ValueError(f"{text!r}: its value is none that TOML has, such as 6, 1e-3, true, [0.9, 0.95] or a word")
    return found["value"]


def to_toml(recipe: Recipe) -> str:
    """Return the content of a file from which `read_recipe` reads the same recipe."""
    settings = recipe.to_dict()
    if recipe.decay_steps == recipe.steps:
        del settings["decay_steps"]  # so that it follows when a user changes the steps
    tables = {name: settings.pop(name) for name in ("model", "lora")}
    written = [["", f"[{name}]", *_lines(table)] for name, table in tables.items() if table is not None]
    return "\n".join([*_lines(settings), *(line for lines in written for line in lines), ""])


def _lines(table: dict[str, Any]) -> list[str]:
    """Return a line per value: TOML writes numbers, words and lists as JSON does, and has no None."""
    return [f"{name} = {json.dumps(value)}" for name, value in table.items() if value is not None]


_FILES = {path.stem: path for path in Path(__file__).parent.glob(f"*{SUFFIX}")}
PRESETS = {name: read_recipe(_FILES[name]) for name in sorted(_FILES)}
