"""Sums over ranks on the devices: by a library of theirs, NCCL, say, or through memory of the host that all see."""

import json
import mmap
import os
import platform
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from polyarr.core.array import Array
from polyarr.core.backend import Backend, Meeting, Reduce, Together
from polyarr.core.errors import BackendError
from polyarr.core.spec import FLOATS
from polyarr.distributed.link import Link
from polyarr.distributed.world import Transport

REDUCED = ("mean", "sum")
WINDOW = 64 << 20  # bytes of a rank's window
PAGE = mmap.PAGESIZE
SHARED = "/dev/shm"  # where systems keep memory that processes share, and may have little room for it
Offer = dict[str, Any]


class DeviceTransport:
    """Sums and means of floats on the devices; the rest, which is rare and small, as `host` does it."""

    def __init__(self, name: str, backend: Backend, dtypes: frozenset, reduce: Reduce, host: Transport) -> None:
        self.name, self._backend, self._dtypes, self._reduce, self._host = name, backend, dtypes, reduce, host

    def all_reduce(self, leaves: Sequence[Array], op: str, wire: np.dtype) -> list[Array]:
        """The leaves, of one dtype and one backend, as all ranks' together, sent as dtype `wire`."""
        backend = leaves[0].backend
        if op not in REDUCED or wire not in self._dtypes or not backend.meets(self._backend):
            return self._host.all_reduce(leaves, op, wire)
        found = self._reduce([a.buf for a in leaves], wire, op)
        return [Array(backend, buf, a.spec) for a, buf in zip(leaves, found, strict=True)]

    def broadcast(self, leaves: Sequence[Array], root: int) -> list[Array]:
        """The leaves as rank root has them: once a run, so through the host."""
        return self._host.broadcast(leaves, root)

    def all_gather(self, leaves: Sequence[Array]) -> list[Array]:
        """The leaves of all ranks, through the host."""
        return self._host.all_gather(leaves)


def over_devices(link: Link, backend: Backend, host: Transport, share: Callable[[int], Any] | None) -> Transport:
    """The best way that all ranks have, else `host`. Each decides the same; rank 0 says why not from device to device.

    share  bytes -> the windows of all ranks; None if not all are on one host
    """
    together = backend.together or Together()
    link.settle = together.settle
    meeting, offer = _offer(together)
    offers = [json.loads(text) for text in link.texts(json.dumps(offer))]
    if any("why" in offer or "library" in offer for offer in offers):
        reduce, why = None, _refusal(offers)
        if not why:
            reduce, why = _joined(link, meeting)
        if not why:
            return DeviceTransport(meeting.library, backend, meeting.dtypes, reduce, host)
        if link.rank == 0:
            warnings.warn(f"distributed: sums go through the host's memory: {why}", RuntimeWarning, stacklevel=3)
    window = min(min(offer["window"] for offer in offers) // link.size // PAGE * PAGE, WINDOW)
    if together.windows is None or share is None or not window:
        return host
    reduce = together.windows(share(window), link.rank, partial(link.gather, b"."))
    return DeviceTransport("memory that all ranks see", backend, backend.dtypes & frozenset(FLOATS), reduce, host)


def shared_by(mpi: Any, local: Any, nbytes: int) -> list[np.ndarray]:
    """Memory that all ranks of a host see, so many bytes of each. mpi is mpi4py.MPI, and local their communicator.

    Each piece has pages of its own, so that drivers can pin it.
    """
    window = mpi.Win.Allocate_shared(nbytes + PAGE, 1, comm=local)
    found = [np.frombuffer(window.Shared_query(rank)[0], np.uint8) for rank in range(local.size)]
    return [memory[-memory.ctypes.data % PAGE :][:nbytes] for memory in found]


def _offer(together: Together) -> tuple[Any, Offer]:
    """What this rank has at hand, and what it tells the others of it."""
    room = os.statvfs(SHARED) if os.path.isdir(SHARED) else None
    window = room.f_bavail * room.f_frsize // 2 if room and together.windows else 0
    offer: Offer = {"window": window}
    if together.meeting is None:
        return None, offer
    try:
        meeting = together.meeting()
    except BackendError as error:
        return None, {**offer, "why": str(error)}
    return meeting, {**offer, "library": meeting.library, "device": f"device {meeting.place} of {platform.node()}"}


def _refusal(offers: Sequence[Offer]) -> str:
    """Why ranks cannot meet; empty if they can."""
    for rank, offer in enumerate(offers):
        if "library" not in offer:
            return f"rank {rank}: {offer.get('why', 'its backend knows no other way')}"
        if offer["library"] != offers[0]["library"]:
            return f"rank 0 has {offers[0]['library']}, rank {rank} {offer['library']}"
    device, count = Counter(offer["device"] for offer in offers).most_common(1)[0]
    return f"{count} ranks are on {device}" if count > 1 else ""


def _joined(link: Link, meeting: Meeting) -> tuple[Any, str]:
    """The function that reduces, and an empty text; or why there is none."""
    ticket, why, reduce = "", "", None
    try:
        ticket = meeting.ticket().hex() if link.rank == 0 else ""
    except BackendError as error:
        why = str(error)
    ticket = link.texts(ticket)[0]
    if ticket:
        try:
            reduce = meeting.join(bytes.fromhex(ticket), link.rank, link.size)
        except BackendError as error:
            why = str(error)
    reasons = [f"rank {rank}: {text}" for rank, text in enumerate(link.texts(why)) if text]
    return reduce, next(iter(reasons), "")
