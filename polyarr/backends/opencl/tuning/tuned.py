"""Results of `polyarr tune`: a user file with entries by device, driver, kernel, dtype and class of shapes.

An entry is used only if all of these are unchanged, and after its parameters were checked once on this driver.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl
from platformdirs import user_config_dir

from polyarr.atomic import alone_in, write_whole
from polyarr.backends.opencl.copying.copy import download
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.plans import Plans
from polyarr.backends.opencl.runtime.pocl import processor_name, target_of
from polyarr.backends.opencl.runtime.source import source_of
from polyarr.backends.opencl.runtime.variants import Verdicts
from polyarr.core.errors import BackendError
from polyarr.core.tuning import Kept, Work
from polyarr.files import read_regular
from polyarr.schema import loaded_json

KEY = "tuned"  # of the list in the file
_MAX_FILE = 2**26  # bytes


class Entry(NamedTuple):
    """A measurement for work of this form and size. kernel is the checksum of the compiled source."""

    device: str
    driver: str
    kernel: str
    op: str
    dtype: str
    shape: str  # the class of shapes
    form: str
    size: list
    parameters: dict
    figures: dict
    date: str

    @property
    def what(self) -> tuple[str, ...]:
        """The key of which there is one entry at most; a newer one, of another driver for example, replaces it."""
        return self.device, self.op, self.dtype, self.shape


class Case(NamedTuple):
    """A runnable piece of work: host arrays, a function that computes results from their buffers, and a reference.

    expected returns the results in float64; each may differ by `error` times its largest magnitude.
    """

    arrays: list[np.ndarray]
    run: Callable[[Device, list[Any]], tuple[Any, ...]]
    expected: Callable[[], tuple[np.ndarray, ...]]
    error: float


class Tunable(NamedTuple):
    """An op whose kernels have parameters.

    Attributes:
        forms: The forms that its work may have.
        lookup: What launchers call as device.plans[lookup](...): it returns a tuple, the best parameters first.
        stem: (device) -> the kernels' file.
        fitting: (device, work, dict) -> parameters; None if the dict has none, or they do not fit.
        space: (device, work) -> parameters to try, the likeliest first.
        small: (device, work) -> problems that check parameters: the first one uses the programs of the work itself,
            another one has odd lengths.
        timed: (device, work) -> the work to time in its place, if all of it would take too long.
        shape: (device, work) -> its class of shapes.
        case: (work) -> Case.
        operations: (work) -> number of operations.
    """

    op: str
    forms: tuple[str, ...]
    lookup: Callable[..., tuple[Any, ...]]
    stem: Callable[[Device], str]
    fitting: Callable[[Device, Work, dict], Any]
    space: Callable[[Device, Work], Iterator[Any]]
    small: Callable[[Device, Work], tuple[Work, ...]]
    timed: Callable[[Device, Work], Work]
    shape: Callable[[Device, Work], str]
    case: Callable[[Work], Case]
    operations: Callable[[Work], int]


class NoParametersError(BackendError):
    """The work runs on kernels without parameters, such as a variant's."""


TUNABLES: dict[str, Tunable] = {}  # by op; filled by tune.py, since the ops' launchers import this module


# ---- trying ----------------------------------------------------------------------------------------------------


class Trial:
    """Launches of an op planned with certain parameters, or with the current ones if they are None."""

    def __init__(self, device: Device, tunable: Tunable, parameters: Any) -> None:
        self._device, self._plans, self.is_asked = device, device.plans, parameters is None
        if parameters is not None:
            self._plans, self._parameters = Plans(device), parameters
            self._plans[Verdicts] = device.plans[Verdicts]  # verdicts about the driver stay valid
            self._plans[tunable.lookup] = self._given

    def _given(self, *_: Any) -> tuple[Any, ...]:
        self.is_asked = True
        return (self._parameters,)

    def run(self, case: Case, buffers: list[Any]) -> tuple[Any, ...]:
        """Return the results of a case.

        Raises:
            BackendError: A kernel does not build, or the device refuses the launch.
        """
        with self._device.lock:
            before, self._device.plans = self._device.plans, self._plans
            try:
                return case.run(self._device, buffers)
            except cl.Error as error:
                raise BackendError(str(error)) from error
            finally:
                self._device.plans = before


def check(device: Device, tunable: Tunable, work: Work, parameters: Any, problems: int | None = None) -> None:
    """Compute the first `problems` small problems, or all, between canaries, and compare with NumPy.

    Raises:
        BackendError: A kernel does not build, a result is wrong, or memory outside the result was written.
    """
    for small in tunable.small(device, work)[:problems]:
        case = tunable.case(small)
        trial = Trial(device, tunable, parameters)
        with device.guarded():
            results = trial.run(case, [device.upload(x) for x in case.arrays])
            found = [download(device, result) for result in results]
        if not trial.is_asked:
            raise NoParametersError(f"{small} runs on kernels without parameters")
        for ours, expected in zip(found, case.expected(), strict=True):
            error, most = np.abs(ours.astype(np.float64) - expected).max(), case.error * np.abs(expected).max()
            if not error <= most:  # a nan is wrong, too
                raise BackendError(f"{small} is wrong by {error:.1e}; at most {most:.1e}")


# ---- looking up ------------------------------------------------------------------------------------------------


def device_of(device: Device) -> str:
    """Return the name of a device in entries; on a CPU with the processor's name, which a driver may not know."""
    name = device.cl_device.name.strip()
    return f"{processor_name()}; {name}" if device.geometry.is_measured else name


def driver_of(device: Device) -> str:
    """Return the name of the driver in entries, with its compilation target if it is known."""
    driver = f"{device.cl_device.platform.name.strip()} {device.cl_device.driver_version.strip()}"
    target = target_of(device.cl_device)
    return f"{driver} for {target}" if target else driver


@cache
def kernel_of(stem: str) -> str:
    """Return the checksum of a file of kernels with all that it includes."""
    return hashlib.sha256(source_of(stem).encode()).hexdigest()[:16]


def best(device: Device, op: str, dtype: np.dtype, shape: str) -> Any:
    """Return the measured parameters for a class of shapes; None if there are none that may be used."""
    for entry in _read_once():
        if entry.what == (device_of(device), op, dtype.name, shape) and not problem_of(device, entry):
            return _fitting(device, entry)
    return None


def problem_of(device: Device, entry: Entry) -> str:
    """Return why an entry is not used; empty if it is. Its parameters are checked once per driver."""
    tunable = TUNABLES.get(entry.op)
    if entry.device != device_of(device):
        return "it is another device's"
    if tunable is None:
        return f"{entry.op} has no parameters"
    if entry.driver != driver_of(device):
        return f"it was measured with {entry.driver}"
    if entry.kernel != kernel_of(tunable.stem(device)):
        return "its kernel has changed since"
    parameters = _fitting(device, entry)
    if parameters is None:
        return "the device cannot take its parameters"

    def find() -> str:
        try:
            check(device, tunable, work_of(entry), parameters)
        except BackendError as error:
            return str(error).partition("\n")[0]
        return ""

    key = json.dumps([*entry.what, entry.kernel, entry.form, entry.size, entry.parameters])
    return device.plans[Verdicts]().get(f"{KEY} {hashlib.sha256(key.encode()).hexdigest()[:32]}", find)


def entry(device: Device, work: Work, shape: str, parameters: Any, figures: dict[str, Any]) -> Entry:
    """Return the entry for a measurement, with today's date and the current kernels."""
    fields = parameters._asdict() if hasattr(parameters, "_asdict") else asdict(parameters)
    kernel, today = kernel_of(TUNABLES[work.op].stem(device)), time.strftime("%Y-%m-%d")
    return Entry(
        device_of(device), driver_of(device), kernel, work.op, work.dtype, shape, work.form, list(work.shape), fields,
        figures, today,
    )  # fmt: skip


def work_of(entry: Entry) -> Work:
    """Return the work that was measured."""
    return Work(entry.op, entry.dtype, tuple(entry.size), entry.form)


def _fitting(device: Device, entry: Entry) -> Any:
    return TUNABLES[entry.op].fitting(device, work_of(entry), entry.parameters)


def kept(device: Device) -> list[Kept]:
    """Return all entries of the user file, each with the reason why it is not used here."""
    return [
        Kept(e.op, e.dtype, e.shape, e.device, e.parameters, e.figures, e.date, problem_of(device, e))
        for e in _read_once()
    ]


def diagnose(device: Device) -> list[tuple[str, str]]:
    """Return lines for `polyarr doctor`: how many entries of a device are used, and which ones are not."""
    own = [(entry, problem_of(device, entry)) for entry in _read_once() if entry.device == device_of(device)]
    aside = [
        ("warning", f"{device.name}: what was tuned for {e.op} {e.dtype} {e.shape} is set aside: {problem}; "
         f"tune again: polyarr tune --device {device.name} --ops {e.op}")
        for e, problem in own if problem
    ]  # fmt: skip
    used = len(own) - len(aside)
    return [("ok", f"{device.name}: {used} measured choices of kernels are used ({user_file()})")] * bool(used) + aside


# ---- the file --------------------------------------------------------------------------------------------------


def user_file() -> Path:
    """Return the path of the user file."""
    return Path(user_config_dir("polyarr"), "tuned.json")


def read_user_file() -> list[Entry]:
    """Return the user's entries; none if there is no file.

    Raises:
        ValueError: The file has no list of entries.
        OSError: It cannot be read.
    """
    file = user_file()
    if not file.exists():
        return []
    whole = loaded_json(read_regular(file, _MAX_FILE))
    return entries_of(whole.get(KEY) if isinstance(whole, dict) else None)


def entries_of(found: Any) -> list[Entry]:
    """Return a list from JSON as entries.

    Raises:
        ValueError: It is not a list of entries.
    """
    if not isinstance(found, list) or not all(isinstance(each, dict) and _is_entry(each) for each in found):
        raise ValueError(f"it must hold a list {KEY!r} of entries with {', '.join(Entry._fields)}")
    return [Entry(**each) for each in found]


def _is_entry(found: dict[str, Any]) -> bool:
    return found.keys() == set(Entry._fields) and all(
        isinstance(found[name], kind) for name, kind in Entry.__annotations__.items()
    ) and all(type(n) is int and 0 < n < 2**31 for n in found["size"])  # fmt: skip


def change(entries: list[Entry], without: tuple[str, ...] | None = None) -> None:
    """Add or replace entries, and remove one by its key. The file is locked meanwhile.

    Raises:
        ValueError: The file, which stays as it is, cannot be parsed.
        OSError: It cannot be read or written.
    """
    file = user_file()
    gone = {entry.what for entry in entries} | {without}
    file.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(file.parent, None):
        before = read_user_file()
        after = [entry for entry in before if entry.what not in gone] + entries
        if after != before:
            write_whole(file, json.dumps({KEY: [entry._asdict() for entry in after]}, indent=1).encode())
    _read_once.cache_clear()


def diagnose_file() -> list[tuple[str, str]]:
    """Return a line for `polyarr doctor` if the user file cannot be used."""
    try:
        read_user_file()
    except (OSError, ValueError) as error:
        return [("warning", f"{user_file()} is not used: {error}; mend or delete it")]
    return []


@cache
def _read_once() -> list[Entry]:
    try:
        return read_user_file()
    except (OSError, ValueError):  # `polyarr doctor` reports it
        return []
