"""The profiler: records what runs in a block, with times."""

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

from polyarr.atomic import write_whole
from polyarr.autograd import transforms
from polyarr.capture.observed import step_call
from polyarr.core import watch
from polyarr.core.backend import Launch
from polyarr.core.current import get_backend
from polyarr.core.errors import BackendError
from polyarr.core.program import Program, Step
from polyarr.core.watch import Call
from polyarr.profiling.memory import recording_makers
from polyarr.profiling.perfetto import trace_of
from polyarr.profiling.summary import Row, Timed, decompositions, kernels, ops, table_of

UNREAD = 2**14  # launches whose times are queried later, when they have finished, so that the host does not wait


class profile(watch.Observer):  # noqa: N801  reads as a verb, like the context managers of the standard library
    """Record what runs within a `with` block, in all threads and on all backends, and how long it takes.

    Backends that report launches give device times; on others a kernel takes as long as its call, which is waited for.
    Blocks may be nested, and one object used several times, which adds to it. Needs some hundred bytes per call.

    Attributes:
        calls: Recorded calls of ops.
        blocks: (start, end) of each block, in seconds of time.perf_counter.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.ones((2, 2))
        >>> with pa.profile() as p:
        ...     y = x @ x
        >>> [(row.name, row.calls) for row in p.ops()]
        [('matrix_product', 1)]
    """

    needs_launches = takes_programs = True

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.blocks: list[tuple[float, float]] = []  # when they began and ended
        self._timed: list[Timed] = []
        self._step: tuple[Any, Any, Any] = (None, None, None)  # the last step launched, its outer call and its own
        self._unread: list[tuple[Launch, Call | None, float]] = []
        self._open: list[tuple[contextlib.ExitStack, float]] = []
        self._lock = threading.RLock()

    def __enter__(self) -> "profile":
        with contextlib.ExitStack() as stack:
            stack.enter_context(recording_makers())
            stack.enter_context(watch.observing(self))
            with contextlib.suppress(BackendError):  # whoever computes will raise it
                watch.reported_kernels(get_backend())  # switches queues and compares clocks, before the block begins
            self._open.append((stack.pop_all(), time.perf_counter()))
        return self

    def __exit__(self, *exception: object) -> None:
        context, began = self._open.pop()
        context.close()
        with self._lock, contextlib.suppress(BackendError):
            for launch, _, _ in self._unread[-1:]:
                launch.times()  # waits for the device, which belongs to the block
        self.blocks.append((began, time.perf_counter()))
        self._read()

    def launched(self, launch: Launch, call: Call | None) -> None:
        """Record a launch, which the host has just queued. All else is done later, when nothing waits for it."""
        with self._lock:
            self._unread.append((launch, call, time.perf_counter()))
            if len(self._unread) >= 2 * UNREAD:
                self._read(UNREAD)

    def _call_of(self, step: tuple[Program, Step], outer: Call | None) -> Call:
        """Return the call of a step of a captured function, one for all its launches in one run."""
        last, within, call = self._step
        if last is not step[1] or within is not outer:
            call = step_call(*step, outer)
            self._step = step[1], outer, call
            self.calls.append(call)
        return call

    def ended(self, call: Call, value: Any) -> None:
        """Record a call."""
        self.calls.append(call)

    def _read(self, count: int | None = None) -> None:
        """Query the times of the first launches, which releases the driver's events."""
        with self._lock:
            read, self._unread[:count] = self._unread[:count], []
            for launch, call, queued in read:
                if launch.step is not None:
                    call = self._call_of(launch.step, call)
                with contextlib.suppress(BackendError):  # a lost device has no times
                    times = launch.times()
                    self._timed.append(Timed(launch.name, launch.work, launch.group, call, *times, queued))

    def _recorded(self) -> tuple[list[Call], list[Timed]]:
        """Return the calls and the launches. Reading the launches adds the calls of captured steps."""
        self._read()
        return self.calls, self._timed

    @property
    def launches(self) -> list[Timed]:
        """All launches with their times. Waits for them to finish."""
        self._read()
        return self._timed

    def ops(self) -> list[Row]:
        """Return a Row per op with a kernel, and per backward function of a Fused kernel, longest first."""
        return ops(*self._recorded())

    def kernels(self) -> list[Row]:
        """Return a Row per kernel and kind of copy that devices reported, longest first."""
        return kernels(self.launches)

    def decompositions(self) -> list[Row]:
        """Return a Row per op that ran its decomposition; the ops in it have rows of their own in `ops`."""
        return decompositions(*self._recorded())

    def table(self, peaks: bool = False) -> str:
        """Return all rows as text.

        Args:
            peaks: Whether to measure the devices' peak rates and show the share that was reached.
        """
        return table_of(*self._recorded(), self.blocks, peaks)

    def __str__(self) -> str:
        return self.table()

    def save(self, file: str | Path) -> None:
        """Write the timeline as JSON in Chrome's trace format, for ui.perfetto.dev.

        Args:
            file: File to write.

        Raises:
            OSError: The file cannot be written.
        """
        write_whole(Path(file), json.dumps(trace_of(*self._recorded(), self.blocks)).encode())


class _Walk:
    """Placeholder op of the calls that are backward passes over the tape."""

    name = "gradient"


def _walk(*args: Any, **kwargs: Any) -> Any:
    call = Call(_Walk, (), {}, None, "walk")
    with watch.calling(call):
        watch.report_begin(call, "walk", None)
        return _plain_walk(*args, **kwargs)


_plain_walk = watch.replace_while_observed(transforms, "_backward", _walk)
