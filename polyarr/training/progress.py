"""Progress of a run on standard error: a bar on a terminal, plain lines elsewhere, or nothing."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from polyarr.extras import extra
from polyarr.training.metrics import Row

LINE_SECONDS = 10.0  # seconds between lines


class Bar:
    """Progress bar for a terminal."""

    def __init__(self, steps: int, first: int) -> None:
        stream = _IgnoringErrors(sys.stderr)
        self._bar = extra("tqdm").tqdm(total=steps, initial=first, unit="step", mininterval=0.2, file=stream)

    def show(self, row: Row) -> None:
        """Move the bar."""
        self._bar.set_postfix_str(", ".join(facts(row)), refresh=False)
        self._bar.update(row["step"] - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


class Lines:
    """Progress as a line every LINE_SECONDS seconds, without cursor movements, for files."""

    def __init__(self, steps: int, first: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._first, self._clock = steps, first, clock
        self._began = self._shown = clock()

    def show(self, row: Row) -> None:
        """Print a line if the last one is old enough."""
        now = self._clock()
        if now - self._shown < LINE_SECONDS:
            return
        self._shown, done = now, row["step"] - self._first
        left = (now - self._began) / done * (self._steps - row["step"]) if done else 0.0
        with contextlib.suppress(OSError):
            text = "  ".join((f"step {row['step']:>5}/{self._steps}", *facts(row), f"{format_seconds(left)} left"))
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing."""


def progress_of(steps: int, first: int) -> Bar | Lines:
    """Return what shows the progress of a run and suits standard error."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return (Bar if is_terminal else Lines)(steps, first)


def facts(row: Row) -> list[str]:
    """Return the metrics of a row as texts for people."""
    found = [f"loss {row['loss']:.3f}", f"{row['tokens_per_second']:,.0f} tokens/s"]
    tflops, share = row["tflops"], row.get("of_peak")
    work = f"{tflops:.3g} TFLOP/s" if tflops >= 0.1 else f"{1000 * tflops:.3g} GFLOP/s"
    found.append(f"{work} ({share:.{0 if share >= 0.01 else 1}%} of peak)" if share else work)
    if row.get("memory"):
        found.append(f"{format_bytes(row['memory'])} (at most {format_bytes(row['memory_peak'])})")
    return found


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes as text: 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


def format_seconds(seconds: float) -> str:
    """Return seconds as text: 1:02:03."""
    return str(timedelta(seconds=round(seconds)))


def silent(line: str) -> None:
    """Ignore a line."""


def echo(line: str) -> None:
    """Print a line above the bar, and flush it for programs that follow a log."""
    extra("tqdm").tqdm.write(line)
    sys.stdout.flush()


class _IgnoringErrors:
    """Stream for the bar that ignores write errors, which must not stop a run."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __eq__(self, other: object) -> bool:
        return other is self._stream  # tqdm.write compares streams to find the bars on the terminal

    __hash__ = object.__hash__

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()
