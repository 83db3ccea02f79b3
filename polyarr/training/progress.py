"""What a person sees while a run trains: a bar on a terminal, plain lines elsewhere, or nothing."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from polyarr.extras import extra
from polyarr.training.metrics import Row

EVERY = 10.0  # seconds between two lines


class Progress(Protocol):
    """What shows how far a run has come."""

    def show(self, row: Row) -> None:
        """After some steps."""

    def close(self) -> None:
        """At the end."""


class Silent:
    """Shows nothing."""

    def show(self, row: Row) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Bar:
    """A bar, for a terminal."""

    def __init__(self, steps: int, first: int) -> None:
        stream = _Forgiving(sys.stderr)
        self._bar = extra("tqdm").tqdm(total=steps, initial=first, unit="step", mininterval=0.2, file=stream)

    def show(self, row: Row) -> None:
        """Move the bar."""
        self._bar.set_postfix_str(", ".join(facts(row)), refresh=False)
        self._bar.update(row["step"] - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


class Lines:
    """A line now and then, for a file: without what moves a cursor."""

    def __init__(self, steps: int, first: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._first, self._clock = steps, first, clock
        self._began = self._shown = clock()

    def show(self, row: Row) -> None:
        """A line, if the one before is old."""
        now = self._clock()
        if now - self._shown < EVERY:
            return
        self._shown, done = now, row["step"] - self._first
        left = (now - self._began) / done * (self._steps - row["step"]) if done else 0.0
        with contextlib.suppress(OSError):
            text = "  ".join((f"step {row['step']:>5}/{self._steps}", *facts(row), f"{duration(left)} left"))
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing."""


def progress_of(steps: int, first: int, quiet: bool = False) -> Progress:
    """What shows a run's progress on standard error, as it is now."""
    if quiet:
        return Silent()
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return (Bar if is_terminal else Lines)(steps, first)


def facts(row: Row) -> list[str]:
    """What is known after some steps, for people."""
    found = [f"loss {row['loss']:.3f}", f"{row['tokens_per_second']:,.0f} tokens/s"]
    tflops, share = row["tflops"], row.get("of_peak")
    work = f"{tflops:.3g} TFLOP/s" if tflops >= 0.1 else f"{1000 * tflops:.3g} GFLOP/s"
    found.append(f"{work} ({share:.{0 if share >= 0.01 else 1}%} of peak)" if share else work)
    if row.get("memory"):
        found.append(f"{amount(row['memory'])} (at most {amount(row['memory_peak'])})")
    return found


def amount(nbytes: float) -> str:
    """Bytes for people: 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


def duration(seconds: float) -> str:
    """Seconds for people: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def silent(line: str) -> None:
    """Nothing of a line."""


def echo(line: str) -> None:
    """A line above the bar, at once: whoever follows a log waits for it."""
    extra("tqdm").tqdm.write(line)
    sys.stdout.flush()


class _Forgiving:
    """A stream for the bar, which must not stop a run because nothing can be written there any more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __eq__(self, other: object) -> bool:
        return other is self._stream  # tqdm.write looks for bars on the terminal

    __hash__ = object.__hash__

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()
