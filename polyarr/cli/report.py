"""`polyarr report`: a run as one page of HTML."""

from pathlib import Path

import click

from polyarr.training.report import write_report


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--sample", "samples", type=click.Path(dir_okay=False, path_type=Path), multiple=True,
              help="A file with a text that the model wrote, to be shown; may be repeated.")  # fmt: skip
def command(folder: Path, samples: tuple[Path, ...]) -> None:
    """Write report.html into the folder of a run: curves, evaluations, recipe, environment.

    The page needs nothing besides itself: no network, no other file. A run that is still going on may be reported, too.
    """
    texts = [path.read_text("utf-8", "replace") for path in samples]
    click.echo(f"written: {write_report(folder, texts)}")
