"""POLYARR_TRACE prints what runs; POLYARR_DEBUG raises errors at their cause. Both apply to the whole process."""

import atexit
import contextlib
import sys
import threading
from typing import Any

from polyarr import settings
from polyarr.core import watch
from polyarr.core.array import flatten
from polyarr.core.backend import Backend, Launch
from polyarr.core.current import wait
from polyarr.core.errors import BackendError
from polyarr.core.watch import Call
from polyarr.profiling.memory import recording_makers
from polyarr.profiling.summary import LEAVES
from polyarr.profiling.work import moved

INDENT = "  "


class Tracer(watch.Observer):
    """Observer that prints a line per call, indented by depth; with `launches`, also a line per launch."""

    def __init__(self, launches: bool) -> None:
        self.needs_launches = launches

    def begun(self, call: Call) -> None:
        """Print what computes a call."""
        if call.backend is None:
            self._print(call.depth, call.name)
            return
        params = "".join(f", {name}={value}" for name, value in call.params.items())
        head = f"{call.name} {_specs(call.specs)}{params} -> {_specs((call.out,))}"
        size = moved(call) if self.needs_launches and call.part in LEAVES else 0
        work = f", {size:,} bytes" if size else ""
        self._print(call.depth, f"{head}  [{call.backend.name}: {call.part}{work}]")

    def launched(self, launch: Launch, call: Call | None) -> None:
        """Print a launch. Waits for it to finish."""
        if not self.needs_launches:
            return
        began, ended = launch.times()
        what = (
            f" {launch.work} by {launch.group}"
            if launch.group
            else f" of {launch.work[0]:,} bytes"
            if launch.work
            else ""
        )
        self._print(call.depth + 1 if call else 0, f"| {launch.name}{what}, {(ended - began) * 1e6:,.1f} us")

    def ended(self, call: Call, value: Any) -> None:
        """Print the error of a call."""
        if call.error is not None and (call.part in LEAVES or not call.part):
            head = "" if call.part else f"{call.name} {_specs(call.specs)}  "
            self._print(call.depth, f"{head}! {type(call.error).__name__}: {call.error}")

    def captured(self, name: str, backend: Backend, event: str) -> None:
        """Print why a function is captured, or that its program runs."""
        outer = watch.innermost()
        self._print(outer.depth + 1 if outer else 0, f"{name}  [{backend.name}: {event}]")

    def _print(self, depth: int, line: str) -> None:
        thread = threading.current_thread()
        who = "" if thread is threading.main_thread() else f"{thread.name}: "
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed or missing
            sys.stderr.write(f"{who}{INDENT * depth}{line}\n")


class Debugger(watch.Observer):
    """Observer that waits for the device after each kernel, so that an error is raised by the call that caused it."""

    def ended(self, call: Call, value: Any) -> None:
        """Wait for the device."""
        if call.backend is not None and call.error is None and call.part in LEAVES:
            wait(call.backend)


def _specs(specs: Any) -> str:
    return ", ".join(str(s) for s in flatten(specs))


def start_from_environment() -> contextlib.ExitStack:
    """Start tracing and debugging as the environment variables say; closing the returned stack ends both."""
    stack, trace = contextlib.ExitStack(), settings.level("POLYARR_TRACE")
    if trace:
        stack.enter_context(recording_makers())
        stack.enter_context(watch.observing(Tracer(launches=trace > 1)))
    if settings.is_on("POLYARR_DEBUG"):
        stack.enter_context(watch.observing(Debugger()))
    return stack


@atexit.register
def _end() -> None:
    with contextlib.suppress(BackendError):  # the device was lost, or the process was forked
        _for_ever.close()


_for_ever = start_from_environment()
