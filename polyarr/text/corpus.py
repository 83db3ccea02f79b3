"""Corpora: the tokens of texts, split into training and validation, in memory or on disk."""

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from polyarr.files import HeldFile
from polyarr.text.characters import CharTokenizer, UnknownCharacterError
from polyarr.text.records import are_records, encoded_records
from polyarr.text.sources import FIELD, pieces_of, read_pieces
from polyarr.text.tokenizer import Tokenizer
from polyarr.text.tokens import PackedRecords, Records, TokenFile, Tokens

VALIDATION = 0.1
_BATCH = 2**20  # characters that are encoded at once, on all cores
_MAX_WORD = 32  # characters of a word before a cut
_WORD = re.compile(r"[^\W\d_]+\Z")  # the letters at the end of a text
_SMALL = 2**16  # size of the largest vocabulary that fits uint16
_BETWEEN = b"\xff"  # separator of texts in a digest; UTF-8 has no such byte
Pieces = Iterable[str | None]  # pieces of texts, with None after each text, as read_pieces yields them


@dataclass(frozen=True)
class Corpus:
    """Tokens of texts, split into a part for training and a part for validation.

    From records, such as conversations, they are Records, of which the last tenth is for validation.

    Around each text are the special tokens that the tokenizer puts before one, such as <s>, and its token for the end
    of a text, if it has these. The last tenth of all tokens is for validation; it begins with a text if one begins soon
    enough.

    Attributes:
        tokenizer: The tokenizer.
        train: Tokens for training: a NumPy array, a TokenFile on disk, or Records.
        validation: Tokens for validation, likewise.
        digest: Identity of the corpus: SHA-256 of the texts, of special tokens before them, and of the split unless it
            is the default.

    Examples:
        >>> from polyarr.text import Corpus
        >>> corpus = Corpus.of_text("to be or not to be")
        >>> len(corpus.train), len(corpus.validation), corpus.tokenizer.vocab_size
        (16, 2, 7)
    """

    tokenizer: Tokenizer
    train: Tokens
    validation: Tokens
    digest: str

    @classmethod
    def of_text(cls, text: str, tokenizer: Tokenizer | None = None) -> Self:
        """Return the corpus of one text, in memory.

        Args:
            text: The text.
            tokenizer: The tokenizer; None: one token per character.

        Raises:
            ValueError: The text is empty, or has characters that the tokenizer does not know.
        """
        if not text:
            raise ValueError("the text is empty; there must be at least one character")
        tokenizer = tokenizer or CharTokenizer.from_text(text)
        source = Counted(pieces_of(text), tokenizer)
        tokens = np.concatenate(list(source))
        return cls.split(tokenizer, tokens, source.digest(*tokenizer.begin))

    @classmethod
    def of_files(cls, files: Sequence[Path], tokenizer: Tokenizer | None = None, field: str = FIELD) -> Self:
        """Return the corpus of text files, in a temporary file that is deleted when the process ends.

        Args:
            files: Text files, or JSON lines (.jsonl, .ndjson) with one text or one record per line. Records are kept in
                memory; each has "messages", or a "prompt" and a "completion".
            tokenizer: The tokenizer; None: one token per character, for texts.
            field: Key of the text in JSON lines.

        Raises:
            OSError: A file cannot be read, or the temporary file cannot be written.
            ValueError: A file is empty, not UTF-8 or not JSON lines with this field, or has unknown characters, or a
                record is not valid.
        """
        source = counted(files, tokenizer, field)
        tokenizer = source.tokenizer
        if isinstance(source, CountedRecords):
            tokens = np.concatenate(list(source))
            at = first_held_out(tokens, VALIDATION)
            return cls.parted(tokenizer, tokens, source.digest(), at, are_records=True)
        with naming_file(files, field), _unnamed_file() as file:
            for part in source:
                file.write(part.data)
            file.flush()
            held = HeldFile(tempfile.gettempdir(), open(os.dup(file.fileno()), "rb"))
            found = TokenFile(held, dtype_for(tokenizer), tokenizer.vocab_size)
            return cls.split(tokenizer, found, source.digest(*tokenizer.begin))

    @classmethod
    def split(
        cls, tokenizer: Tokenizer, tokens: np.ndarray | TokenFile, digest: str, validation: float = VALIDATION
    ) -> Self:
        """Return a corpus whose last tokens, a share `validation` of all, are for validation."""
        return cls.parted(tokenizer, tokens, digest, validation_start(tokens, validation, tokenizer.end))

    @classmethod
    def parted(
        cls, tokenizer: Tokenizer, tokens: np.ndarray | TokenFile, digest: str, at: int, are_records: bool = False
    ) -> Self:
        """Return a corpus whose tokens from position `at` on are for validation."""
        if isinstance(tokens, TokenFile):
            parts: Sequence[np.ndarray | TokenFile] = (tokens.part(0, at), tokens.part(at, len(tokens)))
        else:
            parts = (tokens[:at], tokens[at:])
        train, validation = map(Records.of, parts) if are_records else parts
        return cls(tokenizer, train, validation, digest)

    def fitting(self, length: int, packing: bool = False) -> Self:
        """Return the corpus without the records that have nothing to learn in windows of this length.

        Args:
            length: Number of inputs per window.
            packing: Whether several records may share a window, as PackedRecords.

        Raises:
            ValueError: No record is left to train on, or to validate with.
        """
        if not isinstance(self.train, Records) or not isinstance(self.validation, Records):
            return self
        train, validation = self.train.fitting(length), self.validation.fitting(length)
        if not train or not validation:
            raise ValueError(
                f"{len(train)} records to train on and {len(validation)} to validate with have an answer that begins "
                f"in the first {length + 1} tokens; there must be at least 1 of each"
            )
        if packing:
            train, validation = (PackedRecords(records, length) for records in (train, validation))
        return replace(self, train=train, validation=validation)


def validation_start(tokens: np.ndarray | TokenFile, validation: float, end: int | None) -> int:
    """Return the position where validation begins: with a text if one begins in its first tenth, else within a text."""
    at = int(len(tokens) * (1 - validation))
    near = tokens[at : at + (len(tokens) - at) // 10]
    ends = [] if end is None else np.flatnonzero(near == end).tolist()
    return at + ends[0] + 1 if ends else at


def first_held_out(tokens: np.ndarray | TokenFile, validation: float) -> int:
    """Return the position of the first record for validation: the last ones are, a share `validation` of all.

    Raises:
        ValueError: There are fewer than two records.
    """
    starts = Records.of(tokens).starts
    if len(starts) < 2:
        raise ValueError(f"records: there is {len(starts)}; there must be one to train on and one to validate with")
    return int(starts[min(max(int(len(starts) * (1 - validation)), 1), len(starts) - 1)])


@contextlib.contextmanager
def naming_file(files: Sequence[Path], field: str = FIELD) -> Iterator[None]:
    """Context in which an error about unknown characters names the first file that has one of them."""
    try:
        yield
    except UnknownCharacterError as error:
        for path in files:
            if any(c in (piece or "") for piece in read_pieces([path], field) for c in error.characters):
                raise ValueError(f"{path}: {error}") from None
        raise


def char_tokenizer_of(pieces: Pieces) -> CharTokenizer:
    """Return the tokenizer of all characters of texts.

    Raises:
        ValueError: There are no characters.
    """
    found: set[str] = set()
    for piece in pieces:
        found.update(piece or "")
    if not found:
        raise ValueError("the texts are empty; there must be at least one character")
    return CharTokenizer(found)


class Counted:
    """Iterator over the tokens of texts that counts texts and bytes, and computes the texts' digest, as it goes."""

    def __init__(self, pieces: Pieces, tokenizer: Tokenizer, progress: Callable[[int], Any] | None = None) -> None:
        self.texts, self.bytes, self.tokenizer = 0, 0, tokenizer
        self._pieces, self._progress, self._hash = pieces, progress or (lambda _: None), hashlib.sha256()

    def __iter__(self) -> Iterator[np.ndarray]:
        return encoded(self._counted(), self.tokenizer)

    def _counted(self) -> Iterator[str | None]:
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
        """Return SHA-256 of what was read so far and of further values."""
        found = self._hash.copy()
        for value in further:
            found.update(_BETWEEN + _BETWEEN + repr(value).encode())
        return found.hexdigest()


class CountedRecords(Counted):
    """Iterator over the tokens of records that counts records and bytes, and computes the digest of the tokens.

    Raises:
        ValueError: There is no tokenizer: the characters that occur in records are no vocabulary.
    """

    def __init__(
        self, files: Sequence[Path], tokenizer: Tokenizer | None, progress: Callable[[int], Any] | None = None
    ) -> None:
        if tokenizer is None:
            due = "they need the tokenizer of a model (--from), or --tokenizer FILE or byte"
            raise ValueError(f"{files[0]}: it has records; {due}")
        super().__init__((), tokenizer, progress)
        self._files = files

    def __iter__(self) -> Iterator[np.ndarray]:
        for tokens, size in encoded_records(self._files, self.tokenizer):
            self._hash.update(tokens.data)
            self.texts, self.bytes = self.texts + 1, self.bytes + size
            self._progress(size)
            yield tokens


def counted(
    files: Sequence[Path], tokenizer: Tokenizer | None, field: str, progress: Callable[[int], Any] | None = None
) -> Counted:
    """Return the tokens of text files or of records; arguments and errors are those of Corpus.of_files."""
    if are_records(files, field):
        return CountedRecords(files, tokenizer, progress)
    tokenizer = tokenizer or char_tokenizer_of(read_pieces(files, field))
    return Counted(read_pieces(files, field), tokenizer, progress)


def encoded(pieces: Pieces, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Yield the tokens of texts, with special tokens around each, in arrays of the dtype for this tokenizer."""
    dtype, is_begun = dtype_for(tokenizer), False
    begin = np.array(tokenizer.begin, dtype)
    end = np.array([] if tokenizer.end is None else [tokenizer.end], dtype)
    last = ""
    for batch in _batches(pieces):
        texts, words = [piece for piece in batch if piece is not None], []
        for before, piece in zip([last if is_begun else None, *batch], batch, strict=False):
            words += [] if piece is None else [_last_word(before or "", piece)]
        last = batch[-1] or ""
        found = iter(_encoded_after(words, texts, tokenizer))
        parts = []
        for piece in batch:
            parts += [] if is_begun else [begin]
            parts += [end if piece is None else next(found).astype(dtype)]
            is_begun = piece is not None
        yield np.concatenate(parts)


def _last_word(before: str, piece: str) -> str:
    """Return the word that ends at a cut before a blank or a line end; "" for any other cut."""
    found = _WORD.search(before[-_MAX_WORD:]) if piece[:1] in (" ", "\n") else None
    return found[0] if found else ""


def _encoded_after(words: list[str], texts: list[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """Return the tokens of texts that follow words, without the words': many tokenizers begin a text with a blank."""
    together = [word + text for word, text in zip(words, texts, strict=True)]
    found = tokenizer.encode_batch(together, add_special_tokens=False)
    after = [at for at, word in enumerate(words) if word]
    heads = tokenizer.encode_batch([words[at] for at in after], add_special_tokens=False) if after else []
    for at, head in zip(after, heads, strict=True):
        if np.array_equal(found[at][: len(head)], head):
            found[at] = found[at][len(head) :]
        else:  # a token contains the end of the word and the beginning of the text
            found[at] = tokenizer.encode(texts[at], add_special_tokens=False)
    return found


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
    """Return the smaller of uint16 and uint32 that holds all tokens, little-endian."""
    return np.dtype("<u2" if tokenizer.vocab_size <= _SMALL else "<u4")


@contextlib.contextmanager
def _unnamed_file() -> Iterator[BinaryIO]:
    """Open a temporary file; OSErrors without a file name, such as of a full disk, get the name of its folder."""
    try:
        with tempfile.TemporaryFile() as file:
            yield file
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from error
        raise
