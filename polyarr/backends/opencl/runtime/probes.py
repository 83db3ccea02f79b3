"""Probe processes, which run what may fault or hang on a device, or takes long: see trial.py for their side."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, LifoQueue
from typing import IO, Any

from polyarr.core.errors import BackendError

TRIAL_SECONDS, KILLED = 120, -9
MOST = 6  # processes at once: NVIDIA's driver makes their contexts one after the other, 0.3 s each on an H200
ANNOUNCED = "polyarr:next:"  # prefix, on stderr, of the probe process's next action


class NotTriedError(BackendError):
    """A check could not run for lack of a process, memory or a device; a later process may succeed."""


class ProbeProcess:
    """A probe process, which runs what may fault or hang on a device. It starts when it is first needed."""

    def __init__(self, device: str) -> None:
        self._device, self._lock = device, threading.Lock()
        self._process: Any = None
        self._complaints: Any = None

    def wrong(self, function: Callable[..., None], *arguments: Any) -> str:
        """Return what is wrong with function(device, *arguments), which raises it; empty if nothing is.

        Raises:
            NotTriedError: The function could not run.
        """
        request = pickle.dumps((function, arguments))
        with self._lock:
            try:
                found = self._asked(request)
                found = self._asked(request) if found is None else found
                return "the process that tried it ended before it was done" if found is None else found
            except OSError as error:
                raise NotTriedError(f"no process to try it in: {error}") from error

    def end(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            if self._process is not None:
                _end(self._process, self._complaints)
                self._process = None

    def _asked(self, request: bytes) -> str | None:
        """Return the answer, or how the process died; None if it had ended before, as idle processes do."""
        process = self._process or self._start()
        timer = threading.Timer(TRIAL_SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            is_tried, wrong = pickle.load(process.stdout)
        except (BrokenPipeError, EOFError, pickle.UnpicklingError):
            self._process = None
            return self._end_of(process)
        except BaseException:  # interrupted: the answer would be taken for that to another request
            self._process = None
            _end(process, self._complaints)
            raise
        finally:
            timer.cancel()
        if not is_tried:
            raise NotTriedError(wrong)
        return wrong

    def _end_of(self, process: Any) -> str | None:
        code = process.wait()
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        _end(process, self._complaints)
        steps = [line.removeprefix(ANNOUNCED) for line in lines if line.startswith(ANNOUNCED)]
        said = [line for line in lines if not line.startswith(ANNOUNCED)]
        where = f", last seen in {steps[-1]}" if any(steps[-1:]) else ""
        if code == 0:
            return None
        if code == KILLED:
            return f"did not end within {TRIAL_SECONDS} s{where}"
        if code < 0:
            return f"the process that tried it was ended by signal {-code} ({signal.Signals(-code).name}){where}"
        return f"the process that tried it ended with {code}{where}{': ' + said[-1] if said else ''}"

    def _start(self) -> Any:
        home = str(Path(__file__).parents[4])  # where this process imports polyarr from
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        with ExitStack() as undone:
            self._complaints = undone.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "polyarr.backends.opencl.trial", self._device],
                env={**os.environ, "PYTHONPATH": path, "PYOPENCL_NO_CACHE": "1"}, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._complaints, start_new_session=True,  # Ctrl-C must not reach it
            )  # fmt: skip
            undone.pop_all()
        weakref.finalize(self, _end, self._process, self._complaints)
        return self._process


class ProbeProcesses:
    """Probe processes of a device; as many as there are calls at once, up to a number that leaves the host cores."""

    def __init__(self, device: str) -> None:
        count = max(1, min(MOST, (os.cpu_count() or 1) // 2))
        self._idle = LifoQueue[ProbeProcess]()  # the one that was used last is the first to be used again
        for _ in range(count):
            self._idle.put(ProbeProcess(device))
        self._threads = ThreadPoolExecutor(count, "polyarr-probe")

    def wrong(self, function: Callable[..., None], *arguments: Any) -> str:
        """Return what is wrong with function(device, *arguments): see ProbeProcess."""
        process = self._idle.get()
        try:
            return process.wrong(function, *arguments)
        except NotTriedError:  # perhaps because the others hold memory of the device
            self._end_idle()
            return process.wrong(function, *arguments)
        finally:
            self._idle.put(process)

    def submit(self, function: Callable[..., None], *arguments: Any) -> Future[str]:
        """Return the future of `wrong`, in another thread."""
        return self._threads.submit(self.wrong, function, *arguments)

    def _end_idle(self) -> None:
        idle = list[ProbeProcess]()
        with suppress(Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for process in idle:
            process.end()
            self._idle.put(process)


def _end(process: subprocess.Popen, complaints: IO[bytes]) -> None:
    """End the process."""
    process.kill()
    process.wait()
    for stream in filter(None, (process.stdin, process.stdout, complaints)):
        with suppress(OSError):
            stream.close()
