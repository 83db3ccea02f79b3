"""What runs in a block, noted with its times."""

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

from polyarr import autograd
from polyarr.core import watch
from polyarr.core.backend import Launch
from polyarr.core.errors import BackendError
from polyarr.core.watch import Call
from polyarr.profiling.memory import noting_makers
from polyarr.profiling.perfetto import trace_of
from polyarr.profiling.summary import Row, Timed, bodies, kernels, ops, table_of

UNREAD = 4096  # launches whose times are asked for later, when the device has long come to them


class profile(watch.Watcher):  # noqa: N801  reads as a verb, like the context managers of the standard library
    """Note what runs within a `with` block, in every thread and on every backend, and how long it takes.

        with pa.profile() as p:
            train_a_few_steps()
        print(p)                    # p.table(peaks=True) shows it beside what the device can do
        p.save("trace.json")        # for ui.perfetto.dev

    Devices that can tell note their own times; where one cannot, a kernel takes as long as its call, and is waited for.
    May be nested, and used again, which adds to it. Keeps some hundred bytes per call.
    """

    needs_launches = True

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.blocks: list[tuple[float, float]] = []  # when they began and ended
        self._timed: list[Timed] = []
        self._unread: list[tuple[Launch, Call | None]] = []
        self._open: list[tuple[contextlib.ExitStack, float]] = []
        self._lock = threading.RLock()

    def __enter__(self) -> "profile":
        with contextlib.ExitStack() as stack:
            stack.enter_context(noting_makers())
            stack.enter_context(watch.watching(self))
            self._open.append((stack.pop_all(), time.perf_counter()))
        return self

    def __exit__(self, *_: object) -> None:
        context, began = self._open.pop()
        context.close()
        with self._lock, contextlib.suppress(BackendError):
            for launch, _ in self._unread[-1:]:
                launch.times()  # waits for the device, which belongs to the block
        self.blocks.append((began, time.perf_counter()))
        self._read()

    def launched(self, launch: Launch, call: Call | None) -> None:
        """Note what a device was given."""
        with self._lock:
            self._unread.append((launch, call))
            if len(self._unread) >= 2 * UNREAD:
                self._read(UNREAD)

    def ended(self, call: Call, value: Any) -> None:
        """Note a call."""
        self.calls.append(call)

    def _read(self, count: int | None = None) -> None:
        """Ask for the times of the first launches, which lets go of the drivers' events."""
        with self._lock:
            read, self._unread[:count] = self._unread[:count], []
            for launch, call in read:
                with contextlib.suppress(BackendError):  # a device that was lost tells nothing
                    began, ended = launch.times()
                    self._timed.append(Timed(launch.name, launch.work, launch.group, call, began, ended))

    @property
    def launches(self) -> list[Timed]:
        """Everything that devices were given to do. Waits for it."""
        self._read()
        return self._timed

    def ops(self) -> list[Row]:
        """A row for each op that has a kernel, and for the backward half of each pair; the longest first."""
        return ops(self.calls, self.launches)

    def kernels(self) -> list[Row]:
        """A row for each kernel, and each way to move bytes, that devices noted; the longest first."""
        return kernels(self.launches)

    def bodies(self) -> list[Row]:
        """A row for each op without a kernel. What its body did stands in the rows of `ops`, and here once more."""
        return bodies(self.calls, self.launches)

    def table(self, peaks: bool = False) -> str:
        """Everything as text; with peaks, which are measured, beside what the devices can do."""
        return table_of(self.calls, self.launches, self.blocks, peaks)

    def __str__(self) -> str:
        return self.table()

    def save(self, file: str | Path) -> None:
        """Write what ran when, in Chrome's trace format, as JSON: to be opened in ui.perfetto.dev.

        Errors:  OSError if the file cannot be written
        """
        Path(file).write_text(json.dumps(trace_of(self.calls, self.launches, self.blocks)))


class _Walk:
    """Stands for an op where a gradient finds its way back."""

    name = "gradient"


def _walk(*args: Any, **kwargs: Any) -> Any:
    call = Call(_Walk, (), {}, None, "walk")
    with watch.calling(call):
        watch.begin(call, "walk", None)
        return _plain_walk(*args, **kwargs)


_plain_walk = watch.stand_in(autograd, "_backward", _walk)
