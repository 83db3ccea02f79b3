"""Metrics of a run: rows of numbers, each a line of metrics.jsonl in its folder."""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyarr.atomic import write_whole
from polyarr.files import append_to, open_regular, read_regular
from polyarr.training.files import METRICS

Row = dict[str, Any]
_MAX_STEPS = 10**12
_MAX_NUMBER = 1e300
MAX_METRICS = 2**28  # bytes, enough for about ten million steps; reading them takes seconds


class MetricsFile:
    """File of the rows of a run, one JSON line each, beside its checkpoints.

    A resumed run keeps the lines up to its step; steps that a killed process did but did not save are written again,
    and a partial last line is dropped. Lines of a run that a new one replaces stay until the new one has a checkpoint,
    because the old one can be resumed until then.

    Raises:
        OSError: The file cannot be read or written.
        ValueError: The file is not regular, or larger than MAX_METRICS.
    """

    def __init__(self, folder: Path, run: str, step: int) -> None:
        self._path, self._run = folder / METRICS, run
        self._has_others = False
        self._keep(lambda row: row["step"] <= step if row["run"] == run else not step)

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # closing tries again to write a line that could not be written
            self._file.close()

    def write(self, row: Row) -> None:
        """Append a row, and flush it."""
        try:
            self._file.write(json.dumps({"run": self._run} | row, allow_nan=False).encode() + b"\n")
            self._file.flush()  # programs that follow the file see whole lines
        except OSError as error:  # the error has no file name
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def saved(self) -> None:
        """Drop the lines of other runs, now that this run has a checkpoint."""
        if self._has_others:
            self._file.close()
            self._keep(lambda row: row["run"] == self._run)

    def _keep(self, wanted: Any) -> None:
        before = read_regular(self._path, MAX_METRICS) if os.path.lexists(self._path) else b""
        kept, self._has_others = [], False
        for line in before.split(b"\n"):
            if (row := parsed(line)) and wanted(row):
                kept.append(line + b"\n")
                self._has_others |= row["run"] != self._run
        if (text := b"".join(kept)) != before:
            write_whole(self._path, text)
        self._file = append_to(self._path)


def parsed(line: bytes) -> Row | None:
    """Return the row of a line, or None if the line is not a row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_row = isinstance(row, dict) and isinstance(row.get("run"), str) and type(row.get("step")) is int
    return row if is_row and 0 <= row["step"] <= _MAX_STEPS else None


def read_metrics(folder: str | Path, run: str | None = None) -> list[Row]:
    """Return the rows of metrics.jsonl in the folder of a run, in their order, without damaged lines.

    Args:
        folder: The folder. Without a metrics.jsonl there are no rows; of one larger than 2^28 bytes only its end is
            read.
        run: Id of the run whose rows are wanted; None: all rows.

    Returns:
        Dicts with "run", "step" and the metrics.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not regular.

    Examples:
        >>> from polyarr.training import read_metrics
        >>> read_metrics("no-such-folder")
        []
    """
    path = Path(folder) / METRICS
    if not os.path.lexists(path):
        return []
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - MAX_METRICS, 0))
        found = map(parsed, file.read(min(size, MAX_METRICS)).split(b"\n"))
    return [row for row in found if row and run in (None, row["run"])]


def numbers(rows: Sequence[Row], name: str) -> list[tuple[int, float]]:
    """Return (step, value) of the rows in which the metric `name` is a finite number."""
    found: list[tuple[int, Any]] = [(row["step"], row.get(name)) for row in rows]
    return [(step, v) for step, v in found if type(v) in (int, float) and abs(v) < _MAX_NUMBER]
