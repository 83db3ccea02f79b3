"""Corpora: the tokens of texts, split in two, in memory or on the disk."""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from polyarr.text.characters import CharTokenizer
from polyarr.text.sources import FIELD, pieces_of, read_pieces
from polyarr.text.tokenizer import Tokenizer

VALIDATION = 0.1
_BATCH = 2**20  # characters that are encoded at once, by all cores
_SMALL = 2**16  # tokens that uint16 can count
_BETWEEN = b"\xff"  # what a digest has between texts; UTF-8 has no such byte
Pieces = Iterable[str | None]  # as read_pieces gives them


@dataclass(frozen=True)
class Corpus:
    """The tokens of texts: what a model is trained on, and then the part that tells how well it has learned.

    Each text is followed by the tokenizer's token for its end, if that has one. The last tenth of all tokens is for
    validation, from where a text begins if one begins soon enough.

    digest  what tells it from others: SHA-256 of the texts, and of how they are split unless that is the usual way
    """

    tokenizer: Tokenizer
    train: np.ndarray
    validation: np.ndarray
    digest: str

    @classmethod
    def of_text(cls, text: str, tokenizer: Tokenizer | None = None) -> Self:
        """The corpus of one text, in memory. Without a tokenizer, tokens are its characters.

        Errors:  ValueError for an empty text, or one with characters that the tokenizer does not know
        """
        tokenizer = tokenizer or CharTokenizer.from_text(text)
        counted = Counted(pieces_of(text))
        return cls.split(tokenizer, np.concatenate(list(encoded(counted, tokenizer))), counted.digest())

    @classmethod
    def of_files(cls, files: Sequence[Path], tokenizer: Tokenizer | None = None, field: str = FIELD) -> Self:
        """The corpus of files, in a file that the system removes when the process ends.

        Errors:  as read_pieces and of_text
        """
        tokenizer = tokenizer or characters_of(read_pieces(files, field))
        counted = Counted(read_pieces(files, field))
        with _unnamed_file() as file:
            for part in encoded(counted, tokenizer):
                file.write(part.data)
            return cls.split(tokenizer, mapped(file, dtype_for(tokenizer)), counted.digest())

    @classmethod
    def split(cls, tokenizer: Tokenizer, tokens: np.ndarray, digest: str, validation: float = VALIDATION) -> Self:
        """Tokens with the last part of them for validation."""
        at = beginning(tokens, validation, tokenizer.end)
        return cls(tokenizer, tokens[:at], tokens[at:], digest)


def beginning(tokens: np.ndarray, validation: float, end: int | None) -> int:
    """Where validation begins: with a text, if one begins in the first tenth of it; else in the middle of one."""
    at = int(len(tokens) * (1 - validation))
    near = tokens[at : at + (len(tokens) - at) // 10]
    ends = np.flatnonzero(near == end) if end is not None else ()
    return at + int(ends[0]) + 1 if len(ends) else at


def characters_of(pieces: Pieces) -> CharTokenizer:
    """The tokenizer of all characters of texts.

    Errors:  ValueError if there are none
    """
    found: set[str] = set()
    for piece in pieces:
        found.update(piece or "")
    return CharTokenizer(found)


class Counted:
    """Pieces of texts that are counted, and digested, while they are read."""

    def __init__(self, pieces: Pieces, progress: Callable[[int], Any] | None = None) -> None:
        self.texts = self.bytes = 0
        self._pieces, self._progress, self._hash = pieces, progress or (lambda _: None), hashlib.sha256()

    def __iter__(self) -> Iterator[str | None]:
        begun = False
        for piece in self._pieces:
            if piece is None:
                self.texts, begun = self.texts + 1, False
            else:
                data = piece.encode()
                self._hash.update(data if begun or not self.texts else _BETWEEN + data)
                self.bytes, begun = self.bytes + len(data), True
                self._progress(len(data))
            yield piece

    def digest(self, *further: Any) -> str:
        """SHA-256 of the texts, and of further values."""
        found = self._hash.copy()
        for value in further:
            found.update(_BETWEEN + _BETWEEN + repr(value).encode())
        return found.hexdigest()


def encoded(pieces: Pieces, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The tokens of texts, and the one for an end after each, in parts of the dtype for them."""
    dtype = dtype_for(tokenizer)
    end = np.array([] if tokenizer.end is None else [tokenizer.end], dtype)
    for batch in _batches(pieces):
        found = iter(tokenizer.encode_batch([piece for piece in batch if piece is not None]))
        yield np.concatenate([end if piece is None else next(found).astype(dtype) for piece in batch])


def _batches(pieces: Pieces) -> Iterator[list[str | None]]:
    batch: list[str | None] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece or "") + 1
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def dtype_for(tokenizer: Tokenizer) -> np.dtype:
    """The smaller of uint16 and uint32 that holds all tokens, little-endian."""
    return np.dtype("<u2" if tokenizer.vocab_size <= _SMALL else "<u4")


@contextlib.contextmanager
def _unnamed_file() -> Iterator[BinaryIO]:
    """A temporary file; an error of its own, as of a full disk, names the folder that it is in."""
    try:
        with tempfile.TemporaryFile() as file:
            yield file
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from error
        raise


def mapped(file: BinaryIO | Path, dtype: np.dtype) -> np.ndarray:
    """The tokens in a file, which stay there until they are asked for."""
    size = file.stat().st_size if isinstance(file, Path) else file.seek(0, 2)
    return np.memmap(file, dtype, "r") if size else np.empty(0, dtype)
