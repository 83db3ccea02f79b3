"""How the commands print: a table for people, JSON for programs; and what becomes of streams that take nothing."""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import click

from polyarr.plugins import PluginWarning


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns aligned to the left, two blanks between them."""
    lines = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def shown(text: str, kept: str = "") -> str:
    """A text out of a file, for a terminal: what is not to be seen, such as an escape, as Python writes it.

    kept  characters that stay as they are
    """
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode("ascii") for c in text)


def print_text(text: str) -> None:
    """A part of a text by a model, which must not move a terminal's cursor; elsewhere as it is."""
    # With "color", click leaves a text alone that is not for a terminal.
    click.echo(shown(text, "\n\t") if sys.stdout.isatty() else text, nl=False, color=True)


@contextlib.contextmanager
def no_plugin_warnings() -> Iterator[None]:
    """For commands that show every failure themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        yield


def print_json(value: Any) -> None:
    """A value as JSON; what JSON has no form for is printed as text."""
    click.echo(json.dumps(value, indent=2, default=str))


class _Output:
    """Standard output, whose errors say that they are its own."""

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
    """Inside the block, closed ones, as after `2>&-`, are /dev/null, and errors of standard output name it.

    Who closes them wants to see nothing; and no file that is opened later may get their numbers, lest what a driver
    prints ends up in a checkpoint.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _discard(number)
    before = sys.stdout
    sys.stderr = sys.stderr or open(os.devnull, "w")
    stream = before or open(os.devnull, "w")
    sys.stdout = _Output(stream)
    try:
        yield
    finally:
        for left in (stream, sys.stderr):
            flushed(left)
        sys.stdout = before


def complain(line: str) -> None:
    """A line on stderr, if anything can be written there."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def flushed(stream: Any) -> OSError | None:
    """Write what a stream still holds. If that fails, the error; what it holds is dropped, lest Python fail as well."""
    try:
        stream.flush()
    except OSError as error:
        _discard(stream.fileno())
        return error
    return None


def _discard(number: int) -> None:
    """Make a file descriptor one of /dev/null, also for processes that are started later."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(null, number)
        os.close(null)
