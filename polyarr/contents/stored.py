"""Tensors in safetensors, npy and npz files, read block by block. Nothing is ever unpickled."""

import contextlib
import io
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np

from polyarr.contents.statistics import Statistics, has_statistics
from polyarr.files import open_regular
from polyarr.saving.tensor_file import Entry, TensorFile
from polyarr.schema import in_one_line

BLOCK = 2**20  # numbers in memory at once
Opened = Callable[[], AbstractContextManager[IO[bytes]]]
_HEADER = 2**14  # bytes that contain an npy header; NumPy refuses headers above 10,000
_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs from 2.0 only in the names of fields, which are not used
}
# Errors of libraries for damaged files, beside ValueError and OSError.
DAMAGES = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError)


class Tensor(NamedTuple):
    """Tensor in a file.

    Attributes:
        name: Name of the tensor.
        shape: Its shape.
        dtype: Name of its dtype, or the file's name of a dtype that NumPy lacks.
        nbytes: Size in bytes.
        blocks: Function that yields its numbers in blocks of one axis; None if the dtype has no statistics.
        statistics: Statistics of its numbers; None if they were not computed, or the dtype has none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    blocks: Callable[[], Iterator[np.ndarray]] | None
    statistics: Statistics | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold."""
        known = self.statistics._asdict() if self.statistics else {}
        found = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}
        return plain({**found, "size": self.size, "bytes": self.nbytes, **known})


def blocks_of(opened: Opened, start: int, count: int, dtype: np.dtype) -> Iterator[np.ndarray]:
    """Yield `count` numbers of a stream, from byte `start` on, in blocks."""
    with opened() as stream:
        stream.seek(start)
        while count:
            some = min(count, BLOCK)
            data = stream.read(some * dtype.itemsize)
            if len(data) < some * dtype.itemsize:
                raise ValueError("it ends before its numbers do")
            yield np.frombuffer(data, dtype)
            count -= some


def _stored(
    name: str, shape: tuple[int, ...], dtype: np.dtype, opened: Opened, start: int
) -> Tensor:
    count = math.prod(shape)
    blocks = partial(blocks_of, opened, start, count, dtype) if has_statistics(dtype) else None
    return Tensor(name, shape, dtype.name, count * dtype.itemsize, blocks)


def of_safetensors(path: Path) -> tuple[list[Tensor], dict[str, str]]:
    """Return the tensors of a file, and its metadata.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is damaged.
    """
    try:
        file = TensorFile(path)
    except ValueError as error:
        raise ValueError(f"{path.name} is damaged, or no safetensors file: {in_one_line(error)}") from error
    return [_of_entry(path, name, entry) for name, entry in file.entries.items()], file.metadata


def _of_entry(path: Path, name: str, entry: Entry) -> Tensor:
    if entry.dtype is None:
        return Tensor(name, entry.shape, entry.code, entry.end - entry.start, None)
    return _stored(name, entry.shape, entry.dtype, partial(open_regular, path), entry.start)


def of_npy(path: Path) -> list[Tensor]:
    """Return the array of a file; raise ValueError if it is damaged, or holds objects, which are pickled."""
    return [_of_array(path.stem, partial(open_regular, path), path.stat().st_size)]


def of_npz(path: Path) -> list[Tensor]:
    """Return the arrays of a file; raise ValueError if it is damaged or holds anything but arrays of numbers."""
    with _zip(path) as file:
        members = file.infolist()
    for member in members:
        if not member.filename.endswith(".npy"):
            raise ValueError(f"{member.filename} in it is no array; what is pickled is never read")
    return [
        _of_array(member.filename.removesuffix(".npy"), partial(_member, path, member), member.file_size)
        for member in members
    ]


@contextlib.contextmanager
def _member(path: Path, member: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    with _zip(path) as file, file.open(member) as stream:
        yield stream


@contextlib.contextmanager
def _zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file; raise ValueError for one that Python cannot read, such as an encrypted one."""
    try:
        with open_regular(path) as opened, zipfile.ZipFile(opened) as file:
            yield file
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _of_array(name: str, opened: Opened, size: int) -> Tensor:
    """Return the array in an npy stream of `size` bytes."""
    with opened() as stream:
        head = io.BytesIO(stream.read(_HEADER))  # a damaged header may claim a length of four gigabytes
    shape, dtype = _header(name, head)
    if dtype.hasobject:
        raise ValueError(f"{name} holds objects, which are pickled and never read; it must hold numbers")
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"{name} is of shape {shape}")
    found = _stored(name, shape, dtype, opened, head.tell())
    if found.nbytes > size - head.tell():
        raise ValueError(f"{name} has {found.nbytes:,} bytes by its header, and {size - head.tell():,} in the file")
    return found


def _header(name: str, head: BinaryIO) -> tuple[tuple, np.dtype]:
    """Read the header of an npy stream; return the shape and the dtype."""
    try:
        shape, _, dtype = _NPY_HEADERS[np.lib.format.read_magic(head)](head)
    except Exception as error:  # NumPy evaluates the header as a Python literal, which may raise anything
        raise ValueError(f"{name} has a damaged header, or one of an unknown format: {in_one_line(error)}") from error
    return shape, dtype


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it, with None for nan and infinities."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
