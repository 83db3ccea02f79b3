"""A text that is on every machine with Python: the source of the standard library."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

MAX_STANDARD_LIBRARY = 4_000_000  # characters; enough for a small model, read in well under a second
# Folders of tests, of other packages and of tables, which are unlike the library's own code.
_SKIPPED = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "lib2to3",
    "encodings",
    "pydoc_data",
}


def standard_library_text(limit: int = MAX_STANDARD_LIBRARY) -> str:
    """Return the source of the running Python's standard library as one text.

    Files are in the order of their names, packages after modules, with a blank line between them. Files with characters
    outside ASCII are left out, so that rare characters do not fill the vocabulary.

    Args:
        limit: Largest number of characters.

    Raises:
        OSError: This Python has no sources.

    Examples:
        >>> from polyarr.text import standard_library_text
        >>> len(standard_library_text(limit=100))
        100
    """
    parts, length = [], 0
    for path in _standard_library_files():
        text = _ascii(path)
        if text:
            parts.append(text)
            length += len(text) + 1
        if length >= limit:
            break
    if not parts:
        raise OSError(f"no Python source in {sysconfig.get_path('stdlib')}; give a text with --data FILE")
    return "\n".join(parts)[:limit]


def _standard_library_files() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    found = [path.relative_to(root) for path in root.rglob("*.py")]
    own = [path for path in found if not _SKIPPED.intersection(path.parts[:-1])]
    return (root / path for path in sorted(own, key=lambda path: (len(path.parts) > 1, path.as_posix())))


def _ascii(path: Path) -> str:
    """Return a file's text, or "" if it is not plain ASCII: printable characters, tabs and line ends."""
    try:
        text = path.read_bytes().decode("ascii").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError):
        return ""
    return text if text.replace("\n", "").replace("\t", "").isprintable() else ""
