"""What a run reports while it trains: rows of numbers, each a line of metrics.jsonl in its folder."""

import contextlib
import json
from pathlib import Path
from typing import Any

from polyarr.saving import write_whole
from polyarr.training.files import METRICS

Row = dict[str, Any]
_MOST_STEPS = 10**12
_LARGEST = 1e300


class MetricsFile:
    """The rows of a run, one JSON line each, beside its checkpoints.

    A run that goes on keeps the lines up to its step: those of steps that a killed process did and did not save come
    again, and the half a line that it may have left is no line. Lines of a run that a new one replaces stay until that
    is saved, for until then the other one can be resumed.

    Errors:  OSError if the file cannot be read or written
    """

    def __init__(self, folder: Path, run: str, step: int) -> None:
        self._path, self._run = folder / METRICS, run
        self._has_others = False
        self._keep(lambda row: row["step"] <= step if row["run"] == run else not step)

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # of a line that was refused before
            self._file.close()

    def write(self, row: Row) -> None:
        """Add a row at the end, at once."""
        try:
            self._file.write(json.dumps({"run": self._run} | row, allow_nan=False).encode() + b"\n")
            self._file.flush()  # a whole line, for whoever reads it now
        except OSError as error:  # which names no file
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def saved(self) -> None:
        """The run has a checkpoint: the lines of others go."""
        if self._has_others:
            self._file.close()
            self._keep(lambda row: row["run"] == self._run)

    def _keep(self, wanted: Any) -> None:
        before = self._path.read_bytes() if self._path.is_file() else b""
        rows = [(line, row) for line in before.split(b"\n") if (row := parsed(line)) and wanted(row)]
        self._has_others = any(row["run"] != self._run for _, row in rows)
        kept = b"".join(line + b"\n" for line, _ in rows)
        if kept != before:
            write_whole(self._path, kept)
        self._file = self._path.open("ab")


def parsed(line: bytes) -> Row | None:
    """The row of a line; None for what is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_row = isinstance(row, dict) and isinstance(row.get("run"), str) and type(row.get("step")) is int
    return row if is_row and 0 <= row["step"] <= _MOST_STEPS else None


def read_metrics(folder: str | Path, run: str | None = None) -> list[Row]:
    """The rows of a run's metrics.jsonl, in their order, without what is damaged; empty if there is no such file.

    run  the id of the run whose rows are wanted; None: all of them

    Errors:  OSError if the file cannot be read
    """
    path = Path(folder) / METRICS
    found = map(parsed, path.read_bytes().split(b"\n")) if path.is_file() else ()
    return [row for row in found if row and run in (None, row["run"])]


def numbers(rows: list[Row], name: str) -> list[tuple[int, float]]:
    """(step, value) of the rows that have a finite number of a name."""
    found = [(row["step"], row.get(name)) for row in rows]
    return [(step, v) for step, v in found if type(v) in (int, float) and abs(v) < _LARGEST]
