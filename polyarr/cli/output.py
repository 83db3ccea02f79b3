"""How the commands print: a table for people, JSON for programs."""

import contextlib
import json
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


@contextlib.contextmanager
def no_plugin_warnings() -> Iterator[None]:
    """For commands that show every failure themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        yield


def print_json(value: Any) -> None:
    """A value as JSON; what JSON has no form for is printed as text."""
    click.echo(json.dumps(value, indent=2, default=str))
