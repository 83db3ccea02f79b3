"""Who holds the memory of a backend."""

import contextlib
import gc
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from polyarr import creation
from polyarr.core import watch
from polyarr.core.array import Array, flatten
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend
from polyarr.core.spec import Spec
from polyarr.core.watch import Call
from polyarr.profiling.summary import LEAVES
from polyarr.profiling.work import VIEWS, nbytes

LARGEST = 10


class Holder(NamedTuple):
    """Arrays of one form that one op made: how many there are, what they hold in all, and the op if it is known."""

    nbytes: int
    arrays: int
    spec: Spec
    op: str

    def __str__(self) -> str:
        return f"{self.nbytes:>15,}  {self.arrays:>5} x {self.spec}" + (f"  {self.op}" if self.op else "")


class MemoryStats(NamedTuple):
    """The memory of a backend, in bytes; None where it cannot tell.

    in_use   of arrays, and of what gradients and kernels keep
    peak     the most that was in use since the backend was started
    pool     what the backend has of the device, in use or not
    limit    what the device has
    holders  who holds most, the largest first
    """

    backend: str
    in_use: int
    peak: int | None
    pool: int | None
    limit: int | None
    holders: list[Holder]

    def __str__(self) -> str:
        amounts = {"in use": self.in_use, "peak": self.peak, "pool": self.pool, "limit": self.limit}
        known = ", ".join(f"{name} {value:,}" for name, value in amounts.items() if value is not None)
        return "\n".join([f"{self.backend}: bytes {known}", *map(str, self.holders)])


class _Makers(watch.Watcher):
    """Which op made a buffer. Only while somebody watches: later its memory may be that of another one."""

    def __init__(self) -> None:
        # By the id of the memory: the Spec and the op, and a way to the buffer where there can be a weak one.
        self.known: dict[int, tuple[Spec, str, Callable[[], Any]]] = {}

    def ended(self, call: Call, value: Any) -> None:
        """Note who made what; a body's result is of its last op, and a view is of whoever made what it shows."""
        if call.part in LEAVES and call.op not in VIEWS:
            for a in flatten(tuple(value) if type(value) is list else (value,)):
                self.note(a, call.name)

    def note(self, a: Any, name: str) -> None:
        """Note who made an array."""
        if type(a) is Array:
            try:
                buf: Callable[[], Any] = weakref.ref(a.buf)
            except TypeError:
                buf = _gone
            self.known[_key(a.buf)] = a.spec, name, buf

    def of(self, key: int, spec: Spec) -> tuple[Spec, str]:
        """The form and the name of what made a buffer; what is given, and "", if that is not known."""
        made, name, _ = self.known.get(key, (None, "", _gone))
        is_known = made is not None and nbytes(made) == nbytes(spec) and watch.is_watching(self)
        return (made, name) if is_known else (spec, "")  # type: ignore[return-value]


def _gone() -> None:
    """Where a weak reference leads that there cannot be."""


_makers = _Makers()


@contextlib.contextmanager
def noting_makers() -> Iterator[None]:
    """Note in this block which op made an array."""
    if not watch.is_watching(_makers):
        _makers.known.clear()
    with watch.watching(_makers):
        yield


def memory_stats(backend: str | Backend | None = None) -> MemoryStats:
    """What a backend's memory holds, and who holds most of it; None: the current backend.

    Looks at all objects of the process. Which op made an array is known of those that are made while pa.profile() or
    POLYARR_TRACE watches, as long as it does.

    Errors:  as get_backend
    """
    found = get_backend(backend)
    groups = defaultdict[tuple[Spec, str], int](int)
    for key, spec in _held(found).items():
        groups[_makers.of(key, spec)] += 1
    holders = [Holder(nbytes(spec) * count, count, spec, op) for (spec, op), count in groups.items()]
    report = found.memory()
    in_use = report.get("in use", sum(holder.nbytes for holder in holders))
    rest = report.get("peak"), report.get("held"), report.get("limit")
    return MemoryStats(found.name, in_use, *rest, sorted(holders, key=lambda h: -h.nbytes)[:LARGEST])


def _held(backend: Backend) -> dict[int, Spec]:
    """By the id of a memory, the Spec of the largest buffer in it: arrays', and what else there is of their type."""
    held: dict[int, Spec] = {}

    def add(buf: Any, spec: Spec) -> None:
        if nbytes(spec) > nbytes(held.get(_key(buf))):
            held[_key(buf)] = spec

    objects = gc.get_objects()
    whole = (o for o in objects if type(o) is Array and hasattr(o, "spec"))  # another thread may be making one
    arrays = [a for a in whole if a.backend.name == backend.name]
    for a in arrays:
        add(a.buf, a.spec)
    kinds = {type(a.buf) for a in arrays if hasattr(a.buf, "shape")}  # what a capture makes has none
    for o in objects:  # what gradients keep is no Array
        if type(o) in kinds:
            add(o, Spec(tuple(o.shape), o.dtype))
    for spec, _, buf in [*_makers.known.values()]:
        if (alive := buf()) is not None and type(alive) in kinds:
            add(alive, spec)
    return held


def _key(buf: Any) -> int:
    """What tells one memory from another: views share theirs."""
    shared = [memory for name in ("memory", "base") if (memory := getattr(buf, name, None)) is not None]
    return id(shared[0] if shared else buf)


def _uploaded(*args: Any) -> Array:
    a = _plain_from_numpy(*args)
    if watch.is_watching(_makers):
        _makers.note(a, "asarray")
    return a


_plain_from_numpy = watch.stand_in(creation, "from_numpy", _uploaded)
