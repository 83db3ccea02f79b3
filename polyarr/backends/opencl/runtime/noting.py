"""What a device is given to do, noted with its times for whoever watches. Costs nothing while nobody does."""

import math
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyopencl as cl

from polyarr.backends.opencl.runtime.commands import Command, Commands
from polyarr.backends.opencl.runtime.device import Device
from polyarr.core.backend import Launch

NANOSECOND = 1e-9
SAMPLES = 8  # commands by which two clocks are compared

_notes: dict[Commands, "_Notes"] = {}  # who is to be told of a device's commands
_lock = threading.Lock()
_PLAIN_CALL, _PLAIN_ALLOCATE = Command.__call__, Device._allocate


class _Notes(NamedTuple):
    """Whom to tell, and what to add to the seconds of the device's clock for those of time.perf_counter."""

    note: Callable[[Launch], None]
    offset: float


@contextmanager
def noting(device: Device, own: Container[int], note: Callable[[Launch], None]) -> Iterator[Container[int]]:
    """See Backend.noting."""
    with device.commands.timed():
        offset = _offset(device)
        _change(lambda: _notes.update({device.commands: _Notes(note, offset)}))
        try:
            yield own
        finally:
            _change(lambda: _notes.pop(device.commands))


def _change(change: Callable[[], Any]) -> None:
    """Change who is told; while there is anybody, methods that tell stand in for the plain ones."""
    with _lock:
        change()
        Command.__call__ = _noted if _notes else _PLAIN_CALL  # type: ignore[method-assign]
        Device._allocate = _allocated if _notes else _PLAIN_ALLOCATE  # type: ignore[method-assign]


def _noted(self: Command, work: tuple[int, ...], group: tuple[int, ...] | None, *args: Any) -> cl.Event | None:
    event, notes = _PLAIN_CALL(self, work, group, *args), _notes.get(self._commands)
    if event is not None and notes is not None:
        notes.note(Launch(self.name, work, group, lambda: _times(event, notes.offset)))
    return event


def _allocated(self: Device, nbytes: int) -> Any:
    """The allocator has the plain queue bring new memory to the device, and nothing may be before that."""
    memory = _PLAIN_ALLOCATE(self, nbytes)
    if self.commands in _notes:
        self.commands.finish_plain()
    return memory


def _times(event: cl.Event, offset: float) -> tuple[float, float]:
    event.wait()
    return event.profile.start * NANOSECOND + offset, event.profile.end * NANOSECOND + offset


def _offset(device: Device) -> float:
    """What to add to the device's clock, which is read when a command is queued: the host looks before and after."""
    earliest, latest = -math.inf, math.inf
    memory = device.empty_words(1)
    for _ in range(SAMPLES):
        before = time.perf_counter()
        event = device.commands.fill((4,), None, memory)
        after = time.perf_counter()
        event.wait()
        queued = event.profile.queued * NANOSECOND
        earliest, latest = max(earliest, before - queued), min(latest, after - queued)
    return (earliest + latest) / 2
