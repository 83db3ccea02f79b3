"""Messages between ranks over MPI. Every wait ends: with the message, or with the end of all ranks."""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any, NoReturn

import numpy as np

PATIENCE = 20.0  # seconds that a rank may keep the others waiting, or give no sign of life
# Seconds of busy polling for a late rank, and for a transfer, which MPI advances at each poll; then the longest sleep
# between two polls.
SPIN_SECONDS, TRANSFER_SPIN_SECONDS, MAX_SLEEP = 5e-3, 0.5, 1e-3

_yield_processor = getattr(os, "sched_yield", partial(time.sleep, 0))


class Link:
    """Messages of one rank to the others; without a communicator there is one rank.

    Attributes:
        comm: MPI communicator used by nothing else, so that no other messages interfere. None: a single rank.
        patience: Seconds that a rank may keep the others waiting.
        rank: Number of this rank.
        size: Number of ranks.
        came: Number of collective waits that this rank has reached; a rank with a lower number is behind.
        state: RUNNING, ALONE or ENDED, as reported to the watch thread.
        is_watched: Whether a watch thread ends the run if a rank hangs.
        reported: Called before all ranks are ended for a reported reason.
        settle: Called before each collective: completes the devices' deferred collectives on all ranks.
    """

    RUNNING, ALONE, ENDED = range(3)

    def __init__(self, comm: Any = None, patience: float = PATIENCE) -> None:
        self.comm, self.patience = comm, patience
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size
        self.came, self.state = 0, self.RUNNING
        self.is_watched = False
        self.reported: Callable[[], None] = lambda: None
        self.settle = self.reported
        self._turn, self._is_mixed = threading.RLock(), False

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Run a collective, which may call others, unless another thread of this rank is in one.

        The messages of two would mix: MPI pairs those of different ranks by their order.

        Raises:
            RuntimeError: Two threads are in a collective; raised in both, with `name`.
        """
        if self.comm is None:
            yield
            return
        error = RuntimeError(f"{name}: another thread of rank {self.rank} is in a collective; call one at a time")
        if not self._turn.acquire(blocking=False):
            self._is_mixed = True
            raise error
        try:
            yield
            if self._is_mixed:
                self._is_mixed = False
                raise error
        finally:
            self._turn.release()

    def wait(self, request: Any, soon: float = TRANSFER_SPIN_SECONDS) -> None:
        """Wait for a collective request: poll for `soon` seconds, then sleep between polls."""
        self.came += 1
        began = time.monotonic()
        while not request.Test():
            waited = time.monotonic() - began
            if waited < soon:
                _yield_processor()
                continue
            time.sleep(min(MAX_SLEEP, waited / 50))
            if not self.is_watched and waited > self.patience:
                self.end(f"rank {self.rank} waited for another for {self.patience:g} s")

    def meet(self, what: str) -> None:
        """Wait until all ranks have called this with the same text.

        Args:
            what: Description of the operation in the first line, and of its arguments in the others.

        Raises:
            ValueError: A rank has another text; raised on all ranks.
        """
        if self.comm is None:
            return
        marks = self.gather(hashlib.blake2b(what.encode("utf-8", "backslashreplace"), digest_size=16).digest())
        if any(mark != marks[0] for mark in marks):
            raise ValueError(_difference(self.texts(what)))

    def gather(self, line: bytes) -> list[bytes]:
        """Return the lines of all ranks in the order of the ranks; all lines have one length."""
        if self.comm is None:
            return [line]
        self.settle()
        lines = bytearray(len(line) * self.size)
        self.wait(self.comm.Iallgather(bytearray(line), lines), SPIN_SECONDS)
        return [bytes(lines[i * len(line) : (i + 1) * len(line)]) for i in range(self.size)]

    def texts(self, text: str) -> list[str]:
        """Return the texts of all ranks, of any length, in the order of the ranks."""
        own = text.encode("utf-8", "backslashreplace")
        lengths = [int.from_bytes(length, "little") for length in self.gather(len(own).to_bytes(8, "little"))]
        lines = self.gather(own.ljust(max(*lengths, 1), b"\0"))
        return [line[:length].decode() for line, length in zip(lines, lengths, strict=True)]

    def spread(self, memory: np.ndarray, root: int) -> None:
        """Broadcast the bytes of rank `root` to all ranks."""
        self.settle()
        self.wait(self.comm.Ibcast(memory, root))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run a block in which this rank may keep the others waiting for any time, as long as it is alive."""
        before, self.state = self.state, self.ALONE
        try:
            yield
        finally:
            self.state = before

    def end(self, why: str, code: int = 1) -> NoReturn:
        """End all ranks after printing the reason in one line; "" if it is known already."""
        self.reported()
        if why:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"polyarr: {why}; all ranks end\n".encode())
        self.comm.Abort(code)
        os._exit(code)  # if the launcher did not kill this process


def _difference(texts: list[str]) -> str:
    """Return an error message that names the first difference between rank 0 and another rank."""
    rank = next(rank for rank, text in enumerate(texts) if text != texts[0])
    first, other = texts[0].splitlines(), texts[rank].splitlines()
    here, there = next(pair for pair in zip_longest(first, other, fillvalue="nothing more") if pair[0] != pair[1])
    name = "distributed" if first[0] != other[0] else first[0].partition(" ")[0]
    return f"{name}: rank 0 has {here}, rank {rank} has {there}; all ranks must have the same"
