"""Text files, read in pieces, because a corpus may be larger than memory."""

import codecs
import errno
import glob
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from polyarr.files import check_regular, open_regular
from polyarr.schema import in_one_line

SUFFIXES = (".txt", ".md", ".jsonl", ".ndjson")  # files that are read in a folder
FIELD = "text"
PIECE = 2**16  # bytes that are read at once; pieces have about as many characters
_MAX_SEARCH = 2**20  # characters that are searched for a good place to cut
_MAX_LINE = 2**28  # bytes of a JSON line
_LINES = (".jsonl", ".ndjson")
_BOM = codecs.BOM_UTF8
T = TypeVar("T")
# A blank or line end between two letters: every byte-level BPE begins a new token there.
_BETWEEN = re.compile(r"(?<=[^\W\d_])[ \n](?=[^\W\d_])")


def find_files(given: Iterable[str | Path]) -> list[Path]:
    """Return the files that paths, folders and patterns stand for, each once.

    Args:
        given: Files, folders, or patterns such as "texts/**/*.py". Of a folder, all files that are not empty and end in
            .txt, .md, .jsonl or .ndjson are taken, at any depth.

    Raises:
        OSError: There is no such file.
        ValueError: A path is not a regular file, or a folder has no such files.
    """
    found: dict[Path, None] = {}
    for path in map(Path, given):
        if path.is_dir():
            files = _in_folder(path)
        elif path.exists() or not glob.has_magic(str(path)):
            check_regular(path)
            files = [path]
        else:
            files = _matching(path)
        if not files:
            raise FileNotFoundError(errno.ENOENT, "no file has such a name", str(path))
        found |= dict.fromkeys(files)
    return list(found)


def _matching(pattern: Path) -> list[Path]:
    """Return the files of a pattern; `**` does not follow links to folders, since a link may lead to its own folder."""
    root = Path(pattern.anchor)
    pattern = pattern / "*" if pattern.name == "**" else pattern
    found = root.glob(str(pattern.relative_to(root)))
    return sorted(path for path in found if path.is_file() and not _is_hidden(path, pattern))


def _is_hidden(path: Path, pattern: Path) -> bool:
    """Return whether a part of a path begins with a dot and the pattern does not name it."""
    return any(part.startswith(".") and part not in pattern.parts for part in path.parts)


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
    """Yield the texts of files in pieces, and None after each text.

    A file is one text in UTF-8, with line ends as \\n. In JSON lines (.jsonl, .ndjson) each line is a text, the value
    of `field`. A long text is cut before a blank or a line end between two letters, where tokens begin anyway, if there
    is one.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is empty, not UTF-8, or not JSON lines with such a field.
    """
    for path in files:
        if is_json_lines(path):
            for text in read_lines(path, partial(_field, field=field)):
                yield from _cut([text])
                yield None
        else:
            yield from _cut(read_chunks(path))
            yield None


def pieces_of(text: str) -> Iterator[str | None]:
    """Yield a text in pieces, and None after it, as `read_pieces` does for files."""
    yield from _cut([text])
    yield None


def read_chunks(path: Path) -> Iterator[str]:
    """Yield the text of a UTF-8 file in pieces, with line ends as \\n.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is empty or not UTF-8.
    """
    decoder, newlines = codecs.getincrementaldecoder("utf-8")(), io.IncrementalNewlineDecoder(None, translate=True)
    with open_regular(path) as file:
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
            at = _cut_position(held) if len(held) >= PIECE else 0
            if at:
                yield held[:at]
            held = held[at:]
    if held:
        yield held


def _cut_position(text: str) -> int:
    """Return the position where to cut a text, or 0 to read more first."""
    for first in (max(len(text) - 1000, 0), 0):
        *_, last = None, *_BETWEEN.finditer(text, first)
        if last:
            return last.start()
    if len(text) < _MAX_SEARCH:
        return 0
    return max(text.rfind("\n"), text.rfind(" "), 0) or len(text)


def is_json_lines(path: Path) -> bool:
    """Return whether a file has JSON lines, by its name."""
    return path.suffix.lower() in _LINES


def read_lines(path: Path, read: Callable[[Any], T]) -> Iterator[T]:
    """Yield the result of `read` for the value in each of a file's JSON lines that is not blank.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is too long or not JSON, or `read` raised one; the error names the line.
    """
    with open_regular(path) as file:
        for number, line in enumerate(iter(partial(file.readline, _MAX_LINE + 1), b""), 1):
            if line.strip():
                try:
                    found = read(_value(line))
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}: line {number}: {in_one_line(error)}") from error
                yield found


def _value(line: bytes) -> Any:
    if len(line) > _MAX_LINE:
        raise ValueError(f"it is longer than {_MAX_LINE:,} bytes")
    return json.loads(line)


def _field(found: Any, field: str) -> str:
    """Return the text in the value of a JSON line."""
    text = found.get(field) if isinstance(found, dict) else None
    if not isinstance(text, str):
        keys = [f"'{name[:30]}'" for name in [*found][:5]] if isinstance(found, dict) else []
        given = f"; it has {', '.join(keys)}" if keys else ""
        records = "a file of conversations has messages, or a prompt and a completion, in each line"
        raise ValueError(f"it must be a JSON object with a text as {field!r}{given}; {records}")
    text.encode()  # raises a ValueError for a lone surrogate
    return text
