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

from polyarr.core.current import chosen, get_backend, set_backend
from polyarr.core.errors import BackendError
from polyarr.distributed.devices import over_devices, shared_by
from polyarr.distributed.link import PATIENCE, Link
from polyarr.distributed.watch import watch
from polyarr.distributed.witness import connect
from polyarr.distributed.world import World
from polyarr.extras import extra
from polyarr.plugins.starting import set_family_default, shared

# Environment variables of launchers: the first three give the number of processes, the others show a launcher.
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_RANK", "PMI_RANK", "PMI_FD")
# Shared memory of MPICH. MPICH removes it at the end, but not if a process is killed.
NAMED = re.compile(r"(/dev/shm/mpich_shm_\S+)$", re.MULTILINE)
_world: World | None = None


def init(backend: str | None = None, patience: float = PATIENCE) -> World:
    """Return the ranks that mpiexec started, and select this process's device as the current backend.

    Call it once per process, before any computation; later calls return the same World. A process that was not started
    by mpiexec is a single rank: every collective is the identity, and MPI is not loaded.

    With several devices, each rank of a host takes one, in the order of `polyarr devices`, out of those that
    POLYARR_DEVICE names or that are of the best kind. If there are more ranks than devices, or `backend` names a
    device, ranks share it. Afterwards the backend's name without a device ("opencl") means the device of this rank.

    Args:
        backend: Name of the backend; None: the current one or, if none was chosen, that of POLYARR_BACKEND.
        patience: Seconds that a rank may keep the others waiting, or give no sign of life. Then all ranks are ended
            with a message that names it.

    Returns:
        World: all ranks, as seen from this one.

    Raises:
        RuntimeError: mpi4py is missing, or mpiexec belongs to another MPI.
        BackendError: As `get_backend`.

    Examples:
        >>> import polyarr as pa
        >>> world = pa.distributed.init()
        >>> world.rank, world.size
        (0, 1)
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
            link.reported = witness.reported
            atexit.register(witness.ended)  # runs after the handler that watch registers, when all ranks have left
        if mpi.Query_thread() == mpi.THREAD_MULTIPLE:
            watch(comm.Dup(), link, names)
    device, places = _places(link, partial(_device, backend, local.rank, local.size))
    transport = None
    if link.size > 1:
        share = partial(shared_by, mpi, local) if local.size == link.size else None
        transport = over_devices(link, get_backend(), share)
        _unname(local)
    return World(link.rank, link.size, local.rank, device, link, transport, places)


def _unname(local: Any) -> None:
    """Unlink the shared memory that all ranks of this host have mapped: the last one to end frees it.

    `local` is the MPI communicator of the ranks of this host.
    """
    local.Barrier()
    if local.rank == 0:
        with suppress(OSError):  # no /proc
            for name in {*NAMED.findall(Path("/proc/self/maps").read_text(encoding="utf-8"))}:
                os.unlink(name)


def _places(link: Link, start: Callable[[], str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Start this rank's backend; return its device, and (host, device) of every rank. If one fails, all raise."""
    device = failure = ""
    try:
        with link.alone():  # starting a driver can be slow
            device = start()
    except BackendError as error:
        failure = str(error)
    rows = [json.loads(text) for text in link.texts(json.dumps([socket.gethostname(), device, failure]))]
    failures = [f"rank {rank} of {host}: {why}" for rank, (host, _, why) in enumerate(rows) if why]
    if failures:
        raise BackendError(failure if len(failures) == len(rows) else failures[0])
    return device, tuple((host, device) for host, device, _ in rows)


def _check(mpi: Any) -> None:
    """Raise RuntimeError if MPI does not see the processes of the launcher; each would consider itself the only one."""
    said = next((os.environ[name] for name in LAUNCHED[:3] if name in os.environ), "")
    if said.isdecimal() and int(said) != mpi.COMM_WORLD.size:
        library = mpi.Get_library_version().split("\n")[0].strip("\0 ")
        raise RuntimeError(
            f"distributed.init: mpiexec started {said} processes, and {library} sees {mpi.COMM_WORLD.size}; "
            "start them with the mpiexec of the MPI that mpi4py uses"
        )


def _device(backend: str | None, local_rank: int, local_size: int) -> str:
    """Start the backend of this rank, make it the current one and the default of its family; return its name."""
    found = chosen() if backend is None else None
    found = found or set_backend(shared(backend, local_rank, local_size))
    set_family_default(found)
    return found.name
