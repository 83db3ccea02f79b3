"""Variants of a kernel for some devices, which are tried before they are used; see docs/decisions/0016.

Each program of a variant is tried once on each driver with a small problem, between canaries, in a process of its own,
because a kernel that faults takes everything on a device with it. What was found is remembered with the compiled
kernels. What fails is set aside, and `polyarr doctor` says so.
"""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from polyarr.backends.opencl.runtime.caches import Store, store_of
from polyarr.backends.opencl.runtime.device import Device, Features
from polyarr.backends.opencl.runtime.source import source_of
from polyarr.core.errors import BackendError

TRIAL_SECONDS, KILLED = 120, -9
ENTRY = "variants"  # in the store of what is kept of a driver


class Variant(NamedTuple):
    """Kernels for some devices: for which, judging by what they say of themselves, and how they are tried.

    plan says how to launch, and is None for what they do not take. trial runs a few of them, for `polyarr doctor`; it
    raises BackendError if a result is wrong.
    """

    name: str
    stem: str
    may_suit: Callable[[Features], bool]
    plan: Callable[..., Any]
    trial: Callable[[Device], None]
    tells_precision: bool = False  # whether products of float32 may be less precise than float32 arithmetic


def kept_on(device: Device, entry: str) -> Store:
    """Where what was found of a device and its driver is kept."""
    cl_device = device.cl_device
    platform = cl_device.platform
    told = (entry, platform.name, platform.version, cl_device.name, cl_device.version, cl_device.driver_version)
    return store_of("\n".join(told))


class NotTriedError(BackendError):
    """There was no process, no memory or no device to try something with; the next process may have them."""


class Verdicts:
    """What was found of a device's variants and their programs, by name: empty if sound, else what is wrong."""

    def __init__(self, device: Device) -> None:
        self._store = kept_on(device, ENTRY)
        self._found: dict[str, str] = {}
        self.apart = Apart(device)

    def get(self, name: str, find: Callable[[], str]) -> str:
        """What is known of something, or is found now."""
        if name not in self._found:
            self._found = {**self._read(), **self._found}
        if name not in self._found:
            try:
                self._found[name] = find()
            except NotTriedError as error:
                self._found[name] = str(error)
                return self._found[name]
            self._store.save(ENTRY, json.dumps({**self._read(), name: self._found[name]}).encode())
        return self._found[name]

    def _read(self) -> dict[str, str]:
        """Of two processes that write at once one has to find out again."""
        try:
            return dict(json.loads(self._store.load(ENTRY) or b"{}"))
        except ValueError:
            return {}

    def known(self, name: str) -> str:
        """What is known to be wrong with something; empty if nothing is, or if it was never tried."""
        return self._found.get(name) or self._read().get(name, "")

    def set_aside(self) -> dict[str, str]:
        """What is known to be wrong."""
        return {name: reason for name, reason in {**self._read(), **self._found}.items() if reason}


class Apart:
    """Another process, in which a device does what may fault or hang. It is there from when it is first needed."""

    def __init__(self, device: Device) -> None:
        self._device, self._lock = device.name, threading.Lock()
        self._process: Any = None
        self._complaints: Any = None

    def wrong(self, function: Callable[..., None], *arguments: Any) -> str:
        """What is wrong with function(device, *arguments), which raises what it finds; empty if nothing is.

        Errors:  NotTriedError if that could not be found out
        """
        request = pickle.dumps((function, arguments))
        with self._lock:
            try:
                found = self._asked(request)
                found = self._asked(request) if found is None else found
                return "the process that tried it ended before it was done" if found is None else found
            except OSError as error:
                raise NotTriedError(f"no process to try it in: {error}") from error

    def _asked(self, request: bytes) -> str | None:
        """The answer, or how the process died of it; None if it had ended before, since nobody asked for a while."""
        if self._process is None:
            self._start()
        process, timer = self._process, threading.Timer(TRIAL_SECONDS, self._process.kill)
        timer.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            is_tried, wrong = pickle.load(process.stdout)
        except (BrokenPipeError, EOFError, pickle.UnpicklingError):
            self._process = None
            return self._end_of(process)
        except BaseException:  # whoever asked was interrupted, and the answer would be taken for another one's
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
        if code == 0:
            return None
        if code == KILLED:
            return f"did not end within {TRIAL_SECONDS} s"
        return lines[-1] if lines and code > 0 else f"the process that tried it ended with {code}"

    def _start(self) -> None:
        home = str(Path(__file__).parents[4])  # from where this process has polyarr
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        with ExitStack() as undone:
            self._complaints = undone.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "polyarr.backends.opencl.trial", self._device],
                env={**os.environ, "PYTHONPATH": path, "PYOPENCL_NO_CACHE": "1"}, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._complaints, start_new_session=True,  # Ctrl-C is not for it
            )  # fmt: skip
            undone.pop_all()
        weakref.finalize(self, _end, self._process, self._complaints)


def _end(process: subprocess.Popen, complaints: IO[bytes]) -> None:
    """Nobody asks any more."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, complaints):
        with suppress(OSError):
            stream.close()


def is_sound(device: Device, variant: Variant) -> bool:
    """True if programs of a variant may be tried on a device."""
    return device.plans[_is_sound](variant)


def _is_sound(device: Device, variant: Variant) -> bool:
    wanted = os.environ.get("POLYARR_VARIANTS")  # for tests and measurements
    if not variant.may_suit(device.features) or (wanted is not None and variant.name not in wanted.split(",")):
        return False
    return not device.plans[Verdicts]().known(_key(variant.name, source_of(variant.stem)))


def verdict(device: Device, variant: Variant) -> str:
    """What is wrong with a variant's own trial; empty if nothing is."""
    verdicts = device.plans[Verdicts]()
    return verdicts.get(_key(variant.name, source_of(variant.stem)), lambda: verdicts.apart.wrong(variant.trial))


def is_sound_program(device: Device, variant: Variant, macros: dict[str, Any], check: partial) -> bool:
    """True if one program of a variant computes rightly, which is tried once.

    check is a partial of a module's function, with the device as its first argument; it raises BackendError if a result
    is wrong. Where the driver keeps what it compiled, this process gets it from there.
    """

    def find() -> str:
        wrong = verdicts.apart.wrong(check.func, *check.args[1:])
        return wrong and f"{' '.join(f'{k}={v}' for k, v in macros.items())}: {wrong}"

    text, verdicts = device.programs.text(variant.stem, macros), device.plans[Verdicts]()
    return not verdicts.get(_key(variant.name, text), find)


def _key(name: str, text: str) -> str:
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def diagnose(device: Device, variants: tuple[Variant, ...]) -> list[tuple[str, str]]:
    """Lines for `polyarr doctor`: the variants that a device may be fit for, and what was set aside."""
    fit = [v for v in variants if v.may_suit(device.features)]
    lines = []
    for variant in fit:
        wrong = verdict(device, variant)
        state = ("warning", f"is set aside: {wrong}") if wrong else ("ok", "was tried on this driver, and is used")
        lines.append((state[0], f"{device.name}: the variant {variant.name} {state[1]}"))
    whole, names = {_key(v.name, source_of(v.stem)) for v in fit}, {v.name for v in variants}
    for name, reason in device.plans[Verdicts]().set_aside().items():
        if name.split()[0] in names and name not in whole:
            lines.append(("warning", f"{device.name}: a program of {name.split()[0]} is set aside: {reason}"))
    return lines
