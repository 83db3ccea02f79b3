"""Runs without their pictures, for tests that train often: drawing the curves takes as long as a short run."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from polyarr.training import loop
from polyarr.training.plot import save_curves


@pytest.fixture(autouse=True, scope="module")
def one_picture() -> Iterator[None]:
    """Draw the curves of a file's first run only; the other runs get its picture."""
    drawn: list[bytes] = []

    def save(path: Path, *curves: object) -> None:
        if drawn:
            path.write_bytes(drawn[0])
        else:
            save_curves(path, *curves)
            drawn.append(path.read_bytes())

    with mock.patch.object(loop, "save_curves", save):
        yield
