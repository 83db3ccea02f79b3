"""What lies in the folders of models of others: the names of their files, and how an index is read."""

import json
from pathlib import Path
from typing import Any

from polyarr.schema import in_one_line
from polyarr.text.files import read_regular

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")  # never read: they could run anything
_LARGEST_JSON = 2**27  # bytes; an index has a line for each array


def read_json(path: Path) -> dict[str, Any]:
    """The dict in a JSON file.

    Errors:  OSError if it cannot be read; ValueError if it is no JSON, holds something else, or is too large
    """
    data = read_regular(path, _LARGEST_JSON)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is no JSON: {in_one_line(error)}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds {type(found).__name__}; it must be a dict")
    return found


def read_index(folder: Path) -> dict[str, str]:
    """In which file of a folder each array is, by its index.

    Errors:  ValueError for an index without that, or that names what is no safetensors file of the folder; as read_json
    """
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise ValueError(f"{INDEX} has no weight_map from names of arrays to names of files")
    for name in sorted(set(names.values())):
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise ValueError(f"{INDEX} names {name!r}; it must be a safetensors file of the same folder")
    return names


def hint_of_pickled(folder: Path) -> str:
    """What an error adds where a folder has what it lacks, pickled."""
    pickled = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLED]
    return f"; {pickled[0]} is pickled, which is never read: save it as safetensors" if pickled else ""
