"""`polyarr new-backend`: write a package with a backend to start from."""

import re
from pathlib import Path

import click

from polyarr.cli.backend_template import FILES
from polyarr.cli.values import FileName
from polyarr.plugins.loading import BUILT_IN

NAME = re.compile("[a-z][a-z0-9_]*")  # it is a part of a module's name


@click.command()
@click.argument("name")
@click.option("--out", type=FileName(), metavar="FOLDER", help="[default: polyarr-NAME]")
def command(name: str, out: Path | None) -> None:
    """Write a package with the backend NAME, which computes with NumPy until you replace it.

    The package has an entry point, tests that run the conformance kit, and a CI workflow.
    """
    if not NAME.fullmatch(name) or name in BUILT_IN:
        raise click.BadParameter(
            f"NAME is {name!r}; it must match {NAME.pattern} and not be {' or '.join(BUILT_IN)}"
        )
    folder = out or Path(f"polyarr-{name}")
    if folder.exists():
        raise FileExistsError(f"new-backend: {folder} exists; --out must name a folder that does not")
    for file, text in FILES.items():
        path = folder / file.replace("mine", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("mine", name), encoding="utf-8")
    click.echo(f"wrote {folder}; go on there: pip install -e '.[test]' && polyarr doctor && pytest -n auto")
