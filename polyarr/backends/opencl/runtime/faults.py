"""Indices out of range: noted on the device while kernels run, raised on the host in the threads that they concern.

Each thread has a record of its own on the device. A bad index is raised by the next read of the thread that gave it,
and by the next read of a thread that took up an array which the first one made after that. An array carries the thread
that made it and that thread's time, which goes on with each call that takes indices, each array that it takes up from
elsewhere, and each error that it was told. See docs/decisions/0005-bad-indices-are-reported-at-the-next-read.md.
"""

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyarr.core.errors import BackendError

if TYPE_CHECKING:
    from polyarr.backends.opencl.runtime.device import Device

# Of a record: 0 or the time of the first bad call, counted from the last check; the index; the limit; what is missing
# from an index beyond 32 bits, in units of 2**32.
WORDS = 4
REMEMBERED = 1000  # errors of a thread that others are still told of
MANY = 100  # arrays taken up since the last read, from when on those that proved good are forgotten


class Origin(NamedTuple):
    """Which thread made an array, and when."""

    record: "Record"
    time: int


class Bad(NamedTuple):
    """An error that a thread was told at time `last`; what it made from time `first` on is suspect until then."""

    first: int
    last: int
    message: str


class Record:
    """What is known of one thread. Only the thread itself changes it."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.memory: Any = None
        self.time = self.checked = 0
        self.is_checked = True  # no call that takes indices since `checked`
        self.bad: deque[Bad] = deque(maxlen=REMEMBERED)
        self.heard: dict[Origin, int] = {}  # whose arrays the thread took up since its last read, and at what time
        self.origin = Origin(self, 0)  # for what the thread makes now

    def go_on(self) -> int:
        """The time after now."""
        self.time += 1
        self.origin = Origin(self, self.time)
        return self.time

    def told(self, first: int, message: str) -> IndexError:
        """The error to raise for what was wrong from `first` on; what is made from now on is not suspect."""
        self.bad.append(Bad(first, self.time, message))
        self.go_on()
        return IndexError(message)


class Faults:
    """The records of all threads that use a device."""

    def __init__(self, device: "Device") -> None:
        self._device = device
        self._local = threading.local()
        self._threads = 0  # with only one, there is nobody to listen to
        self._unread: set[Record] = set()  # with calls of which no read has told anybody

    def mine(self) -> Record:
        """The record of the thread that asks."""
        try:
            return self._local.record
        except AttributeError:
            self._threads += 1
            self._local.record = record = Record()
            self.report_unread(ended=True)
            return record

    def are_several(self) -> bool:
        """True if the thread that asks is not the only one that was ever here."""
        try:
            self._local.record  # noqa: B018  asked for at each op: a call of mine() takes longer
        except AttributeError:
            self.mine()
        return self._threads > 1

    def call(self) -> tuple[Any, int]:
        """What a kernel needs to note a bad index. To be asked for before the result's memory."""
        record = self.mine()
        if record.memory is None:
            record.memory = self._device.empty_words(WORDS)
        record.go_on()
        record.is_checked = False
        self._unread.add(record)
        return record.memory, record.time - record.checked

    def follow(self, bufs: Any) -> None:
        """Note whose arrays this thread takes up: what is wrong with them is its business from now on."""
        if self.are_several():
            _listen(self.mine(), bufs)

    def check(self) -> None:
        """Raise IndexError for a bad call of this thread, or of one whose arrays it took up, since the last check."""
        mine = self.mine()
        if not mine.is_checked:
            self._check_own(mine)
        seen: set[Origin] = {mine.origin}
        for origin, time in list(mine.heard.items()):
            del mine.heard[origin]
            if message := self._trouble(origin, mine, seen):
                raise mine.told(time, message)

    def _check_own(self, record: Record) -> None:
        found, first = self._noted(record), record.checked
        record.checked, record.is_checked = record.time, True
        self._unread.discard(record)
        if found is not None:
            self._device.write_words(record.memory, np.zeros(WORDS, np.int32))
            raise record.told(first + int(found[0]), _message(found))

    def _trouble(self, origin: Origin, mine: Record, seen: set[Origin]) -> str:
        """What was wrong with an array of another thread; empty if nothing was."""
        record, time = origin
        if record is mine or origin in seen:
            return ""
        seen.add(origin)
        for bad in _told(origin):
            return bad.message
        if time > record.checked and not record.is_checked:
            found = self._noted(record)
            if found is not None and record.checked + found[0] <= time:
                self._unread.discard(record)
                return _message(found)
        earlier = (self._trouble(heard, mine, seen) for heard, at in list(record.heard.items()) if at <= time)
        return next(filter(None, earlier), "")

    def _noted(self, record: Record) -> np.ndarray | None:
        words = self._device.read_words(record.memory, WORDS)
        return words if words[0] else None

    def report_unread(self, ended: bool = False) -> None:
        """Report what no read has told, as errors that ended their threads; ended: only of those that have ended."""
        for record in [r for r in list(self._unread) if not (ended and r.thread.is_alive())]:
            self._unread.discard(record)
            with contextlib.suppress(BackendError):  # a device that was lost tells nothing
                found = self._noted(record)
                if found is not None:
                    error = IndexError(f"{_message(found)}; nothing was read after the call")
                    threading.excepthook(threading.ExceptHookArgs((IndexError, error, None, record.thread)))


def _listen(mine: Record, bufs: Any) -> None:
    for buf in bufs:
        origin = getattr(buf, "origin", None)
        if origin is None:
            if type(buf) is tuple:
                _listen(mine, buf)
        elif origin.record is not mine and origin not in mine.heard and _is_open(origin):
            if len(mine.heard) >= MANY:
                mine.heard = {o: at for o, at in mine.heard.items() if _is_open(o)}
            mine.heard[origin] = mine.go_on()


def _is_open(origin: Origin) -> bool:
    """False if nothing can be wrong with an array any more."""
    record, time = origin
    return (time > record.checked and not record.is_checked) or bool(record.heard) or any(_told(origin))


def _told(origin: Origin) -> list[Bad]:
    """The errors that a thread was told of what it made at that time."""
    return [bad for bad in list(origin.record.bad) if bad.first <= origin.time <= bad.last]


def _message(found: np.ndarray) -> str:
    return f"index {int(found[1]) + (int(found[3]) << 32)} is out of range for an axis of length {found[2]}"
