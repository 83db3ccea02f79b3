"""Trees of arrays in files: safetensors, which other programs read too; written whole or not at all."""

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
from polyarr.core.spec import DTYPES, Spec, bfloat16, described, told
from polyarr.extras import extra

try:
    import fcntl
except ImportError:  # on Windows, where nobody keeps two trainings out of one folder
    fcntl = None  # type: ignore[assignment]

_TREE = "polyarr.tree"  # the key in the file's metadata of the tree as JSON, arrays by their names
CODES = {"BF16": bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64, "BOOL": np.bool_} | {
    f"{kind.upper()}{bits}": np.dtype(f"{'u' * (kind == 'u')}int{bits}") for kind in "iu" for bits in (8, 16, 32, 64)
}
_CODE_OF = {np.dtype(dtype): code for code, dtype in CODES.items()}


def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Write a tree of arrays, Python numbers, strings and None into one safetensors file.

    Each array stands in it under the names on its path, such as "model.blocks.0.weight", for any program to read; the
    rest is JSON in the file's metadata. A file that is there is replaced as a whole, whatever happens meanwhile. A
    Module is saved as the dict of its parameters, which model.load_parameters takes; a named tuple as a tuple.

    Errors:  TypeError for a leaf or a key of another kind; OSError if the file cannot be written;
             RuntimeError without the library safetensors
    """
    target = _path("save", path)
    arrays: dict[str, np.ndarray] = {}
    try:
        metadata = {_TREE: json.dumps(_plain(tree, (), arrays), allow_nan=False)}
    except RecursionError:
        raise ValueError("save: tree is nested too deeply, or holds itself; it must be a tree") from None
    write_arrays(target, {name: source_of(a) for name, a in arrays.items()}, metadata)


def load(path: str | os.PathLike[str], *, device: str | Backend | None = None) -> Any:
    """The tree that save wrote, its arrays on device; of any other safetensors file, a dict of its arrays by name.

    Errors:  OSError if the file cannot be read; ValueError if it is damaged or no safetensors file; DtypeError for a
             dtype that polyarr or the backend lacks; RuntimeError without the library safetensors
    """
    source = _path("load", path)
    with source.open("rb"):
        pass  # the system's own error for a file that is not there, with its name
    library = extra("safetensors")
    try:
        with library.safe_open(source, framework="numpy") as file:
            structure = (file.metadata() or {}).get(_TREE)
        found = {
            name: creation.asarray(_host(source, name, part), device=device)
            for name, part in library.deserialize(source.read_bytes())
        }
        plain = found if structure is None else _tree(json.loads(structure), found)
    except DtypeError:
        raise
    except (library.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
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
# Numbers, strings, None and lists are as JSON has them; what it lacks is {"array": name}, {"tuple": [...]},
# {"dict": [[key, value], ...]} or {"float": "nan"}.


def _plain(node: Any, path: tuple, arrays: dict[str, np.ndarray]) -> Any:
    """A tree as JSON has it; `arrays` gains its arrays."""
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
    """The tree that _plain described."""
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
    while name in taken or name == "__metadata__":  # which the format keeps for itself
        name += "_"
    return name


def _checked(name: str, a: Any) -> np.ndarray:
    host = a.numpy() if isinstance(a, Array) else a
    native = host.dtype.newbyteorder("=")
    if native not in DTYPES:
        raise DtypeError(f"save: {name} is of {host.dtype}; polyarr has {', '.join(d.name for d in DTYPES)}")
    return np.require(host, native, "C")  # safetensors takes the memory as it lies


def _host(path: Path, name: str, part: dict[str, Any]) -> np.ndarray:
    if part["dtype"] not in CODES:
        raise DtypeError(f"load: {path}: {name} is of {part['dtype']}; polyarr has {', '.join(d.name for d in DTYPES)}")
    return np.frombuffer(part["data"], CODES[part["dtype"]]).reshape(part["shape"])


# ---- arrays in files ---------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """An array that may be elsewhere: what it is like, and what brings it to the host."""

    spec: Spec
    read: Callable[[], np.ndarray]

    def data(self) -> memoryview:
        """Its bytes, row by row."""
        return np.ascontiguousarray(self.read()).reshape(-1).view(np.uint8).data


def source_of(a: Array | np.ndarray | Source) -> Source:
    """What to write of an array."""
    if isinstance(a, Source):
        return a
    return Source(a.spec, a.numpy) if isinstance(a, Array) else Source(Spec(a.shape, a.dtype), lambda: a)


def write_arrays(
    path: Path, arrays: Mapping[str, Source], metadata: Mapping[str, str], first: Callable[[], None] | None = None
) -> None:
    """Put a safetensors file of arrays in a path's place, as write_whole does.

    They are brought to the host and written one after the other; the library wants all of them in memory, and
    again as what is written.

    Errors:  OSError with the path
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    # In the library's order, by which each begins where its numbers may.
    names, end = sorted(arrays, key=lambda name: (-arrays[name].spec.dtype.itemsize, name)), 0
    for name in names:
        spec = arrays[name].spec
        start, end = end, end + spec.size * spec.dtype.itemsize
        header[name] = {"dtype": _CODE_OF[spec.dtype], "shape": list(spec.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with written_whole(path, first) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(arrays[name].data())


# ---- files ---------------------------------------------------------------------------------------------------------


def write_whole(path: Path, data: bytes, first: Callable[[], None] | None = None) -> None:
    """Put data in a path's place. A crash at any moment leaves the old file or the new one.

    first  called when the new file is whole and on the disk, before it takes the place

    Errors:  OSError with the path
    """
    with written_whole(path, first) as file:
        file.write(data)


@contextlib.contextmanager
def written_whole(path: Path, first: Callable[[], None] | None = None) -> Iterator[BinaryIO]:
    """Gives a file to write, which takes a path's place at the end of the block unless that raises; as write_whole."""
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
    except OSError as error:  # of a full disk names no file, other errors the temporary one
        if error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def share(path: Path, other: Path) -> None:
    """Put another name of a file in other's place, or a copy where the disk has no such names; as write_whole."""
    temporary = other.with_name(f".{other.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        os.link(path, temporary)
        temporary.replace(other)
        sync_folder(other.parent)
    except OSError:
        with path.open("rb") as file, written_whole(other) as copy:
            shutil.copyfileobj(file, copy)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder: without it, a file that was replaced may come back."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def alone_in(folder: Path, work: str) -> Iterator[None]:
    """Keep other processes that do such work out of a folder: each would remove the files of the other.

    The system drops the lock when the process ends, however that happens; a disk that knows no locks has none.

    Errors:  OSError if another one is at work there
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
