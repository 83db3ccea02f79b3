"""GGUF files, those of llama.cpp: a validated header, and tensors that are read and dequantized piece by piece."""

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyarr.extras import extra
from polyarr.files import HeldFile
from polyarr.saving.tensor_file import MAX_HEADER, MAX_TENSORS, finite

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MAX_SETTINGS, _MAX_DIMENSIONS, _MAX_ALIGNMENT = 50_000, 4, 2**16
_MAX_VALUES = 2**21  # in a list: the largest vocabularies have 2**18 tokens
_PIECE = 2**20  # bytes of a tensor, or of the header, that are read at once
# Struct codes by the number of a type in the file; 8 is text, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


def is_gguf(path: str | Path) -> bool:
    """Return whether a path is a GGUF file by its name."""
    return Path(path).suffix.lower() == ".gguf" and not Path(path).is_dir()


class GGUFEntry(NamedTuple):
    """Header entry of a tensor: its type, a gguf.GGMLQuantizationType, its shape, and its first byte in the file."""

    kind: Any
    shape: tuple[int, ...]
    start: int


class GGUFFile:
    """A GGUF file that stays open until its last user is gone.

    Attributes:
        metadata: Numbers, texts and lists of them, by key.
        entries: Header entry of each tensor, by name; shapes are in row-major order, (out, in) for a weight.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is damaged, not a GGUF file, or has tensors of a type that is not read.
        RuntimeError: The library gguf is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self._library = extra("gguf", "gguf")
        self._file = HeldFile(path)
        self._header = _Header(self._file)
        magic, version = self._header.take(4), self._header.number("I")
        if magic != _MAGIC or version not in _VERSIONS:
            known = " or ".join(map(str, _VERSIONS))
            raise ValueError(f"it begins with {magic!r} and {version:,}; a GGUF file is {_MAGIC!r} of version {known}")
        tensors = self._count("tensors", MAX_TENSORS)
        self.metadata = self._read_metadata(self._count("settings", _MAX_SETTINGS))
        entries = [self._read_entry() for _ in range(tensors)]
        self.entries = self._placed(dict(entries))
        if len(self.entries) < len(entries):
            raise ValueError("its header has two tensors of the same name")

    def array(self, name: str, dtype: np.dtype) -> np.ndarray:
        """Read a tensor in a floating-point dtype.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file was truncated since it was opened, or an element is not finite in `dtype`.
        """
        kind, shape, start = self.entries[name]
        found = np.empty(shape, dtype)
        rows, size = found.reshape(-1, shape[-1]), self._bytes(kind, shape[-1])
        step = max(_PIECE // size, 1)
        for first in range(0, len(rows), step):
            count = min(step, len(rows) - first)
            data = np.frombuffer(self._file.read(start + first * size, count * size), np.uint8).reshape(count, size)
            with np.errstate(all="ignore"):  # of damaged scales; what is not finite is an error
                rows[first : first + count] = finite(name, self._library.quants.dequantize(data, kind), dtype)
        return found

    def blocks(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Read a tensor of Q8_0, Q4_0 or MXFP4 as it is.

        Returns:
            Codes, int8 (..., k) of Q8_0 or uint8 (..., k / 2), and scales (..., k / 32), float16 or of MXFP4 uint8.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file was truncated since it was opened, or a scale is not finite.
        """
        kind, shape, start = self.entries[name]
        block, size = self._library.GGML_QUANT_SIZES[kind]
        count = self._bytes(kind, math.prod(shape))
        data = np.frombuffer(self._file.read(start, count), np.uint8).reshape(*shape[:-1], shape[-1] // block, size)
        if kind.name == "MXFP4":
            return data[..., 1:].reshape(*shape[:-1], -1), data[..., 0]
        scale = np.ascontiguousarray(data[..., :2]).view(np.float16)[..., 0]
        codes = data[..., 2:].reshape(*shape[:-1], -1)
        return codes.view(np.int8) if kind.name == "Q8_0" else codes, finite(name, scale, scale.dtype)

    def _count(self, what: str, most: int) -> int:
        count: int = self._header.number("Q")
        if count > most:
            raise ValueError(f"it would have {count:,} {what}; at most {most:,} are read")
        return count

    def _read_metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._header.text()
            if key in found:
                raise ValueError(f"its header has {key[:100]!r} twice")
            found[key] = self._header.value()
        return found

    def _read_entry(self) -> tuple[str, GGUFEntry]:
        name, dimensions = self._header.text(), self._header.number("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"{name[:100]} has {dimensions:,} dimensions; it must have 1 to {_MAX_DIMENSIONS}")
        shape = tuple(self._header.number("Q") for _ in range(dimensions))[::-1]
        kind, start = self._kind(name, self._header.number("I")), self._header.number("Q")
        if not all(shape) or shape[-1] % self._library.GGML_QUANT_SIZES[kind][0]:
            raise ValueError(f"{name[:100]} is {list(shape)}, which no tensor of {kind.name} is")
        return name, GGUFEntry(kind, shape, start)

    def _kind(self, name: str, number: int) -> Any:
        """Return the type with this number, which the library must be able to dequantize."""
        try:
            kind = self._library.GGMLQuantizationType(number)
            block = np.zeros((1, self._bytes(kind, self._library.GGML_QUANT_SIZES[kind][0])), np.uint8)
            self._library.quants.dequantize(block, kind)
        except (ValueError, KeyError):
            raise ValueError(f"{name[:100]} is of type {number}, which GGUF does not have") from None
        except RuntimeError:  # the library has no code for it
            kind = self._library.GGMLQuantizationType(number)
            raise ValueError(f"{name[:100]} is of {kind.name}, which is not dequantized") from None
        return kind

    def _placed(self, entries: dict[str, GGUFEntry]) -> dict[str, GGUFEntry]:
        """Return the entries with offsets from the beginning of the file, which must contain all tensors."""
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            raise ValueError(f"its general.alignment is {alignment!r}; it must be a power of 2 to {_MAX_ALIGNMENT:,}")
        base = -(-self._header.at // alignment) * alignment
        found = {name: entry._replace(start=base + entry.start) for name, entry in entries.items()}
        before = base
        for name, (kind, shape, start) in sorted(found.items(), key=lambda item: item[1].start):
            end = start + self._bytes(kind, math.prod(shape))
            if start < before or start % alignment:
                fault = f"in another tensor or off the alignment of {alignment:,}"
                raise ValueError(f"{name[:100]} begins at byte {start - base:,} of the data, {fault}")
            before = end
            if end > self._file.size:
                raise ValueError(f"it ends at byte {self._file.size:,}, and {name[:100]} at {end:,}; it is incomplete")
        return found

    def _bytes(self, kind: Any, count: int) -> int:
        """Return the number of bytes of `count` elements of a type."""
        block, size = self._library.GGML_QUANT_SIZES[kind]
        return count // block * size


class _Header:
    """Reader of a header, in which every length is checked before memory is allocated for it."""

    def __init__(self, file: HeldFile) -> None:
        self.at = 0
        self._file, self._end = file, min(file.size, MAX_HEADER)
        self._piece, self._start = bytearray(), 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if count > self._end - self.at:
            raise ValueError(f"its header would have {count:,} more bytes at byte {self.at:,}, of {self._end:,}")
        offset = self.at - self._start
        if offset + count > len(self._piece):
            self._piece = self._file.read(self.at, min(max(count, _PIECE), self._end - self.at))
            self._start, offset = self.at, 0
        self.at += count
        return bytes(self._piece[offset : offset + count])

    def number(self, code: str) -> Any:
        """Return the next number, of a struct code."""
        (found,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return _shortest(found) if code == "f" else found

    def text(self) -> str:
        """Return the next text."""
        data = self.take(self.number("Q"))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ValueError(f"its header has a text before byte {self.at:,} that is not UTF-8") from None

    def value(self) -> Any:
        """Return the next value: a number, a text, or a list of either."""
        kind = self.number("I")
        return self._list() if kind == _ARRAY else self._one(kind)

    def _one(self, kind: int) -> Any:
        if kind != _TEXT and kind not in _SCALARS:
            raise ValueError(f"its header has a value of type {kind:,}, which GGUF does not have")
        return self.text() if kind == _TEXT else self.number(_SCALARS[kind])

    def _list(self) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        if count > _MAX_VALUES:
            raise ValueError(f"its header would have a list of {count:,} values; at most {_MAX_VALUES:,} are read")
        if kind not in _SCALARS:
            return [self._one(kind) for _ in range(count)]
        code = _SCALARS[kind]
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(f"<{code}"))))


def _shortest(number: float) -> float:
    """Return the shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(number)))
