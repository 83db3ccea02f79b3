"""Joining the ranks that mpiexec started, each on a device of its own."""

import os

from polyarr.core.current import get_backend, set_backend
from polyarr.distributed.host import HostTransport
from polyarr.distributed.link import PATIENCE, Link
from polyarr.distributed.world import World
from polyarr.extras import extra

LAUNCHED = ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE")  # what launchers set for their processes


def init(device: str | None = None, patience: float = PATIENCE) -> World:
    """The ranks that mpiexec started, and this process among them.

    device    the backend to compute on, by name; the current one, or of several devices the one of the local rank
    patience  seconds that a rank may be late before all are ended
    """
    backend = set_backend(device) if device else get_backend()
    if not any(name in os.environ for name in LAUNCHED):
        return World(0, 1, 0, backend.name, Link(), None)
    mpi = extra("mpi4py.MPI", "mpi")
    comm = mpi.COMM_WORLD.Dup()
    local = comm.Split_type(mpi.COMM_TYPE_SHARED)
    link = Link(comm, patience)
    return World(link.rank, link.size, local.rank, backend.name, link, HostTransport(link))
