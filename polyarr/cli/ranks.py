"""Commands that several processes run together: what they begin with, and what is said of what stops them."""

import importlib.metadata
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from polyarr import distributed
from polyarr.cli import INTERRUPTED
from polyarr.core.current import get_backend
from polyarr.distributed import World
from polyarr.distributed.start import LAUNCHED
from polyarr.extras import extra
from polyarr.hooks import Diagnosis
from polyarr.training.ranks import ALONE
from polyarr.version import __version__

TOGETHER = 3.0  # seconds in which ranks that fail for the same reason do


_world: World = ALONE
_meeting: Any = None  # an MPI communicator on which nobody waits for anything else


def join(begin: Callable[[], World]) -> World:
    """The ranks that mpiexec started, each on its device; or this process alone.

    begin  joins several processes; one that is alone starts its backend when it needs it
    """
    global _world, _meeting
    if any(name in os.environ for name in LAUNCHED):
        _world = begin()
        _meeting = _world.link.comm.Dup() if _world.size > 1 else None
    return _world


def is_to_tell(rank: int, line: str, code: int) -> bool:
    """Whether this rank tells what stopped it: the first does if all were stopped. Others that go on it ends.

    Errors:  RuntimeError where ranks cannot join
    """
    if _meeting is None and code == INTERRUPTED:  # others may be in MPI's start, from which only the launcher gets them
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    if "mpi4py.MPI" not in sys.modules:  # it was stopped before it wanted to join them
        join(lambda: distributed.init("numpy"))
    if _meeting is None:
        return rank == 0
    if not _all_are_here():
        _world.link.end(f"rank {rank}: {line}", code)
    return rank == 0


def _all_are_here() -> bool:
    """Whether all ranks come here soon."""
    request, end = _meeting.Ibarrier(), time.monotonic() + TOGETHER
    while not request.Test():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


# ---- for polyarr doctor ------------------------------------------------------------------------------------------


def of_mpi() -> list[Diagnosis]:
    """Which MPI is there, in a process that is no rank; MPI is not begun."""
    level = "ok"
    try:
        extra("mpi4py", "mpi").rc.initialize = False
        level = "warning"
        library = extra("mpi4py.MPI", "mpi").Get_library_version()
    except RuntimeError as error:
        return [Diagnosis(level, f"there is no MPI to train over several processes: {error}")]
    return [Diagnosis("ok", f"mpi4py {importlib.metadata.version('mpi4py')} with {_first_line(library)}")]


def _first_line(text: str) -> str:
    return " ".join(text.strip("\0 \n").split("\n")[0].split())


def here() -> dict[str, str]:
    """What may differ from rank to rank."""
    backend = get_backend()
    device = f"{backend.name} ({backend.hardware})"
    versions = {"polyarr": __version__, "Python": platform.python_version(), "numpy": np.__version__}
    return {"host": platform.node(), "process": str(os.getpid()), "device": device, **versions}


def of_ranks(rows: list[dict[str, str]]) -> list[Diagnosis]:
    """A line for each rank, and one for each version that is not the same on all."""
    lines = []
    for rank, row in enumerate(rows):
        where = f"rank {rank}, process {row['process']} on {row['host']}, computes on {row['device']}"
        lines.append(Diagnosis("ok", where))
    for name in ("polyarr", "Python", "numpy"):
        found = list(dict.fromkeys(row[name] for row in rows))
        level = "ok" if len(found) == 1 else "error" if name == "polyarr" else "warning"
        lines.append(Diagnosis(level, f"{name} {' and '.join(found)} on the ranks"))
    return lines
