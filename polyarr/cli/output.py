"""Output of the commands: tables, JSON, text, and errors of the standard streams."""

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print columns that are aligned to the left, with two blanks between them."""
    lines = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def escaped(text: str, kept: str = "") -> str:
    """Return a text with unprintable characters, such as terminal escapes, escaped; those in `kept` stay."""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode("ascii") for c in text)


def in_shell(path: Path) -> str:
    """Return a path as a shell takes it, in quotes if it has blanks or other special characters."""
    return shlex.quote(str(path))


def print_text(text: str) -> None:
    """Print a part of a generated text; on a terminal, with its escapes made visible."""
    # color=True: click must not strip escapes from text that does not go to a terminal.
    click.echo(escaped(text, "\n\t") if sys.stdout.isatty() else text, nl=False, color=True)


def print_json(value: Any) -> None:
    """Print a value as JSON; objects that JSON cannot hold become text."""
    click.echo(json.dumps(value, indent=2, default=str))


class _Output:
    """Standard output whose errors name it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _named():
            return self._stream.write(text)

    def flush(self) -> None:
        with _named():
            self._stream.flush()


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Open closed standard streams, as after `2>&-`, as /dev/null in the block; errors of standard output name it.

    Otherwise a file that is opened later could get the number of a closed stream, and text that a driver prints could
    end up in a checkpoint.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _discard(number)
    before = sys.stdout
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")
    stream = before or open(os.devnull, "w", encoding="utf-8")
    sys.stdout = _Output(stream)
    try:
        yield
    finally:
        for left in (stream, sys.stderr):
            flushed(left)
        sys.stdout = before


def print_error(line: str) -> None:
    """Print a line on stderr, if it can be written to."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def flushed(stream: Any) -> OSError | None:
    """Flush a stream; if that fails, drop its buffer, so that Python does not fail at exit, and return the error."""
    try:
        stream.flush()
    except OSError as error:
        _discard(stream.fileno())
        return error
    return None


def _discard(number: int) -> None:
    """Redirect a file descriptor to /dev/null, also for processes that are started later."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(null, number)
        os.close(null)
