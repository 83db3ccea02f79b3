"""safetensors files: a validated header, tensors that are read on demand, and writing."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from polyarr.atomic import written_whole
from polyarr.core.array import Array
from polyarr.core.dlpack import view_of
from polyarr.core.spec import Spec, bfloat16
from polyarr.files import HeldFile
from polyarr.schema import loaded_json

CODES = {"BF16": bfloat16, "BOOL": np.bool_, "C64": np.complex64} | {
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}
_FURTHER = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}  # for `polyarr inspect` only
MAX_HEADER = 100_000_000  # bytes, as in the safetensors format
MAX_TENSORS = 50_000  # per file; `polyarr inspect` shows this many in about 4 s
_LARGEST = 2**63
_PIECE = 2**20  # bytes of an array that are checked, or converted and written, at once
_CODE_OF = {np.dtype(dtype): code for code, dtype in CODES.items()}


class Entry(NamedTuple):
    """Header entry of a tensor: code of its dtype, shape, and the range of its bytes in the file."""

    code: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def dtype(self) -> np.dtype | None:
        """NumPy dtype; None if NumPy lacks it."""
        found = CODES.get(self.code, _FURTHER.get(self.code))
        return None if found is None else np.dtype(found)


_OTHERS = {  # first bytes of other files with arrays -> what they are
    b"PK\x03\x04": "a zip archive; numpy.load reads an .npz file, torch.load one of PyTorch",
    b"\x93NUMPY": "an .npy file; read it with numpy.load",
}


class TensorFile:
    """A safetensors file that stays open until its last user is gone.

    Attributes:
        metadata: Strings by name.
        entries: Header entry of each tensor, by name.
        file: The open file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is damaged or not a safetensors file.
    """

    def __init__(self, path: str | Path) -> None:
        self.file = HeldFile(path)
        start = self.file.read(0, min(8, self.file.size))
        for magic, kind in _OTHERS.items():
            if start.startswith(magic):
                raise ValueError(f"it is {kind}")
        length = int.from_bytes(start, "little")
        if not 2 <= length <= min(MAX_HEADER, self.file.size - 8):
            raise ValueError(f"its header would have {length:,} bytes; the file has {self.file.size:,}")
        header = loaded_json(self.file.read(8, length).decode())
        if not isinstance(header, dict):
            raise ValueError("its header is no JSON object")
        self.metadata = _metadata(header.pop("__metadata__", None))
        self.entries = _entries(header, 8 + length, self.file.size)

    def array(self, name: str) -> np.ndarray:
        """Read a tensor.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file was truncated since it was opened, or NumPy lacks the dtype.
        """
        entry = self.entries[name]
        if entry.dtype is None:
            raise ValueError(f"{name} is of {entry.code}, which NumPy lacks")
        found = np.empty(entry.shape, entry.dtype)
        self.file.read_into(entry.start, found.reshape(-1).view(np.uint8).data)
        return found

    def source(self, name: str) -> "Source":
        """Return the Source of a tensor, which is read whenever its data are needed; NumPy must have its dtype."""
        entry = self.entries[name]
        return Source(Spec(entry.shape, entry.dtype), partial(self.array, name))


def finite(name: str, a: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return an array in a floating-point dtype.

    Raises:
        ValueError: An element is not finite there, such as a large float32 in float16.
    """
    with np.errstate(over="ignore"):
        found = a.astype(dtype, copy=False)
    if not all(np.isfinite(piece).all() for piece in _pieces(found)):
        raise ValueError(f"{name} holds numbers that are not finite{'' if a.dtype == dtype else f' in {dtype}'}")
    return found


def _pieces(a: np.ndarray) -> Iterator[np.ndarray]:
    """Yield an array some rows at a time."""
    a = np.atleast_1d(a)
    rows = max(_PIECE // max(a[:1].nbytes, 1), 1)
    for start in range(0, len(a), rows):
        yield a[start : start + rows]


def _metadata(found: Any) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("its metadata must be an object of strings")
    return found


def _entries(header: dict[str, Any], start: int, size: int) -> dict[str, Entry]:
    """Return the tensors of a header; they must fill the file from byte `start` to its end without gaps or overlaps."""
    if len(header) > MAX_TENSORS:
        raise ValueError(f"it has {len(header):,} tensors; at most {MAX_TENSORS:,} are read")
    found = {name: _entry(name, part, start) for name, part in header.items()}
    for name, entry in sorted(found.items(), key=lambda item: item[1][2:]):
        if entry.start != start:
            raise ValueError(f"{name} begins at byte {entry.start:,}; it must begin at {start:,}")
        start = entry.end
    if start != size:
        raise ValueError(f"it has {size:,} bytes; by its header it must have {start:,}")
    return found


def _entry(name: str, part: Any, base: int) -> Entry:
    if not isinstance(part, dict) or part.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its header says of {name} what is no dtype, shape and data_offsets")
    code, shape, offsets = part["dtype"], part["shape"], part["data_offsets"]
    if not isinstance(code, str) or not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise ValueError(f"its header has no valid dtype, shape and data_offsets for {name}")
    found = Entry(code, tuple(shape), base + offsets[0], base + offsets[1])
    count = found.end - found.start
    if count < 0 or (found.dtype is not None and math.prod(shape) * found.dtype.itemsize != count):
        raise ValueError(f"{name} has {count:,} bytes by its header; {code}{shape} takes others")
    return found


def _are_sizes(found: Any) -> bool:
    return isinstance(found, list) and len(found) <= 64 and all(type(n) is int and 0 <= n < _LARGEST for n in found)


class Source(NamedTuple):
    """Array to write, possibly elsewhere: its Spec, and a function that returns it on the host, in any float dtype."""

    spec: Spec
    read: Callable[[], np.ndarray]

    def pieces(self, name: str) -> Iterator[memoryview]:
        """Yield the bytes of the array in the dtype of its Spec and row-major order, some rows at a time.

        Raises:
            ValueError: An element is not finite in another dtype than it has; with this name.
        """
        dtype = self.spec.dtype
        for piece in _pieces(self.read()):
            converted = piece if piece.dtype == dtype else finite(name, piece, dtype)
            yield np.ascontiguousarray(converted).reshape(-1).view(np.uint8).data


def source_of(a: Array | np.ndarray | Source) -> Source:
    """Return the Source of an array."""
    if isinstance(a, Source):
        return a
    return Source(a.spec, partial(view_of, a)) if isinstance(a, Array) else Source(Spec(a.shape, a.dtype), lambda: a)


def write_arrays(
    path: Path, arrays: Mapping[str, Source], metadata: Mapping[str, str], first: Callable[[], None] | None = None
) -> None:
    """Replace a file atomically by a safetensors file of arrays; see `write_whole`.

    The arrays are copied to the host one after the other, so that only one is in memory; those on the host are not.

    Raises:
        OSError: The file cannot be written; with its path.
        ValueError: There are more arrays, or longer metadata, than one file can hold, or an element is not finite in
            the dtype that it is converted to.
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
            for piece in arrays[name].pieces(name):
                file.write(piece)
