"""Texts in files, read piece by piece: a corpus may be larger than the memory."""

import codecs
import errno
import glob
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from polyarr.schema import in_one_line
from polyarr.text.files import check_regular

SUFFIXES = (".txt", ".md", ".jsonl", ".ndjson")  # what is taken of a folder
FIELD = "text"
PIECE = 2**16  # bytes that are read at once; pieces have about as many characters
_LONGEST = 2**20  # characters in which a good place for a cut is looked for
_LINES = (".jsonl", ".ndjson")
_BOM = codecs.BOM_UTF8
# Between two letters: before such a blank or line end, whichever it is, every byte-level BPE begins a new token.
_BETWEEN = re.compile(r"(?<=[^\W\d_])[ \n](?=[^\W\d_])")


def find_files(given: Iterable[str | Path]) -> list[Path]:
    """The files that paths, folders and patterns stand for, each once; in a folder those of SUFFIXES with content.

    Errors:  OSError if there is none; ValueError if it is no regular file, or a folder without such files
    """
    found: dict[Path, None] = {}
    for path in map(Path, given):
        if path.is_dir():
            files = _in_folder(path)
        elif path.exists() or not glob.has_magic(str(path)):
            check_regular(path)
            files = [path]
        else:
            files = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if os.path.isfile(name)]
        if not files:
            raise FileNotFoundError(errno.ENOENT, "no file has such a name", str(path))
        found |= dict.fromkeys(files)
    return list(found)


def _in_folder(folder: Path) -> list[Path]:
    files = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES and path.is_file())
    shown = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    found = [path for path in shown if path.stat().st_size]
    if not found:
        raise ValueError(
            f"{folder}: no file in this folder ends in {', '.join(SUFFIXES)}; for others give a pattern such as '*.py'"
        )
    return found


def read_pieces(files: Sequence[Path], field: str = FIELD) -> Iterator[str | None]:
    """The texts of files in pieces, and None after each text.

    A file is one text, in UTF-8; line ends become \\n. In JSON lines, which end in .jsonl, each line is one: its field.
    A long text is cut before a blank or a line end between two letters, where tokens begin anyway, if there is one.

    Errors:  OSError if one cannot be read; ValueError if one is empty, not UTF-8, or no JSON lines with such a field
    """
    for path in files:
        if path.suffix.lower() in _LINES:
            for text in _lines(path, field):
                yield from _cut([text])
                yield None
        else:
            yield from _cut(read_chunks(path))
            yield None


def pieces_of(text: str) -> Iterator[str | None]:
    """A text as read_pieces gives those of files."""
    yield from _cut([text])
    yield None


def read_chunks(path: Path) -> Iterator[str]:
    """The text of a UTF-8 file in parts; line ends become \\n.

    Errors:  as read_pieces
    """
    check_regular(path)
    decoder, newlines = codecs.getincrementaldecoder("utf-8")(), io.IncrementalNewlineDecoder(None, translate=True)
    with open(path, "rb") as file:
        done = len(_BOM) if file.peek(len(_BOM)).startswith(_BOM) else 0
        file.seek(done)
        data = file.read(PIECE)
        if not data and not done:
            raise ValueError(f"{path}: the file is empty")
        while data:
            yield newlines.decode(_decoded(path, decoder, data, done))
            done += len(data)
            data = file.read(PIECE)
        yield newlines.decode(_decoded(path, decoder, b"", done), final=True)


def _decoded(path: Path, decoder: codecs.IncrementalDecoder, data: bytes, done: int) -> str:
    pending = len(decoder.getstate()[0])
    try:
        return decoder.decode(data, final=not data)
    except UnicodeDecodeError as error:
        at = done - pending + error.start
        raise ValueError(f"{path}: not UTF-8, byte {error.object[error.start]:#04x} at position {at}") from error


def _cut(chunks: Iterable[str]) -> Iterator[str]:
    held = ""
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE):
            held += chunk[start : start + PIECE]
            at = _last_place(held) if len(held) >= PIECE else 0
            if at:
                yield held[:at]
            held = held[at:]
    if held:
        yield held


def _last_place(text: str) -> int:
    """Where to cut a text; 0: it may grow."""
    for first in (max(len(text) - 1000, 0), 0):
        *_, last = None, *_BETWEEN.finditer(text, first)
        if last:
            return last.start()
    if len(text) < _LONGEST:
        return 0
    return max(text.rfind("\n"), text.rfind(" "), 0) or len(text)


def _lines(path: Path, field: str) -> Iterator[str]:
    check_regular(path)
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield _field(line, field)
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}: line {number}: {in_one_line(error)}") from error


def _field(line: bytes, field: str) -> str:
    """The text in a line, which any file could hold."""
    found = json.loads(line)
    text = found.get(field) if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"it must be a JSON object with a text as {field!r}")
    text.encode()  # half a surrogate pair is a ValueError
    return text
