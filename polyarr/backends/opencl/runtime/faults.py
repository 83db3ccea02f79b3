"""Bad indices and matrices: noted on the device while kernels run, raised on the host in the threads they concern.

Each thread has a record on the device. An index out of range, or a matrix without a result, is raised by the next read
of the thread that passed it, and by the next read of a thread that used an array which the first thread made after
that. An array carries the thread that made it and that thread's time, a counter that advances with each call that takes
indices or matrices, each array of another thread that it uses, and each error that was raised. See
docs/decisions/0005-bad-indices-are-reported-at-the-next-read.md.
"""

import contextlib
import sys
import threading
from collections import deque
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyarr.core.errors import BackendError, MatrixError
from polyarr.core.number import PACKAGE

if TYPE_CHECKING:
    from polyarr.backends.opencl.runtime.device import Device

# Words of a record: 0 or the time of the first bad call since the last check; the index; the limit; the part of the
# index beyond 32 bits, in units of 2**32. Of a bad matrix: the time; the number of a message; OF_MATRIX; 0. Behind them
# is the time of the last call of several kernels, which replays write there.
WORDS, FURTHER = 4, 1
OF_MATRIX = -1  # in place of a limit
MAX_ERRORS = 1000  # errors of a thread that are still reported to others
MAX_UNCHECKED = 2**20  # calls of a thread since the last check
MAX_CALLS = 1000  # the last calls of a thread whose op and line are known
MAX_FOLLOWED = 100  # arrays of other threads, since the last read, from which on settled ones are dropped


class Origin(NamedTuple):
    """The thread that made an array, and its time."""

    record: "Record"
    time: int


class Bad(NamedTuple):
    """An error raised at time `last`; what the thread made from time `first` until then is suspect."""

    first: int
    last: int
    error: Exception


class Record:
    """The state of one thread. Only the thread itself changes it."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.memory: Any = None
        self.time = self.checked = 0
        self.is_checked = True  # no call that takes indices since `checked`
        self.bad: deque[Bad] = deque(maxlen=MAX_ERRORS)
        self.calls: deque[tuple[int, str, Any]] = deque(maxlen=MAX_CALLS)  # time, op, and where the user's code called
        self.followed: dict[Origin, int] = {}  # origins of arrays of other threads used since the last read, and when
        self.origin = Origin(self, 0)  # of what the thread makes now

    def go_on(self) -> int:
        """Advance the time, and return it."""
        self.time += 1
        self.origin = Origin(self, self.time)
        return self.time

    def error(self, first: int, error: Exception) -> Exception:
        """Return the error to raise for what was wrong from `first` on; later results are not suspect."""
        self.bad.append(Bad(first, self.time, error))
        self.go_on()
        return type(error)(*error.args)


class Faults:
    """The records of all threads that use a device."""

    def __init__(self, device: "Device") -> None:
        self._device = device
        self._local = threading.local()
        self._threads = 0  # with a single thread, origins need not be followed
        self._unread: set[Record] = set()  # with calls that no read has checked
        self._messages: dict[str, int] = {}  # the messages of bad matrices, and their numbers, in order

    def mine(self) -> Record:
        """Return the record of the calling thread."""
        try:
            return self._local.record
        except AttributeError:
            self._threads += 1
            self._local.record = record = Record()
            self.report_unread(ended=True)
            return record

    def are_several(self) -> bool:
        """Return whether the device was ever used by another thread than the calling one."""
        try:
            self._local.record  # noqa: B018  inlined, because a call of mine() for each op takes longer
        except AttributeError:
            self.mine()
        return self._threads > 1

    def call(self, op: str, line: str = "") -> tuple[Any, int]:
        """Return what a kernel needs to note a fault. Call it before the result is allocated.

        Args:
            op: Name of the op, for errors.
            line: Line of the user's code, for errors; "" for the line of the innermost caller.
        """
        record = self.mine()
        if record.memory is None:
            record.memory = self._device.empty_words(WORDS + FURTHER)
        record.calls.append((record.go_on(), op, line or _caller()))
        record.is_checked = False
        self._unread.add(record)
        return record.memory, record.time - record.checked

    def timer(self) -> Any:
        """Return the kernel that writes a time into a record, for kernels whose own time is 0."""
        return self._device.build("faults").fault_time

    def message(self, text: str) -> int:
        """Return the number by which a kernel notes that a matrix is bad; `text` is the message of the MatrixError."""
        with self._device.lock:
            return self._messages.setdefault(text, len(self._messages))

    def follow(self, bufs: Any) -> None:
        """Note the arrays that this thread uses: errors in what they are made of will be raised here, too."""
        if self.are_several():
            _listen(self.mine(), bufs)

    def check(self) -> None:
        """Raise the error of a bad call, since the last check, of this thread or of one whose arrays it used."""
        mine = self.mine()
        if not mine.is_checked:
            self._check_own(mine)
        seen: set[Origin] = {mine.origin}
        for origin, time in list(mine.followed.items()):
            del mine.followed[origin]
            if error := self._trouble(origin, mine, seen):
                raise mine.error(time, error)

    def are_none_so_far(self) -> bool:
        """Return whether `check` would raise nothing, as far as the calls have run that take part in it.

        Now and then it returns False without a reason, so that a thread which never checks does not run out of times.
        """
        mine = self.mine()
        if mine.followed or mine.time - mine.checked > MAX_UNCHECKED:
            return False
        return mine.is_checked or self._noted(mine) is None

    def _check_own(self, record: Record) -> None:
        found, first = self._noted(record), record.checked
        record.checked, record.is_checked = record.time, True
        self._unread.discard(record)
        if found is not None:
            self._device.write_words(record.memory, np.zeros(WORDS, np.int32))
            raise record.error(first + int(found[0]), self._error(record, first, found))

    def _trouble(self, origin: Origin, mine: Record, seen: set[Origin]) -> Exception | None:
        """Return what was wrong with an array of another thread; None if nothing was."""
        record, time = origin
        if record is mine or origin in seen:
            return None
        seen.add(origin)
        for bad in _errors_about(origin):
            return bad.error
        if time > record.checked and not record.is_checked:
            found = self._noted(record)
            if found is not None and record.checked + found[0] <= time:
                self._unread.discard(record)
                return self._error(record, record.checked, found)
        earlier = (self._trouble(followed, mine, seen) for followed, at in list(record.followed.items()) if at <= time)
        return next(filter(None, earlier), None)

    def _noted(self, record: Record) -> np.ndarray | None:
        words = self._device.read_words(record.memory, WORDS)
        return words if words[0] else None

    def report_unread(self, ended: bool = False) -> None:
        """Report errors that no read has raised through threading.excepthook; with `ended`, only of ended threads."""
        for record in [r for r in list(self._unread) if not (ended and r.thread.is_alive())]:
            self._unread.discard(record)
            with contextlib.suppress(BackendError):  # a lost device reports nothing
                found = self._noted(record)
                if found is not None:
                    error = self._error(record, record.checked, found, "; nothing was read after the call")
                    threading.excepthook(threading.ExceptHookArgs((type(error), error, None, record.thread)))

    def _error(self, record: Record, first: int, found: np.ndarray, more: str = "") -> Exception:
        """Return the error that a kernel noted after the time `first` of a thread."""
        known = {time: (f"{op}: ", f"; called at {_shown(place)}") for time, op, place in list(record.calls)}
        prefix, place = known.get(first + int(found[0]), ("", ""))
        if found[2] == OF_MATRIX:
            return MatrixError([*self._messages][found[1]] + place + more)
        index = int(found[1]) + (int(found[3]) << 32)
        return IndexError(f"{prefix}index {index} is out of range for an axis of length {found[2]}{place}{more}")


def _caller() -> tuple[CodeType, int]:
    """Return the code of the innermost caller outside of polyarr, and its instruction; a line would take longer."""
    frame = sys._getframe(3)  # of what called the launcher: each frame that is looked at takes time
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def _shown(place: Any) -> str:
    """Return "file:line" of what _caller returned; a text as it is."""
    if isinstance(place, str):
        return place
    code, at = place
    line = next((line for start, end, line in code.co_lines() if start <= at < end), code.co_firstlineno)
    return f"{code.co_filename}:{line}"


def _listen(mine: Record, bufs: Any) -> None:
    last = None
    for buf in bufs:
        origin = getattr(buf, "origin", None)
        if origin is None:
            if type(buf) is tuple:
                _listen(mine, buf)
        elif origin is not last:  # the weights of a model have often the same one
            last = origin
            if origin.record is not mine and origin not in mine.followed and _is_open(origin):
                if len(mine.followed) >= MAX_FOLLOWED:
                    mine.followed = {o: at for o, at in mine.followed.items() if _is_open(o)}
                mine.followed[origin] = mine.go_on()


def _is_open(origin: Origin) -> bool:
    """Return whether something may still be wrong with an array."""
    record, time = origin
    return (time > record.checked and not record.is_checked) or bool(record.followed) or any(_errors_about(origin))


def _errors_about(origin: Origin) -> list[Bad]:
    """Return the errors that were raised in a thread about what it made at that time."""
    return [bad for bad in list(origin.record.bad) if bad.first <= origin.time <= bad.last]
