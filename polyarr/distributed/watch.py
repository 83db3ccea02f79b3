"""Watch thread: ends all ranks, with a message, if one of them dies or keeps the others waiting.

Rank 0 exchanges heartbeats of a few bytes with every other rank, twice a second, over MPI.
"""

import atexit
import signal
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from polyarr.distributed.link import Link

HEARTBEAT_SECONDS = 0.5
ALL_ENDED = -1  # sent by rank 0 when all ranks have ended
MAX_PAUSE_SECONDS = 5.0  # between two iterations; after a longer one, this process itself was suspended


@dataclass
class RankState:
    """State of a rank: time of its last heartbeat, and since when it is behind the others, or None."""

    when: float
    came: int = 0
    state: int = Link.RUNNING
    behind: float | None = None

    def hear(self, now: float, came: int, state: int) -> None:
        """Record a heartbeat."""
        if came != self.came:
            self.behind = None
        self.when, self.came, self.state = now, came, state

    def compare(self, now: float, furthest: int) -> None:
        """Record whether other ranks wait for this one."""
        if self.came >= furthest or self.state == Link.ALONE:
            self.behind = None
        elif self.behind is None:
            self.behind = now


def hung_rank(heard: list[RankState], now: float, patience: float) -> tuple[int, str] | None:
    """Return the rank that hangs and the reason; None if all is well."""
    furthest = max(h.came for h in heard)
    for rank, h in enumerate(heard):
        h.compare(now, furthest)
        if now - h.when > patience:
            return rank, f"has given no sign of life for {now - h.when:.0f} s"
        if h.behind is not None and h.state == Link.ENDED:
            return rank, "ended while others wait for it"
        if h.behind is not None and now - h.behind > patience:
            return rank, f"has kept the others waiting for {now - h.behind:.0f} s"
    return None


class Watch(threading.Thread):
    """Watch thread of one rank.

    Args:
        comm: MPI communicator used by nothing else.
        link: Link of this rank, whose progress is reported.
        names: Names of all ranks, for messages.
    """

    def __init__(self, comm: Any, link: Link, names: list[str]) -> None:
        super().__init__(name="polyarr-watch", daemon=True)
        self.comm, self.link, self.names = comm, link, names
        peers = range(1, comm.size) if comm.rank == 0 else [0]
        self.inbox = {rank: np.zeros(2, np.int64) for rank in peers}
        self.awaited = {rank: comm.Irecv(memory, rank) for rank, memory in self.inbox.items()}
        self.sent: dict[int, tuple[Any, np.ndarray]] = {}
        now = time.monotonic()
        self.heard = [RankState(now) for _ in range(comm.size)]
        self.is_over = False

    def run(self) -> None:
        """Send, receive and judge heartbeats until all ranks have ended."""
        last = beat = 0.0
        while not self.is_over:
            now = time.monotonic()
            if now - last > MAX_PAUSE_SECONDS:
                for heard in self.heard:
                    heard.when, heard.behind = now, None
            if now - beat > HEARTBEAT_SECONDS:
                beat = now
                self._tell(self.link.came, self.link.state)
            last = now
            self._listen(now)
            self._judge(now)
            time.sleep(HEARTBEAT_SECONDS / 2)
        for request in self.awaited.values():
            request.Cancel()
            request.Wait()

    def _tell(self, came: int, state: int) -> None:
        for rank in self.inbox:
            if rank not in self.sent or self.sent[rank][0].Test():  # else the last one was not received
                memory = np.array([came, state], np.int64)
                self.sent[rank] = self.comm.Isend(memory, rank), memory

    def _listen(self, now: float) -> None:
        self.heard[self.link.rank].hear(now, self.link.came, self.link.state)
        for rank, memory in self.inbox.items():
            while self.awaited[rank].Test():
                came, state = map(int, memory)
                self.is_over |= came == ALL_ENDED
                self.heard[rank].hear(now, came, state)
                self.awaited[rank] = self.comm.Irecv(memory, rank)

    def _judge(self, now: float) -> None:
        """End all ranks if one hangs: rank 0 judges all, the others rank 0, the lowest of them first."""
        own = self.link.rank
        if own:
            silent = now - self.heard[0].when
            found: tuple[int, str] | None = (0, f"has given no sign of life for {silent:.0f} s")
            if silent <= self.link.patience + min(own, 4):
                return
        elif all(heard.state == Link.ENDED for heard in self.heard):
            self._say_over()
            return
        else:
            found = hung_rank(self.heard, now, self.link.patience)
        if found is not None:
            self.link.end(f"{self.names[found[0]]} {found[1]}")

    def _say_over(self) -> None:
        for request, _ in self.sent.values():
            request.Wait()
        self.sent.clear()
        self._tell(ALL_ENDED, Link.ENDED)
        for request, _ in self.sent.values():
            request.Wait()
        self.is_over = True


def watch(comm: Any, link: Link, names: list[str]) -> None:
    """Start the watch thread of a rank, and end all ranks on an uncaught exception or SIGTERM."""
    thread = Watch(comm, link, names)
    link.is_watched = True
    before = sys.excepthook

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if isinstance(error, KeyboardInterrupt):
            link.end("", 130)
        said = str(error).strip().splitlines()
        link.end(f"{names[link.rank]} failed: {kind.__name__}{f': {said[0]}' if said else ''}")

    def leave() -> None:
        link.state = Link.ENDED
        thread.join()

    def terminated(number: int, frame: Any) -> None:
        link.end(f"{names[link.rank]} was told to end", 128 + number)

    sys.excepthook = uncaught
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminated)
    atexit.register(leave)
    thread.start()
