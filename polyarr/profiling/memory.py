"""Memory of a backend, by the arrays that hold it."""

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

MAX_HOLDERS = 10


class Holder(NamedTuple):
    """Arrays of one shape and dtype that one op created.

    Attributes:
        nbytes: Bytes of all of them.
        arrays: Number of arrays.
        spec: Their Spec.
        op: Name of the op; "" if unknown.
    """

    nbytes: int
    arrays: int
    spec: Spec
    op: str

    def __str__(self) -> str:
        return f"{self.nbytes:>15,}  {self.arrays:>5} x {self.spec}" + (f"  {self.op}" if self.op else "")


class MemoryStats(NamedTuple):
    """Memory of a backend, in bytes; None for values that the backend does not report.

    Attributes:
        backend: Name of the backend.
        in_use: Memory of arrays, and of what gradients and kernels keep.
        peak: Largest `in_use` since the backend was started.
        pool: Memory that the backend has allocated on the device, in use or free.
        limit: Memory of the device.
        holders: The arrays that hold most, largest first.
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


class _Makers(watch.Observer):
    """Observer that records which op made a buffer, for as long as it is registered: memory is reused later."""

    takes_programs = True

    def __init__(self) -> None:
        # By id of the memory: the Spec, the name of the op, and a weak reference to the buffer if possible.
        self.known: dict[int, tuple[Spec, str, Callable[[], Any]]] = {}

    def ended(self, call: Call, value: Any) -> None:
        """Record the maker of a result; a decomposition's result belongs to its last op, a view to its base."""
        if call.part in LEAVES and call.op not in VIEWS:
            for a in flatten(tuple(value) if type(value) is list else (value,)):
                self.note(a, call.name)

    def note(self, a: Any, name: str) -> None:
        """Record the maker of an array."""
        if type(a) is Array:
            try:
                buf: Callable[[], Any] = weakref.ref(a.buf)
            except TypeError:
                buf = _gone
            self.known[_key(a.buf)] = a.spec, name, buf

    def of(self, key: int, spec: Spec) -> tuple[Spec, str]:
        """Return the Spec and the maker of a buffer; the given Spec and "" if unknown."""
        made, name, _ = self.known.get(key, (None, "", _gone))
        is_known = made is not None and nbytes(made) == nbytes(spec) and watch.is_observing(self)
        return (made, name) if is_known else (spec, "")  # type: ignore[return-value]


def _gone() -> None:
    """Return None: the stand-in for a weak reference to an object that allows none."""


_makers = _Makers()


@contextlib.contextmanager
def recording_makers() -> Iterator[None]:
    """Record which op made each array within this block."""
    if not watch.is_observing(_makers):
        _makers.known.clear()
    with watch.observing(_makers):
        yield


def memory_stats(backend: str | Backend | None = None) -> MemoryStats:
    """Return the memory of a backend, and the arrays that hold most of it.

    Inspects all objects of the process. The op that made an array is known for arrays created while `profile` or
    POLYARR_TRACE is active, and as long as it is.

    Args:
        backend: Name of a backend, or a Backend; None: the current one.

    Returns:
        MemoryStats; printing it shows a table.

    Raises:
        BackendError: As `get_backend`.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.zeros((1000, 1000))
        >>> pa.memory_stats("numpy").in_use >= 4_000_000
        True
    """
    found = get_backend(backend)
    groups = defaultdict[tuple[Spec, str], int](int)
    for key, spec in _held(found).items():
        groups[_makers.of(key, spec)] += 1
    holders = [Holder(nbytes(spec) * count, count, spec, op) for (spec, op), count in groups.items()]
    report = found.memory()
    in_use = report.get("in use", sum(holder.nbytes for holder in holders))
    rest = report.get("peak"), report.get("held"), report.get("limit")
    return MemoryStats(found.name, in_use, *rest, sorted(holders, key=lambda h: -h.nbytes)[:MAX_HOLDERS])


def _held(backend: Backend) -> dict[int, Spec]:
    """Return, by id of a memory block, the Spec of the largest buffer in it: of arrays and of kept buffers."""
    held: dict[int, Spec] = {}

    def add(buf: Any, spec: Spec) -> None:
        if nbytes(spec) > nbytes(held.get(_key(buf))):
            held[_key(buf)] = spec

    objects = gc.get_objects()
    whole = (o for o in objects if type(o) is Array and hasattr(o, "spec"))  # another thread may be making one
    arrays = [a for a in whole if a.backend.name == backend.name]
    for a in arrays:
        add(a.buf, a.spec)
    kinds = {type(a.buf) for a in arrays if hasattr(a.buf, "shape")}  # buffers of a capture have none
    for o in objects:  # gradients keep buffers without an Array
        if type(o) in kinds:
            add(o, Spec(tuple(o.shape), o.dtype))
    for spec, _, buf in [*_makers.known.values()]:
        if (alive := buf()) is not None and type(alive) in kinds:
            add(alive, spec)
    return held


def _key(buf: Any) -> int:
    """Return the id of a buffer's memory block, which its views share."""
    shared = [memory for name in ("memory", "base") if (memory := getattr(buf, name, None)) is not None]
    return id(shared[0] if shared else buf)


def _uploaded(*args: Any) -> Array:
    a = _plain_from_numpy(*args)
    if watch.is_observing(_makers):
        _makers.note(a, "asarray")
    return a


_plain_from_numpy = watch.replace_while_observed(creation, "from_numpy", _uploaded)
