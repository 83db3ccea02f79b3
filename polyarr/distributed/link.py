"""What ranks say to each other over MPI. Every wait ends: with what was waited for, or with everybody's end."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

PATIENCE = 25.0  # seconds that a rank may be late for what all do together
LONGEST = 1e-3  # seconds between two looks at what is not there yet


class Link:
    """A rank's way to the others. Only one for itself where comm is None.

    comm      an MPI communicator of our own, so that nobody else's messages get between ours
    patience  seconds that a rank may be late
    """

    def __init__(self, comm: Any = None, patience: float = PATIENCE) -> None:
        self.comm, self.patience = comm, patience
        self.rank, self.size = (0, 1) if comm is None else (comm.rank, comm.size)

    def wait(self, request: Any) -> None:
        """Wait for what was begun, and leave the processor to others meanwhile."""
        began, pause = time.monotonic(), 0.0
        while not request.Test():
            if time.monotonic() - began > self.patience:
                self.end(f"some rank did not come within {self.patience:g} s")
            time.sleep(pause)
            pause = min(LONGEST, 2 * pause + 1e-5)

    def gather(self, line: bytes) -> list[bytes]:
        """The lines of all ranks, in their order; of one length."""
        if self.comm is None:
            return [line]
        all_lines = bytearray(len(line) * self.size)
        self.wait(self.comm.Iallgather(bytearray(line), all_lines))
        return [bytes(all_lines[i : i + len(line)]) for i in range(0, len(all_lines), len(line))]

    def texts(self, text: str) -> list[str]:
        """The texts of all ranks, in their order, of any length."""
        own = text.encode()
        sizes = [int.from_bytes(size, "little") for size in self.gather(len(own).to_bytes(8, "little"))]
        longest = max(sizes)
        return [line[:n].decode() for line, n in zip(self.gather(own.ljust(longest, b"\0")), sizes, strict=True)]

    def spread(self, memory: np.ndarray, root: int) -> None:
        """Have all ranks hold the bytes of root's."""
        if self.comm is not None:
            self.wait(self.comm.Ibcast(memory.view(np.uint8).reshape(-1), root))

    def end(self, why: str) -> None:
        """End all ranks, for a reason that is told in one line."""
        raise RuntimeError(why)


Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]
