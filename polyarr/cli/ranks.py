"""Commands that run on several processes: joining the ranks, and reporting errors once."""

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
from polyarr.plugins.hooks import Diagnosis
from polyarr.training.ranks import ALONE
from polyarr.version import __version__

FAILURE_WINDOW = 3.0  # seconds within which ranks that fail for the same reason do so


_world: World = ALONE
_communicator: Any = None  # an MPI communicator that is used for nothing else


def join(begin: Callable[[], World]) -> World:
    """Return the World of the ranks that mpiexec started, which `begin` joins, or of this process alone."""
    global _world, _communicator
    if any(name in os.environ for name in LAUNCHED):
        _world = begin()
        _communicator = _world.link.comm.Dup() if _world.size > 1 else None
    return _world


def reports_error(rank: int, line: str, code: int) -> bool:
    """Return whether this rank reports its error: the first one does if all ranks failed. Ranks that did not are ended.

    Raises:
        RuntimeError: The ranks cannot join.
    """
    if _communicator is None and code == INTERRUPTED:  # others may be in MPI's start, which only the launcher can end
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    if "mpi4py.MPI" not in sys.modules:  # the error came before this rank joined
        join(lambda: distributed.init("numpy"))
    if _communicator is None:
        return rank == 0
    if not _all_failed():
        _world.link.end(f"rank {rank}: {line}", code)
    return rank == 0


def _all_failed() -> bool:
    """Return whether all ranks arrive within a few seconds."""
    request, end = _communicator.Ibarrier(), time.monotonic() + FAILURE_WINDOW
    while not request.Test():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def of_mpi() -> list[Diagnosis]:
    """Return the MPI library of a process that is not a rank; MPI is not initialized."""
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
    """Return the facts that may differ from rank to rank."""
    backend = get_backend()
    device = f"{backend.name} ({backend.hardware})"
    versions = {"polyarr": __version__, "Python": platform.python_version(), "numpy": np.__version__}
    return {"host": platform.node(), "process": str(os.getpid()), "device": device, **versions}


def of_ranks(rows: list[dict[str, str]]) -> list[Diagnosis]:
    """Return a line for each rank, and one for each version."""
    lines = []
    for rank, row in enumerate(rows):
        where = f"rank {rank}, process {row['process']} on {row['host']}, computes on {row['device']}"
        lines.append(Diagnosis("ok", where))
    for name in ("polyarr", "Python", "numpy"):
        found = list(dict.fromkeys(row[name] for row in rows))
        level = "ok" if len(found) == 1 else "error" if name == "polyarr" else "warning"
        lines.append(Diagnosis(level, f"{name} {' and '.join(found)} on the ranks"))
    return lines
