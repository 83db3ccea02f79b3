"""Signals that stop a loop after its current step."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def interruption() -> Iterator[Callable[[], int]]:
    """Let Ctrl-C and SIGTERM stop a loop after its current step; a second one stops it at once.

    Yields:
        A function that returns the number of the signal that came, or 0.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield lambda: 0
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: Any) -> None:
        came.append(number)
        restore()

    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: came[0] if came else 0
    finally:
        restore()
