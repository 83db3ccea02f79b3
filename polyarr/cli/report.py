"""`polyarr report`: write a report of a run as one HTML page."""

from pathlib import Path

import click

from polyarr.cli.values import FileName
from polyarr.files import read_regular
from polyarr.training.report import write_report

_MAX_SAMPLE = 2**24  # bytes of a sample text


@click.command()
@click.argument("folder", metavar="DIR", type=FileName())
@click.option("--sample", "samples", type=FileName(dir_okay=False), multiple=True,
              help="File with a generated text to show; may be repeated.")  # fmt: skip
def command(folder: Path, samples: tuple[Path, ...]) -> None:
    """Write report.html into the folder of a run: curves, evaluations, profile, recipe, environment.

    The page is self-contained: it needs no network and no other file. A run may be reported while it is training.
    """
    texts = [read_regular(path, _MAX_SAMPLE).decode("utf-8", "replace") for path in samples]
    click.echo(f"written: {write_report(folder, texts)}")
