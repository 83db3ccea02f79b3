"""Trees of arrays in safetensors files, which other programs can read."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from polyarr import creation, tree
from polyarr.core.array import Array, values_of
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend
from polyarr.core.errors import DtypeError
from polyarr.core.spec import DTYPES, described, shown
from polyarr.saving.tensor_file import CODES, TensorFile, source_of, write_arrays
from polyarr.schema import in_one_line

_TREE = "polyarr.tree"  # metadata key of the tree as JSON, with arrays by name
# Suffixes of other formats, whose readers would not accept the file.
_OF_OTHERS = {".npy", ".npz", ".pt", ".pth", ".pkl", ".pickle", ".h5", ".hdf5", ".gguf", ".onnx", ".msgpack", ".json"}


def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Write a tree of arrays, Python numbers, strings and None to one safetensors file.

    Each array is stored under the path of its names, such as "model.blocks.0.weight", for any program to read;
    everything else is JSON in the file's metadata. An existing file is replaced atomically. A Module is saved as the
    dict of its parameters, which `model.load_parameters` takes; a named tuple as a tuple.

    Args:
        path: File to write.
        tree: Nested lists, tuples, dicts and Modules.

    Raises:
        TypeError: A leaf or a key is of another type.
        ValueError: path ends as the files of another format do (.npy, .pt); the tree contains itself, or has more
            arrays than one file can hold.
        DtypeError: An array has a dtype that polyarr lacks.
        OSError: The file cannot be written.

    Examples:
        >>> import os, tempfile, polyarr as pa
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pa.save(os.path.join(folder, "state.safetensors"), {"step": 3, "w": pa.ones(2)})
        ...     pa.load(os.path.join(folder, "state.safetensors"))
        {'step': 3, 'w': Array([1., 1.], float32, 'numpy')}
    """
    target = _path("save", path)
    if target.suffix.lower() in _OF_OTHERS:
        due = target.with_suffix(".safetensors").name
        raise ValueError(f"save: path ends in {target.name!r}; a safetensors file is written, so name it {due}")
    arrays: dict[str, np.ndarray] = {}
    try:
        metadata = {_TREE: json.dumps(_plain(tree, (), arrays), allow_nan=False)}
    except RecursionError:
        raise ValueError("save: tree is nested too deeply, or holds itself; it must be a tree") from None
    write_arrays(target, {name: source_of(a) for name, a in arrays.items()}, metadata)


def load(path: str | os.PathLike[str], *, device: str | Backend | None = None) -> Any:
    """Read a tree that `save` wrote; of any other safetensors file, a dict of its arrays by name.

    Args:
        path: File to read.
        device: Backend of the arrays; None: the current one.

    Returns:
        The tree. Its arrays are on `device`.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is damaged or not a safetensors file.
        DtypeError: polyarr or the backend lacks a dtype of the file.
        TypeError: `device` is neither a name nor a Backend.
    """
    source, backend = _path("load", path), get_backend(device)  # an error of `device` is none of the file
    try:
        file = TensorFile(source)
        structure = file.metadata.get(_TREE)
        found = {name: creation.asarray(_host(file, name), device=backend) for name in file.entries}
        plain = found if structure is None else _tree(json.loads(structure), found)
    except DtypeError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = in_one_line(error) or type(error).__name__
        raise ValueError(f"load: {source} is damaged or no safetensors file: {reason}") from error
    return plain


def _path(op: str, path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        first = ", and comes before what is saved" if op == "save" else ""
        raise TypeError(f"{op}: path is {described(path)}; it must be a str or a pathlib.Path{first}")
    if not Path(path).name:
        raise ValueError(f"{op}: path is {shown(os.fspath(path))}; it must name a file")
    return Path(path)


# ---- the tree as JSON --------------------------------------------------------------------------------------------
# Numbers, strings, None and lists are plain JSON. Everything else is {"array": name}, {"tuple": [...]},
# {"dict": [[key, value], ...]} or {"float": "nan"}.


def _plain(node: Any, path: tuple, arrays: dict[str, np.ndarray]) -> Any:
    """Return a tree as JSON values, and add its arrays to `arrays`."""
    node = node.item() if isinstance(node, np.generic) else node
    if isinstance(node, (Array, np.ndarray)):
        name = _free_name(path, arrays)
        arrays[name] = _checked(name, node)
        return {"array": name}
    if node is None or type(node) in (bool, int, str):
        return node
    if type(node) is float:
        return node if math.isfinite(node) else {"float": str(node)}
    if (children := tree.children(node)) is None:
        at = ".".join(map(str, path))
        raise TypeError(f"save: {at or 'tree'} is {described(node)}; leaves must be arrays, numbers, strings or None")
    for key in children:
        if type(key) not in (str, int):
            raise TypeError(f"save: a key is {key!r}, {described(key)}; keys must be strings or ints")
    found = {key: _plain(child, (*path, key), arrays) for key, child in children.items()}
    if isinstance(node, (list, tuple)):
        return list(found.values()) if isinstance(node, list) else {"tuple": list(found.values())}
    return {"dict": [[key, child] for key, child in found.items()]}


def _tree(node: Any, arrays: dict[str, Array]) -> Any:
    """Return the tree that `_plain` described."""
    if isinstance(node, list):
        return [_tree(child, arrays) for child in node]
    if not isinstance(node, dict):
        return node
    ((kind, held),) = node.items()
    if kind == "array":
        return arrays[held]
    if kind == "float":
        return float(held)
    if kind == "tuple":
        return tuple(_tree(child, arrays) for child in held)
    if kind == "dict":
        return {key: _tree(child, arrays) for key, child in held}
    raise ValueError(f"its tree has a {kind!r}, which this polyarr does not know")


def _free_name(path: tuple, taken: dict[str, Any]) -> str:
    name = ".".join(map(str, path)).encode("utf-8", "backslashreplace").decode() or "array"
    while name in taken or name == "__metadata__":  # reserved by the format
        name += "_"
    return name


def _checked(name: str, a: Any) -> np.ndarray:
    host = values_of(a) if isinstance(a, Array) else a
    native = host.dtype.newbyteorder("=")
    if native not in CODES.values():
        held = ", ".join(d.name for d in DTYPES if d in CODES.values())
        raise DtypeError(f"save: {name} is of {host.dtype}; the format has {held}")
    return np.require(host, native, "C")


def _host(file: TensorFile, name: str) -> np.ndarray:
    code = file.entries[name].code
    if code not in CODES:
        raise DtypeError(
            f"load: {file.file.path}: {in_one_line(f'{name} is of {code}')}; "
            f"polyarr has {', '.join(d.name for d in DTYPES)}"
        )
    return file.array(name)
