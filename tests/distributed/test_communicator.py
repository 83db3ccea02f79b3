"""The ranks' agreement to reduce on their devices: ranks are threads, and NumPy's backend stands for devices."""

import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend, Collectives, Rendezvous
from polyarr.core.errors import BackendError
from polyarr.distributed.devices import DeviceTransport, over_devices
from polyarr.distributed.host import HostTransport

pytestmark = pytest.mark.polyarr_backend("numpy")
RANKS = 3


class Talk:
    """State that links of ranks in one process share."""

    def __init__(self) -> None:
        self.said, self.met = [""] * RANKS, threading.Barrier(RANKS, timeout=20)

    def texts(self, rank: int, text: str) -> list[str]:
        self.met.wait()
        self.said[rank] = text
        self.met.wait()
        return [*self.said]


class PlayedLink:
    """A Link between threads."""

    def __init__(self, talk: Talk, rank: int) -> None:
        self.rank, self.size, self.texts = rank, RANKS, lambda text: talk.texts(rank, text)
        self.gather = lambda line: [text.encode() for text in self.texts(line.decode())]


def raising(message: str) -> Callable[..., Any]:
    def fails(*_: Any) -> Any:
        raise BackendError(message)

    return fails


def rendezvous_of(rank: int, **changes: Any) -> Rendezvous:
    joined = lambda unique_id, rank, size: lambda bufs, wire, op: [buf * size for buf in bufs]
    drawn = Rendezvous(f"0000:{rank:02x}:00.0", "NCCL 22703", frozenset({np.dtype("float32")}), lambda: b"ab", joined)
    return drawn._replace(**changes)


def decided(
    backend: Backend, offers: list[Any], windows: Any = None, share: Any = None
) -> tuple[list[Any], list[str]]:
    """Return the transport each rank chose, and the warnings; an offer of None means no device collectives."""
    talk, found = Talk(), [None] * RANKS

    def rank_of(rank: int) -> None:
        own = backend._replace(collectives=Collectives(offers[rank], windows))
        found[rank] = over_devices(PlayedLink(talk, rank), own, share)

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(RANKS)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found, [str(w.message) for w in warned]


def test_ranks_with_a_communicator_reduce_on_their_devices(backend: Backend) -> None:
    found, warned = decided(backend, [lambda rank=rank: rendezvous_of(rank) for rank in range(RANKS)])
    assert not warned and [type(t) for t in found] == [DeviceTransport] * RANKS and found[0].name == "NCCL 22703"
    x = pa.arange(4, dtype=pa.float32)
    for transport in found:
        both = transport.all_reduce([x, x], "sum", x.dtype)
        assert all(np.array_equal(y.numpy(), 3 * x.numpy()) and y.dtype == x.dtype for y in both)


def test_what_devices_do_not_reduce_goes_through_the_host(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostTransport, "all_reduce", lambda self, leaves, op, wire: ("host", op))
    monkeypatch.setattr(HostTransport, "broadcast", lambda self, leaves, root: ("host", root))
    monkeypatch.setattr(HostTransport, "all_gather", lambda self, leaves: "host")
    found, _ = decided(backend, [lambda rank=rank: rendezvous_of(rank) for rank in range(RANKS)])
    x, transport = pa.ones(3), found[0]
    assert transport.all_reduce([x], "max", x.dtype) == ("host", "max")
    assert transport.all_reduce([pa.arange(3)], "sum", np.dtype("int64")) == ("host", "sum")
    assert transport.broadcast([x], 2) == ("host", 2)
    assert transport.all_gather([x]) == "host"


def test_without_device_collectives_there_is_no_warning(backend: Backend) -> None:
    found, warned = decided(backend, [None] * RANKS)
    assert [type(t) for t in found] == [HostTransport] * RANKS and not warned


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (None, "rank 1: its backend knows no other way"),
        (raising("NCCL does not load: no such file"), "rank 1: NCCL does not load: no such file"),
        (lambda: rendezvous_of(1, library="NCCL 21800"), "rank 0 has NCCL 22703, rank 1 NCCL 21800"),
        (lambda: rendezvous_of(2), "2 ranks are on device 0000:02:00.0 of "),
        (lambda: rendezvous_of(1, join=raising("NCCL: refused")), "rank 1: NCCL: refused"),
    ],
)
def test_where_one_rank_cannot_all_go_through_the_host_and_one_says_why(backend: Backend, odd: Any, why: str) -> None:
    found, warned = decided(backend, [lambda: rendezvous_of(0), odd, lambda: rendezvous_of(2)])
    assert [type(t) for t in found] == [HostTransport] * RANKS
    (line,) = warned
    assert line.startswith(f"distributed: sums go through the host's memory: {why}") and "\n" not in line


def test_a_failed_unique_id_is_reported_to_all_ranks(backend: Backend) -> None:
    first = lambda: rendezvous_of(0, unique_id=raising("NCCL: no network"))
    found, warned = decided(backend, [first, lambda: rendezvous_of(1), lambda: rendezvous_of(2)])
    assert [type(t) for t in found] == [HostTransport] * RANKS and warned[0].endswith("rank 0: NCCL: no network")


def test_on_one_host_sums_go_through_memory_that_all_see(backend: Backend) -> None:
    asked = []

    def windows(found: Any, rank: int, meet: Any) -> Any:
        asked.append((found, rank))
        return lambda bufs, wire, op: bufs

    share = lambda nbytes: [f"{nbytes} bytes"]
    for offers, warns in (([None] * RANKS, 0), ([raising("NCCL does not load")] * RANKS, 1)):
        found, warned = decided(backend, offers, windows, share)
        assert [t.name for t in found] == ["memory that all ranks see"] * RANKS and len(warned) == warns
    assert sorted(rank for _, rank in asked) == [0, 0, 1, 1, 2, 2] and len({str(w) for w, _ in asked}) == 1
    assert [type(t) for t in decided(backend, [None] * RANKS, windows, None)[0]] == [HostTransport] * RANKS


def test_without_shared_memory_reductions_use_mpi(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = import_module("polyarr.distributed.devices")
    share = lambda nbytes: pytest.fail("there is no room")
    for shared in ("/no/such/folder", None):
        monkeypatch.setattr(devices, "SHARED", shared or "/")
        monkeypatch.setattr(devices.shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * 4096))
        found, warned = decided(backend, [None] * RANKS, lambda *_: None, share)
        assert [type(t) for t in found] == [HostTransport] * RANKS and not warned
