"""Signals that stop a loop after its current step."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

BURST_SECONDS = 0.3
HANGUP = getattr(signal, "SIGHUP", None)  # the terminal has gone, such as a connection to another machine


@contextlib.contextmanager
def interruption() -> Iterator[Callable[[], int]]:
    """Let Ctrl-C, SIGTERM and SIGHUP stop a loop after its current step; a second Ctrl-C or SIGTERM stops it at once.

    Signals within BURST_SECONDS of the first one belong to it: a terminal and a supervisor may both send one. SIGHUP is
    left alone where something handles or ignores it, as under nohup.

    Yields:
        A function that returns the number of the signal that came, or 0.
    """
    came: list[tuple[int, float]] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield lambda: 0
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: Any) -> None:
        # The handler stays: Python drops a signal, with a traceback, if its handler is gone when its turn comes.
        came.append((number, time.monotonic()))
        if number != HANGUP and len(came) > 1 and came[-1][1] - came[0][1] >= BURST_SECONDS:
            restore()
            signal.raise_signal(number)

    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}
    if HANGUP and signal.getsignal(HANGUP) is signal.SIG_DFL:
        before[HANGUP] = signal.SIG_DFL
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: came[0][0] if came else 0
    finally:
        restore()
