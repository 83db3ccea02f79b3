"""Files in a folder of a pretrained model: their names, how the index is read, and hints for unsupported formats."""

import errno
import json
import re
from pathlib import Path
from typing import Any

from polyarr.files import read_regular
from polyarr.schema import in_one_line

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")  # never read: unpickling can run any code
_MAX_JSON = 2**27  # bytes; an index has a line for each array


def read_json(path: Path) -> dict[str, Any]:
    """Return the dict in a JSON file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not JSON, is not a dict, or is too large.
    """
    data = read_regular(path, _MAX_JSON)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is no JSON: {in_one_line(error)}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds {type(found).__name__}; it must be a dict")
    return found


def read_index(folder: Path) -> dict[str, str]:
    """Return the name of the file that holds each array, by the index of a folder.

    Raises:
        OSError: The index cannot be read.
        ValueError: The index is damaged, or names anything but safetensors files of the same folder.
    """
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise ValueError(f"{INDEX} has no weight_map from names of arrays to names of files")
    for name in sorted(set(names.values())):
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise ValueError(f"{INDEX} names {name!r}; it must be a safetensors file of the same folder")
    return names


def hint_of_others(folder: Path) -> str:
    """Return a hint for an error about a missing file if the folder has an unsupported format, else ""."""
    names = sorted(path.name for path in folder.iterdir())
    hints = {
        "is pickled, which is never read: save it as safetensors": PICKLED,
        "is a model in llama.cpp's format: name the file itself": (".gguf",),
        "is of a run: polyarr train --from continues it, polyarr export writes it for others": ("best.safetensors",),
        "is of adapters: take the model that they belong to, and add them with --adapters": ("adapter_config.json",),
    }
    for hint, ends in hints.items():
        if found := [name for name in names if name.endswith(ends)]:
            return f"; {found[0]} {hint}"
    return ""


def no_such(path: Path) -> FileNotFoundError:
    """Return the error for a path that does not exist, with a hint if it may be a model on the Hugging Face Hub."""
    is_name = re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", str(path))
    hint = f"; to fetch a model of the Hugging Face Hub: hf download {path} --local-dir DIR" if is_name else ""
    return FileNotFoundError(errno.ENOENT, f"no such file or folder{hint}", str(path))
