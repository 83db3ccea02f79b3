"""Trees of arrays in safetensors files, which other programs can read; files are replaced atomically."""

import contextlib
import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from polyarr import creation, tree
from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.errors import DtypeError
from polyarr.core.spec import DTYPES, Spec, described, told
from polyarr.files import open_regular
from polyarr.tensor_file import CODES, MAX_HEADER, MAX_TENSORS, TensorFile

__all__ = ["load", "save"]

try:
    import fcntl
except ImportError:  # on Windows, where a folder cannot be locked
    fcntl = None  # type: ignore[assignment]

_TREE = "polyarr.tree"  # metadata key of the tree as JSON, with arrays by name
_CODE_OF = {np.dtype(dtype): code for code, dtype in CODES.items()}


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
        ValueError: The tree contains itself, or has more arrays than one file can hold.
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
    """
    source = _path("load", path)
    try:
        file = TensorFile(source)
        structure = file.metadata.get(_TREE)
        found = {name: creation.asarray(_host(file, name), device=device) for name in file.entries}
        plain = found if structure is None else _tree(json.loads(structure), found)
    except DtypeError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"load: {source} is damaged or no safetensors file: {reason}") from error
    return plain


def _path(op: str, path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{op}: path is {described(path)}; it must be a str or a pathlib.Path")
    if not Path(path).name:
        raise ValueError(f"{op}: path is {told(os.fspath(path))}; it must name a file")
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
    host = a.numpy() if isinstance(a, Array) else a
    native = host.dtype.newbyteorder("=")
    if native not in DTYPES:
        raise DtypeError(f"save: {name} is of {host.dtype}; polyarr has {', '.join(d.name for d in DTYPES)}")
    return np.require(host, native, "C")


def _host(file: TensorFile, name: str) -> np.ndarray:
    code = file.entries[name].code
    if code not in CODES:
        raise DtypeError(
            f"load: {file.file.path}: {name} is of {code}; polyarr has {', '.join(d.name for d in DTYPES)}"
        )
    return file.array(name)


# ---- arrays in files ---------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Array to write, possibly elsewhere: its Spec, and a function that copies it to the host."""

    spec: Spec
    read: Callable[[], np.ndarray]

    def data(self) -> memoryview:
        """Return the bytes of the array, in row-major order."""
        return np.ascontiguousarray(self.read()).reshape(-1).view(np.uint8).data


def source_of(a: Array | np.ndarray | Source) -> Source:
    """Return the Source of an array."""
    if isinstance(a, Source):
        return a
    return Source(a.spec, a.numpy) if isinstance(a, Array) else Source(Spec(a.shape, a.dtype), lambda: a)


def write_arrays(
    path: Path, arrays: Mapping[str, Source], metadata: Mapping[str, str], first: Callable[[], None] | None = None
) -> None:
    """Replace a file atomically by a safetensors file of arrays; see `write_whole`.

    The arrays are copied to the host and written one after the other, so that only one is in memory.

    Raises:
        OSError: The file cannot be written; with its path.
        ValueError: There are more arrays, or longer metadata, than one file can hold.
    """
    if len(arrays) > MAX_TENSORS:
        raise ValueError(f"{path}: {len(arrays):,} arrays; a file holds at most {MAX_TENSORS:,}")
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    # The order of the safetensors library, larger dtypes first, so that every array is aligned.
    names, end = sorted(arrays, key=lambda name: (-arrays[name].spec.dtype.itemsize, name)), 0
    for name in names:
        spec = arrays[name].spec
        start, end = end, end + spec.size * spec.dtype.itemsize
        header[name] = {"dtype": _CODE_OF[spec.dtype], "shape": list(spec.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(f"{path}: names and metadata of {len(text):,} bytes; a file holds at most {MAX_HEADER:,}")
    with written_whole(path, first) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(arrays[name].data())


# ---- files ---------------------------------------------------------------------------------------------------------


def write_whole(path: Path, data: bytes, first: Callable[[], None] | None = None) -> None:
    """Replace a file atomically: a crash at any moment leaves the old file or the new one.

    Args:
        path: File to replace.
        data: New contents.
        first: Called when the new file is complete and on disk, before it replaces the old one.

    Raises:
        OSError: The file cannot be written; with its path.
    """
    with written_whole(path, first) as file:
        file.write(data)


@contextlib.contextmanager
def written_whole(path: Path, first: Callable[[], None] | None = None) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces `path` atomically at the end of the block unless it raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if first:
            first()
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:  # that of a full disk has no path, other errors that of the temporary file
        if error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def share(path: Path, other: Path) -> None:
    """Replace `other` atomically by a hard link to a file, or by a copy if the file system has no hard links."""
    temporary = other.with_name(f".{other.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        os.link(path, temporary)
        temporary.replace(other)
        sync_folder(other.parent)
    except OSError:
        with open_regular(path) as file, written_whole(other) as copy:
            shutil.copyfileobj(file, copy)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk: without it, a replaced file may reappear after a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def alone_in(folder: Path, work: str) -> Iterator[None]:
    """Lock a folder against other processes that do the same kind of work; each would remove the files of the other.

    The lock ends with the process, however it ends. A file system without locks is not locked.

    Raises:
        OSError: Another process works in the folder.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = f"another {work} writes here; wait until it ends, or give another folder"
            raise OSError(errno.EBUSY, reason, str(folder)) from None
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
