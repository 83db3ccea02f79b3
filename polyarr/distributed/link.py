"""What ranks say to each other over MPI. Every wait ends: with what was waited for, or with the end of all ranks."""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any, NoReturn

import numpy as np

PATIENCE = 20.0  # seconds that a rank may keep the others waiting, or not be heard of
# Seconds in which a rank looks all the time, and only lets others go first: for whoever may be late, and for what is on
# its way, which MPI moves on at each look. Then it sleeps between two looks, at most so long.
SOON, ON_ITS_WAY, LONGEST = 5e-3, 0.5, 1e-3

_let_others_go_first = getattr(os, "sched_yield", partial(time.sleep, 0))


class Link:
    """A rank's way to the others; where comm is None there are none.

    comm      an MPI communicator of our own, so that nobody else's messages get between ours
    patience  seconds that a rank may keep the others waiting
    came      how often this rank came to where all meet: who is behind the others is looked for
    state     RUNNING, ALONE or ENDED, for those who look
    told      called before all ranks are ended for a reason that was told
    settle    called before all meet: what devices have yet to do with the others' comes first, on all ranks
    """

    RUNNING, ALONE, ENDED = range(3)

    def __init__(self, comm: Any = None, patience: float = PATIENCE) -> None:
        self.comm, self.patience = comm, patience
        self.rank, self.size = (0, 1) if comm is None else (comm.rank, comm.size)
        self.came, self.state = 0, self.RUNNING
        self.is_watched = False
        self.told: Callable[[], None] = lambda: None
        self.settle = self.told

    # ---- meeting ---------------------------------------------------------------------------------------------

    def wait(self, request: Any, soon: float = ON_ITS_WAY) -> None:
        """Wait for what all take part in."""
        self.came += 1
        began = time.monotonic()
        while not request.Test():
            waited = time.monotonic() - began
            if waited < soon:
                _let_others_go_first()
                continue
            time.sleep(min(LONGEST, waited / 50))
            if not self.is_watched and waited > self.patience:
                self.end(f"rank {self.rank} waited for another for {self.patience:g} s")

    def meet(self, what: str) -> None:
        """Wait until all have come here, for the same.

        what  its first line says what is done, the others with what

        Errors:  ValueError, on all ranks, if another wants something else
        """
        if self.comm is None:
            return
        marks = self.gather(hashlib.blake2b(what.encode(), digest_size=16).digest())
        if any(mark != marks[0] for mark in marks):
            raise ValueError(_difference(self.texts(what)))

    def gather(self, line: bytes) -> list[bytes]:
        """The lines of all ranks, in their order; they are of one length."""
        if self.comm is None:
            return [line]
        self.settle()
        lines = bytearray(len(line) * self.size)
        self.wait(self.comm.Iallgather(bytearray(line), lines), SOON)
        return [bytes(lines[i * len(line) : (i + 1) * len(line)]) for i in range(self.size)]

    def texts(self, text: str) -> list[str]:
        """The texts of all ranks, in their order, of any length."""
        own = text.encode()
        lengths = [int.from_bytes(length, "little") for length in self.gather(len(own).to_bytes(8, "little"))]
        lines = self.gather(own.ljust(max(*lengths, 1), b"\0"))
        return [line[:length].decode() for line, length in zip(lines, lengths, strict=True)]

    def spread(self, memory: np.ndarray, root: int) -> None:
        """Have all ranks hold the bytes that root holds."""
        self.settle()
        self.wait(self.comm.Ibcast(memory, root))

    # ---- ending ----------------------------------------------------------------------------------------------

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which this rank may keep the others waiting for as long as it takes, if only it lives."""
        before, self.state = self.state, self.ALONE
        try:
            yield
        finally:
            self.state = before

    def end(self, why: str, code: int = 1) -> NoReturn:
        """End all ranks, for a reason that is told in one line; an empty one is known already."""
        self.told()
        if why:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"polyarr: {why}; all ranks end\n".encode())
        self.comm.Abort(code)
        os._exit(code)  # where the launcher lets us live


def _difference(texts: list[str]) -> str:
    """Which rank wants something else than rank 0."""
    rank = next(rank for rank, text in enumerate(texts) if text != texts[0])
    first, other = texts[0].splitlines(), texts[rank].splitlines()
    here, there = next(pair for pair in zip_longest(first, other, fillvalue="nothing more") if pair[0] != pair[1])
    name = "distributed" if first[0] != other[0] else first[0].partition(" ")[0]
    return f"{name}: rank 0 has {here}, rank {rank} has {there}; all ranks must have the same"
