"""All-reduce on the devices: through a device-to-device library such as NCCL, or through shared host memory."""

import json
import mmap
import os
import platform
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from polyarr.core.array import Array
from polyarr.core.backend import Backend, Collectives, Reduce, Rendezvous
from polyarr.core.errors import BackendError
from polyarr.core.spec import FLOATS
from polyarr.distributed.host import HostTransport
from polyarr.distributed.link import Link

DEVICE_OPS = ("mean", "sum")
MAX_WINDOW_BYTES = 64 << 20  # largest number of bytes of a rank's piece of shared memory
PAGE = mmap.PAGESIZE
SHARED = "/dev/shm"  # file system of shared memory; often small in containers
Offer = dict[str, Any]


class DeviceTransport(HostTransport):
    """All-reduce of floats on the devices; all other collectives, rare and small, through the host."""

    def __init__(self, name: str, backend: Backend, dtypes: frozenset, reduce: Reduce, link: Link) -> None:
        super().__init__(link)
        self.name, self._backend, self._dtypes, self._reduce = name, backend, dtypes, reduce

    def all_reduce(self, leaves: Sequence[Array], op: str, wire: np.dtype) -> list[Array]:
        """Return the leaves, of one dtype and one backend, reduced over all ranks; sent as dtype `wire`."""
        backend = leaves[0].backend
        if op not in DEVICE_OPS or wire not in self._dtypes or backend.name != self._backend.name:  # equal on all ranks
            return super().all_reduce(leaves, op, wire)
        found = self._reduce([a.buf for a in leaves], wire, op)
        return [Array(backend, buf, a.spec) for a, buf in zip(leaves, found, strict=True)]


def over_devices(link: Link, backend: Backend, share: Callable[[int], Any] | None) -> HostTransport:
    """Return the fastest transport that all ranks support. All ranks decide the same.

    If the ranks cannot communicate from device to device, rank 0 warns and says why.

    Args:
        link: Messages between the ranks.
        backend: Backend of this rank.
        share: (bytes) -> shared memory of each rank; None if the ranks run on several hosts.
    """
    collectives = backend.collectives or Collectives()
    link.settle = collectives.settle
    rendezvous, offer = _offer(collectives)
    offers = [json.loads(text) for text in link.texts(json.dumps(offer))]
    if any("why" in offer or "library" in offer for offer in offers):
        reduce, why = None, _why_not(offers)
        if not why:
            reduce, why = _join(link, rendezvous)
        if reduce is not None and not why:
            return DeviceTransport(rendezvous.library, backend, rendezvous.dtypes, reduce, link)
        if link.rank == 0:
            warnings.warn(f"distributed: sums go through the host's memory: {why}", RuntimeWarning, stacklevel=3)
    window = min(min(offer["window"] for offer in offers) // link.size // PAGE * PAGE, MAX_WINDOW_BYTES)
    if collectives.shared_memory is None or share is None or not window:
        return HostTransport(link)
    reduce = collectives.shared_memory(share(window), link.rank, partial(link.gather, b"."))
    return DeviceTransport("memory that all ranks see", backend, backend.dtypes & frozenset(FLOATS), reduce, link)


def shared_by(mpi: Any, local: Any, nbytes: int) -> list[np.ndarray]:
    """Allocate memory that all ranks of a host map: nbytes per rank, each on its own pages, so that drivers can pin it.

    Args:
        mpi: The module mpi4py.MPI.
        local: Communicator of the ranks of this host.
        nbytes: Bytes per rank.
    """
    window = mpi.Win.Allocate_shared(nbytes + PAGE, 1, comm=local)
    found = [np.frombuffer(window.Shared_query(rank)[0], np.uint8) for rank in range(local.size)]
    return [memory[-memory.ctypes.data % PAGE :][:nbytes] for memory in found]


def _offer(collectives: Collectives) -> tuple[Any, Offer]:
    """Return the collectives library of this rank, or None, and the description of it for the other ranks."""
    room = shutil.disk_usage(SHARED).free if os.path.isdir(SHARED) else 0
    offer: Offer = {"window": room // 2 if collectives.shared_memory else 0}
    if collectives.rendezvous is None:
        return None, offer
    try:
        rendezvous = collectives.rendezvous()
    except BackendError as error:
        return None, {**offer, "why": str(error)}
    place = f"device {rendezvous.place} of {platform.node()}"
    return rendezvous, {**offer, "library": rendezvous.library, "device": place}


def _why_not(offers: Sequence[Offer]) -> str:
    """Return why the ranks cannot form a communicator; "" if they can."""
    for rank, offer in enumerate(offers):
        if "library" not in offer:
            return f"rank {rank}: {offer.get('why', 'its backend knows no other way')}"
        if offer["library"] != offers[0]["library"]:
            return f"rank 0 has {offers[0]['library']}, rank {rank} {offer['library']}"
    device, count = Counter(offer["device"] for offer in offers).most_common(1)[0]
    return f"{count} ranks are on {device}" if count > 1 else ""


def _join(link: Link, rendezvous: Rendezvous) -> tuple[Any, str]:
    """Join the ranks to a communicator; return (all-reduce, "") or (None, reason)."""
    unique_id, why, reduce = "", "", None
    try:
        unique_id = rendezvous.unique_id().hex() if link.rank == 0 else ""
    except BackendError as error:
        why = str(error)
    unique_id = link.texts(unique_id)[0]
    if unique_id:
        try:
            reduce = rendezvous.join(bytes.fromhex(unique_id), link.rank, link.size)
        except BackendError as error:
            why = str(error)
    reasons = [f"rank {rank}: {text}" for rank, text in enumerate(link.texts(why)) if text]
    return reduce, next(iter(reasons), "")
