"""Observes commands: reports each with its times to a callback. Costs nothing while nobody observes."""

import math
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from polyarr.backends.opencl.runtime.commands import BoundCommand, Command, CommandList, Commands
from polyarr.backends.opencl.runtime.device import Device
from polyarr.core.backend import Launch

NANOSECOND = 1e-9
SAMPLES = 8  # commands by which two clocks are compared

_notes: dict[Commands, "_Notes"] = {}  # the callbacks, by device
_lock = threading.Lock()
_PLAIN_CALL, _PLAIN_ALLOCATE, _PLAIN_REPEAT = Command.__call__, Device._allocate, Commands.repeat


class _Notes(NamedTuple):
    """A callback, and the offset in seconds from the device's clock to time.perf_counter."""

    note: Callable[[Launch], None]
    offset: float


@contextmanager
def observing(device: Device, own: Container[int], note: Callable[[Launch], None]) -> Iterator[Container[int]]:
    """Call note for each command in this context; see Backend.observing."""
    with device.commands.timed():
        offset = _offset(device)
        _change(lambda: _notes.update({device.commands: _Notes(note, offset)}))
        try:
            yield own
        finally:
            _change(lambda: _notes.pop(device.commands))


def _change(change: Callable[[], Any]) -> None:
    """Register or remove a callback; while there is any, reporting methods replace the plain ones."""
    with _lock:
        change()
        Command.__call__ = _noted if _notes else _PLAIN_CALL  # type: ignore[method-assign]
        Commands.repeat = _repeated if _notes else _PLAIN_REPEAT  # type: ignore[method-assign]
        Device._allocate = _allocated if _notes else _PLAIN_ALLOCATE  # type: ignore[method-assign]


def _noted(self: Command, work: tuple[int, ...], group: tuple[int, ...] | None, *args: Any) -> Any:
    event, notes = _PLAIN_CALL(self, work, group, *args), _notes.get(self._commands)
    if event is not None and notes is not None:
        first = self._commands.recording  # of a captured program
        step = None if first is None else (first.program, first.step)
        notes.note(Launch(self.name, work, group, lambda: _times(event, notes.offset), step))
    return event


def _repeated(self: Commands, commands: CommandList) -> None:
    """Enqueue recorded commands in the queue that measures times, and report each launch."""
    notes = _notes.get(self)
    if notes is None:
        _PLAIN_REPEAT(self, commands)
        return

    def enqueue(each: BoundCommand, queue: Any) -> None:
        event = each.submit_to(queue)
        if event is not None:
            times = partial(_times, event, notes.offset)
            notes.note(Launch(each.command.name, each.work or (), each.group, times, each.step))

    self.repeat_by(enqueue, commands)


def _allocated(self: Device, nbytes: int) -> Any:
    """Allocate and wait: the allocator uses the plain queue, and nothing may overtake it."""
    memory = _PLAIN_ALLOCATE(self, nbytes)
    if self.commands in _notes:
        self.commands.finish_plain()
    return memory


def _times(event: Any, offset: float) -> tuple[float, float]:
    event.wait()
    return event.profile.start * NANOSECOND + offset, event.profile.end * NANOSECOND + offset


def _offset(device: Device) -> float:
    """Return the device clock's offset, bounded by the host's times before commands are queued and after they end."""
    earliest, latest = -math.inf, math.inf
    memory = device.empty_words(1)
    for _ in range(SAMPLES):
        before = time.perf_counter()
        event = device.commands.fill((4,), None, memory)
        event.wait()
        after = time.perf_counter()
        start, end = event.profile.start * NANOSECOND, event.profile.end * NANOSECOND
        earliest, latest = max(earliest, before - start), min(latest, after - end)
    return (earliest + latest) / 2
