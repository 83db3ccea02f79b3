"""Types of the values of options."""

import os
from pathlib import Path
from typing import Any

import click


class FileName(click.Path):
    """Name of a file or folder, as a Path; an empty one is refused, which would be the current folder."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Return the Path of a name."""
        if value == "":
            self.fail("the name is empty; . is the current folder", param, ctx)
        return super().convert(value, param, ctx)
