"""Joining the ranks that mpiexec started, each on a device of its own."""

import atexit
import json
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from polyarr import plugins
from polyarr.core.current import chosen, get_backend, set_backend
from polyarr.core.errors import BackendError
from polyarr.distributed.devices import over_devices, shared_by
from polyarr.distributed.host import HostTransport
from polyarr.distributed.link import PATIENCE, Link
from polyarr.distributed.watch import watch
from polyarr.distributed.witness import connect
from polyarr.distributed.world import World
from polyarr.extras import extra

# How many processes launchers say they started, or something that only they set.
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_RANK", "PMI_RANK", "PMI_FD")
# The name of memory that processes share, which MPICH takes away when they end, unless they are killed.
NAMED = re.compile(r"(/dev/shm/mpich_shm_\S+)$", re.MULTILINE)
_world: World | None = None


def init(backend: str | None = None, patience: float = PATIENCE) -> World:
    """The ranks that mpiexec started, seen from this process, which computes on a device of its own from here on.

    Once in a process, before anything is computed; later calls give the same World. A process that was not started by
    mpiexec is alone: everything is the identity then, and MPI is not loaded.

    backend   the backend to compute on, by name; None: the current one, or if none was chosen yet, that of
              POLYARR_BACKEND. Of several devices each rank of a host takes one, in the order of `polyarr devices`, of
              those that POLYARR_DEVICE names or that are of the best kind; where there are more ranks than devices,
              they share them, as they do one that the name says
    patience  seconds that a rank may keep the others waiting, or not be heard of, before all ranks are ended with a
              line that names it

    Errors:  RuntimeError without mpi4py, and where mpiexec is that of another MPI; BackendError as get_backend
    """
    global _world
    if _world is None:
        _world = _joined(backend, patience)
    return _world


def _joined(backend: str | None, patience: float) -> World:
    if not any(name in os.environ for name in LAUNCHED):
        device = _device(backend, 0, 1)
        return World(0, 1, 0, device, Link(), None, ((socket.gethostname(), device),))
    mpi = extra("mpi4py.MPI", "mpi")
    _check(mpi)
    comm = mpi.COMM_WORLD.Dup()
    local = comm.Split_type(mpi.COMM_TYPE_SHARED)
    link = Link(comm, patience)
    _unname(local)
    if link.size > 1:
        names = link.texts(f"rank {link.rank} (process {os.getpid()} on {socket.gethostname()})")
        witness = connect(local, names[link.rank])
        if witness is not None:
            link.told = witness.told
            atexit.register(witness.ended)  # when all have left, see watch
        if mpi.Query_thread() == mpi.THREAD_MULTIPLE:
            watch(comm.Dup(), link, names)
    device, places = _places(link, partial(_device, backend, local.rank, local.size))
    transport = None
    if link.size > 1:
        share = partial(shared_by, mpi, local) if local.size == link.size else None
        transport = over_devices(link, get_backend(), HostTransport(link), share)
        _unname(local)
    return World(link.rank, link.size, local.rank, device, link, transport, places)


def _unname(local: Any) -> None:
    """Take the names of memory that all ranks of this host have by now: it goes with the last of them, however it ends.

    local  an MPI communicator of the ranks of this host
    """
    local.Barrier()
    if local.rank == 0:
        with suppress(OSError):  # another system
            for name in {*NAMED.findall(Path("/proc/self/maps").read_text())}:
                os.unlink(name)


def _places(link: Link, start: Callable[[], str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What this rank computes on, and the host and the device of each; where one fails, none goes on without it."""
    device = failure = ""
    try:
        with link.alone():  # a driver may take its time
            device = start()
    except BackendError as error:
        failure = str(error)
    rows = [json.loads(text) for text in link.texts(json.dumps([socket.gethostname(), device, failure]))]
    failures = [f"rank {rank} of {host}: {why}" for rank, (host, _, why) in enumerate(rows) if why]
    if failures:
        raise BackendError(failure if len(failures) == len(rows) else failures[0])
    return device, tuple((host, device) for host, device, _ in rows)


def _check(mpi: Any) -> None:
    """Processes that do not see each other would each take itself for the only one."""
    said = next((os.environ[name] for name in LAUNCHED[:3] if name in os.environ), "")
    if said.isdecimal() and int(said) != mpi.COMM_WORLD.size:
        library = mpi.Get_library_version().split("\n")[0].strip("\0 ")
        raise RuntimeError(
            f"distributed.init: mpiexec started {said} processes, and {library} sees {mpi.COMM_WORLD.size}; "
            "start them with the mpiexec of the MPI that mpi4py uses"
        )


def _device(backend: str | None, local_rank: int, local_size: int) -> str:
    """Start the backend of this rank, and make it the current one; its name."""
    if backend is None and (found := chosen()) is not None:
        return found.name
    return set_backend(plugins.shared(backend, local_rank, local_size)).name
