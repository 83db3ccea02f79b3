"""Sums over ranks from device to device, where all ranks' backends have a common way: NCCL, say."""

import json
import platform
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polyarr.core.array import Array
from polyarr.core.backend import Backend, Meeting
from polyarr.core.errors import BackendError
from polyarr.distributed.link import Link
from polyarr.distributed.world import Transport

REDUCED = ("mean", "sum")


class DeviceTransport:
    """Sums and means on the devices; the rest, which is rare and small, as `host` does it."""

    def __init__(self, backend: Backend, meeting: Meeting, reduce: Callable, host: Transport) -> None:
        self._backend, self._dtypes, self._reduce, self._host = backend, meeting.dtypes, reduce, host
        self.name = meeting.library

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


def over_devices(link: Link, backend: Backend, host: Transport) -> Transport:
    """The way from device to device if there is one, else `host`. Every rank decides the same; rank 0 says why not."""
    meeting, offer = _offer(backend)
    offers = [json.loads(text) for text in link.texts(json.dumps(offer))]
    if not any(offers):
        return host
    why = _refusal(offers)
    if not why:
        reduce, why = _joined(link, meeting)
        if not why:
            return DeviceTransport(backend, meeting, reduce, host)
    if link.rank == 0:
        warnings.warn(f"distributed: sums go through the host's memory: {why}", RuntimeWarning, stacklevel=3)
    return host


def _offer(backend: Backend) -> tuple[Any, dict[str, str]]:
    """What this rank has at hand, and what it tells the others of it; nothing where its backend knows no such thing."""
    if backend.meeting is None:
        return None, {}
    try:
        meeting = backend.meeting()
    except BackendError as error:
        return None, {"why": str(error)}
    return meeting, {"library": meeting.library, "device": f"device {meeting.place} of {platform.node()}"}


def _refusal(offers: Sequence[dict[str, str]]) -> str:
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
