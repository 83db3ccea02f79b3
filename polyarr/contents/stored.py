"""The tensors in files, read a block at a time: safetensors, npy and npz. Nothing is ever unpickled."""

import contextlib
import io
import json
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from polyarr.contents.statistics import has_statistics
from polyarr.extras import extra
from polyarr.saving import CODES
from polyarr.schema import in_one_line

BLOCK = 2**20  # numbers in memory at once
_CODES = CODES | {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
_HEADER = 2**14  # bytes in which an npy header ends; NumPy reads none of more than 10,000
_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # its names of fields are UTF-8; fields are not looked at
}
# What the libraries raise for damaged files while they are read, beside ValueError and OSError.
DAMAGES = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError)


class Stored(NamedTuple):
    """A tensor in a file.

    dtype   the dtype's name, or what a file calls one that there is not in NumPy
    blocks  gives its numbers, a block of one axis at a time; None for what has no statistics
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    blocks: Callable[[], Iterator[np.ndarray]] | None


def blocks_of(opened: Callable[[], BinaryIO], start: int, count: int, dtype: np.dtype) -> Iterator[np.ndarray]:
    """So many numbers of a stream, from a byte on."""
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
    name: str, shape: tuple[int, ...], dtype: np.dtype, opened: Callable[[], BinaryIO], start: int
) -> Stored:
    count = math.prod(shape)
    blocks = partial(blocks_of, opened, start, count, dtype) if has_statistics(dtype) else None
    return Stored(name, shape, dtype.name, count * dtype.itemsize, blocks)


# ---- safetensors -------------------------------------------------------------------------------------------------


def of_safetensors(path: Path) -> tuple[list[Stored], dict[str, str]]:
    """The tensors of a file, and its metadata.

    Errors:  OSError if it cannot be read; ValueError if it is damaged
    """
    try:
        with extra("safetensors").safe_open(path, framework="numpy") as file:  # which checks the header
            metadata = file.metadata() or {}
    except (extra("safetensors").SafetensorError, OSError) as error:
        raise ValueError(f"{path.name} is damaged, or no safetensors file: {in_one_line(error)}") from error
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return [_of_part(path, 8 + length, name, part) for name, part in header.items()], metadata


def _of_part(path: Path, start: int, name: str, part: dict) -> Stored:
    shape, (begin, end) = tuple(part["shape"]), part["data_offsets"]
    if part["dtype"] not in _CODES:
        return Stored(name, shape, part["dtype"], end - begin, None)
    return _stored(name, shape, np.dtype(_CODES[part["dtype"]]), partial(open, path, "rb"), start + begin)


# ---- npy and npz -------------------------------------------------------------------------------------------------


def of_npy(path: Path) -> list[Stored]:
    """The one array of a file; ValueError for objects, which are pickled, and for what is damaged."""
    return [_of_array(path.stem, partial(open, path, "rb"), path.stat().st_size)]


def of_npz(path: Path) -> list[Stored]:
    """The arrays of a file; ValueError for objects, which are pickled, and for what is damaged or no array."""
    with _zip(path) as file:
        members = file.infolist()
    for member in members:
        if not member.filename.endswith(".npy"):
            raise ValueError(f"{member.filename} in it is no array; what is pickled is never read")
    return [
        _of_array(member.filename.removesuffix(".npy"), partial(_member, path, member), member.file_size)
        for member in members
    ]


def _member(path: Path, member: zipfile.ZipInfo) -> BinaryIO:
    with _zip(path) as file:  # which a stream of it keeps open
        return file.open(member)


@contextlib.contextmanager
def _zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip file; ValueError for what Python does not read, such as one that is encrypted."""
    try:
        with zipfile.ZipFile(path) as file:
            yield file
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _of_array(name: str, opened: Callable[[], BinaryIO], size: int) -> Stored:
    """The array that an npy stream of so many bytes holds."""
    with opened() as stream:
        head = io.BytesIO(stream.read(_HEADER))  # no more: a header may say that it is of four gigabytes
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
    """The shape and the dtype by the header of an npy stream, of which it is read."""
    try:
        shape, _, dtype = _NPY_HEADERS[np.lib.format.read_magic(head)](head)
    except Exception as error:  # NumPy evaluates a literal of Python, and lets all errors of it through
        raise ValueError(f"{name} has a damaged header, or one of an unknown format: {in_one_line(error)}") from error
    return shape, dtype
