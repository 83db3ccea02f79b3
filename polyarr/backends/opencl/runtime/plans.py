"""Per-device caches of launch decisions: programs, tiles, and launch parameters; and of tables in device memory."""

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple

from polyarr.backends.opencl.runtime.layout import Buffer

MAX_RESULTS = 8192  # cached results of one function; the least recently used go first
MAX_TABLE_BYTES = 64 << 20  # cached tables of a device besides the latest one
_USES = count(1)


class Plans(dict[Callable, Callable]):
    """A cache: plans[make](*args) is make(device, *args), computed at the first call.

    Arguments are what decides how to launch: shapes, strides, dtypes. Values that change between calls, such as a
    position, a rate or a step, are not; they go to the kernel. The plans live as long as their device.
    """

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._device = device

    def __missing__(self, make: Callable) -> Callable:
        kept = self[make] = lru_cache(maxsize=MAX_RESULTS)(partial(make, self._device))
        return kept

    def renew(self, *but: Callable) -> None:
        """Forget everything but the results of these functions."""
        for make in self.keys() - {*but}:
            del self[make]


class Table:
    """Constants that kernels read, such as roots of unity: plans[Table](make, *args) has those of make(device, *args).

    Their memory is freed when other tables need it, and they are then computed again. Plans may hold a Table but not
    its buffers; recorded launches hold those, as all constants.
    """

    def __init__(self, device: Any, make: Callable[..., tuple[Buffer, ...]], *args: Any) -> None:
        self.make, self._all = partial(make, device, *args), device.plans[_Tables]()
        self.kept: tuple[Buffer, ...] | None = None
        self.last_use = 0

    def buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers."""
        self.last_use = next(_USES)
        return self.kept or self._all.computed(self)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(buf.size * buf.dtype.itemsize for buf in self.kept or ())


class _Tables:
    """The tables in the memory of a device: the latest, and MAX_TABLE_BYTES of the most recently used others."""

    def __init__(self, device: Any) -> None:
        self._lock, self.kept = device.lock, list[Table]()

    def computed(self, table: Table) -> tuple[Buffer, ...]:
        """Return the buffers of a table, computed if no other thread has done so."""
        with self._lock:
            if table.kept is None:
                found = table.make()
                self.kept.sort(key=attrgetter("last_use"))
                while sum(other.nbytes for other in self.kept) > MAX_TABLE_BYTES:
                    self.kept.pop(0).kept = None
                self.kept.append(table)
                table.kept = found
            return table.kept


class LaunchPlan(NamedTuple):
    """Everything that a launch of a kernel needs besides arrays and dynamic scalars; numbers are its last arguments."""

    kernel: Any
    work: tuple[int, ...]
    group: tuple[int, ...] | None
    numbers: tuple[Any, ...]
